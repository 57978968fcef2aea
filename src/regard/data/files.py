"""Reads examples from text files, plain or gzip, one per line, within limits; never writes files."""

import os
import random
import select
import stat
import sys
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from encodings import utf_8
from io import BufferedReader
from itertools import chain
from typing import NamedTuple, cast

import numpy as np

from regard.console import counted
from regard.data import formats, store
from regard.data.batching import shuffled
from regard.data.encoding import source_digest
from regard.data.paths import expanded, find
from regard.data.store import Indices, Integers, Lines, StoredExamples, Texts, joined, offset_type, take, where
from regard.errors import DataError
from regard.recipe import Limits
from regard.types import Example

GZIP_MAGIC = b"\x1f\x8b"
GZIP_MEMBER = 31  # zlib's number for a gzip header, any window, and a checksum at the end
PIECE = 2**18  # bytes that are read or decompressed at a time
HELD = 2**24  # bytes of waiting lines of a stream that are taken at a time, or one longer line
FIRST_BLOCK, GROWTH = 64, 4  # lines of a stream that are answered together at first, and by how much that grows
FEW_MEMBERS, SMALL_MEMBER = 10_000, 2**9  # gzip members that any file may have, and more if each has so many bytes
SMALL_CONTENT = 2**24  # bytes that any gzip or Parquet file may unpack to, whatever its size
FIELDS = 10_000  # columns of a file, or fields of a record
LIMITS = Limits()  # for texts that no recipe names
Part = tuple[str, ...]  # a TSV file, or two parallel texts
COLUMNS = ("source", "target")
NUMBERS = {2: "two", 3: "three"}  # of columns, as words for messages
LARGEST_DEV = 1_000  # examples that `split` takes for dev at most
OTHER_MARKS = {  # byte order marks at the start of files that are not UTF-8; the longer one first
    BOM_UTF32_LE: "UTF-32",
    BOM_UTF32_BE: "UTF-32",
    BOM_UTF16_LE: "UTF-16",
    BOM_UTF16_BE: "UTF-16",
}
OTHER_FORMATS = {  # endings of files that cannot be read, and how to convert them
    ".json": "write one JSON object on each line, to a file that ends in .jsonl",
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "export the spreadsheet as CSV"),
}
OTHER_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Loaded(NamedTuple):
    """The examples of a text, and how many were left out because the source or the target was blank."""

    examples: Sequence[Example]
    dropped: int


class Split(NamedTuple):
    """Examples for training, and examples for validation."""

    train: Sequence[Example]
    dev: Sequence[Example]


def read_lines(pieces: Iterable[bytes], name: str, limits: Limits = LIMITS, *, first: int = 1) -> Lines:
    r"""The lines of a UTF-8 text that comes in pieces; DataError at the first piece that breaks a limit.

    `first` is the number of the first line in messages; above 1, the text goes on from one that was read before.
    """
    content, newlines, line_start = bytearray(), 0, 0
    decoder = utf_8.IncrementalDecoder()
    for piece in pieces:
        before = len(content)
        content += piece
        _check_utf8(decoder, content, before, name, first)
        check_limit(name, len(content), limits.file_bytes, "bytes, unpacked", "file_bytes")
        end = content.find(b"\n", before) + 1
        line = f"{name}:{newlines + first}"
        check_limit(line, (end or len(content)) - line_start, limits.line_bytes, "bytes", "line_bytes")
        newlines += piece.count(b"\n")
        check_limit(name, newlines, limits.lines, "lines", "lines")
        line_start = max(line_start, content.rfind(b"\n", before) + 1)
    _check_utf8(decoder, content, len(content), name, first, final=True)
    starts = _line_starts(content, newlines, has_mark=first == 1 and content.startswith(BOM_UTF8))
    check_limit(name, len(starts) - 1, limits.lines, "lines", "lines")
    sizes = np.diff(starts)
    if len(sizes):
        longest = int(sizes.argmax())
        check_limit(f"{name}:{longest + first}", int(sizes[longest]), limits.line_bytes, "bytes", "line_bytes")
    return Lines(content, starts)


def check_limit(name: str, count: int, limit: int, noun: str, key: str, fix: str = "split the file") -> None:
    """Refuse more than the limit allows."""
    if count > limit:
        raise DataError(f"{name} has more than {limit:,} {noun}; {fix}, or raise data.limits.{key}")


