"""Messages and progress for people, on stderr: a bar in a terminal, elsewhere lines now and then."""

import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import chain, islice
from typing import TextIO, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Column

from regard.recipe import Recipe
from regard.visible import guarded, is_terminal, make_visible, unguarded

Item = TypeVar("Item")

BLOCK = 1000  # items that are counted at a time
SECONDS_OF_A_LINE = 10.0  # without a terminal: seconds between two lines about the progress of one work
MOST_LINES = 100  # without a terminal: lines about the progress of one work, if it takes very long
SECONDS_OF_A_WORK = 2.0  # without a terminal: a shorter work has no line
SECONDS_OF_A_DRAWING = 0.25  # in a terminal: seconds between two drawings of the bar
WIDEST_NAME, WIDEST_BAR, NARROWEST_BAR = 24, 30, 8  # of a work, and of its bar, in columns
# Commands that a message suggests, after a colon or in backquotes; they are not broken, so that they can be copied.
COMMAND = re.compile(r"""`[^`]+`|(?<=: )(?<!regard: )(?:regard|pip|cut)(?: (?:'[^']*'|"[^"]*"|[^\s;,'"]|,(?! ))+)+""")
QUOTED = re.compile(r"`(?!regard |pip |cut )")  # backquotes that hold no command
KEPT = "\u00a0"  # stands for a space within a command while lines are broken; as wide as a space
# An equation, after two spaces, up to the end of its sentence or the next part of it.
EQUATION = re.compile(r"(?<=:  )(?:\[[^\]]*\]|\([^)]*\)|[^,;\[(])+?(?=[,;]|\.(?: [A-Z]|$))")
JOINED = "\ue000"  # stands for a space within an equation while lines are broken; a private character
READ = {"picture": "pictures", "speech": "recordings"}  # what a task of sources that are no texts reads, in words
SMOOTHING = 30.0  # seconds after which a measured speed counts for a third in what is said to be left

_current: ContextVar["ProgressLog | None"] = ContextVar("_current", default=None)  # the log that is open


def _console(*, quiet: bool) -> Console:
    """The console of stderr: it prints neither markup nor emoji that a text may contain."""
    return Console(
        file=unguarded(sys.stderr), stderr=True, quiet=quiet, soft_wrap=True, markup=False, emoji=False, highlight=False
    )


def _has_bar(console: Console) -> bool:
    """Whether a bar can be drawn: on a terminal, unless the environment (TTY_COMPATIBLE=0) says that it cannot."""
    return console.is_terminal and is_terminal(console.file)


def _must_be_visible(console: Console) -> bool:
    """Whether text is made visible: on any terminal, whatever rich takes it for, and where rich draws as on one."""
    return is_terminal(console.file) or console.is_terminal or console.is_jupyter


class Bar(Progress):
    """A progress bar on stderr, shown only in a terminal."""

    def __init__(self, console: Console, *columns: ProgressColumn, disable: bool = False) -> None:
        super().__init__(
            *columns,
            console=console,
            transient=True,
            disable=disable or console.quiet or not _has_bar(console),
            redirect_stdout=is_terminal(sys.stdout),
            refresh_per_second=1 / SECONDS_OF_A_DRAWING,  # each takes about 2 ms from the work
        )

    def start(self) -> None:
        """Show the bar; meanwhile rich prints what is written to the streams, which are guarded as they were before."""
        super().start()
        if not self.disable:  # `stop` puts the streams back
            sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)


