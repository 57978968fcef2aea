"""Ctrl-C and SIGTERM: training stops at the next safe place, or abandons a slow update, with everything saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from torch import Tensor, nn

from regard.errors import StoppedError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE, RETRY = 1.0, 0.1  # seconds until work that can be undone is abandoned, and between further tries
LARGE = 1 << 16  # numbers in a parameter whose gradient may take long
HEARD = "stopping; a signal once more stops at once"


class Stopper:
    """Turns signals into a StoppedError: at once, or inside `deferred()` at the next `check()`.

    If that takes longer than `GRACE`, it is raised inside `undoable()`, wherever the work is. A second signal is obeyed
    at once in any case; `hurried` tells that it was, and that work may be half done.
    """

    def __init__(self) -> None:
        self.hurried = False
        self.say: Callable[[str], None] = lambda text: None  # what a first signal is answered with
        self._deferring = False
        self._undoable = False
        self._saying: threading.Thread | None = None
        self._signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator["Stopper"]:
        """Obey signals while in the block; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        alarm = signal.getsignal(signal.SIGALRM)
        before = {number: signal.signal(number, self._obey) for number in SIGNALS}
        try:
            yield self
        finally:
            if self._saying is not None:  # else no alarm was set
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, alarm)
                self._saying.join()
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Only note signals while in the block."""
        before, self._deferring = self._deferring, True
        try:
            yield
        finally:
            self._deferring = before

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Obey the signals noted so far, and all that come while in the block."""
        before, self._deferring = self._deferring, False
        try:
            self.check()
            yield
        finally:
            self._deferring = before

    @contextmanager
    def undoable(self) -> Iterator[None]:
        """Work that may be abandoned in the middle; the caller that catches the StoppedError must undo it."""
        before, self._undoable = self._undoable, True
        try:
            yield
        finally:
            self._undoable = before

    @contextmanager
    def heard_in_backward(self, model: nn.Module) -> Iterator[None]:
        """Let Python see signals while gradients are computed, which is one call into C++: after each large one."""
        large = [parameter for parameter in model.parameters() if parameter.numel() >= LARGE]
        hooks = [parameter.register_post_accumulate_grad_hook(_hear) for parameter in large]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def check(self) -> None:
        """A safe place to stop."""
        if self._signal is not None:
            raise StoppedError(self._signal)

    def _obey(self, number: int, frame: FrameType | None) -> None:
        if not self._deferring or self._signal is not None:
            self.hurried = True
            raise StoppedError(number)
        self._signal = number
        self._saying = threading.Thread(target=self.say, args=(HEARD,))  # this one may be within a print
        self._saying.start()
        signal.signal(signal.SIGALRM, self._abandon)
        signal.setitimer(signal.ITIMER_REAL, GRACE, RETRY)

    def _abandon(self, number: int, frame: FrameType | None) -> None:
        if self._undoable:
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert self._signal is not None
            raise StoppedError(self._signal)


def _hear(parameter: Tensor) -> None:
    """Do nothing: that Python runs at all is enough for a signal's handler to be called."""
