"""`regard list`: the entries of every table."""

import sys
from typing import Annotated

import typer

from regard.cli.core import Json, note, to_json, write_line
from regard.visible import is_terminal

NARROWEST = 16  # columns of the names
TABLE = typer.Argument(metavar="[TABLE]", help="Only this table, such as scores.")


def list_tables(what: Annotated[str | None, TABLE] = None, as_json: Json = False) -> None:
    """List the recipes and all other tables.

    The other tables have the values of recipe keys, such as the scores of attention.
    """
    from regard import plugins
    from regard.catalogue import tables
    from regard.errors import pick

    chosen = {what: pick(tables(), what, "table")} if what else tables()
    if as_json:
        write_line(to_json({name: table.lines() for name, table in chosen.items()}))
        return
    for name, table in chosen.items():
        write_line(f"{name}  ({table.key})")
        lines = table.lines()
        margin = max(NARROWEST, *map(len, lines)) + 3  # before the descriptions
        for entry, description in lines.items():
            first, *others = _wrapped(description, margin)
            write_line(f"  {entry:<{margin - 2}}{first}".rstrip())
            for line in others:
                write_line(" " * margin + line)
    for sentence in plugins.misplaced():
        note(sentence)


def _wrapped(description: str, margin: int) -> list[str]:
    """A description in lines that fit beside the names in a terminal; elsewhere it stays whole."""
    if not is_terminal(sys.stdout):
        return [description]
    from rich.console import Console

    from regard.console import wrapped

    return [line.strip() for line in wrapped(description, Console().width - margin).split("\n")]