def check_expansion(name: str, unpacked: int, size: int, limits: Limits, other: str = "") -> None:
    """Refuse a packed file that has too many bytes, unpacked, by its size; `other` is one more way to read it."""
    if unpacked > max(SMALL_CONTENT, limits.expansion * size):
        raise DataError(
            f"{name} unpacks to more than {limits.expansion:,} times its size, as decompression bombs do; "
            f"if you trust it, raise data.limits.expansion{other}"
        )


def _check_utf8(
    decoder: utf_8.IncrementalDecoder, content: bytearray, start: int, name: str, first: int, *, final: bool = False
) -> None:
    """Refuse bytes from `start` on that are not UTF-8; the decoder has read those before. `first`: see `read_lines`."""
    pending = len(decoder.getstate()[0])  # bytes of a character that is not complete yet
    try:
        decoder.decode(content[start:], final)
    except UnicodeDecodeError as error:
        raise NotUtf8Error(_not_utf8(content, start - pending + error.start, name, first)) from None


class NotUtf8Error(DataError):
    """Bytes that are not UTF-8."""


def _not_utf8(content: bytearray, position: int, name: str, first: int) -> str:
    line = content.count(b"\n", 0, position) + first
    byte = position - content.rfind(b"\n", 0, position)  # counts from 1; in the first line, too: rfind returns -1
    marked = next((encoding for mark, encoding in OTHER_MARKS.items() if first == 1 and content.startswith(mark)), "")
    iconv = f"it is {marked}: iconv -f {marked}" if marked else "for example: iconv -f LATIN1"
    how = how_to_convert(name) or f"convert the file first, {iconv} -t UTF-8"
    return f"{name}:{line}:{byte}: not valid UTF-8 (byte 0x{content[position]:02x}); {how}"


def how_to_convert(name: str) -> str:
    """How to convert a file of a format that is not read, by the ending of its name; empty for any other."""
    return OTHER_FORMATS.get(os.path.splitext(name.lower().removesuffix(".gz"))[1], "")


def _line_starts(content: bytearray, newlines: int, *, has_mark: bool) -> Integers:
    """The offset of each line, after a byte order mark, and the end of the last; a final newline starts no line."""
    first = len(BOM_UTF8) if has_mark else 0
    unfinished = len(content) > first and not content.endswith(b"\n")
    starts = np.empty(1 + newlines + unfinished, offset_type(len(content)))
    starts[0], filled = first, 1
    for offset in range(0, len(content), PIECE):
        places = np.flatnonzero(
            np.frombuffer(content, np.uint8, min(PIECE, len(content) - offset), offset) == ord("\n")
        )
        starts[filled : filled + len(places)] = places + (offset + 1)
        filled += len(places)
    if unfinished:
        starts[-1] = len(content)
    return starts


def load(name: str, limits: Limits = LIMITS) -> Lines:
    """The lines of a file, plain or gzip."""
    pieces = iter(content(name, limits))
    start = next(pieces, b"")
    try:
        lines = read_lines(counted(chain([start], pieces), reading(name), size=1), name, limits)
    except NotUtf8Error as error:
        if other := formats.name_of(start):
            raise DataError(f"{name} is {other}, and no text; give a file of texts") from error
        raise
    if not lines:
        raise DataError(f"{name} is empty; give a file with at least one line")
    return lines


def reading(*names: str) -> str:
    """The name of the work of reading these files."""
    return f"reading {', '.join(os.path.basename(name) for name in names)}"


def read_stdin() -> Lines:
    """All lines of stdin."""
    return read_lines(iter(lambda: _stdin().read(PIECE), b""), "stdin")


