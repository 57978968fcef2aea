"""Laws of the formats for other programs: they contain exactly the numbers and links of the map."""

import csv
import re
from io import StringIO

import pytest
import torch

from regard.analysis import alignment
from regard.maps import AttentionMap
from regard.show.maps import draw
from regard.types import Example, Prediction

LABELS = (
    *"aé日",
    "",
    " ",
    ",",
    '"',
    '"quoted", twice',
    "two\nlines",
    "carriage\rreturn",
    "=1+1",
    "'=",
    "'",
    "a;=1",
    "a;b;'\"=1;-;",
    "\t\n=1\r\n+;",
    "\0",
    "</s>",
)


def read(content: bytes) -> list[list[str]]:
    return list(csv.reader(StringIO(content.decode(), newline=""), strict=True))


def unescaped(cell: str) -> str:
    """The label of a cell, as the documentation says: one apostrophe less, if something that is run follows."""
    return re.sub("(^|(?<=[;\t\r\n]))'(?=['\"]*[-=+@\t\r\n－＝＋＠])", "", cell)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_csv_reads_back_as_the_same_map(dtype: torch.dtype) -> None:
    weights = torch.randn(len(LABELS), 7).softmax(-1).to(dtype)
    header, *lines = read(draw(AttentionMap(weights, LABELS, LABELS[-7:]), ".csv", "a title"))
    assert tuple(map(unescaped, header)) == ("", *LABELS[-7:])
    assert tuple(unescaped(line[0]) for line in lines) == LABELS
    assert [[float(cell) for cell in line[1:]] for line in lines] == weights.tolist()


RUN_BY_SPREADSHEETS = ("=1+1", "+1", "-1", "-", "@SUM(A1)", "\t1", "\r1", "\n1", "＝1", "－1", "'=1", "''+")


def test_csv_labels_that_a_spreadsheet_would_run_begin_with_an_apostrophe() -> None:
    attention = AttentionMap(
        torch.tensor([[-0.5, 1e-7]] * len(RUN_BY_SPREADSHEETS)), RUN_BY_SPREADSHEETS, ("=a", "b=c")
    )
    header, *lines = read(draw(attention, ".csv"))
    assert header == ["", "'=a", "b=c"]
    assert tuple(line[0] for line in lines) == tuple(f"'{label}" for label in RUN_BY_SPREADSHEETS)
    assert {tuple(map(float, line[1:])) for line in lines} == {tuple(attention.weights[0].tolist())}  # still numbers


def test_csv_labels_have_no_formula_after_another_separator() -> None:
    """Some spreadsheets separate cells at semicolons or tabs, and then find the quotation marks in the wrong places."""
    labels = ("x;=1+1", "x\t=1+1", "x\n=1+1", "x\r=1+1", 'x;"=1+1";y', "x;'=1+1", ";;-1", "\t=1")
    content = draw(AttentionMap(torch.eye(len(labels)), labels, labels), ".csv").decode()
    for cell in re.split(r"[,;\t\r\n]", content):
        assert not re.match('"*[-=+@]', cell), cell
    assert read(content.encode())[0][1:] == [
        *("x;'=1+1", "x\t'=1+1", "x\n'=1+1", "x\r'=1+1", 'x;\'"=1+1";y', "x;''=1+1", ";;'-1", "'\t'=1")
    ]
    ordinary = AttentionMap(torch.ones(1, 2), ("a;b",), ("two\nlines", "1-2=3"))
    assert draw(ordinary, ".csv") == b',"two\nlines",1-2=3\r\na;b,1.0,1.0\r\n'


def test_csv_of_an_empty_map_still_has_its_labels() -> None:
    assert read(draw(AttentionMap(torch.zeros(0, 2), (), ("a", "b")), ".csv")) == [["", "a", "b"]]
    assert read(draw(AttentionMap(torch.zeros(2, 0), ("a", "b"), ()), ".csv")) == [[""], ["a"], ["b"]]


def test_csv_escapes_characters_without_utf8() -> None:
    assert read(draw(AttentionMap(torch.ones(1, 1), ("\ud800",), ("a",)), ".csv"))[1] == ["\\ud800", "1.0"]


def test_pharaoh_is_one_line_of_source_target_pairs() -> None:
    attention = AttentionMap(torch.eye(5)[[0, 2, 4, 1]], tuple("wxyz"), (*"abcd", "</s>"))
    assert draw(attention, ".pharaoh", "a title") == b"0-0 2-1 1-3\n"
    assert pairs_of(attention) == attention.links()


def pairs_of(attention: AttentionMap) -> list[tuple[int, ...]]:
    return [tuple(map(int, pair.split("-"))) for pair in draw(attention, ".pharaoh").decode().split()]


def test_pharaoh_has_the_links_whose_error_is_reported() -> None:
    """A row with most weight on END is linked to its heaviest word, as in `regard score`."""
    attention = AttentionMap(torch.tensor([[0.1, 0.3, 0.6], [0.7, 0.1, 0.2]]), ("x", "y"), ("a", "b", "</s>"))
    assert pairs_of(attention) == [(1, 0), (0, 1)]
    answer = Prediction("ab", "xy", 0.0, ("x", "y"), attention)
    measured = alignment.measure([answer], [Example("ab", "xy", links=tuple(pairs_of(attention)))])
    assert measured["output step"].value == 0


def test_pharaoh_counts_words_if_pieces_mark_where_they_begin() -> None:
    columns = ("▁at", "ten", "<unk>", "▁", "▁is", "</s>")
    weights = torch.tensor([[0.3, 0.3, 0.0, 0.0, 0.4, 0.0], [0.0, 0.0, 0.2, 0.1, 0.3, 0.4]])
    assert pairs_of(AttentionMap(weights, ("▁a", "▁b"), columns)) == [(0, 0), (1, 1)]


def test_pharaoh_links_characters_with_characters_and_a_space_is_one() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.1, 0.6, 0.3], [0.8, 0.1, 0.1]])
    assert pairs_of(AttentionMap(weights, ("x", " ", "y"), ("a", " ", "b"))) == [(2, 0), (1, 1), (0, 2)]


def test_pharaoh_of_a_map_without_links_is_an_empty_line() -> None:
    assert draw(AttentionMap(torch.zeros(0, 2), (), ("a", "b")), ".pharaoh") == b"\n"
