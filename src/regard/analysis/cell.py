"""Trains one run of a sweep in a process of its own: `python -m regard.analysis.cell`, started by `workers`.

The task is a line of JSON on stdin. Events are lines of JSON on stdout: how far the training is, at last the run or an
error. If stdin ends, the process that started this one is gone: training stops, and can be resumed.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from regard import recipe as recipes
from regard import training
from regard.errors import RegardError
from regard.training.callbacks import Callback, Started, Updated

SECONDS = 0.3  # between two events about updates


class Telling(Callback):
    """Reports how many updates are done, as an event."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self.tell, self.reported = tell, 0.0

    def on_start(self, event: Started) -> None:
        """Report the updates that were done before."""
        self.tell(update=event.update)

    def on_update(self, event: Updated) -> None:
        """Report an update now and then."""
        if time.monotonic() - self.reported >= SECONDS:
            self.reported = time.monotonic()
            self.tell(update=event.update)


def tell(**event: Any) -> None:
    """Write an event."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Train, or resume, the run of the task; returns the exit code."""
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_if_alone, daemon=True).start()
    try:
        if task["run"]:
            run = training.resume(task["run"], quiet=True, callbacks=[Telling(tell)])
        else:
            recipe = recipes.parse(task["recipe"], "the sweep")
            run = training.train(recipe, runs=task["runs"], quiet=True, callbacks=[Telling(tell)])
    except RegardError as error:
        tell(error=str(error))
        return error.exit_code
    tell(run=str(run.path))
    return 0


def _stop_if_alone() -> None:
    """Wait for the end of stdin, past any buffer: then stop this process as a signal would."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
