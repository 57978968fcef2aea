"""What shells complete: names of recipes and runs, keys of recipes and their values; without torch, which is slow.

Bash takes `=` for the end of a word: it passes `KEY`, `=` and the beginning of the value, and expects the value alone.
If nothing of the value is there, click leaves out the `=`, too.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from typer import Context

from regard.errors import RegardError

CHANGES = ("overrides", "values", "recipes_and_runs")  # what commands call their arguments KEY=VALUE
MANIFEST = "manifest.json"  # as in storage, which imports numpy


def recipe_names(context: Context, incomplete: str) -> list[str]:
    """The recipes that come with regard."""
    from regard import recipe as recipes

    return _beginning(recipes.names(), incomplete)


def run_names(context: Context, incomplete: str) -> list[str]:
    """The runs in the folder of runs, or in that of the path that is begun."""
    folder = Path(context.params.get("runs") or "runs")
    if "/" in incomplete:
        folder = Path(incomplete if incomplete.endswith("/") else Path(incomplete).parent)
    with suppress(OSError):
        paths = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
        return _beginning((str(path) if "/" in incomplete else path.name for path in paths), incomplete)
    return []


def recipes_and_runs(context: Context, incomplete: str) -> list[str]:
    """Names of recipes, and of runs with their folder."""
    folder = context.params.get("runs") or "runs"
    runs = (f"{folder}/{name}" for name in run_names(context, ""))
    inside = run_names(context, incomplete) if "/" in incomplete else []
    return [*recipe_names(context, incomplete), *dict.fromkeys([*_beginning(runs, incomplete), *inside])]


def overrides(context: Context, incomplete: str) -> list[str]:
    """`KEY=VALUE` for the keys that begin so, with the value of the recipe; for one key, all values of its table."""
    from regard import recipe as recipes

    given: list[str] = next((context.params[name] for name in CHANGES if context.params.get(name)), [])
    before, last = ["", "", *given][-2:]
    if last == "=" or last in recipes.values(recipes.Recipe()):
        return _values_of(before if last == "=" else last, incomplete)
    key, equals, beginning = incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in _values_of(key, beginning)]
    recipe = recipes.Recipe()
    with suppress(RegardError):
        recipe = recipes.load(context.params.get("recipe") or context.params.get("recipe_or_run") or "")
    values = {name: value for name, value in recipes.values(recipe).items() if name.startswith(key)}
    if len(values) == 1:
        (name,) = values
        if several := _values_of(name, ""):
            return [f"{name}={value}" for value in several]
    return [f"{name}={_as_argument(value)}" for name, value in values.items()]


def recipes_runs_and_overrides(context: Context, incomplete: str) -> list[str]:
    """For `compare`: recipes, runs and changes."""
    return recipes_and_runs(context, incomplete) or overrides(context, incomplete)


def table_names(context: Context, incomplete: str) -> list[str]:
    """The tables of `regard list`."""
    from regard.catalogue import TABLES

    return _beginning(["recipes", *TABLES], incomplete)


def _values_of(key: str, beginning: str) -> list[str]:
    """The values that a key may have, if they are few: the entries of its table, true and false."""
    from regard import recipe as recipes
    from regard.catalogue import choices

    default = recipes.values(recipes.Recipe()).get(key)
    return _beginning(["true", "false"] if isinstance(default, bool) else choices().get(key, []), beginning)


def _as_argument(value: Any) -> str:
    """A value as it is written on the command line; empty if none is set."""
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
