"""`regard train`: a recipe to a run."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.core import Json, Quiet, Runs
from regard.errors import RecipeError


def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A name from `regard list`, or a .toml file.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Instead of RECIPE: go on with a run that was stopped.")
    ] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model by a recipe, on its data or yours.

    One's own pairs are one override: regard train dates data.train=pairs.tsv

    So are the weights of another run to start from: train.start_from=runs/dates
    """
    from regard import training
    from regard.tasks import task_class

    if (recipe is None) == (resume is None):
        raise RecipeError("give a RECIPE to train, or --resume RUN to go on with one, and not both")
    if resume is None:
        assert recipe is not None
        run = training.train(recipe, *(overrides or []), runs=runs, quiet=quiet)
    else:
        run = training.resume(resume, quiet=quiet)
    last = run.metrics()[-1]
    if as_json:
        print(json.dumps({"run": str(run.path)} | last))
        return
    print(run.path)
    if not quiet:
        look = f'regard look {run.path} "..."; ' if task_class(run.recipe().task).shows else ""
        print(f"next: {look}regard predict {run.path} FILE", file=sys.stderr)
