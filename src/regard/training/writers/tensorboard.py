"""Writes the course of a training for TensorBoard: `regard train RECIPE --log tensorboard=FOLDER`, or as a callback."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard import recipe as recipes
from regard.errors import MissingExtraError, RegardError, StorageError, shown
from regard.storage import Run
from regard.training.callbacks import Ended, Started, Updated, Validated
from regard.training.writers.core import Values, Writer, of_end, of_update, of_validation


class TensorBoard(Writer):
    """Writes curves to a folder with the name of the run, under `folder`; the packages of TensorBoard write the files.

    `folder` is neither in a run nor the folder that the run is in. A resumed run goes on in the same folder; points
    that were written after its checkpoint are hidden. If the folder cannot be written, as on a full disk, training ends
    with a StorageError, as for any error in a callback.
    """

    place, example = "folder", "boards"

    def __init__(self, folder: str | Path) -> None:
        self.folder = self.path = Path(folder)
        self.writer: Any = None
        if self.folder.exists() and not self.folder.is_dir():
            raise StorageError(f"{shown(str(folder))} is not a folder; name one for the files of TensorBoard")
        _check_outside_runs(self.folder)
        _summary_writer()

    def check_runs(self, runs: Path) -> None:
        """Raise StorageError if this is the folder of the runs: a run of the same name would be there."""
        if self.folder.resolve() == runs.resolve():
            raise StorageError(
                f"{shown(str(self.folder))} is the folder of the runs; name another for TensorBoard, such as boards"
            )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an OSError in the block, also one of the writer's thread before it, into a StorageError."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or shown(str(error))
            raise StorageError(f"{self.path} cannot be written ({reason}); name another folder") from error

    def on_start(self, event: Started) -> None:
        """Open the event file, and write the recipe."""
        self.path = self.folder / event.run.path.name
        _check_outside_runs(self.path)
        _hide_errors_of_writers()
        with self._writing():
            self.writer = _summary_writer()(str(self.path), purge_step=event.update + 1)
            self.writer.add_text("recipe", "    " + recipes.to_toml(event.recipe).replace("\n", "\n    "), event.update)

    def on_update(self, event: Updated) -> None:
        """Write the numbers of some updates."""
        self._write(of_update(event), event.update)

    def on_validation(self, event: Validated) -> None:
        """Write the numbers that metrics.jsonl has, too, and some outputs."""
        self._write(of_validation(event), event.update)
        with self._writing():
            if event.samples:
                lines = (f"    {each.source} -> {each.output}, expected {each.expected}" for each in event.samples)
                self.writer.add_text("samples", "\n".join(lines), event.update)
            self.writer.flush()

    def on_end(self, event: Ended) -> None:
        """Write the metric of a finished run, and close the event file."""
        if self.writer is None:  # the start failed
            return
        self._write(of_end(event), event.update)
        with self._writing():
            self.writer.close()

    def _write(self, values: Values, update: int) -> None:
        with self._writing():
            for name, value in values.items():
                self.writer.add_scalar(name, value, update)


def _check_outside_runs(folder: Path) -> None:
    """Raise StorageError if files in this folder would be among those of a run."""
    if (run := Run.around(folder)) is not None:
        what = f"the files of TensorBoard would be in the run {shown(str(run))}, where regard keeps its own files"
        raise StorageError(f"{what}; name another folder, such as boards")


class _ThreadErrors:
    """What Python calls if a thread fails: prints nothing for the threads of writers, as usual for all others."""

    def __init__(self, usual: Callable[[threading.ExceptHookArgs], Any]) -> None:
        self.usual = usual

    def __call__(self, arguments: threading.ExceptHookArgs) -> None:
        """Called in the thread that fails."""
        if not type(arguments.thread).__module__.startswith("tensorboard."):
            self.usual(arguments)


def _hide_errors_of_writers() -> None:
    """Let threads of writers print no traceback: the next call of the writer raises their error.

    This stays so after training: a thread whose writer could not be made may fail later than that.
    """
    if not isinstance(threading.excepthook, _ThreadErrors):
        threading.excepthook = _ThreadErrors(threading.excepthook)


def _summary_writer() -> Any:
    """The class that writes event files."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError("tensorboard", "tensorboard", "writing TensorBoard's event files") from None
    except Exception as error:  # such as versions of its packages that do not fit together
        kind = f"{type(error).__name__}: {shown(str(error))}"
        how = "install versions that fit together with: pip install --upgrade 'regard[tensorboard]'"
        raise RegardError(f"the package tensorboard cannot be imported ({kind}); {how}") from error
    return SummaryWriter
