"""Checks and encodes blocks of pairs, in worker processes: `python -m regard.data.encoding` is one of them.

A worker gets lines of text on stdin, and writes token ids to stdout; it opens no file. It imports no torch, so it
starts at once and needs little memory.
"""

import hashlib
import json
import signal
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from itertools import chain, compress
from queue import SimpleQueue
from typing import IO, NamedTuple

import numpy as np

from regard.console import say
from regard.data.tokenizers import TOKENIZERS, Tokenizer
from regard.data.workers import Worker, cores, receive, send
from regard.errors import ResourceError

MOST_WORKERS = 16
AHEAD = 1  # blocks that wait, besides those that the workers have
READY, DONE, REFUSED = b"r", b"d", b"f"
SCAN, ENCODE, TELL = b"s", b"e", b"t"  # kinds of requests, see `Encoder`
ID_TYPES = ("<u2", "<i4")  # of token ids in a store: two bytes if they are enough
to_json = json.JSONEncoder().encode


class RefusedError(Exception):
    """A block has a line that is no pair; who reads it again can say which one."""


class Block(NamedTuple):
    """Whole lines of a file, or of two parallel files, as they are stored."""

    part: int  # the number of the file among those that are read
    line: int  # the number of its first line over all files, from 0
    first: int  # the number of its first line in the file, from 1
    size: int  # the number of its lines
    contents: tuple[bytes, ...]  # of a TSV file, or of both parallel files


class Encoder:
    """Answers requests about blocks: which pairs are complete (SCAN), their ids (ENCODE), what is checksummed (TELL).

    `wanted` are pairs to look for in a scan; if there are none, it computes digests of all sources.
    """

    def __init__(self, tokenizers: Sequence[tuple[str, bytes]], wanted: Sequence[Sequence[str]]) -> None:
        built: dict[tuple[str, bytes], Tokenizer] = {}
        for kind, content in tokenizers:
            built[kind, content] = TOKENIZERS[kind].from_bytes(content)
        self.tokenizers = [built[key] for key in tokenizers]
        self.wanted = {(source, target): number for number, (source, target) in enumerate(wanted)}

    @staticmethod
    def of_setup(setup: Sequence[bytes]) -> "Encoder":
        """The encoder of another process, from the bytes that `Encoders` gives it."""
        kinds, wanted = json.loads(setup[0])
        return Encoder([*zip(kinds, setup[1:], strict=True)], wanted)

    def reply(self, request: Sequence[bytes]) -> list[bytes]:
        """The answer to a request, as it is sent to another process: DONE and the answer, or REFUSED."""
        try:
            return [DONE, *self.answer(*request)]
        except RefusedError:
            return [REFUSED]

    def answer(self, kind: bytes, mask: bytes, *contents: bytes) -> list[bytes]:
        """The answer to a request; RefusedError if a line is no pair. `mask`: a byte for each line, 1 if it counts."""
        pairs = _pairs(contents)
        if kind == SCAN:
            return self._scan(pairs, mask)
        chosen = [*compress(pairs, mask)]
        texts = "".join([f"[{to_json(source)}, {to_json(target)}]" for source, target in chosen]).encode()
        if kind == TELL:
            return [texts]
        sides = zip(*chosen, strict=True) if chosen else ([], [])
        return [texts, *chain.from_iterable(map(_ids, self.tokenizers, sides))]

    def _scan(self, pairs: Iterable[tuple[str, str]], mask: bytes) -> list[bytes]:
        """A byte for each line, 1 for a complete pair; digests of the sources of these, and the numbers of wanted ones.

        An empty mask chooses all complete pairs.
        """
        pairs = [*pairs]
        complete = mask or bytes([bool(source.strip() and target.strip()) for source, target in pairs])
        chosen = compress(pairs, complete)
        if self.wanted:
            found = {self.wanted[pair] for pair in chosen if pair in self.wanted}
            return [complete, b"", json.dumps(sorted(found)).encode()]
        return [complete, b"".join([source_digest(source) for source, _ in chosen]), b"[]"]


