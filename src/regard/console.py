"""Messages and progress bars for people, on stderr."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from regard.visible import guarded, is_terminal, make_visible, unguarded

Item = TypeVar("Item")


def _console(*, quiet: bool) -> Console:
    """The console of stderr: it prints neither markup nor emoji that a text may contain."""
    return Console(
        file=unguarded(sys.stderr), stderr=True, quiet=quiet, soft_wrap=True, markup=False, emoji=False, highlight=False
    )


class Bar(Progress):
    """A progress bar on stderr, shown only in a terminal."""

    def __init__(self, console: Console, *columns: ProgressColumn, disable: bool = False) -> None:
        is_hidden = disable or console.quiet or not console.is_terminal
        super().__init__(
            *columns, console=console, transient=True, disable=is_hidden, redirect_stdout=is_terminal(sys.stdout)
        )

    def start(self) -> None:
        """Show the bar; meanwhile rich prints what is written to the streams, which are guarded as they were before."""
        super().start()
        if not self.disable:  # `stop` puts the streams back
            sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)


class ProgressLog:
    """Prints messages of training and, in a terminal, shows a progress bar with loss, tokens/s and time left.

    What cannot be printed, as when the terminal was closed, is dropped: it does not end the training.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = _console(quiet=quiet)
        columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[words]}"), TimeRemainingColumn()
        self._bar = Bar(self.console, TextColumn("learning", style="bold"), *columns)
        self._task: TaskID | None = None

    def say(self, text: str) -> None:
        """Print one line; in a terminal, with visible control characters."""
        with suppress(OSError):
            if self.console.is_terminal or self.console.is_jupyter:
                self.console.print(make_visible(text))
            elif not self.console.quiet:
                self.console.file.write(f"{text}\n")  # rich would leave out some characters

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
        words = f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s, left"
        with suppress(OSError):
            if self._task is not None:
                self._bar.update(self._task, advance=1, words=words)

    def __enter__(self) -> "ProgressLog":
        with suppress(OSError):
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self._bar.stop()


def track(items: Iterable[Item], what: str, *, quiet: bool = False) -> Iterator[Item]:
    """Iterate over the items; in a terminal, with a progress bar on stderr.

    For a stream of unknown length there is none if people type its lines, or if they see the results as they come.
    """
    console = _console(quiet=quiet)
    watched = is_terminal(sys.stdin) or is_terminal(sys.stdout)
    is_hidden = len(items) < 2 if isinstance(items, Sequence) else watched
    with Bar(console, *Progress.get_default_columns(), disable=is_hidden) as bar:
        yield from bar.track(items, description=what)
