"""`regard show`: all values of a recipe or of a run, what they mean and where they come from."""

import sys
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli import completion
from regard.cli.core import Json, Overrides, stdout_width, to_json, write_line
from regard.visible import is_terminal

if TYPE_CHECKING:
    from regard.recipe import Recipe
    from regard.storage import Run

RECIPE_OR_RUN = typer.Argument(
    metavar="RECIPE_OR_RUN",
    help="A name from `regard list`, a .toml file, or a run directory, such as runs/dates.",
    autocompletion=completion.recipes_and_runs,
)
OF_RUN = "set for this run"  # where a value comes from that neither the default nor a recipe of regard has
WIDTH = 100  # columns of a comment, if it is not printed in a terminal


def show(recipe_or_run: Annotated[str, RECIPE_OR_RUN], overrides: Overrides = None, as_json: Json = False) -> None:
    """Print every value of a recipe, or of a run.

    Each has its meaning and where it comes from; the output is a recipe that can be trained, too. Sections of other
    tasks than that of the recipe are left out. A run stores its values, but not where they came from: they are compared
    with the defaults, and with regard's recipe of the same name.
    """
    from regard import catalogue
    from regard import recipe as recipes
    from regard.console import wrapped

    run = _run(recipe_or_run)
    if run is None:
        settings = recipes.load(recipe_or_run, overrides or [], recipes.COMMAND_LINE)
        origins = recipes.origins(recipe_or_run, overrides or [])
    else:
        settings, origins = run.recipe(), _origins(run.recipe(), overrides or [])
        for text in overrides or []:
            settings = recipes.override(settings, text, recipes.COMMAND_LINE)
    meanings = catalogue.meanings()
    width = stdout_width() or WIDTH
    others = {*recipes.TASK_SECTIONS} - {settings.task}

    def comment(text: str) -> None:
        for line in wrapped(text, width - 2).split("\n"):
            write_line(f"# {line.strip()}")

    if not as_json:
        write_line(f"format = {recipes.FORMAT}")
    for section, keys in groupby(recipes.entries(settings), key=itemgetter(0)):
        if section.partition(".")[0] in others:
            continue
        if section and not as_json:
            write_line("")
            write_line(f"[{section}]")
        unset = []
        for _, key, value in keys:
            name = f"{section}.{key}" if section else key
            origin = origins.get(name, "default")
            if as_json:
                write_line(to_json({"key": name, "value": value, "from": origin, "meaning": meanings[name]}))
            elif value is None:
                unset.append(key)
            else:
                comment(f"{meanings[name]} ({origin})")
                for line in assignment(key, value, width):
                    write_line(line)
        if unset:
            comment(f"as model.attention: {', '.join(unset)}")


def _run(name: str) -> "Run | None":
    """The run of that name; None if it is a recipe. A path that is neither is refused as a run."""
    from regard import recipe as recipes

    path = Path(name)
    if name in recipes.names() or path.suffix == ".toml":
        return None
    from regard.storage import Run  # imports numpy, which a recipe does not need

    return Run.open(path) if len(path.parts) > 1 or Run.at(path) else None


def _origins(recipe: "Recipe", overrides: list[str]) -> dict[str, str]:
    """Where the values of a run's recipe seem to come from: those that are not the default, and those of overrides."""
    from regard import recipe as recipes

    origins = dict.fromkeys(recipes.changed(recipe), OF_RUN)
    if recipe.name in recipes.names():
        named = recipes.load(recipe.name)
        theirs, own = recipes.values(named), recipes.values(recipe)
        origins |= {
            key: f"as in {origin}" for key, origin in recipes.origins(recipe.name).items() if theirs[key] == own[key]
        }
    return origins | recipes.overridden(overrides)


def assignment(key: str, value: Any, width: int) -> list[str]:
    """The TOML lines of a key; a list that is too wide for a terminal has a line for each item."""
    from regard.recipe import encoded

    line = f"{key} = {encoded(value)}"
    if len(line) <= width or not isinstance(value, tuple) or not is_terminal(sys.stdout):
        return [line]
    return [f"{key} = [", *(f"  {encoded(item)}," for item in value), "]"]
