"""What a person sees while a model learns: words and a bar, on stderr."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import track as rich_track

Item = TypeVar("Item")


class Teller:
    """Says what is done and, in a terminal, shows a bar with loss, tokens a second and time left."""

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
        """One line of words."""
        self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        """One line of words that is said even where quiet was asked for."""
        before, self.console.quiet = self.console.quiet, False
        self.say(text)
        self.console.quiet = before

    def begin(self, updates: int, done: int = 0) -> None:
        """Show the bar, for so many updates, of which some may be done."""
        self._task = self._bar.add_task("", total=updates, completed=done, words="")

    def advance(self, loss: float, tokens_per_second: float) -> None:
        """One update more."""
        if self._task is not None:
            self._bar.update(self._task, advance=1, words=f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s, left")

    def __enter__(self) -> "Teller":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def track(items: Sequence[Item], what: str, *, quiet: bool = False) -> Iterator[Item]:
    """Go through the items; in a terminal, a bar on stderr says how far."""
    console = Console(stderr=True, quiet=quiet)
    disable = len(items) < 2 or not console.is_terminal
    yield from rich_track(items, what, console=console, transient=True, disable=disable)
