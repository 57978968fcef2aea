"""Callbacks: objects that are told how a training goes, with an event at its start, updates, validations and end.

The progress bar, `metrics.jsonl` and the writers for other tools are callbacks too. A callback only looks on: it gets
no model, torch's random generators are as before after each call, and numbers are those that the loop has read from the
GPU anyway.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from regard.errors import CallbackError, RecipeError, StoppedError, shown
from regard.recipe import Recipe
from regard.storage import Run
from regard.training.health import Health
from regard.training.session import generators_restored


@dataclass(frozen=True)
class Started:
    """Training begins, or goes on."""

    run: Run
    recipe: Recipe
    update: int  # updates that are done already, if a run is resumed
    updates: int  # number of updates at most
    parameters: int  # numbers that are learned
    device: str


@dataclass(frozen=True)
class Updated:
    """An update is done, or on a GPU begun; means are over the updates since the last validation.

    On a GPU, loss and gradient norm may be those of up to fifty updates ago: nobody waits for the newest ones.
    """

    update: int
    updates: int
    loss: float  # mean training loss for each target token; 0 before the first is read
    gradient_norm: float | None  # mean norm of the gradient before it is clipped; None before the first is read
    learning_rate: float
    tokens_per_second: float
    seconds: float  # of training so far, also before it was resumed
    reward: float | None = None  # mean reward of the outputs that were drawn (train.reward); None if none was


@dataclass(frozen=True)
class Sample:
    """A dev example and what the model answers."""

    source: str
    expected: str
    output: str


@dataclass(frozen=True)
class Validated:
    """A validation is done; means are over the updates since the last one."""

    update: int
    updates: int
    loss: float  # mean training loss for each target token
    gradient_norm: float | None  # mean norm of the gradient before it is clipped
    dev_loss: float
    metric: str  # the recipe's metric
    value: float | None  # of the metric on a part of dev, greedily; None if it was not computed, see `problem`
    examples: int  # of that part
    samples: tuple[Sample, ...]  # some of its outputs
    best: bool  # whether this is the best validation so far, by train.best_by
    waited: int  # validations since the best one; an equal metric with a lower dev loss does not end the wait
    learning_rate: float
    tokens_per_second: float
    seconds: float  # of training so far, also before it was resumed
    health: Health | None  # of the attention, if the model has a map
    problem: str = ""  # why the metric could not be computed
    reward: float | None = None  # mean reward of the outputs that were drawn (train.reward); None if none was

    def entry(self) -> dict[str, Any]:
        """The line of metrics.jsonl."""
        return {
            "update": self.update,
            "loss": self.loss,
            "dev_loss": self.dev_loss,
            **({} if self.value is None else {f"dev_{self.metric}": self.value}),
            **({} if self.gradient_norm is None else {"gradient_norm": self.gradient_norm}),
            **({} if self.reward is None else {"reward": self.reward}),
            "learning_rate": self.learning_rate,
            "tokens_per_second": self.tokens_per_second,
            "seconds": self.seconds,
            **(self.health.values() if self.health else {}),
        }


@dataclass(frozen=True)
class Ended:
    """Training has ended: it is finished, or it was stopped or failed, and the run can be resumed."""

    run: Run
    finished: bool
    update: int
    seconds: float  # of training so far, also before it was resumed
    metric: str  # the recipe's metric
    value: float | None = None  # of the metric on all of dev, by the weights that are stored; None if not finished
    signature: str = ""
    precision: str = ""
    examples: int = 0  # of dev

    def entry(self) -> dict[str, Any]:
        """The last line of metrics.jsonl, of a finished run."""
        measured = {self.metric: self.value, "signature": self.signature}
        return measured | {"train_seconds": self.seconds, "precision": self.precision}


class Callback:
    """Base class: write only the methods that you need."""

    def on_start(self, event: Started) -> None:
        """Called once before the first update, also if a run is resumed."""

    def on_update(self, event: Updated) -> None:
        """Called after each update."""

    def on_validation(self, event: Validated) -> None:
        """Called after each validation, before the checkpoint is saved."""

    def on_end(self, event: Ended) -> None:
        """Called once at the end, also if training was stopped or failed."""


class MetricsFile(Callback):
    """Writes metrics.jsonl: a line for each validation, and one at the end, which makes the run a finished one."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_validation(self, event: Validated) -> None:
        """Append the line of the validation."""
        self.run.record(event.entry())

    def on_end(self, event: Ended) -> None:
        """Append the last line and mark the run as finished, unless it was stopped."""
        if event.finished:
            self.run.record(event.entry())
            self.run.finish()


class Callbacks:
    """Calls regard's own callbacks, then those of users, whose errors become a `CallbackError` with their name."""

    def __init__(self, own: Sequence[Callback], users: Sequence[Callback] = ()) -> None:
        self.start, self.update, self.validation, self.end = (
            [
                *(getattr(callback, name) for callback in own if _has(callback, name)),
                *(partial(_call, callback, name) for callback in users if _has(callback, name)),
            ]
            for name in ("on_start", "on_update", "on_validation", "on_end")
        )


def call(listeners: Sequence[Callable[[Any], None]], event: Any) -> None:
    """Call all with an event."""
    for listener in listeners:
        listener(event)


def _has(callback: Callback, name: str) -> bool:
    """Whether the class of a callback has written this method."""
    return getattr(type(callback), name) is not getattr(Callback, name)


def _call(callback: Callback, name: str, event: Any) -> None:
    """Call a method of a user's callback, which cannot change the random numbers of training."""
    with generators_restored():
        try:
            getattr(callback, name)(event)
        except StoppedError:  # a second signal
            raise
        except Exception as error:
            raise CallbackError(f"{type(callback).__name__}.{name}", event.update, error) from error


def check(callbacks: Sequence[Callback]) -> None:
    """Refuse what is not a callback, before anything is done."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise RecipeError(
                "callbacks is a list of objects whose class is derived from regard.Callback, "
                f"such as [Mine()], but holds {shown(callback)}"
            )
