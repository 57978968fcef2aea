"""Many pairs in files, encoded once to a store of token ids in the cache, and never in memory as a whole.

The files are read block by block; worker processes check and encode the blocks. All results are kept in the cache,
under the SHA-256 of the files' content and of everything else that they depend on:

- `checksums`: the SHA-256 of a file, under its path, inode, size and times: so an unchanged file is not read again.
- `scans`: which lines are pairs to learn from, and the pairs that are split off for dev.
- `digests`: the checksum of the pairs, as a run stores it.
- `tokens`: the ids of all pairs, as memory-mapped arrays.
- `tokenizers`: see `regard.sources.text`.
"""

import hashlib
import json
import os
import random
import time
from bisect import bisect_right
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from importlib import metadata
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard import __version__, storage
from regard.console import counted, say
from regard.data import files
from regard.data.batching import shuffled
from regard.data.encoding import ENCODE, SCAN, TELL, Block, Encoders, RefusedError, id_type
from regard.data.files import Loaded, Part, Split
from regard.data.paths import expanded, find
from regard.data.store import Indices, IntegerRows, Integers, Stored, StoredExamples, Texts, Unread
from regard.data.tokenizers import Tokenizer
from regard.errors import DataError, StorageError
from regard.recipe import Data, Limits
from regard.types import Example

SIZE = 1 << 22  # bytes of a block, about
FRESH = 2_000_000_000  # nanoseconds: a file that was changed so shortly ago may change again with the same times
VERSION = 1  # of the content of the cache
SIDES = ("source", "target")
ATTEMPTS = 3  # to read the token store, which another process may remove


class Scan(NamedTuple):
    """What is known of the lines of the files."""

    sizes: list[int]  # the number of lines of each part
    blocks: int
    dropped: int  # lines with an empty side
    shared: list[int]  # the numbers of distinct dev pairs, of files, that are in train too
    dev: list[tuple[str, str, int]]  # pairs split off for dev, and their lines
    kept: NDArray[np.uint8]  # for each line, whether it is a pair to learn from

    def to_bytes(self) -> bytes:
        """The scan as a line of JSON, and bits."""
        header = self._replace(kept=len(self.kept))._asdict()  # type: ignore[arg-type]
        return json.dumps(header).encode() + b"\n" + np.packbits(self.kept).tobytes()

    @staticmethod
    def from_bytes(content: bytes) -> "Scan":
        """The scan from `to_bytes`."""
        header, _, bits = content.partition(b"\n")
        scan = Scan(**json.loads(header))
        kept = np.unpackbits(np.frombuffer(bits, np.uint8), count=int(scan.kept))
        return scan._replace(kept=kept, dev=[(source, target, line) for source, target, line in scan.dev])


def are_stored(data: Data) -> bool:
    """Whether the training files have at least data.store_from bytes, so that they are encoded block by block."""
    try:
        return sum(os.path.getsize(find(name)) for name in expanded(data.train)) >= data.store_from
    except (OSError, DataError):
        return False  # who reads them reports it


def read_shards(data: Data, dev: Sequence[Example]) -> Loaded:
    """The pairs of data.train, without those that are split off if there is no `dev`."""
    source = Files(data.train, files.corpora(data.train), data.limits)
    wanted = _distinct(dev)
    key = _key(source.digests, SIZE, wanted or data.split_seed)
    scan = Scan.from_bytes(storage.cached("scans", key, lambda: _scan(source, wanted, data.split_seed).to_bytes()))
    return Loaded(Shards(source, key, scan, wanted), scan.dropped)


def _distinct(examples: Sequence[Example]) -> list[Texts]:
    """The different pairs of source and target, in the order of the first of each."""
    return [*dict.fromkeys((example.source, example.target) for example in examples)]


