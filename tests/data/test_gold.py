"""Gold alignments are read from three formats, with words counted from 0 or 1; bad files raise DataError."""

import os
import re
from pathlib import Path

import pytest

from regard.data.gold import Gold, gold
from regard.errors import DataError
from regard.types import Example

SOURCES, TARGETS = ["the house", "a  small cat "], ["das Haus", "eine kleine Katze"]
LINKS = ["0-0 1-1", "0-0 1p1 2-2 1p2"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, lines: list[str]) -> str:
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return name


def write_formats() -> dict[str, tuple[str, ...]]:
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    links = write("links", LINKS)
    return {
        "tsv": (write("x.tsv", [f"{s}\t{t}\t{line}" for (s, t), line in zip(pairs, LINKS, strict=True)]),),
        "pairs": (write("pairs", [f"{s} ||| {t}" for s, t in pairs]), links),
        "three files": (write("source", SOURCES), write("target", TARGETS), links),
    }


@pytest.mark.parametrize("form", ["tsv", "pairs", "three files"])
def test_three_formats_give_the_same_alignments(form: str) -> None:
    alignments = gold(write_formats()[form])
    assert [(example.source, example.target) for example in alignments.examples] == [
        ("the house", "das Haus"),
        ("a small cat", "eine kleine Katze"),
    ]
    assert alignments.examples[1].origin.endswith(":2")
    assert alignments.sure == [{(0, 0), (1, 1)}, {(0, 0), (2, 2)}]
    assert alignments.possible == [set(), {(1, 1), (1, 2)}]
    assert alignments.skipped == 0


def test_words_may_be_counted_from_one_and_a_line_may_have_no_links() -> None:
    alignments = gold((write("x.tsv", ["a b\tc\t1-1 2p1", "a\tb\t"]),), first=1)
    assert alignments == Gold(
        [Example("a b", "c", origin="x.tsv:1"), Example("a", "b", origin="x.tsv:2")],
        [{(0, 0)}, set()],
        [{(1, 0)}, set()],
        0,
    )


def test_links_past_the_end_of_a_sentence_are_skipped_and_counted() -> None:
    alignments = gold((write("x.tsv", ["a b\tc d\t0-0 2-1 1-2 1-1"]),))
    assert (alignments.sure, alignments.skipped) == ([{(0, 0), (1, 1)}], 2)
    assert gold((write("y.tsv", ["a b\tc d\t1-1 2-2 3-2"]),), first=1).skipped == 1


def test_only_the_ascii_space_separates_words() -> None:
    """Other spaces are part of a word; in KFTT even the ideographic space, U+3000, counts as a word."""
    assert gold((write("x.tsv", ["10\u00a0000 a\tb\t1-0"]),)).sure == [{(1, 0)}]


@pytest.mark.parametrize(
    ("lines", "first", "message"),
    [
        (["a b\tc d\t1-1 2-2"], 0, "x.tsv: 1 links lie past the end of a sentence and none is at 0; .*--first 1"),
        (["a b\tc d\t0-0 1-1"], 1, "x.tsv:1: '0-0' links a word before the first, which is number 1; .*--first 0"),
        (["a b\tc d\t0-0 1?1"], 0, "x.tsv:1: '1?1' is not a link; write 3-4 for a sure one, 3p4 for a possible one"),
        (
            ["a\tb\t0-0", "a b\tc d"],
            0,
            "x.tsv:2: not in the expected format; give one TSV of source<TAB>target<TAB>links",
        ),
        (["a b\t \t"], 0, "x.tsv:1: the source or the target is blank"),
    ],
)
def test_invalid_lines_are_refused(lines: list[str], first: int, message: str) -> None:
    with pytest.raises(DataError, match=message.replace("?", r"\?")) as caught:
        gold((write("x.tsv", lines),), first)
    assert "\n" not in str(caught.value)


def test_files_must_be_parallel_and_of_a_known_format() -> None:
    with pytest.raises(DataError, match="pairs has 1 lines, links has 2 lines; they must be parallel"):
        gold((write("pairs", ["a ||| b"]), write("links", ["", ""])))
    with pytest.raises(DataError, match="pairs:1: not in the expected format"):
        gold((write("pairs", ["a b"]), write("links", ["0-0"])))
    with pytest.raises(DataError, match="4 files given; give one TSV"):
        gold(("a", "b", "c", "d"))


REAL = Path(os.environ.get("REGARD_DATA", ""), "word-alignment")


@pytest.mark.skipif(not (REAL.is_absolute() and REAL.is_dir()), reason="word-alignment is not under $REGARD_DATA")
@pytest.mark.parametrize(
    ("names", "first", "counts"),
    [
        (["enfr.src-tgt", "enfr.gold"], 1, (447, 4038, 13400, 0)),
        (["jaen.src-tgt", "jaen.gold"], 1, (582, 13562, 0, 0)),
        (["xlwa-enes.dev.tsv"], 0, (105, None, 0, 0)),
    ],
)
def test_published_gold_alignments_have_the_known_counts(
    names: list[str], first: int, counts: tuple[int | None, ...]
) -> None:
    alignments = gold(tuple(str(REAL / name) for name in names), first)
    sure, possible = (sum(map(len, links)) for links in (alignments.sure, alignments.possible))
    assert (len(alignments.examples), counts[1] and sure, possible, alignments.skipped) == counts
    if first == 1:
        with pytest.raises(DataError, match=re.escape("--first 1")):
            gold(tuple(str(REAL / name) for name in names), first=0)


def test_a_number_of_thousands_of_digits_is_not_a_link(tmp_path: Path) -> None:
    path = tmp_path / "gold.tsv"
    path.write_text(f"a\tb\t{'1' * 5000}-1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"gold\.tsv:1: '1+\.\.\.1+-1' is not a link; write 3-4") as error:
        gold((str(path),), 0)
    assert len(str(error.value)) < 400
