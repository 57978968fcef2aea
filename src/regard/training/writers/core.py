"""What writers record of the events of a training, and the base class of those whose records only grow."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from regard import recipe as recipes
from regard.recipe import Recipe
from regard.training.callbacks import Callback, Ended, Sample, Started, Updated, Validated

EVERY = 10  # updates between two points of a curve
AT_ONCE = 50  # points that are written together

Values = dict[str, float]


def parameters(recipe: Recipe) -> dict[str, Any]:
    """The values of a recipe by the full names of their keys, without keys of attention sites that are not set."""
    return {name: value for name, value in recipes.values(recipe).items() if value is not None}


def of_update(event: Updated) -> Values:
    """The numbers of an update; none for most updates, and before the first loss is read."""
    if event.update % EVERY or event.gradient_norm is None:
        return {}
    values = {
        "train/loss": event.loss,
        "train/gradient_norm": event.gradient_norm,
        "train/learning_rate": event.learning_rate,
        "train/tokens_per_second": event.tokens_per_second,
    }
    return values if event.reward is None else values | {"train/reward": event.reward}


def of_validation(event: Validated) -> Values:
    """The numbers that metrics.jsonl has of a validation."""
    return {f"validation/{name}": value for name, value in event.entry().items() if name != "update"}


def of_end(event: Ended) -> Values:
    """The metric of a finished run on all of dev."""
    return {} if event.value is None else {f"dev/{event.metric}": event.value}


class Point(NamedTuple):
    """What there is to record of one update."""

    update: int
    values: Values
    samples: Sequence[Sample] = ()


class Writer(Callback):
    """Base class of writers."""

    place: ClassVar[str]  # what the place to write to is, and an example of one
    example: ClassVar[str]


class Growing(Writer):
    """Base class of writers whose records only grow: a point is written when a checkpoint holds its update.

    A resumed run computes the updates after its checkpoint again, so points that were written before would be there
    twice.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Point] = {}  # by update
        self._validated = 0  # update of the last validation, whose checkpoint is stored when the next update is done
        self._is_open = False

    def open(self, event: Started) -> None:
        """Open the record of the run, or a new one, and write the recipe."""
        raise NotImplementedError

    def write(self, points: Sequence[Point]) -> None:
        """Add points to the record, at most one for each update."""
        raise NotImplementedError

    def close(self, event: Ended) -> None:
        """Close the record."""
        raise NotImplementedError

    def on_start(self, event: Started) -> None:
        """Open the record."""
        self._waiting, self._validated = {}, 0
        self.open(event)
        self._is_open = True

    def on_update(self, event: Updated) -> None:
        """Write all points up to the last validation, and keep that of this update."""
        self._write_up_to(self._validated)
        self._keep(event.update, of_update(event))

    def on_validation(self, event: Validated) -> None:
        """Keep the point of the validation: its checkpoint is yet to be stored."""
        self._keep(event.update, of_validation(event), event.samples)
        self._validated = event.update

    def on_end(self, event: Ended) -> None:
        """Write the points that the newest checkpoint holds, and the metric of a finished run; close the record."""
        if not self._is_open:  # the start failed
            return
        self._is_open = False
        try:
            self._keep(event.update, of_end(event))
            self._write_up_to(event.update if event.finished else event.run.newest_update())
        finally:
            self.close(event)

    def _keep(self, update: int, values: Values, samples: Sequence[Sample] = ()) -> None:
        before = self._waiting.get(update, Point(update, {}))
        if values:
            self._waiting[update] = Point(update, before.values | values, samples or before.samples)

    def _write_up_to(self, update: int) -> None:
        ready = [point for point in self._waiting.values() if point.update <= update]
        for start in range(0, len(ready), AT_ONCE):
            points = ready[start : start + AT_ONCE]
            self.write(points)
            for point in points:  # those of a write that fails are written when the training ends
                del self._waiting[point.update]
