"""Text on disk to examples: finds, reads and pairs lines; never writes."""

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
DEV_MOST = 1_000


class Loaded(NamedTuple):
    """The pairs of a text, and how many were left out because a side was blank."""

    examples: list[Example]
    dropped: int


class Split(NamedTuple):
    """Examples to learn from, and examples to be scored on meanwhile."""

    train: list[Example]
    dev: list[Example]


def read_lines(content: bytes, name: str) -> list[str]:
    r"""The lines of a UTF-8 text, ended by \n or \r\n and nothing else: parallel texts stay parallel."""
    lines = _decode(content, name).split("\n")
    if lines[-1] == "":  # a final newline ends the last line; it begins no other
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(content, error.start, name)) from None


def _not_utf8(content: bytes, position: int, name: str) -> str:
    line = content.count(b"\n", 0, position) + 1
    byte = position - content.rfind(b"\n", 0, position)  # rfind gives -1 in the first line: still counts from 1
    return (
        f"{name}:{line}:{byte}: not valid UTF-8 (byte 0x{content[position]:02x}); "
        f"convert the file first, for example: iconv -f LATIN1 -t UTF-8"
    )


def find(name: str) -> Path:
    """The file of that name: as given, else under $REGARD_DATA, else under ./data."""
    if not name:
        raise DataError("the name of a file is empty; name a file that is there")
    places = _places(name)
    there = [place for place in places if os.path.exists(place)]
    for place in there:
        if not os.path.isdir(place):
            return place
    if there:
        raise DataError(f"{there[0]} is a folder; name a file in it")
    looked = ", ".join(str(place) for place in places)
    unset = "" if os.environ.get("REGARD_DATA") else " ($REGARD_DATA is not set)"
    near = did_you_mean(Path(name).name, _neighbours(places))
    raise DataError(f"cannot find {name}; looked for {looked}{unset}{near}")


def _places(name: str) -> list[Path]:
    folders = ["", os.environ.get("REGARD_DATA", ""), "data"]
    return list(dict.fromkeys(Path(folder, name) for folder in folders))  # an absolute name has one place only


def _neighbours(places: Sequence[Path]) -> list[str]:
    names: list[str] = []
    for place in places:
        try:
            names += sorted(os.listdir(place.parent))
        except (OSError, ValueError):  # no such folder, or no such name possible: nothing to suggest
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
    """The examples of one TSV file (source<TAB>target) or of two line-parallel texts; a header line is skipped."""
    if len(names) not in (1, 2):
        raise DataError(f"{len(names)} files given; give one TSV of source<TAB>target or two parallel texts")
    found = list(_tabbed(names[0]) if len(names) == 1 else _parallel(*names))
    examples = found[1:] if header else found
    kept = [example for example in examples if example.source.strip() and example.target.strip()]
    if not kept:
        where = " and ".join(names)
        raise DataError(f"{where}: no pair is left, for all {len(examples):,} have a blank source or target")
    return Loaded(kept, len(examples) - len(kept))


def _tabbed(name: str) -> Iterator[Example]:
    for number, line in enumerate(load(name), start=1):
        origin = f"{name}:{number}"
        fields = line.split("\t") if line.strip() else ["", ""]
        if len(fields) != 2:
            count = "one field" if len(fields) == 1 else f"{len(fields)} fields"
            raise DataError(f"{origin}: {count}, expected two: source<TAB>target")
        yield Example(fields[0], fields[1], origin=origin)


def _parallel(first: str, second: str) -> Iterator[Example]:
    sources, targets = load(first), load(second)
    if len(sources) != len(targets):
        counts = f"{first} has {len(sources):,} lines, {second} {len(targets):,}"
        raise DataError(f"{counts}; they must be parallel")
    for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=1):
        yield Example(source, target, origin=f"{first}:{number}")


def texts(names: tuple[str, ...]) -> Loaded:
    """The lines of plain texts, one after another: each is an example, and its own target."""
    lines = [(f"{name}:{number}", line) for name in names for number, line in enumerate(load(name), start=1)]
    kept = [Example(line, line, origin=origin) for origin, line in lines if line.strip()]
    if not kept:
        raise DataError(f"{' and '.join(names)}: no text is left, for all {len(lines):,} lines are blank")
    return Loaded(kept, len(lines) - len(kept))


def questions(names: tuple[str, ...]) -> Loaded:
    """The examples of TSV files of question<TAB>context<TAB>answer; the first two, with their tab, are the source."""
    examples = [example for name in names for example in _questions(name)]
    kept = [each for each in examples if all(part.strip() for part in (*each.source.split("\t"), each.target))]
    if not kept:
        where = " and ".join(names)
        raise DataError(f"{where}: no question is left, for all {len(examples):,} lack question, context or answer")
    return Loaded(kept, len(examples) - len(kept))


def _questions(name: str) -> Iterator[Example]:
    for number, line in enumerate(load(name), start=1):
        origin = f"{name}:{number}"
        fields = line.split("\t") if line.strip() else ["", "", ""]
        if len(fields) != 3:
            count = "one field" if len(fields) == 1 else f"{len(fields)} fields"
            raise DataError(f"{origin}: {count}, expected three: question<TAB>context<TAB>answer")
        yield Example(f"{fields[0]}\t{fields[1]}", fields[2], origin=origin)


def stream(names: tuple[str, ...]) -> list[Example]:
    r"""All of plain texts, one file after another: a line is a target without a source, with the \n that ends it."""
    return [each for name in names for each in _stream(name)]


def _stream(name: str) -> Iterator[Example]:
    text = _decode(_content(name), name).replace("\r\n", "\n")
    if not text:
        raise DataError(f"{name} is empty; give a file with at least one line")
    *lines, last = text.split("\n")
    for number, line in enumerate([*(f"{line}\n" for line in lines), last], start=1):
        if line:  # only the last may be empty: then the text ends with the line before it
            yield Example("", line, origin=f"{name}:{number}")


def split(examples: Sequence[Example], seed: int) -> Split:
    """Splits off about a tenth (1 to 1,000) for those who gave no dev part; the order within a part stays.

    Pairs with the same source stay on one side, so that dev is unseen, unless that would leave a side empty.
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
    wanted = min(DEV_MOST, max(1, round(len(examples) / 10)))
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
    smallest = min(groups, key=len)  # no group fits into a tenth: one whole group, if the others leave a train part
    if len(groups) > 1 and len(smallest) <= DEV_MOST:
        return set(smallest)
    return set(generator.sample(range(len(examples)), wanted))
