"""The report of a training for people: a progress bar in a terminal, and messages on stderr."""

from regard.console import ProgressLog
from regard.recipe import Train
from regard.training.callbacks import Callback, Ended, Started, Updated, Validated

FLAT_AFTER = 1000  # updates after which flat attention is reported


class Report(Callback):
    """Shows the progress of updates, a message for each validation, and the result."""

    def __init__(self, log: ProgressLog) -> None:
        self.log = log
        self.settings = Train()

    def on_start(self, event: Started) -> None:
        """Show the progress bar."""
        self.settings = event.recipe.train
        self.log.begin(event.updates, event.update)

    def on_update(self, event: Updated) -> None:
        """Advance the progress bar."""
        self.log.advance(event.loss, event.tokens_per_second)

    def on_validation(self, event: Validated) -> None:
        """Print the losses and the health of the attention, and whether training stops early."""
        losses = f"update {event.update:,}: loss {event.loss:.4f}, dev loss {event.dev_loss:.4f}"
        self.log.say(losses + (f", {event.health.describe()}" if event.health else ""))
        if event.health and event.health.flat() and event.update >= FLAT_AFTER:
            self.log.say(f"attention still flat after {event.update:,} updates: it may be of no use to this model yet")
        if self.settings.patience and event.waited >= self.settings.patience and event.update < event.updates:
            self.log.say(f"stopping: the dev loss has not fallen for {event.waited} validations")

    def on_end(self, event: Ended) -> None:
        """Print the result."""
        if event.finished:
            self.log.say(f"learned in {event.seconds:.1f} s; on dev: {event.value:.4f} ({event.signature})")
