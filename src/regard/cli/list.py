"""`regard list`: the entries of every table."""

from typing import Annotated

import typer

from regard.cli import completion
from regard.cli.core import Json, note, to_json, write_beside, write_line

NARROWEST = 16  # columns of the names
TABLE = typer.Argument(
    metavar="[TABLE]", help="Only this table, such as scores.", autocompletion=completion.table_names
)


def list_tables(what: Annotated[str | None, TABLE] = None, as_json: Json = False) -> None:
    """List the recipes and all other tables.

    The other tables have the values of recipe keys, such as the scores of attention, and the interventions.
    """
    from regard import plugins
    from regard import recipe as recipes
    from regard.catalogue import tables
    from regard.errors import RecipeError, pick

    if what in recipes.names() and what not in tables():
        raise RecipeError(f"{what} is a recipe, and no table; its values: regard show {what}")
    chosen = {what: pick(tables(), what, "table")} if what else tables()
    if as_json:
        write_line(to_json({name: table.lines() for name, table in chosen.items()}))
        return
    for name, table in chosen.items():
        write_line(f"{name}  ({table.key})")
        lines = table.lines()
        margin = max(NARROWEST, *map(len, lines)) + 3  # before the descriptions
        for entry, description in lines.items():
            write_beside(f"  {entry:<{margin - 2}}", description)
    for sentence in plugins.misplaced():
        note(sentence)
