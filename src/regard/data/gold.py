"""Gold alignments on disk: pairs of sentences, and which of their words people linked."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from regard.data.files import load
from regard.errors import DataError
from regard.types import Example

LINK = re.compile(r"(\d+)([-p])(\d+)")
MARKS = {1: "\t", 2: "|||", 3: "\n"}  # what stands between fields of the first of so many files; no line has the last
FORMS = "one TSV of source<TAB>target<TAB>links; or pairs and links; or sources, targets and links"


class Gold(NamedTuple):
    """Sentence by sentence: the pair, one space between words, and its (source word, target word) links from zero."""

    examples: list[Example]
    sure: list[set[tuple[int, int]]]
    possible: list[set[tuple[int, int]]]  # those that are possible only
    skipped: int  # links of words that the sentences do not have


class Line(NamedTuple):
    """What stands in the files for one pair."""

    example: Example
    links: str
    origin: str  # of the links


def gold(names: tuple[str, ...], first: int = 0) -> Gold:
    """Pairs with links such as `3-4`, sure, and `3p4`, possible, where `first` is the number of a first word.

    The files are one TSV of `source<TAB>target<TAB>links` (XL-WA); or one of `source ||| target` and one of links
    (as fast_align and awesome-align have it); or a file each of sources, targets and links.
    """
    lines = list(_lines(names))
    found = [_links(line, first) for line in lines]
    kept = [[each for each in links if _within(each, line.example)] for links, line in zip(found, lines, strict=True)]
    skipped = sum(map(len, found)) - sum(map(len, kept))
    if skipped and first == 0 and all(0 not in (each.source, each.target) for links in found for each in links):
        past = f"{names[-1]}: {skipped:,} links lie past the end of a sentence and none is at 0"
        raise DataError(f"{past}; where words are counted from 1, say so with --first 1")
    sure, possible = (
        [{(each.source, each.target) for each in links if each.sure is which} for links in kept]
        for which in (True, False)
    )
    return Gold([line.example for line in lines], sure, possible, skipped)


class Link(NamedTuple):
    """One link, from zero."""

    source: int
    target: int
    sure: bool


def _links(line: Line, first: int) -> list[Link]:
    found = []
    for text in line.links.split():
        link = LINK.fullmatch(text)
        if link is None:
            raise DataError(f"{line.origin}: {text!r} is no link; write 3-4 for a sure one, 3p4 for a possible one")
        source, target = int(link[1]) - first, int(link[3]) - first
        if min(source, target) < 0:
            before = f"{line.origin}: {text!r} links a word before the first, which is number {first}"
            raise DataError(f"{before}; where words are counted from 0, say so with --first 0")
        found.append(Link(source, target, link[2] == "-"))
    return found


def _within(link: Link, example: Example) -> bool:
    return link.source < len(example.source.split(" ")) and link.target < len(example.target.split(" "))


def _lines(names: tuple[str, ...]) -> Iterator[Line]:
    if len(names) not in MARKS:
        raise DataError(f"{len(names)} files given; give {FORMS}")
    texts = [load(name) for name in names]
    if len({len(each) for each in texts}) > 1:
        counts = ", ".join(f"{name} has {len(each):,} lines" for name, each in zip(names, texts, strict=True))
        raise DataError(f"{counts}; they must be parallel")
    for number, row in enumerate(zip(*texts, strict=True), start=1):
        origin = f"{names[0]}:{number}"
        fields = [*row[0].split(MARKS[len(names)]), *row[1:]]
        if len(fields) != 3:
            raise DataError(f"{origin}: not in the promised form; give {FORMS}")
        source, target = (" ".join(word for word in text.split(" ") if word) for text in fields[:2])
        if not source.strip() or not target.strip():
            raise DataError(f"{origin}: a side is blank, and blank text has no words to link; take the pair out")
        yield Line(Example(source, target, origin=origin), fields[2], f"{names[-1]}:{number}")
