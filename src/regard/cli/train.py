"""`regard train`: train a model from a recipe, or resume a run."""

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
        str | None, typer.Option(metavar="RUN", help="Instead of RECIPE: resume a run that was stopped.")
    ] = None,
    runs: Runs = Path("runs"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from a recipe, on its data or on yours.

    To train on your own pairs: regard train dates data.train=pairs.tsv

    To start from the weights of another run, add: train.start_from=runs/dates
    """
    from regard import training
    from regard.tasks import task_class

    if (recipe is None) == (resume is None):
        raise RecipeError("give a RECIPE to train, or --resume RUN to resume a run, and not both")
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
