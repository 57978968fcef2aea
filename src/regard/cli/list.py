"""`regard list`: the entries of every table."""

from typing import Annotated

import typer

from regard.cli.core import Json, note, to_json, write_line

TABLE = typer.Argument(metavar="[TABLE]", help="Only this table, such as scores.")


def list_tables(what: Annotated[str | None, TABLE] = None, as_json: Json = False) -> None:
    """List the entries of every table: the recipes, and the values of recipe keys."""
    from regard import plugins
    from regard.catalogue import tables
    from regard.errors import pick

    chosen = {what: pick(tables(), what, "table")} if what else tables()
    if as_json:
        write_line(to_json({name: table.lines() for name, table in chosen.items()}))
        return
    for name, table in chosen.items():
        write_line(f"{name}  ({table.key})")
        for entry, description in table.lines().items():
            write_line(f"  {entry:<16} {description}".rstrip())
    for sentence in plugins.misplaced():
        note(sentence)
