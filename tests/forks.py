"""Runs commands of regard, each in a fork of this process, which has imported torch already, and attacks them.

It is started by commands.py, reads one JSON object per line and answers with one. {"start": {...}} starts a command and
answers with its process id; {"wait": process, "limit": seconds} answers with its `Result`. Bytes are in JSON as
`os.fsdecode` decodes them. A command has these keys, all but the first two optional:
  arguments    of the command line
  folder       the working directory
  environment  variables to set
  float64      new tensors are of that type, as the weights of models
  captured     updates are those of the engine of captured updates, see captured_on_cpu.py
  stdin        its bytes
  terminals    which of "out" and "error" are terminals; the others are pipes
  encoding     ENCODING:ERRORS of the streams, as in PYTHONIOENCODING; utf-8:strict if it is not given
  packages     a folder with more installed packages
  watched      a folder: operations on files in it are counted, from 1, and reported as [name, path]
  fail         {number of an operation: "kill", or the name of an error such as "ENOSPC"}: happens at that operation;
               a killed write has written half of its bytes
  full_from    number of an operation from which on all writing fails with ENOSPC
  short        every write writes at most half of its bytes (at least one)
  signals      [["module:function", number of the call, [signals]], ...]: the process sends itself these signals there
  remove       ["module:function", number of the call, path]: a file that is removed there
  link         ["module:function", number of the call, path, target]: a link that is made there; {pid} in the path is
               the number of the process
  ignored      signals that are ignored on entry, as under nohup
  limits       {"FSIZE": bytes, "NOFILE": number of files}: limits of the operating system
  kill_after   [CPU seconds, signal]: after so much time the process gets the signal, at any instruction
"""

import errno
import gc
import importlib
import io
import json
import os
import pty
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch._dynamo

import captured_on_cpu
from regard import cli, predict, training  # noqa: F401  imported before the fork
from regard.analysis import alignment, doctor  # noqa: F401

READING = ("listdir", "scandir", "read")  # they change no file; nor does `open` without one of these flags
OPERATIONS = ("open", "write", "pwrite", "ftruncate", "fsync", "close", "rename", "replace", "mkdir", "unlink", "rmdir")
OPERATIONS += ("symlink",)  # of which the second argument is the path
LISTING = ("listdir", "scandir")
WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

real_write, real_close = os.write, os.close