def stream_stdin(most: int) -> Iterator[Lines]:
    """The lines of stdin as they come: at least one at a time, and up to `most` if so many are waiting to be read.

    A line that was typed or written is yielded at once: nothing waits for lines that may follow it. The first block is
    small, so that its answers come soon; each further block may be `GROWTH` times as large as the one before.
    """
    stdin, pending, count, first, ended = _stdin(), bytearray(), 0, 1, False
    largest, most = most, min(most, FIRST_BLOCK)
    while not ended or pending:
        while not ended and (not count or (count < most and len(pending) < HELD and _has_more(stdin))):
            select.select([stdin], [], [])  # waits, even if another process has made stdin non-blocking
            piece = stdin.read1(PIECE)
            check_limit(f"stdin:{first}", 0 if count else len(pending), LIMITS.line_bytes, "bytes", "line_bytes")
            pending += piece
            count += piece.count(b"\n")
            ended = not piece
        end = 0
        for _ in range(min(count, most)):
            end = pending.find(b"\n", end) + 1
        if ended and count < most:
            end = len(pending)  # the last line may have no newline
        if end:
            lines = read_lines([bytes(pending[:end])], "stdin", first=first)
            yield lines
            del pending[:end]
            first, count = first + len(lines), max(0, count - most)
            most = min(largest, most * GROWTH)


def _stdin() -> BufferedReader:
    if sys.stdin is None:
        raise DataError("stdin is closed; name a file, or pass its content with a pipe")
    return cast(BufferedReader, sys.stdin.buffer)


def _has_more(stream: BufferedReader) -> bool:
    """Whether a read would return at once: a pipe or terminal has more, or has ended; a file always does."""
    return bool(select.select([stream], [], [], 0)[0])


def content(name: str, limits: Limits) -> Iterator[bytes]:
    """The content of a file, unpacked, piece by piece; DataError if the file changes meanwhile."""
    with opened(name) as (handle, status):
        yield from _unpacked(handle, status.st_size, name, limits)


class Opened(NamedTuple):
    """A regular file that is open for reading, and its status when it was opened."""

    handle: int
    status: os.stat_result


