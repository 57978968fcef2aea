"""`regard compare`: train and score recipes and runs on the same examples."""

import sys
from collections.abc import Callable
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli import completion
from regard.cli.core import (
    Beam,
    Json,
    Quiet,
    Runs,
    check_outputs,
    data_files,
    found_files,
    input_files,
    note,
    say,
    to_json,
    write_line,
)
from regard.visible import is_terminal

if TYPE_CHECKING:
    from regard.analysis.comparison import Comparison

RECIPES_AND_RUNS = "Names from `regard list`, .toml files, run directories; keys to change."
ENTRANTS = typer.Argument(
    metavar="RECIPE_OR_RUN...", help=RECIPES_AND_RUNS, autocompletion=completion.recipes_runs_and_overrides
)
DATA = "As data.test; may be repeated.  [default: the test set of all, or their dev set]"
OUT = "Picture file, .svg or .png; may be repeated.  [default: compare.svg and .png beside the runs]"
METRIC = "See `regard list metrics`.  [default: the recipe's]"
Data = Annotated[list[str] | None, typer.Option(metavar="FILE", help=DATA)]
Metric = Annotated[str | None, typer.Option(help=METRIC)]
Out = Annotated[list[Path] | None, typer.Option("--out", "-o", help=OUT)]


def compare(
    recipes_and_runs: Annotated[list[str], ENTRANTS],
    data: Data = None,
    metric: Metric = None,
    beam: Beam = None,
    out: Out = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train recipes and compare their scores.

    Finished runs are taken as they are. It prints a table, and draws a chart by source length.

    KEY=VALUE changes the recipe before it, as in regard train; before the first recipe, it changes all of them:

    regard compare train.updates=300 reverse reverse model.decoder.order=none runs/mine

    A recipe that was trained before, on the same data, is not trained again. Recipes or runs that differ in seeds and
    name alone are joined: mean and standard deviation. The others are tested against the first one.
    """
    from regard.console import ProgressLog

    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.analysis import comparison

        check_pictures(out or [], lambda: _input_files(recipes_and_runs, data or []))
        compared = comparison.compare(*recipes_and_runs, data=data or (), metric=metric, beam=beam, runs=runs)
    print_comparison(compared, out or [], as_json=as_json, quiet=quiet)


def check_pictures(out: list[Path], inputs: Callable[[], list[Path]]) -> None:
    """Refuse a picture with a wrong ending, without its package, or in place of an input, before the work."""
    from regard import storage
    from regard.analysis import comparison

    for path in out:
        comparison.check_ending(path.suffix)
    if out:
        check_outputs(out, inputs())
        for path in out:
            storage.check_place(path)


def print_comparison(compared: "Comparison", out: list[Path], *, as_json: bool, quiet: bool) -> None:
    """Print the table of a comparison, or its JSON, and draw its pictures."""
    from regard import storage
    from regard.errors import MissingExtraError

    width = get_terminal_size().columns if is_terminal(sys.stdout) else None
    lines = map(to_json, compared.to_dicts()) if as_json else compared.table(width).split("\n")[:-1]
    for line in lines:
        write_line(line)
    print(end="", flush=True)
    pictures = out or compared.pictures()
    if not pictures and not quiet:
        say(f"no picture: {compared.examples} have no lengths of their own")
    for path in pictures:
        try:
            storage.write(path, compared.draw(path.suffix))
        except MissingExtraError as error:
            note(f"{path} is left out: {error}")
            continue
        if not quiet:
            say(f"drawn: {path}")


def _input_files(recipes_and_runs: list[str], data: list[str]) -> list[Path]:
    """All files that the comparison reads: of --data, of runs, of recipes, and the data that these name."""
    from regard.analysis import comparison

    files = [Path(name) for name in recipes_and_runs if name.endswith(".toml")]
    for recipe, run in comparison.recipes_and_runs(recipes_and_runs):
        files += data_files(recipe) if run is None else input_files(str(run.path))
        files += input_files(recipe.train.start_from) if recipe.train.start_from else []
    return [*files, *found_files(data)]
