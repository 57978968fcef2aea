"""The report of a training for people: a progress bar in a terminal, and messages on stderr."""

from regard.console import ProgressLog, Work
from regard.recipe import Recipe
from regard.training.callbacks import Callback, Ended, Started, Updated, Validated
from regard.training.estimate import Estimate, describe

FLAT_AFTER = 1000  # updates after which flat attention is reported


class Report(Callback):
    """Shows the progress of updates, how long they will take, a message for each validation, and the result."""

    def __init__(self, log: ProgressLog) -> None:
        self.log = log
        self.recipe, self.device = Recipe(), ""
        self.estimate = Estimate(self.recipe.train, 0)
        self.is_estimated = False
        self.work = Work("learning", None)

    def on_start(self, event: Started) -> None:
        """Show the progress bar."""
        self.recipe, self.device = event.recipe, event.device
        self.estimate = Estimate(event.recipe.train, event.update)
        self.work = self.log.begin("learning", event.updates, event.update)

    def on_update(self, event: Updated) -> None:
        """Show how far training is; after the first few updates, print how long it will take."""
        self.estimate.after_update(event.update)
        left = self.estimate.seconds_left(event.update)
        speed = f"{event.tokens_per_second:,.0f} tokens/s"
        self.log.show(event.update, f"loss {event.loss:.3f}", speed, left=left)
        if not self.is_estimated and left is not None and self.estimate.is_known(event.update):
            self.is_estimated = True
            assert self.estimate.pace.seconds is not None
            self.log.say(describe(self.recipe, self.device, self.estimate.pace.seconds, left))

    def on_validation(self, event: Validated) -> None:
        """Print the losses and the health of the attention, and whether training stops early."""
        losses = f"update {event.update:,}: loss {event.loss:.4f}, dev loss {event.dev_loss:.4f}"
        self.log.say(losses + (f", {event.health.describe()}" if event.health else ""))
        if event.health and event.health.flat() and event.update >= FLAT_AFTER:
            self.log.say(f"attention still flat after {event.update:,} updates: it may be of no use to this model yet")
        patience = self.recipe.train.patience
        if patience and event.waited >= patience and event.update < event.updates:
            self.log.say(f"stopping: the dev loss has not fallen for {event.waited} validations")
        self.estimate.after_validation(event.update)
        self.log.go_on(self.work)

    def on_end(self, event: Ended) -> None:
        """Print the result."""
        if event.finished:
            self.log.say(f"learned in {event.seconds:.1f} s; on dev: {event.value:.4f} ({event.signature})")
