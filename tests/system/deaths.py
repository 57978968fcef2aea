"""Like forks.py, for commands that are to be killed: it tells the process, and lets it meet its fate at a given place.

It reads one JSON object a line and answers with the process id, then with the exit code (minus the signal) and the
seconds of the processor it took. Beyond what forks.py knows, a task may hold:
  after  seconds of the processor after which the process is killed, wherever it is
  act    [function of the loop, number of the call, signals]: the process sends itself these signals there
  die    [function of the loop, number of the operation]: from that function's last call on, operations on files are
         counted, and the process is killed at this one; a write is left half done
  keep   a folder for the last checkpoint, which a finished run no longer has
  cache  a cache of its own
The task that says `warm` runs here and not in a fork: what torch does at first use is then done.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from forks import become

from regard import cli, training  # noqa: F401
from regard.storage import Run
from regard.training import loop
from regard.training.engine import eager

OPERATIONS = ("open", "write", "fsync", "close", "rename", "replace", "mkdir", "unlink", "rmdir")


def before(name: str, act: Callable[[int], None]) -> None:
    """Act before every call of a function of the loop or of an eager update; it is told the number of the call."""
    home = loop if hasattr(loop, name) else eager
    real, calls = getattr(home, name), []

    def called(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        act(len(calls))
        return real(*arguments, **named)

    setattr(home, name, called)


def send_signals(place: str, call: int, numbers: list[int]) -> None:
    """Let this process send itself signals."""

    def act(number: int) -> None:
        if number == call:
            for each in numbers:
                os.kill(os.getpid(), each)

    before(place, act)


def die(place: str, call: int, last: int) -> None:
    """Kill this process at an operation on files, counted from the call of a function."""
    count = None

    def begin(number: int) -> None:
        nonlocal count
        if number == call:
            count = 0

    def deadly(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def operate(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            if count is not None:
                count += 1
                if count == last:
                    if name == "write":
                        real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return operate

    before(place, begin)
    for name in OPERATIONS:
        setattr(os, name, deadly(name))


def kill_after(process: int, seconds: float) -> None:
    """Kill a process when the processor has worked for it so long: other processes do not shift that instant."""
    clock = (~process << 3) | 2  # the clock of another process's work, as clock_getcpuclockid(3) makes it
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT  # it stays a process, if a dead one, until it is waited for
    while time.clock_gettime(clock) < seconds and os.waitid(os.P_PID, process, ended) is None:
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)


def keep(folder: str) -> None:
    """Copy the last checkpoint before it is removed."""
    finish = Run.finish

    def copying(self: Run) -> None:
        shutil.copytree(self.checkpoints()[0].path, folder, dirs_exist_ok=True)
        finish(self)

    Run.finish = copying


def meet(task: dict[str, Any]) -> None:
    """Become the command with all that is to happen to it."""
    if "cache" in task:
        os.environ["REGARD_CACHE"] = task["cache"]
    if "keep" in task:
        keep(task["keep"])
    if "act" in task:
        send_signals(*task["act"])
    if "die" in task:
        die(*task["die"])
    become(task)


if __name__ == "__main__":
    for line in sys.stdin:
        told = json.loads(line)
        if "warm" in told:
            training.train(*told["warm"], runs=told["runs"], quiet=True)
            print("warm", flush=True)
            continue
        child = os.fork()
        if child == 0:
            meet(told)
        print(child, flush=True)
        if "after" in told:
            kill_after(child, told["after"])
        _, status, used = os.wait4(child, 0)
        print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)
