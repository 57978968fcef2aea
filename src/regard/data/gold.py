"""Reads gold alignments: pairs of sentences, and links that people drew between their words."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from regard.console import counted
from regard.data.files import load
from regard.errors import DataError, shown
from regard.types import Example

LINK = re.compile(r"(\d{1,9})([-p])(\d{1,9})")  # Python converts no number of thousands of digits
SEPARATORS = {1: "\t", 2: "|||", 3: "\n"}  # of fields in the first file, by the number of files; no line holds "\n"
PAIRS = "one file of source<TAB>target or source ||| target; or sources and targets"
FORMS = "one TSV of source<TAB>target<TAB>links; or pairs and links; or sources, targets and links"


class Gold(NamedTuple):
    """Gold alignments, one entry per pair of sentences; a link is (source word, target word), counted from 0."""

    examples: list[Example]  # with one space between words
    sure: list[set[tuple[int, int]]]
    possible: list[set[tuple[int, int]]]  # without the sure links
    skipped: int  # links whose word indices are past the end of a sentence
    silver: str = ""  # how the links were made, if they were computed from models and not drawn by people


class Line(NamedTuple):
    """The content of the files for one pair of sentences, with the links as text."""

    example: Example
    links: str
    origin: str  # file and line number of the links


def gold(names: tuple[str, ...], first: int = 0) -> Gold:
    """Reads pairs with links such as `3-4` (sure) and `3p4` (possible); `first` is the number of the first word.

    The files are one TSV of `source<TAB>target<TAB>links` (XL-WA); or one file of `source ||| target` (the format of
    fast_align and awesome-align) or `source<TAB>target`, and one of links; or one file each of sources, targets and
    links.
    """
    lines = list(_lines(names))
    parsed = [_links(line, first) for line in counted(lines, "reading links")]
    valid = [[link for link in links if _within(link, line.example)] for links, line in zip(parsed, lines, strict=True)]
    skipped = sum(map(len, parsed)) - sum(map(len, valid))
    if skipped and first == 0 and all(0 not in (link.source, link.target) for links in parsed for link in links):
        past = f"{names[-1]}: {skipped:,} links lie past the end of a sentence and none is at 0"
        raise DataError(f"{past}; if words are counted from 1, add --first 1")
    if not any(valid):
        reason = (
            f"all {skipped:,} links point beyond the words; words are separated by spaces"
            if skipped
            else "there are none"
        )
        raise DataError(f"{names[-1]} has no link to compare with: {reason}; give links between words, such as 0-0 1-2")
    sure, possible = (
        [{(link.source, link.target) for link in links if link.sure is is_sure} for links in valid]
        for is_sure in (True, False)
    )
    return Gold([line.example for line in lines], sure, possible, skipped)


class Link(NamedTuple):
    """A link between a source word and a target word, counted from 0."""

    source: int
    target: int
    sure: bool


def _links(line: Line, first: int) -> list[Link]:
    links = []
    for text in line.links.split():
        match = LINK.fullmatch(text)
        if match is None:
            how = "write 3-4 for a sure one, 3p4 for a possible one"
            raise DataError(f"{line.origin}: {shown(text)} is not a link; {how}")
        source, target = int(match[1]) - first, int(match[3]) - first
        if min(source, target) < 0:
            before = f"{line.origin}: {shown(text)} links a word before the first, which is number {first}"
            raise DataError(f"{before}; if words are counted from 0, add --first 0")
        links.append(Link(source, target, match[2] == "-"))
    return links


def _within(link: Link, example: Example) -> bool:
    return link.source < len(example.source.split(" ")) and link.target < len(example.target.split(" "))


def _lines(names: tuple[str, ...]) -> Iterator[Line]:
    if len(names) not in SEPARATORS:
        raise DataError(f"{len(names)} files given; give {FORMS}")
    texts = [load(name) for name in names]
    if len({len(text) for text in texts}) > 1:
        counts = ", ".join(f"{name} has {len(text):,} lines" for name, text in zip(names, texts, strict=True))
        raise DataError(f"{counts}; they must be parallel")
    for number, row in enumerate(zip(*texts, strict=True), start=1):
        origin = f"{names[0]}:{number}"
        fields = [*_fields(row[0], SEPARATORS[len(names)]), *row[1:]]
        if len(fields) != 3:
            raise DataError(f"{origin}: not in the expected format; give {FORMS}")
        yield Line(_example(fields[0], fields[1], origin), fields[2], f"{names[-1]}:{number}")


def pairs(names: tuple[str, ...]) -> Gold:
    """Reads pairs, without any link: a file of `source<TAB>target` or `source ||| target`, or one of each side."""
    if len(names) not in (1, 2):
        raise DataError(f"{len(names)} files given; give {PAIRS}")
    texts = [load(name) for name in names]
    if len({len(text) for text in texts}) > 1:
        raise DataError(f"{names[0]} has {len(texts[0]):,} lines, {names[1]} {len(texts[1]):,}; they must be parallel")
    examples = []
    for number, row in enumerate(zip(*texts, strict=True), start=1):
        origin = f"{names[0]}:{number}"
        fields = _fields(row[0], SEPARATORS[2]) if len(names) == 1 else [*row]
        if len(fields) != 2:
            raise DataError(f"{origin}: not in the expected format; give {PAIRS}")
        examples.append(_example(fields[0], fields[1], origin))
    if not examples:
        raise DataError(f"{names[0]} has no pair; give {PAIRS}")
    none: list[set[tuple[int, int]]] = [set() for _ in examples]
    return Gold(examples, none, none, 0)


def _fields(line: str, separator: str) -> list[str]:
    """The fields of a line; pairs without `|||` are separated by a tab."""
    return line.split("\t" if separator == SEPARATORS[2] and separator not in line else separator)


def _example(source: str, target: str, origin: str) -> Example:
    """A pair with one space between words; DataError if a side is blank."""
    source, target = (" ".join(word for word in text.split(" ") if word) for text in (source, target))
    if not source.strip() or not target.strip():
        raise DataError(f"{origin}: the source or the target is blank, with no words to link; remove the pair")
    return Example(source, target, origin=origin)
