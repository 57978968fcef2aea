"""`regard sweep`: train a recipe with all combinations of some values, and compare the runs."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli import completion
from regard.cli.compare import Data, Metric, Out, check_pictures, print_comparison
from regard.cli.core import RECIPE, Beam, Json, Quiet, Runs, data_files, found_files
from regard.errors import RecipeError, RegardError, quantity

VALUES = typer.Argument(
    metavar="KEY=[A,B,...]...",
    help="Keys with the values to try; KEY=VALUE holds for all runs.",
    autocompletion=completion.overrides,
)
JOBS = typer.Option(min=1, help="Runs that are trained at a time.  [default: by the cores; on a GPU 1]")
RAY = typer.Option(metavar="ADDRESS", help="Train on a Ray cluster, HOST:PORT, or on a new one here: local.")


def sweep(
    recipe: Annotated[str, RECIPE],
    values: Annotated[list[str], VALUES],
    jobs: Annotated[int | None, JOBS] = None,
    ray: Annotated[str | None, RAY] = None,
    data: Data = None,
    metric: Metric = None,
    beam: Beam = None,
    out: Out = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train all combinations of values; compare.

    Each combination is a run of its own, trained in a local process. At the end, all are compared as by regard compare:

    regard sweep reverse 'model.decoder.order=[bahdanau,luong,none]' 'train.seed=[1,2]' train.updates=300

    The quotes keep the shell from reading the brackets. A run that fails does not stop the others. After Ctrl-C, the
    same command goes on: what is finished is not trained again, what was stopped is resumed.

    With --ray, the runs are trials of Ray Tune, on the machines of a Ray cluster; all must have the folders of data and
    runs under the same paths.
    """
    from regard import recipe as recipes
    from regard.console import ProgressLog

    if ray == "":
        raise RecipeError("--ray needs the address of a Ray cluster, HOST:PORT, or local")
    settings = recipes.load(recipe)
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.analysis import sweeping

        check_pictures(out or [], lambda: [Path(recipe), *data_files(settings), *found_files(data or [])])
        swept = sweeping.sweep(
            settings,
            *values,
            data=data or (),
            metric=metric,
            beam=beam,
            runs=runs,
            jobs=jobs or 0,
            ray=ray or "",
            quiet=quiet,
        )
    print_comparison(swept, out or [], as_json=as_json, quiet=quiet)
    if swept.failed:
        raise RegardError(f"{quantity(len(swept.failed), 'run')} of the sweep failed: {', '.join(swept.failed)}")
