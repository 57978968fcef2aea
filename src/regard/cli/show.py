"""`regard show`: all values of a recipe, what they mean and where they come from."""

import dataclasses
import sys
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any

from regard.cli.core import RECIPE, Json, Overrides, stdout_width, to_json, write_line
from regard.visible import is_terminal

WIDTH = 100  # columns of a comment, if it is not printed in a terminal


def show(recipe: Annotated[str, RECIPE], overrides: Overrides = None, as_json: Json = False) -> None:
    """Print every value of a recipe.

    Each has its meaning and where it comes from; the output is a recipe that can be trained, too. Sections of other
    tasks than that of the recipe are left out.
    """
    from regard import catalogue
    from regard import recipe as recipes
    from regard.console import wrapped

    settings, meanings = recipes.load(recipe, overrides or [], recipes.COMMAND_LINE), catalogue.meanings()
    origins = recipes.origins(recipe, overrides or [])
    width = stdout_width() or WIDTH
    others = {*recipes.TASK_SECTIONS} - {settings.task}

    def comment(text: str) -> None:
        for line in wrapped(text, width - 2).split("\n"):
            write_line(f"# {line.strip()}")

    if not as_json:
        write_line(f"format = {recipes.FORMAT}")
    for section, entries in groupby(_keys(settings, ""), key=itemgetter(0)):
        if section.partition(".")[0] in others:
            continue
        if section and not as_json:
            write_line("")
            write_line(f"[{section}]")
        unset = []
        for _, key, value in entries:
            name = f"{section}.{key}" if section else key
            origin = origins.get(name, "default")
            if as_json:
                write_line(to_json({"key": name, "value": value, "from": origin, "meaning": meanings[name]}))
            elif value is None:
                unset.append(key)
            else:
                comment(f"{meanings[name]} ({origin})")
                for line in _assignment(key, value, width):
                    write_line(line)
        if unset:
            comment(f"as model.attention: {', '.join(unset)}")


def _assignment(key: str, value: Any, width: int) -> list[str]:
    """The TOML lines of a key; a list that is too wide for a terminal has a line for each item."""
    from regard.recipe import encoded

    line = f"{key} = {encoded(value)}"
    if len(line) <= width or not isinstance(value, tuple) or not is_terminal(sys.stdout):
        return [line]
    return [f"{key} = [", *(f"  {encoded(item)}," for item in value), "]"]


def _keys(section: Any, prefix: str) -> Iterator[tuple[str, str, Any]]:
    """The section, the name and the value of all keys, those of a section before its sub-sections."""
    values = [(field.name, getattr(section, field.name)) for field in dataclasses.fields(section)]
    for name, value in values:
        if not dataclasses.is_dataclass(value):
            yield prefix, name, value
    for name, value in values:
        if dataclasses.is_dataclass(value):
            yield from _keys(value, f"{prefix}.{name}" if prefix else name)