class ProgressLog:
    """Prints messages and shows how far a work is: in a terminal by a bar, elsewhere by a line now and then.

    What cannot be printed, as when the terminal was closed, is dropped: it does not end the work.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = _console(quiet=quiet)
        column = Column(no_wrap=True, overflow="ellipsis")
        name = TextColumn("{task.description}", style="bold", markup=False, table_column=column)
        words = TextColumn("{task.fields[words]}", markup=False, table_column=column)
        self._bar = Bar(self.console, name, BarColumn(self._bar_width()), words)
        self._work = Work("", None)
        self._announced = ""

    def _bar_width(self) -> int:
        return max(NARROWEST_BAR, min(WIDEST_BAR, self.console.width // 6))

    def say(self, text: str) -> None:
        """Print one line; in a terminal, with visible control characters, and broken between words."""
        if not _has_bar(self.console):
            self._work.shown = time.perf_counter()
        with suppress(OSError):
            if _must_be_visible(self.console):
                self.console.print(wrapped(make_visible(text), self.console.width))
            elif not self.console.quiet:
                self.console.file.write(f"{text}\n")  # rich would leave out some characters
                self.console.file.flush()

    def warn(self, text: str) -> None:
        """Print one line even if `quiet` is set."""
        before, self.console.quiet = self.console.quiet, False
        self.say(text)
        self.console.quiet = before

    def announce(self, text: str) -> None:
        """Print one line, unless it was the last to be announced: a command does it before it imports torch."""
        if text != self._announced:
            self.say(text)
        self._announced = text

    def begin(self, what: str, total: int | None = None, done: int = 0) -> "Work":
        """Show a new work in place of the one before; `total` is its number of steps, if that is known."""
        work = Work(what, total, done)
        self.go_on(work)
        return work

    def go_on(self, work: "Work") -> None:
        """Show a work again that was begun before."""
        work.shown, self._work = self._work.shown, work
        with suppress(OSError):
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            name = make_visible(work.what)
            name = name if len(name) <= WIDEST_NAME else f"{name[: WIDEST_NAME - 1]}…"
            self._bar.add_task(name, total=work.total, completed=work.done, words="")

    def show(self, done: int, *details: str, left: float | None = None) -> None:
        """Show how far the work is, with details as far as there is room; `left` are the seconds that it still takes.

        Without `left`, they are computed from the speed so far. Most calls only look at the clock.
        """
        work = self._work
        work.count(done)
        has_bar = not self._bar.disable
        if self.console.quiet or not work.is_time(terminal=has_bar):
            return
        parts = [*work.parts(left), *details]
        with suppress(OSError):
            if has_bar:
                task = self._bar.tasks[-1]
                room = self.console.width - cell_len(task.description) - self._bar_width() - 3
                self._bar.update(task.id, completed=done, words=fitting(parts, room))
            else:
                self.say(f"{work.what}: {', '.join(parts)}")

    def tick(self, what: str) -> None:
        """Show that a work whose length is not known goes on."""
        if self._work.what != what:
            self.begin(what)
        self.show(0)

    def counted(self, items: Iterable[Item], what: str, total: int | None, size: int) -> Iterator[Iterable[Item]]:
        """The items in blocks; shows how many were read whenever a block is."""
        if total is None and isinstance(items, Sized):
            total = len(items)
        self.begin(what, total)
        iterator, done = iter(items), 0
        for first in iterator:
            self.show(done)
            yield chain((first,), islice(iterator, size - 1))
            done += size

    def __enter__(self) -> "ProgressLog":
        self._token = _current.set(self)
        with suppress(OSError):
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)
        with suppress(OSError):
            self._bar.stop()


class Work:
    """How far a work is, and when to show it next."""

    def __init__(self, what: str, total: int | None, done: int = 0) -> None:
        self.what, self.total, self.done = what, total, done
        self.pace = Pace(done)
        self.began = self.shown = time.perf_counter()

    def count(self, done: int) -> None:
        """Note how much is done."""
        self.done = done
        self.pace.measure(done)

    def is_time(self, *, terminal: bool) -> bool:
        """Whether it is time to show the work again."""
        now = time.perf_counter()
        elapsed = now - self.began
        wait = SECONDS_OF_A_DRAWING if terminal else max(SECONDS_OF_A_LINE, elapsed / MOST_LINES)
        if now - self.shown < wait or (elapsed < SECONDS_OF_A_WORK and not terminal):
            return False
        self.shown = now
        return True

    def parts(self, left: float | None) -> list[str]:
        """What there is to say about it."""
        if self.total is None:
            return [f"{duration(time.perf_counter() - self.began)} so far"]
        if left is None and self.pace.seconds is not None:
            left = self.pace.seconds * (self.total - self.done)
        counts = f"{min(self.done, self.total):,} of {self.total:,}"
        return [counts] if left is None else [counts, f"{duration(left)} left"]


class Pace:
    """The speed of a work, in steps a second: an exponential average over about the last `SMOOTHING` seconds."""

    def __init__(self, done: int = 0) -> None:
        self._speed: float | None = None
        self.restart(done)

    @property
    def seconds(self) -> float | None:
        """The seconds of a step; None before the first measurement."""
        return None if self._speed is None else 1 / self._speed

    def restart(self, done: int) -> None:
        """Begin to measure here: what was before, such as a pause, does not count."""
        self._time, self._done = time.perf_counter(), done

    def measure(self, done: int, shortest: float = 1.0, until: float | None = None) -> None:
        """Take the speed since the last measurement into the average, if that is `shortest` seconds ago or more."""
        elapsed = (time.perf_counter() if until is None else until) - self._time
        if elapsed < shortest or elapsed <= 0 or done <= self._done:
            return
        speed, weight = (done - self._done) / elapsed, 1 - math.exp(-elapsed / SMOOTHING)
        self._speed = speed if self._speed is None else self._speed + weight * (speed - self._speed)
        self.restart(done)


def counted(items: Iterable[Item], what: str, total: int | None = None, size: int = BLOCK) -> Iterable[Item]:
    """The items; if a `ProgressLog` is open, it shows how many of them were read, counted `size` at a time."""
    log = _current.get()
    return items if log is None else chain.from_iterable(log.counted(items, what, total, size))


def tick(what: str) -> None:
    """Show that a work whose length is not known goes on, if a `ProgressLog` is open."""
    if log := _current.get():
        log.tick(what)


def say(text: str) -> None:
    """Print one line, if a `ProgressLog` is open."""
    if log := _current.get():
        log.say(text)


@contextmanager
def unwatched() -> Iterator[None]:
    """In the block, no log is open: for a part of a work that is shown as a whole."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def current_log(*, quiet: bool = False) -> Iterator[ProgressLog]:
    """The log that is open, or a new one."""
    if log := _current.get():
        yield log
        return
    with ProgressLog(quiet=quiet) as log:
        yield log