def source_digest(source: str) -> bytes:
    """The digest by which equal sources are found."""
    return hashlib.blake2b(source.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _pairs(contents: Sequence[bytes]) -> Iterable[tuple[str, str]]:
    """The pairs of a block; a blank line is an empty one."""
    try:
        columns = [_lines(content) for content in contents]
    except UnicodeDecodeError:
        raise RefusedError from None
    if len(columns) == 2:
        if len(columns[0]) != len(columns[1]):
            raise RefusedError
        return zip(*columns, strict=True)
    return [_fields(line) for line in columns[0]]


def _lines(content: bytes) -> list[str]:
    r"""Lines that end at \n or \r\n only."""
    text = content.decode()
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def _fields(line: str) -> tuple[str, str]:
    """The source and the target of a line of a TSV file."""
    source, tab, target = line.partition("\t")
    if tab and "\t" not in target:
        return source, target
    if line.strip():
        raise RefusedError
    return "", ""


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[bytes, bytes]:
    """The token ids of texts, one after another, and the number of ids of each."""
    rows = tokenizer.encode_all(texts)
    kind = np.dtype(id_type(tokenizer))
    ids = np.asarray(array("H" if kind.itemsize == 2 else "i", chain.from_iterable(rows))).astype(kind, copy=False)
    return ids.tobytes(), np.fromiter(map(len, rows), "<i4", len(rows)).tobytes()


def id_type(tokenizer: Tokenizer) -> str:
    """The type of the ids of a tokenizer in a store."""
    return ID_TYPES[tokenizer.size > 1 << 16]


# What answers requests elsewhere: from the bytes for `Encoder.of_setup` and requests, their replies in the same order.
Cluster = Callable[[Sequence[bytes], Iterable[Sequence[bytes]]], Iterable[Sequence[bytes]]]
_cluster: ContextVar[Cluster | None] = ContextVar("_cluster", default=None)


@contextmanager
def encoded_by(cluster: Cluster) -> Iterator[None]:
    """In the block, a cluster answers the requests of `Encoders`, and no worker process is started here."""
    token = _cluster.set(cluster)
    try:
        yield
    finally:
        _cluster.reset(token)


class Encoders:
    """Answers requests for many blocks, in worker processes if there are enough; the answers keep the order.

    It is a context manager: the workers, one for each core, end with the block. Inside `encoded_by`, there are none.
    """

    def __init__(
        self, expected: int, tokenizers: Sequence[tuple[str, Tokenizer]] = (), wanted: Sequence[Sequence[str]] = ()
    ) -> None:
        stored = [(kind, tokenizer.to_bytes()) for kind, tokenizer in tokenizers]
        kinds = [kind for kind, _ in stored]
        self._setup = [json.dumps([kinds, [*wanted]]).encode(), *(content for _, content in stored)]
        self._here = Encoder(stored, wanted)  # for a block that a worker refuses to start for
        self._cluster = _cluster.get()
        self.count = min(MOST_WORKERS, cores(), expected) if sys.executable and not self._cluster else 0
        self._stack = ExitStack()
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> "Encoders":
        if self.count > 1:
            workers = [self._stack.enter_context(Worker("regard.data.encoding")) for _ in range(self.count)]
            for worker in workers:
                with suppress(BrokenPipeError):
                    send(worker.requests, *self._setup)
            if all(receive(worker.answers) == [READY] for worker in workers):
                self._pool = self._stack.enter_context(ThreadPoolExecutor(self.count))
                for worker in workers:
                    self._idle.put(worker)
                self._stack.callback(self._end, workers)
            else:
                say("the processes that encode texts did not start; this one encodes them alone, which takes longer")
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _end(self, workers: Sequence[Worker]) -> None:
        """End the workers first, so that no thread waits for an answer; called before the pool is left."""
        for worker in workers:
            worker.__exit__()

    def map(self, requests: Iterable[tuple[Block, bytes, bytes]]) -> Iterator[tuple[Block, list[bytes]]]:
        """Each block with the answer to its request, of a kind and a mask; RefusedError if a line is no pair."""
        if self._cluster:
            yield from self._sent(self._cluster, requests)
        elif self._pool is None:
            for block, kind, mask in requests:
                yield block, self._here.answer(kind, mask, *block.contents)
        else:
            yield from self._distributed(self._pool, requests)

    def _sent(
        self, cluster: Cluster, requests: Iterable[tuple[Block, bytes, bytes]]
    ) -> Iterator[tuple[Block, list[bytes]]]:
        """Each block with the answer of a cluster."""
        waiting: deque[Block] = deque()

        def sent() -> Iterator[list[bytes]]:
            for block, kind, mask in requests:
                waiting.append(block)
                yield [kind, mask, *block.contents]

        for state, *answer in cluster(self._setup, sent()):
            if state == REFUSED:
                raise RefusedError
            yield waiting.popleft(), answer

    def _distributed(
        self, pool: ThreadPoolExecutor, requests: Iterable[tuple[Block, bytes, bytes]]
    ) -> Iterator[tuple[Block, list[bytes]]]:
        """Each block with the answer of a worker process."""
        waiting: deque[tuple[Block, Future[list[bytes]]]] = deque()
        for block, kind, mask in requests:
            waiting.append((block, pool.submit(self._ask, kind, mask, *block.contents)))
            if len(waiting) > self.count + AHEAD:
                first, answer = waiting.popleft()
                yield first, answer.result()
        for first, answer in waiting:
            yield first, answer.result()

    def _ask(self, *request: bytes) -> list[bytes]:
        """The answer of a worker."""
        worker = self._idle.get()
        try:
            with suppress(BrokenPipeError):
                send(worker.requests, *request)
            state, *answer = receive(worker.answers) or [b""]
        finally:
            self._idle.put(worker)
        if state == REFUSED:
            raise RefusedError
        if state != DONE:
            raise ResourceError(
                "a process that encodes texts has ended, perhaps because memory ran out; free some memory and start "
                "again: what is encoded already is kept"
            )
        return answer


def work(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until they end: the work of a worker process."""
    encoder = Encoder.of_setup(receive(requests))
    send(answers, READY)
    while request := receive(requests):
        send(answers, *encoder.reply(request))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work(sys.stdin.buffer, sys.stdout.buffer)
