"""Reads examples from text files, plain or gzip, one per line; never writes files."""

import gzip
import os
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import DataError, did_you_mean
from regard.types import Example

BYTE_ORDER_MARK = "\ufeff"
GZIP_MAGIC = b"\x1f\x8b"
NUMBERS = {2: "two", 3: "three"}  # of columns, as words for messages
LARGEST_DEV = 1_000  # examples that `split` takes for dev at most


class Loaded(NamedTuple):
    """The examples of a text, and how many were left out because the source or the target was blank."""

    examples: list[Example]
    dropped: int


class Split(NamedTuple):
    """Examples for training, and examples for validation."""

    train: list[Example]
    dev: list[Example]


def read_lines(content: bytes, name: str) -> list[str]:
    r"""The lines of a UTF-8 text, which end at \n or \r\n only, so that parallel texts stay parallel."""
    lines = _decode(content, name).split("\n")
    if lines[-1] == "":  # a final newline ends the last line and does not start another
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(content, error.start, name)) from None


def _not_utf8(content: bytes, position: int, name: str) -> str:
    line = content.count(b"\n", 0, position) + 1
    byte = position - content.rfind(b"\n", 0, position)  # counts from 1; in the first line, too: rfind returns -1
    return (
        f"{name}:{line}:{byte}: not valid UTF-8 (byte 0x{content[position]:02x}); "
        f"convert the file first, for example: iconv -f LATIN1 -t UTF-8"
    )


def find(name: str) -> Path:
    """The path of the file of that name: as given, otherwise under $REGARD_DATA, otherwise under ./data."""
    if not name:
        raise DataError("the name of a file is empty; name a file that is there")
    paths = _candidates(name)
    existing = [path for path in paths if os.path.exists(path)]
    for path in existing:
        if not os.path.isdir(path):
            return path
    if existing:
        raise DataError(f"{existing[0]} is a folder; name a file in it")
    tried = ", ".join(str(path) for path in paths)
    unset = "" if os.environ.get("REGARD_DATA") else " ($REGARD_DATA is not set)"
    suggestion = did_you_mean(Path(name).name, _files_beside(paths))
    raise DataError(f"cannot find {name}; looked for {tried}{unset}{suggestion}")


def _candidates(name: str) -> list[Path]:
    folders = ["", os.environ.get("REGARD_DATA", ""), "data"]
    return list(dict.fromkeys(Path(folder, name) for folder in folders))  # an absolute name gives one path only


def _files_beside(paths: Sequence[Path]) -> list[str]:
    """The names of all files in the folders of these paths."""
    names: list[str] = []
    for path in paths:
        try:
            names += sorted(os.listdir(path.parent))
        except (OSError, ValueError):  # the folder does not exist, or its name is invalid: nothing to suggest
            continue
    return names


def load(name: str) -> list[str]:
    """The lines of a file, plain or gzip."""
    lines = read_lines(_content(name), name)
    if not lines:
        raise DataError(f"{name} is empty; give a file with at least one line")
    return lines


def _content(name: str) -> bytes:
    path = find(name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{name} cannot be read ({error.strerror}); check its permissions") from error
    if name.endswith(".gz") or content.startswith(GZIP_MAGIC):
        content = _unzip(content, name)
    return content


def _unzip(content: bytes, name: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} is not a whole gzip file ({error}); fetch or pack it again") from error


def pairs(names: tuple[str, ...], *, header: bool = False) -> Loaded:
    """The examples of one TSV file (source<TAB>target) or of two line-parallel texts; `header` skips the first line."""
    if len(names) not in (1, 2):
        raise DataError(f"{len(names)} files given; give one TSV of source<TAB>target or two parallel texts")
    lines = list(_tabbed(names[0], "source", "target") if len(names) == 1 else _parallel(*names))
    examples = lines[1:] if header else lines
    complete = [example for example in examples if example.source.strip() and example.target.strip()]
    if not complete:
        where = " and ".join(names)
        raise DataError(f"{where}: no pair is left, because all {len(examples):,} have a blank source or target")
    return Loaded(complete, len(examples) - len(complete))


def _tabbed(name: str, *columns: str) -> Iterator[Example]:
    """The examples of a TSV file with these columns: the last one is the target, the others are the source."""
    for number, line in enumerate(load(name), start=1):
        origin = f"{name}:{number}"
        fields = line.split("\t") if line.strip() else [""] * len(columns)
        if len(fields) != len(columns):
            count = "one field" if len(fields) == 1 else f"{len(fields)} fields"
            expected = f"{NUMBERS[len(columns)]}: {'<TAB>'.join(columns)}"
            raise DataError(f"{origin}: {count}, expected {expected}")
        yield Example("\t".join(fields[:-1]), fields[-1], origin=origin)


def _parallel(first: str, second: str) -> Iterator[Example]:
    sources, targets = load(first), load(second)
    if len(sources) != len(targets):
        counts = f"{first} has {len(sources):,} lines, {second} {len(targets):,}"
        raise DataError(f"{counts}; they must be parallel")
    for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=1):
        yield Example(source, target, origin=f"{first}:{number}")


