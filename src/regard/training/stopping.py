"""Signals: training stops at the next safe point, or abandons a slow update, and saves.

This holds for SIGINT (Ctrl-C), SIGTERM, SIGHUP (the terminal was closed) and SIGUSR1 (a cluster's time is up).
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from torch import Tensor, nn

from regard.errors import StoppedError
from regard.training.processes import Processes

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
GRACE, RETRY = 1.0, 0.1  # seconds until undoable work is abandoned, and between further attempts
LARGE = 1 << 16  # elements of a parameter from which on its gradient may take long


class Stopper:
    """Raises StoppedError when a signal arrives: at once, or inside `deferred()` at the next `check()`.

    If no `check()` comes within `GRACE` seconds, the error is raised at any point inside `undoable()`. A second signal
    always raises it at once; then `hurried` is True, because work may be half done. Python ignores errors that are
    raised while an object is finalized: there the error is raised a moment later.

    Of several processes that train together, none may leave an update that the others go on with: they stop when
    `check_all` is called, and only a second signal stops one alone.
    """

    def __init__(self) -> None:
        self.hurried = False
        self.say: Callable[[str], None] = lambda text: None  # called with a message at the first signal
        self.together = False  # with other processes: then only `check_all` raises the error, in all at the same point
        self._deferring = False
        self._undoable = False
        self._saying: threading.Thread | None = None
        self._signal: int | None = None
        self._has_alarm = False

    @contextmanager
    def listening(self) -> Iterator["Stopper"]:
        """Install the signal handlers for the block; in other threads than the main one, Python allows none.

        A signal that is ignored, as SIGHUP is under nohup, stays ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        alarm = signal.getsignal(signal.SIGALRM)
        heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._obey) for number in heeded}
        try:
            yield self
        finally:
            if self._has_alarm:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, alarm)
            if self._saying is not None:
                self._saying.join()
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """In the block, a first signal is only noted; the next `check()` raises StoppedError."""
        before, self._deferring = self._deferring, True
        try:
            yield
        finally:
            self._deferring = before

    @contextmanager
    def not_deferred(self) -> Iterator[None]:
        """In the block, signals raise StoppedError at once."""
        before, self._deferring = self._deferring, False
        try:
            yield
        finally:
            self._deferring = before

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In the block, signals raise StoppedError at once; so does one that was noted before."""
        with self.not_deferred():
            self.check()
            yield

    @contextmanager
    def undoable(self) -> Iterator[None]:
        """In the block, StoppedError may be raised at any point; the caller that catches it must undo the work."""
        before, self._undoable = self._undoable, True
        try:
            yield
        finally:
            self._undoable = before

    @contextmanager
    def signals_in_backward(self, model: nn.Module) -> Iterator[None]:
        """In the block, signals are handled during the backward pass too, after each large gradient.

        Backward is one call into C++, and Python handles signals only while Python code runs: so hooks are registered.
        """
        learned = (parameter for parameter in model.parameters() if parameter.requires_grad)
        large = [parameter for parameter in learned if parameter.numel() >= LARGE]
        hooks = [parameter.register_post_accumulate_grad_hook(_hear) for parameter in large]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def check(self) -> None:
        """Raise StoppedError if a signal was noted: called where it is safe to stop."""
        if self._signal is not None and not self.together:
            raise StoppedError(self._signal)

    def check_all(self, processes: Processes) -> None:
        """Raise StoppedError in all processes that train together if one of them has noted a signal."""
        if processes.size == 1:
            self.check()
            return
        number = processes.maximum(self._signal or 0)
        if number:
            raise StoppedError(number)

    def _obey(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: raise StoppedError, or note the signal, answer it and set the alarm."""
        if _in_finalizer(frame):
            self._set_alarm(lambda _, later: self._obey(number, later), RETRY)
            return
        if not self._deferring or self._signal is not None:
            self.hurried = True
            raise StoppedError(number)
        self._signal = number
        self._saying = threading.Thread(target=self.say, args=(answer_to(number),))  # this thread may be inside a print
        self._saying.start()
        self._set_alarm(self._abandon, GRACE, RETRY)

    def _set_alarm(self, handler: Callable[[int, FrameType | None], None], seconds: float, again: float = 0.0) -> None:
        """Call a handler after some seconds, and then every `again` seconds if that is not 0."""
        self._has_alarm = True
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, seconds, again)

    def _abandon(self, number: int, frame: FrameType | None) -> None:
        """Handle the alarm: raise StoppedError if the current work can be undone; else the alarm comes again."""
        if self._undoable and not self.together and not _in_finalizer(frame):
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert self._signal is not None
            raise StoppedError(self._signal)


def answer_to(number: int) -> str:
    """The message at the first signal, in the words of those who pressed keys or sent it."""
    return f"stopping; {'Ctrl-C' if number == signal.SIGINT else 'a signal'} once more stops at once"


def _hear(parameter: Tensor) -> None:
    """A hook that does nothing: Python calls pending signal handlers when it runs any Python code."""


def _in_finalizer(frame: FrameType | None) -> bool:
    """Whether a signal came while Python finalized an object, where errors are ignored."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