def track(items: Iterable[Item], what: str, *, quiet: bool = False) -> Iterator[Item]:
    """Iterate over the items; in a terminal, with a progress bar on stderr.

    For a stream of unknown length there is none if people type its lines, or if they see the results as they come.
    """
    console = _console(quiet=quiet)
    watched = is_terminal(sys.stdin) or is_terminal(sys.stdout)
    is_hidden = len(items) < 2 if isinstance(items, Sequence) else watched
    with Bar(console, *Progress.get_default_columns(), disable=is_hidden) as bar:
        yield from bar.track(items, description=what)


def announcement(recipe: Recipe) -> str:
    """The first line of a training, before data are read: what it learns from."""
    data = recipe.data
    origin = " and ".join(data.train) or (f"the corpus {data.corpus}" if data.corpus else "nothing yet")
    what = f"{READ[recipe.source]} to text" if recipe.task == "translate" and recipe.source in READ else recipe.task
    return f"{recipe.name}: {what}, from {origin}"


def duration(seconds: float) -> str:
    """A time for people, with two digits: `0.5 s`, `40 s`, `12 min`, `3.5 hours`, `2 days`."""
    for unit, size, most in (("s", 1, 100), ("min", 60, 100), ("hours", 3600, 48), ("days", 86400, float("inf"))):
        if seconds / size < most:
            number = seconds / size
            return f"{number:.0f} {unit}" if number >= 9.95 or unit == "min" else f"{number:.1f} {unit}"
    raise AssertionError("a time is a number")


def fitting(parts: Sequence[str], room: int) -> str:
    """As many of the parts, from the first on, as fit into this many columns."""
    text = ""
    for part in parts:
        longer = f"{text}, {part}" if text else part
        if cell_len(longer) > room:
            break
        text = longer
    return text


def wrapped(text: str, width: int, end: str = "") -> str:
    """The text in lines of at most this many columns, broken at spaces: a longer word is left whole.

    Further lines are indented by two columns more than the first, so that they are seen to belong to it. A suggested
    command that does not fit on a line with others has one of its own. The signature of a metric that does not fit is
    broken between its fields; an equation is broken only if it fits on no line. `end` is printed where a line is
    broken, such as the backslash of a command that goes on.
    """
    indent = text[: len(text) - len(text.lstrip(" "))]
    width -= len(end)

    def join(command: re.Match[str]) -> str:
        is_wide = cell_len(command[0]) > width - len(indent) - 2
        return command[0] if is_wide and QUOTED.match(command[0]) else command[0].replace(" ", KEPT)

    def join_equation(equation: re.Match[str]) -> str:
        is_wide = cell_len(equation[0]) > width - len(indent) - 2
        return equation[0] if is_wide else equation[0].replace(" ", JOINED)

    lines: list[str] = []
    is_full = False
    for word in EQUATION.sub(join_equation, COMMAND.sub(join, text[len(indent) :])).split(" "):
        if lines and not is_full and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
            continue
        for part in _fields(word, width - len(indent) - 2):
            lines.append(f"{indent}  {part}" if lines else f"{indent}{part}")
        is_full = KEPT in word and not word.startswith("`")
    return f"{end}\n".join(lines).replace(KEPT, " ").replace(JOINED, " ")


def _fields(word: str, width: int) -> list[str]:
    """The word in parts: one, unless it is too wide and its fields are separated by bars, as those of a signature."""
    if cell_len(word) <= width or KEPT in word:
        return [word]
    parts = [""]
    for field in re.findall(r"[^|]*\||[^|]+", word):
        if parts[-1] and cell_len(parts[-1] + field) > width:
            parts.append("")
        parts[-1] += field
    return parts


def beside(heading: str, text: str, width: int | None) -> list[str]:
    """The text in lines of this width beside its heading; without a width, on one line.

    If a word of it is too wide for that, the text begins below the heading, so that the word is not broken.
    """
    if width is None:
        return [f"{heading}{text}".rstrip()]
    if not heading:
        return wrapped(text, width).split("\n")
    margin = cell_len(heading)
    lines = [line.strip() for line in wrapped(text, width - margin).split("\n")]
    if margin + max(map(cell_len, lines)) <= width:
        return [f"{heading}{lines[0]}".rstrip(), *(" " * margin + line for line in lines[1:])]
    indent = heading[: len(heading) - len(heading.lstrip(" "))] + "  "
    return [heading.rstrip(), *(indent + line.strip() for line in wrapped(text, width - len(indent)).split("\n"))]


def for_terminal(text: str, stream: TextIO | None) -> str:
    """A message as it is printed there: visible and broken between words in a terminal, elsewhere unchanged."""
    if not is_terminal(stream):
        return text
    return wrapped(make_visible(text), Console(file=stream, stderr=True).width)