def texts(names: tuple[str, ...]) -> Loaded:
    """The lines of plain texts, file after file: each line is an example, as source and as target."""
    lines = [(f"{name}:{number}", line) for name in names for number, line in enumerate(load(name), start=1)]
    examples = [Example(line, line, origin=origin) for origin, line in lines if line.strip()]
    if not examples:
        raise DataError(f"{' and '.join(names)}: no text is left, because all {len(lines):,} lines are blank")
    return Loaded(examples, len(lines) - len(examples))


def questions(names: tuple[str, ...]) -> Loaded:
    """The examples of TSV files of question<TAB>context<TAB>answer; the source is question<TAB>context."""
    examples = [example for name in names for example in _tabbed(name, "question", "context", "answer")]
    complete = [example for example in examples if all(map(str.strip, (*example.source.split("\t"), example.target)))]
    if not complete:
        where = " and ".join(names)
        raise DataError(f"{where}: no question is left, because all {len(examples):,} have a blank field")
    return Loaded(complete, len(examples) - len(complete))


def stream(names: tuple[str, ...]) -> list[Example]:
    r"""The whole of plain texts, file after file: a line with its \n is the target of an example without a source."""
    return [example for name in names for example in _stream(name)]


def _stream(name: str) -> Iterator[Example]:
    text = _decode(_content(name), name).replace("\r\n", "\n")
    if not text:
        raise DataError(f"{name} is empty; give a file with at least one line")
    *lines, last = text.split("\n")
    for number, line in enumerate([*(f"{line}\n" for line in lines), last], start=1):
        if line:  # only the last line can be empty: if the text ends with a newline
            yield Example("", line, origin=f"{name}:{number}")


def split(examples: Sequence[Example], seed: int) -> Split:
    """Splits off about a tenth of the examples (1 to 1,000) as dev, if no dev files are given; both keep their order.

    Examples with the same source go to the same side, so that no source of dev is in train, unless a side would then be
    empty or dev too large.
    """
    if len(examples) < 2:
        count = len(examples)
        raise DataError(f"no dev part can be split off {count} pairs; give at least two, or a dev file")
    dev = _choose_dev(examples, seed)
    return Split(
        train=[example for index, example in enumerate(examples) if index not in dev],
        dev=[example for index, example in enumerate(examples) if index in dev],
    )


def _choose_dev(examples: Sequence[Example], seed: int) -> set[int]:
    wanted = min(LARGEST_DEV, max(1, round(len(examples) / 10)))
    by_source: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        by_source.setdefault(example.source, []).append(index)
    groups = list(by_source.values())
    generator = random.Random(f"split {seed}")
    generator.shuffle(groups)
    chosen: set[int] = set()
    for group in groups:
        if len(chosen) + len(group) <= wanted:
            chosen.update(group)
    if chosen:
        return chosen
    smallest = min(groups, key=len)  # no group fits into a tenth: take one whole group if train keeps another
    if len(groups) > 1 and len(smallest) <= LARGEST_DEV:
        return set(smallest)
    return set(generator.sample(range(len(examples)), wanted))
