"""The report of a training for people: a progress bar in a terminal, and messages on stderr."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from regard.console import ProgressLog, Work, duration
from regard.errors import quantity
from regard.recipe import Recipe
from regard.training.callbacks import Callback, Ended, Sample, Started, Updated, Validated
from regard.training.estimate import Estimate, describe
from regard.training.validation import best_validation
from regard.visible import make_visible

FLAT_AFTER = 1000  # updates after which flat attention is reported
SOON = 10.0  # seconds: the time that a training takes is not reported if it is over so soon
LONGEST = 80  # characters of a text in a sample


class Report(Callback):
    """Shows the progress of updates, how long they will take, a message for each validation, and the result."""

    def __init__(self, log: ProgressLog) -> None:
        self.log = log
        self.recipe, self.device = Recipe(), ""
        self.estimate = Estimate(self.recipe.train, 0)
        self.is_estimated = False
        self.work = Work("learning", None)
        self.resumed_at = 0  # updates that were done before
        self.part = 0  # dev examples that a validation predicts

    def on_start(self, event: Started) -> None:
        """Show the progress bar."""
        self.recipe, self.device, self.resumed_at = event.recipe, event.device, event.update
        self.estimate = Estimate(event.recipe.train, event.update)
        self.work = self.log.begin("learning", event.updates, event.update)

    def on_update(self, event: Updated) -> None:
        """Show how far training is; after the first few updates, print how long it will take."""
        self.estimate.after_update(event.update)
        left = self.estimate.seconds_left(event.update)
        reward = [] if event.reward is None else [f"reward {event.reward:.3f}"]
        times = _speed(event.tokens_per_second), f"{duration(event.seconds)} so far"
        self.log.show(event.update, f"loss {event.loss:.3f}", *reward, *times, left=left)
        if not self.is_estimated and left is not None and self.estimate.is_known(event.update):
            self.is_estimated = True
            if left > SOON:
                assert self.estimate.pace.seconds is not None
                self.log.say(describe(self.recipe, self.device, self.estimate.pace.seconds, left))

    def on_validation(self, event: Validated) -> None:
        """Print the numbers of a validation, how focused the attention is, and some outputs."""
        self.part = event.examples
        self.estimate.after_validation(event.update)
        for line in self._lines(event):
            self.log.say(line)
        self.log.go_on(self.work)

    def _lines(self, event: Validated) -> Iterator[str]:
        """The lines of a validation."""
        left = self.estimate.seconds_left(event.update)
        times = [duration(event.seconds), _speed(event.tokens_per_second)]
        if left is not None and event.update < event.updates:
            times.append(f"{duration(left)} left")
        yield f"update {event.update:,} of {event.updates:,}: {', '.join(times)}"
        numbers = [f"loss {event.loss:.4f}", f"dev loss {event.dev_loss:.4f}"]
        if event.value is not None:
            numbers.append(f"{event.metric} {event.value:.4f} (of {quantity(event.examples, 'dev example')})")
        if event.gradient_norm is not None:
            numbers.append(f"gradient norm {event.gradient_norm:.3g}")
        if event.reward is not None:
            numbers.append(f"reward {event.reward:.4f}")
        yield f"  {', '.join(numbers)}{'; the best so far' if event.best else ''}"
        if event.problem:
            yield f"  {event.problem}"
        if event.health:
            yield f"  {event.health.describe()}"
            if event.health.flat() and event.update >= FLAT_AFTER:
                yield f"  attention still flat after {event.update:,} updates: it may be of no use to this model yet"
        for sample in event.samples:
            yield f"  {describe_sample(sample)}"
        patience, what = self.recipe.train.patience, "dev loss has not fallen"
        if patience and event.waited >= patience and event.update < event.updates:
            if self.recipe.train.best_by == "metric":
                what = f"{event.metric} has not improved"
            yield f"stopping: the {what} for {event.waited} validations"

    def on_end(self, event: Ended) -> None:
        """Print a small table of the best and the last validation, and the result."""
        if event.finished:
            for line in table(event.run.metrics()[:-1], self.recipe, self.part):
                self.log.say(line)
            parts = f" in all, resumed after update {self.resumed_at:,}" if self.resumed_at else ""
            dev = "the one dev example" if event.examples == 1 else f"all {event.examples:,} dev examples"
            score = f"on {dev}: {event.value:.4f} ({event.signature})"
            self.log.say(f"learned in {event.seconds:.1f} s{parts}; {score}")


class FirstSource(Callback):
    """Keeps the source of the first sample of a training, as an input to try the run with."""

    def __init__(self) -> None:
        self.source = ""

    def on_validation(self, event: Validated) -> None:
        """Keep the source of the first sample, once."""
        self.source = self.source or next((sample.source for sample in event.samples), "")


def _speed(tokens_per_second: float) -> str:
    return f"{tokens_per_second:,.0f} tokens/s"


def describe_sample(sample: Sample) -> str:
    """A sample on one line, its texts visible and shortened."""
    source, expected, output = map(_short, (sample.source, sample.expected, sample.output))
    verdict = "as expected" if sample.output == sample.expected else f"expected {expected}"
    return f"sample: {source} -> {output}, {verdict}"


def _short(text: str) -> str:
    visible = make_visible(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")
    return visible if visible.strip() else "(blank)"


def table(entries: Sequence[Mapping[str, Any]], recipe: Recipe, part: int) -> Iterator[str]:
    """The lines of a table of the best and the last validation, from metrics.jsonl; none if there was only one.

    `part` is the number of dev examples that the metric was computed on.
    """
    validations = [entry for entry in entries if "dev_loss" in entry]
    if len(validations) < 2:
        return
    key = f"dev_{recipe.metric}"
    columns = ["dev_loss", *([key] if key in validations[-1] else [])]
    headings = ["dev_loss", *(f"{column} (of {part:,})" for column in columns[1:])]
    widths = [max(9, len(heading)) for heading in headings]
    yield f"{'':<6}{'update':>9}" + "".join(f"  {name:>{width}}" for name, width in zip(headings, widths, strict=True))
    best = best_validation(recipe, validations)
    last = [] if best is validations[-1] else [("last", validations[-1])]
    for name, entry in [("best", best), *last]:
        numbers = (_number(entry.get(column), width) for column, width in zip(columns, widths, strict=True))
        yield f"{name:<6}{entry['update']:>9,}" + "".join(f"  {number}" for number in numbers)


def _number(value: float | None, width: int) -> str:
    return " " * width if value is None else f"{value:>{width}.4f}"
