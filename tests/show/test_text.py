"""Laws of the forms for other programs: what they are told is what the map holds."""

import csv
from io import StringIO

import pytest
import torch

from regard.show.maps import draw
from regard.types import AttentionMap

LABELS = (*"aé日", "", " ", ",", '"', '"quoted", twice', "two\nlines", "carriage\rreturn", "=1+1", "\0", "</s>")


def read(content: bytes) -> list[list[str]]:
    return list(csv.reader(StringIO(content.decode(), newline=""), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_csv_reads_back_as_the_same_map(dtype: torch.dtype) -> None:
    weights = torch.randn(len(LABELS), 7).softmax(-1).to(dtype)
    header, *lines = read(draw(AttentionMap(weights, LABELS, LABELS[-7:]), ".csv", "a title"))
    assert header == ["", *LABELS[-7:]]
    assert tuple(line[0] for line in lines) == LABELS
    assert [[float(cell) for cell in line[1:]] for line in lines] == weights.tolist()


def test_csv_of_an_empty_map_still_has_its_labels() -> None:
    assert read(draw(AttentionMap(torch.zeros(0, 2), (), ("a", "b")), ".csv")) == [["", "a", "b"]]
    assert read(draw(AttentionMap(torch.zeros(2, 0), ("a", "b"), ()), ".csv")) == [[""], ["a"], ["b"]]


def test_csv_spells_what_has_no_utf8() -> None:
    assert read(draw(AttentionMap(torch.ones(1, 1), ("\ud800",), ("a",)), ".csv"))[1] == ["\\ud800", "1.0"]


def test_pharaoh_is_one_line_of_source_and_target() -> None:
    attention = AttentionMap(torch.eye(5)[[0, 2, 4, 1]], tuple("wxyz"), (*"abcd", "</s>"))
    assert draw(attention, ".pharaoh", "a title") == b"0-0 2-1 1-3\n"
    pairs = [tuple(map(int, pair.split("-"))) for pair in draw(attention, ".pharaoh").decode().split()]
    assert pairs == attention.links()


def test_pharaoh_of_a_map_without_links_is_an_empty_line() -> None:
    assert draw(AttentionMap(torch.zeros(0, 2), (), ("a", "b")), ".pharaoh") == b"\n"