class Operations:
    """Counts the operations on files in a folder, reports each, and lets some fail."""

    def __init__(self, task: dict[str, Any], report: int) -> None:
        self.watched = os.path.realpath(task["watched"])
        self.fail = {int(number): act for number, act in task.get("fail", {}).items()}
        self.full_from = task.get("full_from")
        self.short = task.get("short", False)
        self.report = report
        self.count = 0
        self.handles: dict[int, str] = {}  # paths of the open files that are watched
        for name in (*OPERATIONS, *LISTING):
            setattr(os, name, self._counted(name, getattr(os, name)))
        io.open = self._counted("read", io.open)  # pathlib reads by it

    def _path(self, target: Any, folder: int | None) -> str | None:
        """The path of a file, given by a path or a handle; None if it is not watched."""
        if isinstance(target, int):
            return self.handles.get(target)
        path = os.fsdecode(target)
        if folder is not None:
            return os.path.join(self.handles[folder], path) if folder in self.handles else None
        path = os.path.abspath(path)
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        return path if path.startswith(self.watched) else None

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operate(target: Any = ".", *arguments: Any, **named: Any) -> Any:
            place = arguments[0] if name == "symlink" else target
            path = self._path(place, named.get("dir_fd", named.get("src_dir_fd")))
            if path is None:
                return real(target, *arguments, **named)
            reading = name in READING or (name == "open" and not arguments[0] & WRITING_FLAGS)
            self._act("read" if reading else name, path, target, arguments)
            if name == "write" and self.short:
                return real(target, arguments[0][: max(1, len(arguments[0]) // 2)])
            result = real(target, *arguments, **named)
            if name == "open":
                self.handles[result] = path
            elif name == "close":
                self.handles.pop(target, None)
            return result

        return operate

    def _act(self, name: str, path: str, target: Any, arguments: tuple[Any, ...]) -> None:
        """Report the operation; kill the process or raise an error if that is asked for."""
        self.count += 1
        real_write(self.report, json.dumps([name, os.path.relpath(path, self.watched)]).encode() + b"\n")
        act = self.fail.get(self.count)
        if (
            act is None
            and self.full_from is not None
            and self.count >= self.full_from
            and name in ("write", "pwrite", "mkdir")
        ):
            act = "ENOSPC"
        if act == "kill":
            if name == "write":
                real_write(target, arguments[0][: len(arguments[0]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        elif act is not None:
            if name == "close":
                real_close(target)  # as the system does: the handle is closed although an error is reported
                self.handles.pop(target, None)
            number = getattr(errno, act)
            raise OSError(number, os.strerror(number), path)


def before_call(place: str, call: int, act: Callable[[], None]) -> None:
    """Call `act` before the n-th call of a function, given as module:function or module:class.function."""
    module_name, names = place.split(":")
    owner: Any = importlib.import_module(module_name)
    *outer, name = names.split(".")
    for part in outer:
        owner = getattr(owner, part)
    real, calls = getattr(owner, name), []

    def called(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            act()
        return real(*arguments, **named)

    setattr(owner, name, called)


def send(signals: list[int]) -> None:
    for number in signals:
        os.kill(os.getpid(), number)


def run_command(task: dict[str, Any], report: int) -> NoReturn:
    """Prepare the attack, run the command in this process, then exit with its code."""
    os.environ.update(task.get("environment", {}))
    os.chdir(task["folder"])
    sys.path[:0] = [task["packages"]] if "packages" in task else []
    for number in task.get("ignored", []):
        signal.signal(number, signal.SIG_IGN)
    for place, call, signals in task.get("signals", []):
        before_call(place, call, lambda signals=signals: send(signals))
    if "remove" in task:
        place, call, path = task["remove"]
        before_call(place, call, lambda: os.unlink(path))
    if "link" in task:
        place, call, path, target = task["link"]
        before_call(place, call, lambda: os.symlink(target, path.format(pid=os.getpid())))
    if "watched" in task:
        Operations(task, report)
    for name, limit in task.get("limits", {}).items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    if task.get("float64"):
        torch.set_default_dtype(torch.float64)
    if task.get("captured"):
        captured_on_cpu.install()
    sys.argv = ["regard", *task["arguments"]]
    code = 1
    try:
        cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1
    os._exit(code)


def open_streams(stdin: int, out: int, error: int, encoding: str) -> None:
    """Let these handles be the standard streams; the old objects know whether theirs could seek and were terminals."""
    for number, handle in enumerate((stdin, out, error)):
        os.dup2(handle, number)
    name, errors = encoding.split(":")
    sys.stdin = open(0, encoding=name, errors=errors, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=name, errors=errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding=name, errors="backslashreplace", closefd=False)  # noqa: SIM115


class Child:
    """A command in a fork, with pipes or terminals for its output and a pipe for the report of its operations."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.terminals = task.get("terminals", [])
        ends = {name: pty.openpty() if name in self.terminals else os.pipe() for name in ("out", "error", "operations")}
        stdin = os.memfd_create("stdin")
        os.pwrite(stdin, os.fsencode(task.get("stdin", "")), 0)
        self.began = time.monotonic()
        self.memory = resident_bytes()
        self.process = os.fork()
        if self.process == 0:
            open_streams(stdin, ends["out"][1], ends["error"][1], task.get("encoding", "utf-8:strict"))
            run_command(task, ends["operations"][1])
        os.close(stdin)
        for _, writing in ends.values():
            os.close(writing)
        self.reading = {reading: name for name, (reading, _) in ends.items()}
        self.received = {name: bytearray() for name in ends}
        self.kill_after = task.get("kill_after")

    def wait(self, limit: float) -> dict[str, Any]:
        """Wait until the command ends; after `limit` seconds it is killed, and the result says that it hung.

        Seconds in which it could have run, but other processes did, are not counted: a busy machine is no hang.
        """
        end, hung = time.monotonic() + limit, False
        clock = (~self.process << 3) | 2  # the CPU clock of another process, as clock_getcpuclockid(3) computes it
        while self.reading:
            ready, _, _ = select.select(list(self.reading), [], [], 0.001 if self.kill_after is not None else 0.05)
            for handle in ready:
                self._receive(handle)
            if self.reading and self.kill_after is not None and time.clock_gettime(clock) >= self.kill_after[0]:
                os.kill(self.process, self.kill_after[1])
                self.kill_after = None
            if self.reading and time.monotonic() > end + queued_seconds(self.process):
                hung = True
                os.kill(self.process, signal.SIGKILL)
                end += limit
        _, status, used = os.wait4(self.process, 0)
        for name in self.terminals:
            self.received[name] = self.received[name].replace(b"\r\n", b"\n")
        return {
            "code": os.waitstatus_to_exitcode(status),
            "hung": hung,
            "out": os.fsdecode(bytes(self.received["out"])),
            "error": os.fsdecode(bytes(self.received["error"])),
            "operations": [json.loads(line) for line in self.received["operations"].splitlines()],
            "seconds": time.monotonic() - self.began,
            "cpu": used.ru_utime + used.ru_stime,
            "memory": used.ru_maxrss * 1024 - self.memory,
        }

    def _receive(self, handle: int) -> None:
        """Read what the command has written to a stream, which is closed at its end."""
        try:
            content = os.read(handle, 1 << 16)
        except OSError:  # Linux reports the end of a terminal like this
            content = b""
        self.received[self.reading[handle]] += content
        if not content:
            os.close(handle)
            del self.reading[handle]


def queued_seconds(process: int) -> float:
    """How long a process was ready to run while others ran; 0 if the system does not count that."""
    try:
        with open(f"/proc/{process}/schedstat", encoding="ascii") as counts:
            return int(counts.read().split()[1]) / 1e9
    except OSError:
        return 0.0


def resident_bytes() -> int:
    """The memory of this process, which a fork of it begins with."""
    with open("/proc/self/statm", encoding="ascii") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    gc.freeze()  # a collection in a fork would copy the memory of all these objects
    children: dict[int, Child] = {}
    for line in sys.stdin:
        task = json.loads(line)
        if "start" in task:
            child = Child(task["start"])
            children[child.process] = child
            answer: Any = child.process
        else:
            answer = children.pop(task["wait"]).wait(task["limit"])
        print(json.dumps(answer), flush=True)
