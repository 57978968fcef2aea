"""`regard train`: train a model from a recipe, or resume a run."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.core import RECIPE, Json, Overrides, Quiet, Runs, say, write_line
from regard.errors import RecipeError

EXACT = typer.Option("--exact", help="With --resume: refuse if torch, processor, GPU or threads are not as before.")
RESUME = typer.Option(
    metavar="RUN", help="Instead of RECIPE: resume a run that was stopped; with train.updates=N, prolong any run."
)


def train(
    recipe: Annotated[str | None, RECIPE] = None,
    overrides: Overrides = None,
    resume: Annotated[str | None, RESUME] = None,
    exact: Annotated[bool, EXACT] = False,
    runs: Runs = Path("runs"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from a recipe, on its data or on yours.

    To train on your own pairs: regard train dates data.train=pairs.tsv

    To start from the weights of another run, add: train.start_from=runs/dates

    To prolong a run, finished or not: regard train --resume runs/dates train.updates=2000
    """
    from regard import training
    from regard.tasks import task_class

    if exact and resume is None:
        raise RecipeError("--exact is for runs that are resumed; write: regard train --resume RUN --exact")
    if recipe is not None and resume is None:
        run = training.train(recipe, *(overrides or []), runs=runs, quiet=quiet)
    elif resume is not None and (recipe is None or "=" in recipe):  # there is no RECIPE: all are overrides
        run = training.resume(resume, *filter(None, [recipe, *(overrides or [])]), exact=exact, quiet=quiet)
    else:
        raise RecipeError("give a RECIPE to train, or --resume RUN to resume a run, and not both")
    last = run.metrics()[-1]
    if as_json:
        write_line(json.dumps({"run": str(run.path)} | last))
        return
    write_line(str(run.path))
    if not quiet:
        quoted = shlex.quote(str(run.path))
        look = f'regard look {quoted} "..."; ' if task_class(run.recipe().task).shows else ""
        say(f"next: {look}regard predict {quoted} FILE")
