"""Prolonging a run: it is resumed with another train.updates or train.patience; no other key can change."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from regard import recipe as recipes
from regard.errors import DataError, RecipeError
from regard.recipe import Recipe, Train
from regard.storage import RECIPE, Run
from regard.training.schedules import learning_rate
from regard.training.session import Progress


def prolonged_recipe(run: Run, overrides: Sequence[str]) -> Recipe:
    """The recipe of a run with `a.b=c` overrides; an error if the run cannot go on by it. Nothing is written."""
    old = recipe = run.recipe()
    for text in overrides:
        recipe = recipes.override(recipe, text)
        allowed = replace(old.train, updates=recipe.train.updates, patience=recipe.train.patience)
        if recipe != replace(old, train=allowed):
            raise RecipeError(
                f"{text.partition('=')[0].strip()} cannot change when a run goes on, only train.updates and "
                "train.patience can; train a new run, or one that starts from the weights of this one: "
                f"{_start_from(run, [text])}"
            )
    if recipe != old:
        if run.finished() and not run.own_checkpoints():
            raise DataError(
                f"the run {run.path} is finished and has no checkpoint to go on from, like all runs of older versions "
                "and those whose folder checkpoints was removed; train a new run that starts from its weights: "
                f"{_start_from(run, overrides)}"
            )
        _check_length(run, recipe.train, old)
    return recipe


def _start_from(run: Run, overrides: Sequence[str]) -> str:
    """The command that trains a new run by the recipe of this one, with overrides, and starts from its weights."""
    return shlex.join(["regard", "train", str(run.path / RECIPE), f"train.start_from={run.path}", *overrides])


def _check_length(run: Run, new: Train, old: Recipe) -> None:
    """Refuse settings that leave nothing to train, so that a finished run stays finished."""
    done = run.newest_update()
    if new.updates <= done and (new.updates < old.train.updates or run.finished()):
        raise RecipeError(f"train.updates={new.updates}: the run {run.path} has done {done:,} updates; give more")
    waited = Progress.of(run.own_checkpoints()[0], old.train).waited if run.finished() else 0
    if 0 < new.patience <= waited:
        what = f"{old.metric} had not improved" if new.best_by == "metric" else "dev loss had not fallen"
        raise RecipeError(
            f"the run {run.path} ended because its {what} for {waited} validations; "
            f"to go on, give train.patience too: more than {waited}, or 0 for no limit"
        )


def changes(new: Train, old: Train, done: int) -> Iterator[str]:
    """Sentences on what changes in a run that goes on after `done` updates, and what this means for its schedule."""
    if new.patience != old.patience:
        yield f"train.patience is {new.patience:,} now (was {old.patience:,})"
    if new.updates != old.updates:
        before = f" (it was {learning_rate(old, done):.3g} at update {done:,})" if done else ""
        rates = f"{learning_rate(new, done + 1):.3g} at update {done + 1:,}{before}"
        end = f"{learning_rate(new, new.updates):.3g} at update {new.updates:,}"
        lengths = f"train.updates is {new.updates:,} now (was {old.updates:,})"
        yield f"{lengths}: by the schedule {new.schedule}, the learning rate is {rates}, and {end}"