class Shards(Stored[Example]):
    """The pairs of files to learn from. They are read from the files again whenever they are needed, if at all."""

    def __init__(self, source: "Files", key: str, scan: Scan, wanted: Sequence[Texts] = ()) -> None:
        self.files, self.key, self.scan, self.wanted = source, key, scan, wanted
        self.lines = np.flatnonzero(scan.kept).astype(np.int32)
        self._starts = [0, *accumulate(scan.sizes)]
        firsts = [0, *accumulate(map(len, source.corpora))][:-1]
        self.corpora = [self._starts[first] for first in firsts]

    @property
    def split(self) -> Split:
        """These examples, and those that are split off for dev."""
        return Split(
            self, [Example(source, target, origin=self.origin(line)) for source, target, line in self.scan.dev]
        )

    def count_shared(self, examples: Sequence[Example]) -> int:
        """How many of the examples are among these; of those of dev, it is known."""
        wanted = _distinct(examples)
        found = self.scan.shared if wanted == self.wanted else self._find(wanted)
        shared = {wanted[number] for number in found}
        return sum((example.source, example.target) in shared for example in examples)

    def _find(self, wanted: Sequence[Texts]) -> set[int]:
        """The numbers of the wanted pairs that are in these files."""
        found = set[int]()
        with Encoders(self.scan.blocks, (), wanted) as encoders:
            for _, (_, _, there) in encoders.map(self._requests("comparing with train", [], SCAN)):
                found.update(json.loads(there))
        return found

    def origin(self, line: int) -> str:
        """File and line, for messages."""
        part = bisect_right(self._starts, line) - 1
        return f"{self.files.parts[part][0]}:{line - self._starts[part] + 1}"

    def __len__(self) -> int:
        return len(self.lines)

    def item(self, index: int) -> Example:
        """The example at an index from 0."""
        return self.take([index])[0]

    def take(self, indices: Indices) -> StoredExamples:
        """The examples at these indices, in that order, read into memory."""
        lines, places = np.unique(self.lines[np.asarray(indices, np.int64)], return_inverse=True)
        return self._read(lines).take(places)

    def __iter__(self) -> Iterator[Example]:
        return iter(self._read(self.lines))

    def sample(self, most: int) -> "Unread[Example]":
        """At most so many of the examples (0: all), drawn at random; read into memory when they are needed."""
        count = min(most or len(self), len(self))
        digest = f"{self.key} {count}"
        return Unread(count, digest, lambda: self._read(self.lines[sample(len(self), most)]))

    def without_texts(self) -> StoredExamples:
        """The examples with their origins alone."""
        return StoredExamples(self.lines, lambda _: ("", ""), self.origin, self.corpora)

    def _read(self, lines: Integers) -> StoredExamples:
        """The examples of these lines, which are sorted."""
        if not len(lines):
            return self.without_texts().take([])
        columns: list[list[bytes]] = [[], []]
        for block in self.files.blocks():
            first, end = np.searchsorted(lines, [block.line, block.line + block.size]).tolist()
            chosen = (lines[first:end] - block.line).tolist()
            for column, content in zip(columns, block.contents if chosen else (), strict=False):
                rows = content.split(b"\n")
                column.append(b"".join([rows[row] + b"\n" for row in chosen]))
            if end == len(lines):
                break
        texts = [files.read_lines(column, "") for column in columns if column]
        examples = files.tabbed(texts[0], "", *files.COLUMNS) if len(texts) == 1 else files.parallel("", *texts)
        return StoredExamples(examples.lines, examples.texts, lambda index: self.origin(lines.item(index)))

    def digest(self) -> str:
        """The SHA-256 of the pairs, as of `Examples.digest`."""
        return storage.cached("digests", self.key, self._digest).decode()

    def _digest(self) -> bytes:
        sha256 = hashlib.sha256()
        with Encoders(self.scan.blocks) as encoders:
            for _, (texts,) in encoders.map(self._requests("computing a checksum of the data", [])):
                sha256.update(texts)
        return sha256.hexdigest().encode()

    def _requests(self, what: str, done: Sequence[int], kind: bytes = TELL) -> Iterator[tuple[Block, bytes, bytes]]:
        """Requests of this kind about all blocks; those that are `done` are only told, for the checksum."""
        blocks = counted(self.files.blocks(), what, self.scan.blocks, size=1)
        for number, block in enumerate(blocks):
            mask = self.scan.kept[block.line : block.line + block.size].tobytes()
            yield block, TELL if number < len(done) else kind, mask

    def encode(self, tokenizers: Sequence[tuple[str, Tokenizer]]) -> list[IntegerRows]:
        """The ids of all sources and of all targets by tokenizers, given with their kinds; from the cache if there."""
        packages = ["sentencepiece", "numpy", *{"tokenizers" for kind, _ in tokenizers if kind == "hugging_face"}]
        versions = [__version__, *map(metadata.version, packages)]
        made = [(kind, hashlib.sha256(tokenizer.to_bytes()).hexdigest()) for kind, tokenizer in tokenizers]
        types: dict[str, str] = {}
        for side, (_, tokenizer) in zip(SIDES, tokenizers, strict=True):
            types |= {f"{side}.ids": id_type(tokenizer), f"{side}.lengths": "<i4"}
        arrays = storage.CachedArrays("tokens", _key(self.key, versions, made), types)
        for _ in range(ATTEMPTS):
            loaded = _undamaged(arrays) or self._build(arrays, tokenizers)
            if loaded:
                return [IntegerRows.cut(loaded[f"{side}.ids"], loaded[f"{side}.lengths"]) for side in SIDES]
        raise StorageError(
            f"the token store {arrays.path} was damaged or removed each time it was made; check the disk, and that no "
            "other process removes files of the cache"
        )

    def _build(
        self, arrays: storage.CachedArrays, tokenizers: Sequence[tuple[str, Tokenizer]]
    ) -> dict[str, NDArray[Any]] | None:
        """Encode all blocks that are not in the store yet; returns the arrays only if they could not be stored."""
        with arrays.writing() as writing:
            if not writing.is_complete:
                if writing.done:
                    say(f"{len(writing.done):,} of {self.scan.blocks:,} blocks of the data are encoded already")
                sha256 = hashlib.sha256()
                with Encoders(self.scan.blocks, tokenizers) as encoders:
                    for _, (texts, *contents) in encoders.map(self._requests("encoding", writing.done, ENCODE)):
                        sha256.update(texts)
                        if contents:
                            items = len(contents[1]) // 4
                            writing.append(items, dict(zip(arrays.types, contents, strict=True)))
                storage.cached("digests", self.key, sha256.hexdigest().encode)
            return writing.finish()


