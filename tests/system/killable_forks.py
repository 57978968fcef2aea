"""Like forks.py, for commands that are killed or stopped at a chosen point.

It reads one JSON object per line. It prints the process id, then the exit code (minus the signal number if a signal
ended the process) and the CPU seconds used. Beside the keys of forks.py, a task may have:
  kill_after    CPU seconds after which the process is killed, at any instruction
  signals       [function of the loop, number of the call, signals]: the process sends itself these signals there
  kill_at       [function of the loop, number of the call, number of the operation]: file operations are counted from
                that call on, and the process is killed at this one; if it is a write, half of the bytes are written
  copy_last_to  a folder to which the last checkpoint is copied, because a finished run removes it
  cache         the cache folder of this command alone
A task with `warm_up` runs in this process, not in a fork, so that torch is initialised before the first fork.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from forks import run_command

from regard import cli, training  # noqa: F401
from regard.storage import Run
from regard.training import loop
from regard.training.engine import eager

OPERATIONS = ("open", "write", "fsync", "close", "rename", "replace", "mkdir", "unlink", "rmdir")


def before_each_call(name: str, act: Callable[[int], None]) -> None:
    """Call `act` with the number of the call before every call of a function of the loop or of an eager update."""
    module = loop if hasattr(loop, name) else eager
    real, calls = getattr(module, name), []

    def called(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        act(len(calls))
        return real(*arguments, **named)

    setattr(module, name, called)


def send_signals(name: str, call: int, signals: list[int]) -> None:
    """Let this process send itself signals at a call of a function."""

    def act(number: int) -> None:
        if number == call:
            for each in signals:
                os.kill(os.getpid(), each)

    before_each_call(name, act)


def kill_at_operation(name: str, call: int, operation: int) -> None:
    """Kill this process at a file operation, counted from a call of a function."""
    count = None

    def begin(number: int) -> None:
        nonlocal count
        if number == call:
            count = 0

    def counting(operation_name: str) -> Callable[..., Any]:
        real = getattr(os, operation_name)

        def operate(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            if count is not None:
                count += 1
                if count == operation:
                    if operation_name == "write":
                        real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return operate

    before_each_call(name, begin)
    for operation_name in OPERATIONS:
        setattr(os, operation_name, counting(operation_name))


def kill_after(process: int, seconds: float) -> None:
    """Kill a process after so many CPU seconds: unlike the wall clock, other processes do not change that instant."""
    clock = (~process << 3) | 2  # the CPU clock of another process, as clock_getcpuclockid(3) computes it
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT  # a dead process keeps its id until it is waited for
    while time.clock_gettime(clock) < seconds and os.waitid(os.P_PID, process, ended) is None:
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)


def copy_last_checkpoint(folder: str) -> None:
    """Copy the last checkpoint before it is removed."""
    finish = Run.finish

    def copying(self: Run) -> None:
        shutil.copytree(self.checkpoints()[0].path, folder, dirs_exist_ok=True)
        finish(self)

    Run.finish = copying


def run_task(task: dict[str, Any]) -> None:
    """Prepare all that shall happen to the command, then run it in this process."""
    if "cache" in task:
        os.environ["REGARD_CACHE"] = task["cache"]
    if "copy_last_to" in task:
        copy_last_checkpoint(task["copy_last_to"])
    if "signals" in task:
        send_signals(*task["signals"])
    if "kill_at" in task:
        kill_at_operation(*task["kill_at"])
    run_command(task)


if __name__ == "__main__":
    for line in sys.stdin:
        task = json.loads(line)
        if "warm_up" in task:
            training.train(*task["warm_up"], runs=task["runs"], quiet=True)
            print("warm", flush=True)
            continue
        child = os.fork()
        if child == 0:
            run_task(task)
        print(child, flush=True)
        if "kill_after" in task:
            kill_after(child, task["kill_after"])
        _, status, used = os.wait4(child, 0)
        print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)
