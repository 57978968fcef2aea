"""`regard config`: write a recipe with every key, its meaning and its values; what is not set is commented out."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import completion
from regard.cli.core import Overrides, check_outputs, say, stdout_width, write_line
from regard.errors import RecipeError, shown

if TYPE_CHECKING:
    from regard.recipe import Recipe

RECIPE = typer.Argument(
    metavar="[RECIPE]",
    help="A name from `regard list`, or a .toml file.  [default: no recipe]",
    autocompletion=completion.recipe_names,
)
OUT = typer.Option("--out", "-o", metavar="FILE", help="The file to write, such as mine.toml.  [default: stdout]")
WIDTH = 100  # columns of a comment
TOP = "A recipe of regard: remove the # before a key to set it; each has its default there. Train it: regard train FILE"
INHERITED = "not set: as model.attention"


def config(
    recipe: Annotated[str | None, RECIPE] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, OUT] = None,
) -> None:
    """Write a recipe with all keys explained.

    Every key has its meaning, its default and the values that it may have. Keys that RECIPE or KEY=VALUE set are set;
    all others are commented out. The file means what the recipe means: regard config dates -o mine.toml
    A file that exists is not replaced.
    """
    from regard import recipe as recipes
    from regard import storage

    overrides = overrides or []
    if recipe is not None and "=" in recipe:  # there is no RECIPE: all are overrides
        overrides = [recipe, *overrides]
        recipe = None
    if recipe is None:
        settings = recipes.override_all(recipes.Recipe(), overrides, recipes.COMMAND_LINE)
        chosen, about = set(recipes.overridden(overrides)), list[str]()
    else:
        settings = recipes.load(recipe, overrides, recipes.COMMAND_LINE)
        chosen, about = set(recipes.origins(recipe, overrides)), recipes.comment(recipe)
    width = WIDTH if out else stdout_width() or WIDTH
    lines = list(commented(settings, chosen, about, width))
    if out is None:
        for line in lines:
            write_line(line)
        return
    check_outputs([out], [Path(recipe)] if recipe and recipe.endswith(".toml") else [])
    if out.is_file():
        raise RecipeError(f"{shown(out)} exists, and may have been edited; give another name, or remove it first")
    storage.write(out, "".join(f"{line}\n" for line in lines).encode())
    say(f"written: {out}; train it with: regard train {out}")


def commented(settings: "Recipe", chosen: set[str], about: list[str], width: int = WIDTH) -> Iterator[str]:
    """The lines of the recipe; `chosen` are the keys that are set, `about` the first lines."""
    from regard import catalogue
    from regard import recipe as recipes

    meanings, choices, limits = catalogue.meanings(), catalogue.choices(), recipes.limits()
    defaults = recipes.values(recipes.Recipe())
    for paragraph in (" ".join(about), TOP):
        yield from _comment(paragraph, width)
    yield f"format = {recipes.FORMAT}"
    for section, keys in groupby(recipes.entries(settings), key=itemgetter(0)):
        yield from ["", f"[{section}]"] if section else []
        for _, key, value in keys:
            name = f"{section}.{key}" if section else key
            default = defaults[name]
            is_set = name in chosen and value is not None
            notes = [meanings[name]]
            if name in choices:
                notes.append(f"one of {', '.join(choices[name])}")
            if name in limits:
                least, most = limits[name]
                notes.append(f"from {least:,} to {most:,}")
            if default is None:
                notes.append(INHERITED)
            elif is_set:
                notes.append(f"default {recipes.encoded(default)}")
            yield ""
            yield from _comment("; ".join(notes), width)
            shown = value if is_set else defaults.get(f"model.attention.{key}") if default is None else default
            yield f"{'' if is_set else '# '}{key} = {recipes.encoded(shown)}"


def _comment(text: str, width: int) -> Iterator[str]:
    yield from (f"# {line}" for line in wrap(text, width - 2, break_long_words=False, break_on_hyphens=False))