def sample(count: int, most: int) -> Integers:
    """The indices, in order, of `most` of so many items, drawn at random; all if there are no more, or `most` is 0."""
    if not most or count <= most:
        return np.arange(count, dtype=np.int32)
    return np.sort(shuffled(count, random.Random(f"sample {count} {most}"))[:most])


def _undamaged(arrays: storage.CachedArrays) -> dict[str, NDArray[Any]] | None:
    """The arrays of a store if all are there; damaged ones are removed."""
    try:
        return arrays.load(_checked)
    except ValueError as error:
        say(f"the token store {arrays.path} is damaged ({error}); it is made again")
        arrays.remove()
        return None


def _checked(blocks: Sequence[Any]) -> Iterable[Any]:
    """The blocks, counted as their checksums are compared."""
    return counted(blocks, "checking the token store", size=1)


def _key(*values: Any) -> str:
    """The SHA-256 of JSON."""
    return hashlib.sha256(json.dumps([VERSION, __version__, *values]).encode("utf-8", "surrogatepass")).hexdigest()


def _scan(source: "Files", wanted: Sequence[Texts], seed: int) -> Scan:
    """Check all lines, and choose those of dev if none are `wanted`; else count those that are there."""
    sizes, blocks, found, complete, digests = [0] * len(source.parts), 0, set[int](), [], []
    requests = ((block, SCAN, b"") for block in counted(source.blocks(), source.reading, size=1))
    with Encoders(source.size // SIZE, (), wanted) as encoders:
        for block, (mask, own, there) in source.explained(encoders.map(requests)):
            sizes[block.part], blocks = sizes[block.part] + block.size, blocks + 1
            complete.append(np.frombuffer(mask, np.uint8))
            digests.append(own)
            found.update(json.loads(there))
    kept = np.concatenate(complete)
    pairs = np.flatnonzero(kept)
    if not len(pairs):
        why = f"all {len(kept):,} have a blank source or target"
        raise DataError(f"{' and '.join(source.names)}: no pair is left, because {why}")
    scan = Scan(sizes, blocks, len(kept) - len(pairs), sorted(found), [], kept)
    if wanted:
        return scan
    chosen = pairs[np.sort(np.asarray(files.choose_dev(b"".join(digests), seed)))]
    texts = Shards(source, "", scan)._read(chosen)
    dev = [(example.source, example.target, line) for example, line in zip(texts, chosen.tolist(), strict=True)]
    left = kept.copy()
    left[chosen] = 0
    return scan._replace(kept=left, dev=dev)


class Files:
    """The files of one or more corpora of pairs, with their checksums, which are read in blocks of whole lines."""

    def __init__(self, names: tuple[str, ...], corpora: Sequence[Sequence[Part]], limits: Limits) -> None:
        self.names, self.corpora, self.limits = names, corpora, limits
        self.parts = [*chain.from_iterable(corpora)]
        # before the checksums: a file that changes later is not what they are of
        self._states = {name: _state(name) for part in self.parts for name in part}
        self.digests = [[[_file_digest(name) for name in part] for part in corpus] for corpus in corpora]
        self.reading = files.reading(*names)
        self.size = sum(os.path.getsize(find(name)) for part in self.parts for name in part)

    def blocks(self) -> Iterator[Block]:
        """The blocks of all files; the same ones each time. DataError if a file has changed since its checksum."""
        line = 0
        for number, part in enumerate(self.parts):
            first = 1
            for count, contents in _cut(part, self.limits):
                yield Block(number, line, first, count, contents)
                line, first = line + count, first + count
            if changed := [name for name in part if _state(name) != self._states[name]]:
                raise DataError(f"{changed[0]} changed while it was read; wait until it is written, then start again")

    def explained(self, answers: Iterable[tuple[Block, list[bytes]]]) -> Iterator[tuple[Block, list[bytes]]]:
        """The answers; if a block was refused, its first line that is no pair raises DataError."""
        try:
            yield from answers
        except RefusedError as refused:
            for block in self.blocks():
                files.check_block(self.parts[block.part], block.contents, block.first, self.limits)
            raise AssertionError("a worker refuses what this process reads") from refused


def _cut(part: Part, limits: Limits) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    """The blocks of a TSV file, or of two parallel ones: the number of lines, and the lines of each file."""
    readers = [_Reader(name, limits) for name in part]
    while content := readers[0].block():
        count = _count(content)
        others = [reader.lines(count) for reader in readers[1:]]
        if any(_count(other) != count for other in others):
            break
        yield count, (content, *others)
    counts = [reader.count_all() for reader in readers]
    if len(set(counts)) > 1:
        raise DataError(f"{part[0]} has {counts[0]:,} lines, {part[1]} {counts[1]:,}; they must be parallel")


def _count(content: bytes | bytearray) -> int:
    """The number of lines; the last one may have no end."""
    return content.count(b"\n") + (len(content) > 0 and not content.endswith(b"\n"))


class _Reader:
    """Cuts the content of a file into whole lines."""

    def __init__(self, name: str, limits: Limits) -> None:
        self.name, self.limits = name, limits
        self._pieces = files.content(name, limits)
        self._pending, self._newlines, self._bytes, self._taken = bytearray(), 0, 0, 0
        self._has_ended = False
        self._fill()
        if not self._pending:
            raise DataError(f"{name} is empty; give a file with at least one line")
        if self._pending.startswith(BOM_UTF8):
            del self._pending[: len(BOM_UTF8)]

    def _fill(self) -> None:
        piece = next(self._pieces, b"")
        self._has_ended = not piece
        self._pending += piece
        self._newlines += piece.count(b"\n")
        self._bytes += len(piece)
        files.check_limit(self.name, self._bytes, self.limits.file_bytes, "bytes, unpacked", "file_bytes")
        line = f"{self.name}:{self._taken + self._newlines + 1}"
        longest = len(self._pending) - self._pending.rfind(b"\n") - 1
        files.check_limit(line, longest, self.limits.line_bytes, "bytes", "line_bytes")

    def block(self) -> bytes:
        """The next lines, of about `SIZE` bytes; none at the end."""
        while not self._has_ended and (len(self._pending) < SIZE or not self._newlines):
            self._fill()
        return self._take(len(self._pending) if self._has_ended else self._pending.rfind(b"\n") + 1)

    def lines(self, count: int) -> bytes:
        """The next lines, so many; fewer at the end."""
        while not self._has_ended and self._newlines < count:
            self._fill()
        if self._newlines < count:
            return self._take(len(self._pending))
        ends = np.flatnonzero(np.frombuffer(self._pending, np.uint8) == ord("\n"))
        end = int(ends[count - 1]) + 1
        del ends
        return self._take(end)

    def _take(self, end: int) -> bytes:
        content = bytes(self._pending[:end])
        del self._pending[:end]
        self._newlines -= content.count(b"\n")
        if self.limits.line_bytes < SIZE:
            files.read_lines([content], self.name, self.limits, first=self._taken + 1)  # checks each line
        self._taken += _count(content)
        files.check_limit(self.name, self._taken, self.limits.lines, "lines", "lines")
        return content

    def count_all(self) -> int:
        """The number of all lines of the file, after the others are read."""
        while self.block():
            pass
        return self._taken


def _state(name: str) -> tuple[int, ...]:
    """What tells one state of a file from another."""
    status = os.stat(find(name))
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _file_digest(name: str) -> str:
    """The SHA-256 of a file. It is cached, unless the file was changed a moment ago: it could change once more."""
    path, state = find(name), _state(name)
    compute = partial(_compute_digest, name)
    if time.time_ns() - max(state[-2:]) < FRESH:
        return compute().decode()
    return storage.cached("checksums", _key(os.path.abspath(path), state), compute).decode()


def _compute_digest(name: str) -> bytes:
    sha256 = hashlib.sha256()
    with files.opened(name) as (handle, status):
        pieces = iter(partial(os.read, handle, SIZE), b"")
        what, count = f"computing a checksum of {os.path.basename(name)}", -(-status.st_size // SIZE)
        for piece in counted(pieces, what, count, size=1):
            sha256.update(piece)
    return sha256.hexdigest().encode()