@contextmanager
def opened(name: str) -> Iterator[Opened]:
    """Opens the file of that name; DataError if it is not a regular file, cannot be read, or changes in the block."""
    path = find(name)
    try:
        _check_kind(os.stat(path), name)  # before it is opened: that alone can have an effect on a device
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place by now would block
        try:
            before = os.fstat(handle)
            _check_kind(before, name)
            yield Opened(handle, before)
            after = os.fstat(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise DataError(f"{name} cannot be read ({error.strerror}); check its permissions") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DataError(f"{name} changed while it was read; wait until it is written, then start again")


def _check_kind(status: os.stat_result, name: str) -> None:
    """Refuse everything but a regular file."""
    if not stat.S_ISREG(status.st_mode):
        kind = OTHER_KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise DataError(
            f"{name} is {kind}, not a file; write its content to a file, or give - if the command reads stdin"
        )


def _unpacked(handle: int, size: int, name: str, limits: Limits) -> Iterator[bytes]:
    """The content of an open file of this size, unpacked if it is gzip."""
    first = os.read(handle, PIECE)
    pieces = chain([first], iter(lambda: os.read(handle, PIECE), b""))
    if not first or not (name.endswith(".gz") or first.startswith(GZIP_MAGIC)):
        check_limit(name, size, limits.file_bytes, "bytes", "file_bytes")
        yield from pieces
        return
    unpacked = 0
    for piece in _unzip(pieces, name):
        unpacked += len(piece)
        check_expansion(name, unpacked, size, limits, ", or unpack it with gunzip")
        yield piece


def _unzip(pieces: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The content of one or more gzip members; zeros may follow each. Many members with little content are refused."""
    member, members, unpacked = zlib.decompressobj(GZIP_MEMBER), 1, 0
    try:
        for piece in pieces:
            left = piece
            while left := left.lstrip(b"\0") if member.eof else left:
                if member.eof:
                    member, members = zlib.decompressobj(GZIP_MEMBER), members + 1
                if members > FEW_MEMBERS + unpacked // SMALL_MEMBER:
                    raise DataError(f"{name} has {members:,} gzip members with little text in each; pack it again")
                content = member.decompress(left, PIECE)
                unpacked += len(content)
                yield content
                left = member.unused_data or member.unconsumed_tail
        if not member.eof:
            raise EOFError("it ends too early")
    except (EOFError, zlib.error) as error:
        raise DataError(f"{name} is not a whole gzip file ({error}); fetch or pack it again") from error


def is_tsv(name: str) -> bool:
    """Whether a name is that of a TSV file, or a pattern of such files."""
    return name.endswith((".tsv", ".tsv.gz"))


def corpora(names: tuple[str, ...]) -> list[list[Part]]:
    """The corpora that names of pairs stand for: each a list of TSV files, or of pairs of parallel files.

    One name, or several that end in .tsv or .tsv.gz, are TSV files, each a corpus of its own; two other names are
    parallel texts. A pattern stands for all files that match it.
    """
    if names and (len(names) == 1 or all(map(is_tsv, names))):
        return [[(file,) for file in expanded([name])] for name in names]
    if len(names) != 2:
        raise DataError(
            f"{len(names)} files given; give one TSV of source<TAB>target or two parallel texts; "
            "several TSV files if their names end in .tsv or .tsv.gz"
        )
    first, second = (expanded([name]) for name in names)
    if len(first) != len(second):
        counts = f"{names[0]} matches {len(first):,} files, {names[1]} {len(second):,}"
        raise DataError(f"{counts}; they must be parallel")
    return [[*zip(first, second, strict=True)]]


def pairs(names: tuple[str, ...], limits: Limits = LIMITS, *, header: bool = False) -> Loaded:
    """The examples of TSV files or parallel texts, see `corpora`; `header` skips the first line of each file."""
    parts = [
        [_tabbed(part[0], limits, *COLUMNS) if len(part) == 1 else _parallel(*part, limits=limits) for part in corpus]
        for corpus in corpora(names)
    ]
    lines = StoredExamples.of_files(parts)
    texts = counted(store.texts(lines), reading(*names))
    complete, count = where(texts, lambda texts: bool(texts[0].strip() and texts[1].strip())), len(lines)
    if header:
        sizes = [len(part) for corpus in parts for part in corpus]
        complete, count = np.setdiff1d(complete, [0, *np.cumsum(sizes)]), count - len(sizes)
    if not len(complete):
        why = f"all {count:,} have a blank source or target" if count else "nothing follows its header"
        raise DataError(f"{' and '.join(names)}: no pair is left, because {why}")
    return Loaded(lines.take(complete), count - len(complete))


def _examples(name: str, count: int, texts: Callable[[int], Texts]) -> StoredExamples:
    """The examples of the lines of a file: source and target are a function of the index of a line."""
    return StoredExamples(np.arange(count, dtype=np.int32), texts, lambda index: f"{name}:{index + 1}")


def _tabbed(name: str, limits: Limits, *columns: str) -> StoredExamples:
    """The examples of a TSV file with these columns: the last one is the target, the others are the source."""
    return tabbed(load(name, limits), name, *columns)


def tabbed(lines: Lines, name: str, *columns: str, first: int = 1) -> StoredExamples:
    """The examples of lines with these columns; `first` is the number of the first line in messages."""

    def texts(index: int) -> Texts:
        line = lines.item(index)
        if line.count("\t") != len(columns) - 1:
            if not line.strip():
                return "\t" * (len(columns) - 2), ""
            fields = line.count("\t") + 1
            count = "one field" if fields == 1 else f"{fields} fields"
            expected = f"{NUMBERS[len(columns)]}: {'<TAB>'.join(columns)}"
            how = how_to_convert(name)
            raise DataError(f"{name}:{index + first}: {count}, expected {expected}{'; ' if how else ''}{how}")
        source, _, target = line.rpartition("\t")
        return source, target

    return _examples(name, len(lines), texts)


def _parallel(first: str, second: str, *, limits: Limits) -> StoredExamples:
    sources, targets = load(first, limits), load(second, limits)
    if len(sources) != len(targets):
        counts = f"{first} has {len(sources):,} lines, {second} {len(targets):,}"
        raise DataError(f"{counts}; they must be parallel")
    return parallel(first, sources, targets)


def parallel(name: str, sources: Lines, targets: Lines) -> StoredExamples:
    """The examples of parallel lines; the name is that of the first file."""
    return _examples(name, len(sources), lambda index: (sources.item(index), targets.item(index)))


def check_block(part: Part, contents: Sequence[bytes], first: int, limits: Limits) -> None:
    """Raise DataError about the first line of a TSV file, or of parallel texts, that is no pair or no text.

    `contents` are lines of each file, from number `first` on.
    """
    for name, own in zip(part, contents, strict=True):
        try:
            lines = read_lines([own], name, limits, first=first)
        except NotUtf8Error as error:
            if first == 1 and (other := formats.name_of(own)):
                raise DataError(f"{name} is {other}, and no text; give a file of texts") from error
            raise
        if len(part) == 1:
            for _ in store.texts(tabbed(lines, name, *COLUMNS, first=first)):
                pass


def texts(names: tuple[str, ...], limits: Limits = LIMITS) -> Loaded:
    """The lines of plain texts, file after file: each line is an example, as source and as target."""
    lines = joined([_texts(name, limits) for name in expanded(names)])
    filled = where(counted(store.texts(lines), reading(*names)), lambda texts: bool(texts[0].strip()))
    if not len(filled):
        raise DataError(f"{' and '.join(names)}: no text is left, because all {len(lines):,} lines are blank")
    return Loaded(take(lines, filled), len(lines) - len(filled))


def _texts(name: str, limits: Limits) -> StoredExamples:
    lines = load(name, limits)
    return _examples(name, len(lines), lambda index: (line := lines.item(index), line))


def questions(names: tuple[str, ...], limits: Limits = LIMITS) -> Loaded:
    """The examples of TSV files of question<TAB>context<TAB>answer; the source is question<TAB>context."""
    lines = joined([_tabbed(name, limits, "question", "context", "answer") for name in expanded(names)])
    texts = counted(store.texts(lines), reading(*names))
    complete = where(texts, lambda texts: all(map(str.strip, (*texts[0].split("\t"), texts[1]))))
    if not len(complete):
        named = " and ".join(names)
        raise DataError(f"{named}: no question is left, because all {len(lines):,} have a blank field")
    return Loaded(take(lines, complete), len(lines) - len(complete))


def stream(names: tuple[str, ...], limits: Limits = LIMITS) -> Sequence[Example]:
    r"""The whole of plain texts, file after file: a line with its \n is the target of an example without a source."""
    return joined([_stream(name, limits) for name in expanded(names)])


def _stream(name: str, limits: Limits) -> StoredExamples:
    lines = load(name, limits)
    return _examples(name, len(lines), lambda index: ("", lines.with_end(index).replace("\r\n", "\n")))


def split(examples: Sequence[Example], seed: int) -> Split:
    """Splits off about a tenth of the examples (1 to 1,000) as dev, if no dev files are given; both keep their order.

    Examples with the same source go to the same side, so that no source of dev is in train, unless a side would then be
    empty or dev too large.
    """
    sources = counted(store.sources(examples), "splitting off dev")
    chosen = choose_dev(b"".join(map(source_digest, sources)), seed)
    in_dev = np.zeros(len(examples), bool)
    in_dev[chosen] = True
    dev = take(examples, np.flatnonzero(in_dev))
    return Split(take(examples, np.flatnonzero(~in_dev)), [*dev])  # a list: the memory of all texts can be freed


def choose_dev(digests: bytes, seed: int) -> Indices:
    """The indices of the examples that `split` takes for dev, by the digests of all sources."""
    groups = _by_source(np.frombuffer(digests, np.uint64))
    if len(groups) < 2:
        raise DataError(f"no dev part can be split off {len(groups)} pairs; give at least two, or a dev file")
    wanted = min(LARGEST_DEV, max(1, round(len(groups) / 10)))
    sizes = np.bincount(groups)
    generator = random.Random(f"split {seed}")
    order = shuffled(len(sizes), generator)
    chosen: list[int] = []
    left = wanted
    for group in order:
        if sizes[group] <= left:
            chosen.append(group)
            left -= sizes[group]
        if not left:
            break
    if chosen:
        return np.flatnonzero(np.isin(groups, chosen))
    smallest = order[sizes[order].argmin()]  # no group fits into a tenth: take one whole group if train keeps another
    if len(sizes) > 1 and sizes[smallest] <= LARGEST_DEV:
        return np.flatnonzero(groups == smallest)
    return generator.sample(range(len(groups)), wanted)


def _by_source(digests: Integers) -> Integers:
    """For each example, the number of the group of its source; groups are numbered in the order of their first example.

    Sources are compared by digests of 64 bits; two different sources of equal digest would merely stay together.
    """
    _, first, groups = np.unique(digests, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), np.int32)
    numbers[first.argsort()] = np.arange(len(first))
    return numbers[groups]
