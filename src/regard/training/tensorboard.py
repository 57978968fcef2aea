"""Writes the course of a training for TensorBoard: `regard train RECIPE --tensorboard FOLDER`, or as a callback."""

from pathlib import Path
from typing import Any

from regard import recipe as recipes
from regard.errors import MissingExtraError, StorageError
from regard.training.callbacks import Callback, Ended, Started, Updated, Validated

EVERY = 10  # updates between two points of a curve


class TensorBoard(Callback):
    """Writes curves to a folder with the name of the run, under `folder`; the packages of TensorBoard write the files.

    A resumed run goes on in the same folder; points that were written after its checkpoint are hidden.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.writer: Any = None
        _summary_writer()

    def on_start(self, event: Started) -> None:
        """Open the event file, and write the recipe."""
        folder = self.folder / event.run.path.name
        try:
            self.writer = _summary_writer()(str(folder), purge_step=event.update + 1)
        except OSError as error:
            raise StorageError(f"{folder} cannot be written ({error.strerror}); name another folder") from error
        self.writer.add_text("recipe", "    " + recipes.to_toml(event.recipe).replace("\n", "\n    "), event.update)

    def on_update(self, event: Updated) -> None:
        """Write the loss, the norm of the gradient and the learning rate of some updates."""
        if event.update % EVERY == 0 and event.gradient_norm is not None:
            self.writer.add_scalar("train/loss", event.loss, event.update)
            self.writer.add_scalar("train/gradient_norm", event.gradient_norm, event.update)
            self.writer.add_scalar("train/learning_rate", event.learning_rate, event.update)

    def on_validation(self, event: Validated) -> None:
        """Write the numbers that metrics.jsonl has, too."""
        for name, value in event.entry().items():
            if name != "update":
                self.writer.add_scalar(f"validation/{name}", value, event.update)
        self.writer.flush()

    def on_end(self, event: Ended) -> None:
        """Write the metric of a finished run, and close the event file."""
        if self.writer is None:  # the start failed
            return
        if event.value is not None:
            self.writer.add_scalar(f"dev/{event.metric}", event.value, event.update)
        self.writer.close()


def _summary_writer() -> Any:
    """The class that writes event files."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError("tensorboard", "tensorboard", "TensorBoard's event files") from None
    return SummaryWriter
