"""Ctrl-C and SIGTERM: training stops at the next safe place, with everything saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from regard.errors import StoppedError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopper:
    """Turns signals into a StoppedError: at once, or inside `deferred()` at the next `check()`.

    A second signal is obeyed at once in any case; `hurried` tells that it was, and that work may be half done.
    """

    def __init__(self) -> None:
        self.hurried = False
        self._deferring = False
        self._signal: int | None = None

    @contextmanager
    def listening(self) -> Iterator["Stopper"]:
        """Obey signals while in the block; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {number: signal.signal(number, self._obey) for number in SIGNALS}
        try:
            yield self
        finally:
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

    def check(self) -> None:
        """A safe place to stop."""
        if self._signal is not None:
            raise StoppedError(self._signal)

    def _obey(self, number: int, frame: FrameType | None) -> None:
        if not self._deferring or self._signal is not None:
            self.hurried = True
            raise StoppedError(number)
        self._signal = number
