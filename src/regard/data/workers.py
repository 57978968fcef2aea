"""Worker processes that read requests on stdin and answer on stdout; this module does not import torch."""

import os
import struct
import subprocess
import sys
from contextlib import suppress
from typing import IO

COUNT, SIZE = struct.Struct(">I"), struct.Struct(">Q")  # of the parts of a message, and of the bytes of a part


def python(*arguments: str) -> list[str]:
    """The command that starts this Python again."""
    return [sys.executable, "-P", *arguments]  # -P: no module of the working directory


def environment() -> dict[str, str]:
    """The variables with which such a process finds the same modules as this one. It has one thread."""
    paths = os.pathsep.join(filter(None, sys.path))  # an empty path is the working directory
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}  # several threads would wait for each other


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """A process that runs a module; it ends with the block, and if this process is killed, with its stdin."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            python("-m", module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,  # Ctrl-C is for the process that started it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.requests, self.answers = self._process.stdin, self._process.stdout

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        with suppress(BrokenPipeError), self._process:  # closes the pipes and waits
            pass


def read_exactly(file: IO[bytes], count: int) -> bytes:
    """So many bytes of a pipe; none if it ends before."""
    content = file.read(count)
    return content if len(content) == count else b""


def send(file: IO[bytes], *parts: bytes) -> None:
    """Write a message of several parts to a pipe."""
    file.write(COUNT.pack(len(parts)) + b"".join(SIZE.pack(len(part)) for part in parts))
    for part in parts:
        file.write(part)
    file.flush()


def receive(file: IO[bytes]) -> list[bytes]:
    """The parts of the next message of a pipe; none if it has ended."""
    header = read_exactly(file, COUNT.size)
    if not header:
        return []
    (count,) = COUNT.unpack(header)
    sizes = [size for (size,) in SIZE.iter_unpack(read_exactly(file, SIZE.size * count))]
    parts = [read_exactly(file, size) for size in sizes]
    return parts if [*map(len, parts)] == sizes and len(parts) == count else []
