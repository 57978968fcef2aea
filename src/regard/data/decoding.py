"""Decodes many pictures at once, in worker processes: `python -m regard.data.decoding` is one of them.

A worker gets the name and the content of a picture on stdin, and writes the resized pixels to stdout. It opens no file,
and ends with its stdin, so none is left if the process that started it is killed. A picture that ends its worker is
refused by its name, and the training is not harmed.
"""

import json
import os
import struct
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict
from queue import SimpleQueue
from typing import IO, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.console import say
from regard.data import pictures
from regard.data.media import Medium
from regard.data.workers import Worker, cores, read_exactly
from regard.errors import DataError, RegardError
from regard.recipe import Limits

LEAST = 2000  # pictures to decode for which workers are started: each imports torch first, for about two seconds
MOST_WORKERS = 16
FEW_CORES = 2  # with so many or fewer, the process that uses the pictures needs them itself
HEADER = struct.Struct(">IQ")  # of a request: the bytes of the name and of the content
READY, DECODED, FAILED = b"r", b"d", b"f"

Image = UInt8[Tensor, "3 size size"]


class Square(NamedTuple):
    """How pictures become squares, and what is refused."""

    size: int
    fit: str
    limits: Limits

    def decode(self, name: str, content: bytes) -> Image:
        """The resized pixels of a picture."""
        return pictures.resize(pictures.draw(content, name, self.limits), self.size, self.fit)


class Decoders:
    """Decodes pictures into squares of one size; in worker processes if many are expected and there are enough cores.

    It is a context manager: the workers, which are started when they are first needed, end with the block.
    """

    def __init__(self, square: Square, expected: int) -> None:
        self.square, self.count = square, workers_for(expected)
        self._stack = ExitStack()
        self._has_warned = False
        self._pool: ThreadPoolExecutor | None = None
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._workers: list[_Worker] = []

    def __enter__(self) -> "Decoders":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def decode(self, named: Sequence[tuple[str, bytes]]) -> list[Image]:
        """The pixels of pictures, given as names and contents; the first that cannot be decoded raises its error."""
        if not self.count:
            return [self.square.decode(name, content) for name, content in named]
        if self._pool is None:
            self._workers = [_Worker(self.square) for _ in range(self.count)]
            for worker in self._workers:
                self._stack.enter_context(worker)
                self._idle.put(worker)
            self._pool = self._stack.enter_context(ThreadPoolExecutor(self.count))
        images = list(self._pool.map(self._decode_one, named))
        if not self._has_warned and any(worker.is_ready is False for worker in self._workers):
            say("processes that decode pictures did not start; this one decodes for them, which takes longer")
            self._has_warned = True
        return images

    def _decode_one(self, named: tuple[str, bytes]) -> Image:
        if isinstance(named[0], Medium):  # it has its pixels already
            return self.square.decode(*named)
        worker = self._idle.get()
        try:
            return worker.decode(*named)
        finally:
            self._idle.put(worker)


def workers_for(expected: int) -> int:
    """The number of worker processes for so many pictures; 0 if this process is as fast without them."""
    if expected < LEAST or cores() <= FEW_CORES or not sys.executable:
        return 0
    return min(MOST_WORKERS, cores() - 1)


class _Worker(Worker):
    """A worker process; one thread at a time uses it."""

    def __init__(self, square: Square) -> None:
        super().__init__("regard.data.decoding", json.dumps([square.size, square.fit, asdict(square.limits)]))
        self.square = square
        self.is_ready: bool | None = None  # unknown before its first picture

    def decode(self, name: str, content: bytes) -> Image:
        """The pixels of a picture. One that the worker refuses is decoded here again, which raises its error."""
        if self.is_ready is None:
            self.is_ready = self._read(1) == READY
        if not self.is_ready:  # it could not be started
            return self.square.decode(name, content)
        answer, pixels = self._ask(name, content)
        if answer == FAILED:
            return self.square.decode(name, content)
        if answer != DECODED:
            raise DataError(
                f"{name} has ended the process that decodes it: it may be damaged; replace it or take it out"
            )
        size = self.square.size
        return torch.from_numpy(np.frombuffer(pixels, np.uint8).reshape(3, size, size).copy())

    def _ask(self, name: str, content: bytes) -> tuple[bytes, bytes]:
        """The first byte of the answer, and the pixels; empty if the worker has ended."""
        encoded = os.fsencode(name)
        with suppress(BrokenPipeError):
            self.requests.write(HEADER.pack(len(encoded), len(content)) + encoded + content)
            self.requests.flush()
            answer = self._read(1)
            pixels = self._read(3 * self.square.size**2) if answer == DECODED else b""
            if answer == FAILED or pixels:
                return answer, pixels
        return b"", b""

    def _read(self, count: int) -> bytes:
        return read_exactly(self.answers, count)


def work(settings: str, requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until they end: the work of a worker process."""
    size, fit, limits = json.loads(settings)
    square = Square(size, fit, Limits(**limits))
    torch.set_num_threads(1)
    answers.write(READY)
    answers.flush()
    while header := read_exactly(requests, HEADER.size):
        name, content = (read_exactly(requests, count) for count in HEADER.unpack(header))
        try:
            answers.write(DECODED + square.decode(os.fsdecode(name), content).numpy().tobytes())
        except (RegardError, MemoryError):
            answers.write(FAILED)
        answers.flush()


if __name__ == "__main__":
    work(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer)
