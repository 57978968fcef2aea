"""Messages and progress bars for people, on stderr."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import track as rich_track

Item = TypeVar("Item")


class ProgressLog:
    """Prints messages of training and, in a terminal, shows a progress bar with loss, tokens/s and time left."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("[bold]learning"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task: TaskID | None = None

    def say(self, text: str) -> None:
        """Print one line."""
        self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        """Print one line even if `quiet` is set."""
        before, self.console.quiet = self.console.quiet, False
        self.say(text)
        self.console.quiet = before

    def begin(self, updates: int, done: int = 0) -> None:
        """Show the progress bar for `updates` updates, of which `done` are done already."""
        self._task = self._bar.add_task("", total=updates, completed=done, words="")

    def advance(self, loss: float, tokens_per_second: float) -> None:
        """Advance the bar by one update."""
        if self._task is not None:
            self._bar.update(self._task, advance=1, words=f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s, left")

    def __enter__(self) -> "ProgressLog":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


def track(items: Sequence[Item], what: str, *, quiet: bool = False) -> Iterator[Item]:
    """Iterate over the items; in a terminal, with a progress bar on stderr."""
    console = Console(stderr=True, quiet=quiet)
    disable = len(items) < 2 or not console.is_terminal
    yield from rich_track(items, what, console=console, transient=True, disable=disable)
