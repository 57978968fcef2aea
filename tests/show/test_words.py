"""Laws of AttentionMap: words keep the weight of their pieces, measures and links equal plain loops."""

import math
from itertools import pairwise

import pytest
import torch

from regard.maps import AttentionMap

ROWS = ("▁L", "'", "accord", "▁sign", "é", "</s>")
COLUMNS = ("▁the", "▁at", "tention", "<unk>", "s", "▁", "▁of▁the", "</s>")


def some_map(rows: tuple[str, ...], columns: tuple[str, ...]) -> AttentionMap:
    return AttentionMap(torch.randn(len(rows), len(columns), dtype=torch.float64).softmax(-1), rows, columns)


AXES = {
    "pieces": (ROWS, COLUMNS),
    "characters": (tuple("abc"), (*"defgh", "</s>")),
    "pieces over characters": (ROWS, (*"abcdefg", "</s>")),
    "characters over pieces": (tuple("abc"), COLUMNS),
    "one row": (("▁a",), ("b", "▁c", "d")),
    "no rows": ((), COLUMNS),
    "no columns": (ROWS, ()),
    "nothing": ((), ()),
}
every_axes = pytest.mark.parametrize(("rows", "columns"), AXES.values(), ids=AXES)


def test_pieces_become_words() -> None:
    words = some_map(ROWS, COLUMNS).words()
    assert words.rows == ("L'accord", "signé", "</s>")
    assert words.columns == ("the", "attention<unk>s", "of the", "</s>")


def test_pieces_before_the_first_word_mark_form_a_word() -> None:
    assert some_map(("at", "tention", "▁is"), ("a",)).words().rows == ("attention", "is")


def test_an_axis_without_word_marks_is_not_changed() -> None:
    attention = some_map(tuple("abc"), (*"defgh", "</s>"))
    assert attention.words() == attention
    half = some_map(tuple("abc"), COLUMNS).words()
    assert half.rows == tuple("abc")
    assert len(half.columns) == 4


def test_columns_are_summed_and_rows_averaged() -> None:
    attention = some_map(ROWS, COLUMNS)
    rows, columns = [[0, 1, 2], [3, 4], [5]], [[0], [1, 2, 3, 4], [5, 6], [7]]
    wanted = [
        [sum(attention.weights[row, column].item() for row in word for column in cols) / len(word) for cols in columns]
        for word in rows
    ]
    torch.testing.assert_close(attention.words().weights, torch.tensor(wanted, dtype=torch.float64))


@every_axes
def test_merging_keeps_row_sums_and_is_idempotent(rows: tuple[str, ...], columns: tuple[str, ...]) -> None:
    attention = some_map(rows, columns)
    words = attention.words()
    assert words.weights.shape == (len(words.rows), len(words.columns))
    assert words.weights.dtype == attention.weights.dtype
    sums = torch.full((len(words.rows),), 1.0 if columns else 0.0, dtype=torch.float64)
    torch.testing.assert_close(words.weights.sum(-1), sums)
    twice = words.words()
    assert (twice.rows, twice.columns) == (words.rows, words.columns)
    assert torch.equal(twice.weights, words.weights)
    assert not any("▁" in label for label in (*words.rows, *words.columns))


def test_merging_does_not_change_the_original_map() -> None:
    attention = some_map(ROWS, COLUMNS)
    before = attention.weights.clone()
    attention.words()
    assert torch.equal(attention.weights, before)
    assert attention.rows == ROWS


@every_axes
def test_coverage_and_entropy_equal_plain_loops(rows: tuple[str, ...], columns: tuple[str, ...]) -> None:
    attention = some_map(rows, columns)
    table = attention.weights.tolist()
    coverage = [sum(weights[column] for weights in table) for column in range(len(columns))]
    assert attention.coverage().tolist() == pytest.approx(coverage)
    entropy = [-sum(weight * math.log(weight) for weight in weights) for weights in table]
    assert attention.entropy().tolist() == pytest.approx(entropy)


@every_axes
def test_monotonicity_equals_a_plain_loop(rows: tuple[str, ...], columns: tuple[str, ...]) -> None:
    attention = some_map(rows, columns)
    expected_columns = [
        sum(place * weight for place, weight in enumerate(row)) / sum(row) for row in attention.weights.tolist() if row
    ]
    causal = [after >= before - 1e-6 for before, after in pairwise(expected_columns)]
    assert attention.monotonicity() == pytest.approx(sum(causal) / len(causal) if causal else 1.0)


@pytest.mark.parametrize(
    ("places", "share"),
    [([0, 1, 2, 3], 1.0), ([3, 2, 1, 0], 0.0), ([1, 1, 1, 1], 1.0), ([0, 2, 1, 3], 2 / 3), ([2], 1.0), ([], 1.0)],
)
def test_monotonicity_is_the_share_of_steps_that_do_not_go_back(places: list[int], share: float) -> None:
    weights = 0.3 * torch.eye(5)[places]  # rows need not sum to one
    assert AttentionMap(weights, ("x",) * len(places), tuple("abcde")).monotonicity() == pytest.approx(share)


def test_a_row_without_weight_is_ignored() -> None:
    weights = torch.tensor([[0.0, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]])
    attention = AttentionMap(weights, tuple("wxyz"), tuple("abc"))
    assert attention.monotonicity() == 0.5
    assert attention.links() == [(2, 0), (1, 2), (2, 3)]


@every_axes
def test_links_equal_a_plain_loop(rows: tuple[str, ...], columns: tuple[str, ...]) -> None:
    attention = some_map(rows, columns)
    words = [column for column, label in enumerate(columns) if label != "</s>"]
    wanted = []
    for row, weights in enumerate(attention.weights.tolist()):
        best = words[0] if words else None
        for column in words:
            best = column if weights[column] > weights[best] else best
        if best is not None and rows[row] != "</s>":
            wanted.append((best, row))
    assert attention.links() == wanted


def test_links_take_the_first_of_equal_weights_and_skip_marks() -> None:
    columns = ("<s>", "a", "<unk>", "b", "</s>", "<pad>")
    heaviest = [[1, 3], [0], [2, 3], [4], [5], [3], [1]]
    weights = torch.zeros(7, 6)
    for row, places in enumerate(heaviest):
        weights[row, places] = 0.5
    weights[3, [2, 3]] = 0.1  # less than on the mark </s>, but on words
    attention = AttentionMap(weights, (*"tuvwxy", "</s>"), columns)
    assert attention.links() == [(1, 0), (2, 2), (2, 3), (3, 5)]
