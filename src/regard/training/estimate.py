"""How long a training takes, estimated from its first updates on, and what to do if that is hours."""

import time

from regard import recipe as recipes
from regard.console import Pace, duration
from regard.recipe import Recipe, Train

FEW = 3  # updates after the first one that the first estimate needs, and
ENOUGH = 3.0  # seconds that they need
LONG = 3600.0  # seconds of a training from which on something quicker is suggested
SMALLER = 1 / 3  # of the work of a recipe: what counts as a smaller one


class Estimate:
    """The time of an update, smoothed, that of a validation, and what is left of a training.

    The first update does not count: it makes what later ones use again.
    """

    def __init__(self, settings: Train, done: int) -> None:
        self.settings, self.first = settings, done + 1
        self.pace = Pace()
        self.validation: float | None = None
        self._ended = time.perf_counter()  # when the last update ended

    def after_update(self, update: int) -> None:
        """Take the time of an update."""
        self._ended = time.perf_counter()
        if update == self.first:
            self.pace.restart(update)
        else:
            self.pace.measure(update)

    def after_validation(self, update: int) -> None:
        """Take the time of a validation, which does not count as one of updates."""
        self.pace.measure(update, shortest=0.0, until=self._ended)
        seconds = time.perf_counter() - self._ended
        self.validation = seconds if self.validation is None else (self.validation + seconds) / 2
        self.pace.restart(update)

    def seconds_left(self, update: int) -> float | None:
        """The seconds until the last update and its validation are done; None before there is a measurement."""
        if self.pace.seconds is None:
            return None
        settings = self.settings
        still = settings.validations(settings.updates) - settings.validations(update)
        return self.pace.seconds * (settings.updates - update) + still * (self.validation or 0.0)

    def is_known(self, update: int) -> bool:
        """Whether enough updates are done for a first estimate."""
        few = update - self.first >= FEW and self.pace.seconds is not None
        return few and self.pace.seconds * (update - self.first) >= ENOUGH  # type: ignore[operator]


def describe(recipe: Recipe, device: str, seconds: float, left: float) -> str:
    """The sentence about the time of an update and of the whole run; if that is hours, with what is quicker."""
    one = duration(seconds) if seconds >= 10 else f"{seconds:.2g} s"
    sentence = f"{one} an update here, about {duration(left)} for the rest"
    ways = [f"try the recipe {name}" for name in smaller(recipe)] + ([] if device.startswith("cuda") else ["a GPU"])
    if left < LONG:
        return sentence
    return f"{sentence}; {', or '.join(ways or ['lower train.updates'])}"


def smaller(recipe: Recipe) -> list[str]:
    """The name of the smallest recipe on the same data for the same task, if it is much smaller; else none."""
    others = {name: recipes.load(name) for name in recipes.names()}
    works = {name: work(other) for name, other in others.items() if _learns(other) == _learns(recipe)}
    name = min(works, key=works.__getitem__, default="")
    return [name] if name and works[name] < SMALLER * work(recipe) else []


def _learns(recipe: Recipe) -> tuple[object, ...]:
    """What a recipe learns, from what."""
    return recipe.task, recipe.data.train or recipe.data.corpus


def work(recipe: Recipe) -> float:
    """A rough measure of the work of a training: its tokens times the squared widths of its layers."""
    model, settings = recipe.model, recipe.train
    widths = sum(part.layers * part.dim**2 for part in (model.encoder, model.decoder))
    return float(settings.updates * settings.batch_tokens * settings.accumulate * widths)
