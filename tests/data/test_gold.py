"""Gold alignments: three forms of one thing, sure and possible, from zero or one, and sentences for all else."""

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


def forms() -> dict[str, tuple[str, ...]]:
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    links = write("links", LINKS)
    return {
        "tsv": (write("x.tsv", [f"{s}\t{t}\t{each}" for (s, t), each in zip(pairs, LINKS, strict=True)]),),
        "pairs": (write("pairs", [f"{s} ||| {t}" for s, t in pairs]), links),
        "apart": (write("source", SOURCES), write("target", TARGETS), links),
    }


@pytest.mark.parametrize("form", ["tsv", "pairs", "apart"])
def test_three_forms_say_the_same(form: str) -> None:
    found = gold(forms()[form])
    assert [(each.source, each.target) for each in found.examples] == [
        ("the house", "das Haus"),
        ("a small cat", "eine kleine Katze"),
    ]
    assert found.examples[1].origin.endswith(":2")
    assert found.sure == [{(0, 0), (1, 1)}, {(0, 0), (2, 2)}]
    assert found.possible == [set(), {(1, 1), (1, 2)}]
    assert found.skipped == 0


def test_words_may_count_from_one_and_a_line_may_link_nothing() -> None:
    found = gold((write("x.tsv", ["a b\tc\t1-1 2p1", "a\tb\t"]),), first=1)
    assert found == Gold(
        [Example("a b", "c", origin="x.tsv:1"), Example("a", "b", origin="x.tsv:2")],
        [{(0, 0)}, set()],
        [{(1, 0)}, set()],
        0,
    )


def test_a_word_that_is_not_there_is_skipped_and_counted() -> None:
    found = gold((write("x.tsv", ["a b\tc d\t0-0 2-1 1-2 1-1"]),))
    assert (found.sure, found.skipped) == ([{(0, 0), (1, 1)}], 2)
    assert gold((write("y.tsv", ["a b\tc d\t1-1 2-2 3-2"]),), first=1).skipped == 1


def test_an_odd_space_is_part_of_a_word() -> None:
    """KFTT counts the ideographic space, U+3000, as a word too."""
    assert gold((write("x.tsv", ["10\u00a0000 a\tb\t1-0"]),)).sure == [{(1, 0)}]


@pytest.mark.parametrize(
    ("lines", "first", "said"),
    [
        (["a b\tc d\t1-1 2-2"], 0, "x.tsv: 1 links lie past the end of a sentence and none is at 0; .*--first 1"),
        (["a b\tc d\t0-0 1-1"], 1, "x.tsv:1: '0-0' links a word before the first, which is number 1; .*--first 0"),
        (["a b\tc d\t0-0 1?1"], 0, "x.tsv:1: '1?1' is no link; write 3-4 for a sure one, 3p4 for a possible one"),
        (
            ["a\tb\t0-0", "a b\tc d"],
            0,
            "x.tsv:2: not in the promised form; give one TSV of source<TAB>target<TAB>links",
        ),
        (["a b\t \t"], 0, "x.tsv:1: a side is blank"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(lines: list[str], first: int, said: str) -> None:
    with pytest.raises(DataError, match=said.replace("?", r"\?")) as caught:
        gold((write("x.tsv", lines),), first)
    assert "\n" not in str(caught.value)


def test_files_must_be_parallel_and_of_a_known_form() -> None:
    with pytest.raises(DataError, match="pairs has 1 lines, links has 2 lines; they must be parallel"):
        gold((write("pairs", ["a ||| b"]), write("links", ["", ""])))
    with pytest.raises(DataError, match="pairs:1: not in the promised form"):
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
def test_real_gold(names: list[str], first: int, counts: tuple[int | None, ...]) -> None:
    found = gold(tuple(str(REAL / name) for name in names), first)
    sure, possible = (sum(map(len, each)) for each in (found.sure, found.possible))
    assert (len(found.examples), counts[1] and sure, possible, found.skipped) == counts
    if first == 1:
        with pytest.raises(DataError, match=re.escape("--first 1")):
            gold(tuple(str(REAL / name) for name in names), first=0)
