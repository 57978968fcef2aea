"""`regard train`: train a model from a recipe, or resume a run."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from regard.cli import completion
from regard.cli.core import RECIPE, Json, Overrides, Quiet, Runs, write_line
from regard.errors import RecipeError

LONGEST_SOURCE = 80  # characters of a source that the suggested command repeats
EXACT = typer.Option("--exact", help="With --resume: refuse if torch, processor, GPU or threads are not as before.")
LOG = typer.Option(
    metavar="NAME=PLACE",
    help="Record the course: tensorboard=FOLDER, wandb=PROJECT or mlflow=FOLDER; may be repeated. Not with --ray.",
)
DRY_RUN = typer.Option("--dry-run", help="Check recipe and data and say what would be trained; write nothing.")
RESUME = typer.Option(
    metavar="RUN",
    help="Instead of RECIPE: resume a run that was stopped; with train.updates=N, prolong any run.",
    autocompletion=completion.run_names,
)
RAY = typer.Option(metavar="ADDRESS", help="Train on a Ray cluster, HOST:PORT, or on a new one here: local.")
PROCESSES = typer.Option(min=1, help="With --ray: train with so many processes.")


def train(
    recipe: Annotated[str | None, RECIPE] = None,
    overrides: Overrides = None,
    resume: Annotated[str | None, RESUME] = None,
    exact: Annotated[bool, EXACT] = False,
    runs: Runs = Path("runs"),
    dry_run: Annotated[bool, DRY_RUN] = False,
    log: Annotated[list[str] | None, LOG] = None,
    processes: Annotated[int, PROCESSES] = 1,
    ray: Annotated[str | None, RAY] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model from a recipe.

    It learns from the recipe's data, or from yours. To train on your own pairs: regard train dates data.train=pairs.tsv

    To start from the weights of another run, add: train.start_from=runs/dates

    To prolong a run, finished or not: regard train --resume runs/dates train.updates=2000

    To train with two processes: torchrun --standalone --nproc-per-node 2 -m regard train dates
    """
    from regard import recipe as recipes
    from regard.console import ProgressLog, announcement
    from regard.data.paths import are_large
    from regard.storage import FollowedRun, Run

    if exact and resume is None:
        raise RecipeError("--exact is for runs that are resumed; write: regard train --resume RUN --exact")
    if recipe is not None and "=" in recipe and resume is not None:  # there is no RECIPE: all are overrides
        overrides = [recipe, *(overrides or [])]
        recipe = None
    if (recipe is None) == (resume is None):
        raise RecipeError("give a RECIPE to train, or --resume RUN to resume a run, and not both")
    if dry_run and resume is not None:
        raise RecipeError("--dry-run is for new runs; write: regard train RECIPE --dry-run")
    if ray is not None and (dry_run or log or exact):
        raise RecipeError("--ray takes no --dry-run, --log or --exact; leave them out")
    if processes > 1 and ray is None:
        how = f"write: torchrun --standalone --nproc-per-node {processes} -m regard train ..."
        raise RecipeError(f"--processes is for --ray; without Ray, torchrun starts several processes: {how}")
    if ray == "":
        raise RecipeError("--ray needs the address of a Ray cluster, HOST:PORT, or local")
    if recipe is not None:
        _check_no_run(recipe)
    if resume is not None:
        Run.open(resume)  # an error before torch is loaded
    settings = None if recipe is None else recipes.load(recipe, overrides or [], recipes.COMMAND_LINE)
    with ProgressLog(quiet=quiet) as progress:
        if settings is not None and are_large(settings.data.train):
            progress.announce(announcement(settings))
        progress.begin("loading torch")
        from regard import training
        from regard.tasks import task_class
        from regard.training import clusters
        from regard.training.report import FirstSource
        from regard.training.writers import writers

        first = FirstSource()
        callbacks = [*writers(log or [], runs if resume is None else Run.open(resume).path.parent), first]
        if settings is not None and dry_run:
            found = training.preview(settings, quiet=quiet)
            if as_json:
                write_line(json.dumps(found._asdict()))
            return
        if ray is not None:
            if settings is not None:
                run = clusters.train_new(settings, runs, ray, processes, progress, quiet=quiet)
            else:
                run = Run.open(resume or "")
                clusters.train(run, ray, processes, overrides or [], progress)
        elif settings is not None:
            run = training.train(settings, runs=runs, quiet=quiet, callbacks=callbacks)
        else:
            assert resume is not None
            run = training.resume(resume, *(overrides or []), exact=exact, quiet=quiet, callbacks=callbacks)
    if isinstance(run, FollowedRun):  # another process reports
        return
    last = run.metrics()[-1]
    if as_json:
        write_line(json.dumps({"run": str(run.path)} | last))
        return
    write_line(str(run.path))
    if not quiet:
        quoted = shlex.quote(str(run.path))
        shows = task_class(run.recipe().task).shows
        is_short = first.source.strip() and len(first.source) <= LONGEST_SOURCE
        options_end = "-- " if first.source.startswith("-") else ""  # else the source would be read as an option
        source = f"{options_end}{shlex.quote(first.source)}" if is_short else '"..."'
        progress.say(f"next: regard look {quoted} {source}" if shows else f"next: regard predict {quoted} FILE")


def _check_no_run(recipe: str) -> None:
    """Raise RecipeError if a run is given in place of a recipe."""
    from regard import recipe as recipes
    from regard.storage import Run
    from regard.storage.runs import RECIPE, resume_command

    path = Path(recipe)
    if recipe in recipes.names() or path.suffix == ".toml" or not Run.at(path):
        return
    path = Run.open(path).path
    again = f"regard train {shlex.quote(str(path / RECIPE))}"
    raise RecipeError(f"{recipe} is a run; go on with it: {resume_command(path)}; or train its recipe again: {again}")
