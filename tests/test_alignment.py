"""Links of maps, and alignment errors compared with plain transcriptions of their formulas and with hand counts."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.analysis.alignment import alignment_error, alignment_error_rate, diagonal, measure
from regard.maps import AttentionMap
from regard.types import Example, Prediction

Links = set[tuple[int, int]]

links = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=8)
sentences = st.lists(st.tuples(links, links, links), min_size=1, max_size=4)


def one_per_row(links: Links) -> Links:
    return {(source, target) for target, source in {target: source for source, target in sorted(links)}.items()}


def attention_map(*rows: list[float], columns: tuple[str, ...] = ("a", "b", "c", "</s>")) -> AttentionMap:
    return AttentionMap(torch.tensor(rows), tuple("wxyz"[: len(rows)]), columns)


MAP = attention_map([0.1, 0.6, 0.2, 0.1], [0.3, 0.1, 0.0, 0.6], [0.0, 0.2, 0.3, 0.5])


def test_a_row_is_linked_to_its_heaviest_column_other_than_end() -> None:
    assert set(MAP.links()) == {(1, 0), (0, 1), (2, 2)}


def test_the_input_step_reads_one_row_later_and_the_last_row_itself() -> None:
    assert set(MAP.links(shift=1)) == {(0, 0), (2, 1), (2, 2)}
    assert set(MAP.links(shift=2)) == {(2, 0), (2, 1), (2, 2)}


def test_marks_anywhere_are_skipped_and_an_unknown_token_is_a_source() -> None:
    columns = ("<s>", "<unk>", "a", "</s>", "<pad>")
    attention = attention_map([0.9, 0.0, 0.1, 0.0, 0.0], [0.0, 0.3, 0.2, 0.5, 0.0], columns=columns)
    assert attention.links() == [(2, 0), (1, 1)]


def test_a_row_without_weight_has_no_link() -> None:
    assert attention_map([0.0, 0.0, 0.0, 0.0], [0.0, 0.7, 0.3, 0.0]).links() == [(1, 1)]
    assert attention_map([0.0, 0.0, 0.0, 1.0]).links() == []
    assert attention_map([1.0], columns=("</s>",)).links() == []
    assert AttentionMap(torch.zeros(0, 2), (), ("a", "b")).links() == []


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3))
def test_links_have_one_source_per_row(rows: int, columns: int, shift: int) -> None:
    weights = torch.rand(rows, columns, generator=torch.Generator().manual_seed(rows * columns)) + 0.1
    predicted = AttentionMap(weights, ("r",) * rows, ("c",) * columns).links(shift)
    assert sorted(target for _, target in predicted) == list(range(rows))
    for source, target in predicted:
        assert weights[min(target + shift, rows - 1), source] == weights[min(target + shift, rows - 1)].max()


@given(sentences)
def test_the_alignment_error_rate_is_that_of_och_and_ney(corpus: list[tuple[Links, Links, Links]]) -> None:
    predicted, sure, possible = zip(*corpus, strict=True)
    agreed = total = Fraction(0)
    for a, s, p in corpus:
        p = p.union(s)
        agreed += len([link for link in a if link in s]) + len([link for link in a if link in p])
        total += len(a) + len(s)
    expected = 1 - agreed / total if total else 0
    assert alignment_error_rate(predicted, sure, possible).value == pytest.approx(float(expected))


def test_the_alignment_error_rate_by_hand() -> None:
    sure, possible = {(0, 0), (1, 2)}, {(1, 1), (2, 1)}
    predicted = {(0, 0), (1, 1), (3, 2)}  # one sure, one possible, one wrong: 1 - (1 + 2) / (3 + 2)
    assert alignment_error_rate([predicted], [sure], [possible]).value == pytest.approx(0.4)
    assert alignment_error_rate([predicted], [sure]).value == pytest.approx(0.6)  # 1 - (1 + 1) / (3 + 2)
    assert alignment_error_rate([predicted, sure], [sure, sure]).value == pytest.approx(1 / 3)  # 1 - (2 + 4) / (5 + 4)


@given(sentences)
def test_the_alignment_error_rate_is_bounded_and_zero_for_gold(corpus: list[tuple[Links, Links, Links]]) -> None:
    predicted, sure, possible = zip(*corpus, strict=True)
    rate = alignment_error_rate(predicted, sure, possible).value
    assert 0 <= rate <= 1
    assert rate <= alignment_error_rate(predicted, sure).value  # possible links can only lower the error
    assert alignment_error_rate(sure, sure, possible).value == 0
    assert alignment_error_rate([s | p for s, p in zip(sure, possible, strict=True)], sure, possible).value == 0
    swapped = alignment_error_rate(sure, predicted).value
    assert alignment_error_rate(predicted, sure).value == swapped  # 1 - F1 is symmetric
    if any(sure):
        assert alignment_error_rate([set() for _ in sure], sure, possible).value == 1


@given(sentences)
def test_the_error_is_one_minus_the_precision_over_linked_rows(corpus: list[tuple[Links, Links, Links]]) -> None:
    """Transcribed from the formula: 1 - |A & S| / |A|, where A has one link in each row that has gold."""
    predicted, gold = [], []
    for other, sure, _ in corpus:
        rows = {target for _, target in sure}
        predicted.append(one_per_row(other | {(0, target) for target in rows}))
        gold.append(sure)
    judged = [(a, s) for links, s in zip(predicted, gold, strict=True) for a in links if a[1] in {row for _, row in s}]
    expected = 1 - Fraction(sum(a in s for a, s in judged), len(judged)) if judged else 0
    assert alignment_error(predicted, gold).value == pytest.approx(float(expected))


def test_the_alignment_error_by_hand() -> None:
    gold = {(source, target) for source in (0, 1) for target in (0, 1)} | {(3, 3)}  # row 2 is not judged
    assert alignment_error([{(1, 0), (2, 1), (0, 2), (3, 3)}], [gold]).value == pytest.approx(1 / 3)
    assert alignment_error([{(1, 0), (3, 3)}], [gold]).value == pytest.approx(1 / 3)  # a missing link is an error
    assert alignment_error([{(0, 0), (1, 1), (3, 3)}], [gold]).value == 0  # one right link per row is enough
    assert alignment_error([{(1, 0), (2, 1), (3, 3)}, {(0, 0)}], [gold, {(0, 0)}]).value == pytest.approx(1 / 4)


def test_errors_have_signatures_and_need_equally_many_sentences() -> None:
    assert alignment_error([{(0, 0)}], [{(0, 0), (0, 1)}]).signature == "alignment_error|n:1|positions:2"
    assert alignment_error_rate([{(0, 0)}], [{(0, 0)}]).signature == "alignment_error_rate|n:1|sure:1|possible:0"
    measured = alignment_error_rate([{(0, 0)}], [{(0, 0)}], [{(0, 0), (0, 1), (1, 1)}])  # the sure are possible
    assert measured.signature == "alignment_error_rate|n:1|sure:1|possible:2"
    for error in (alignment_error, alignment_error_rate):
        with pytest.raises(ValueError, match="zip"):
            error([set()], [set(), set()])


@given(st.integers(1, 9), st.integers(1, 9))
def test_the_diagonal_links_equal_relative_positions(source: int, target: int) -> None:
    linked = sorted(diagonal(source, target), key=lambda link: link[1])
    assert [place for _, place in linked] == list(range(target))
    assert [word for word, _ in linked] == sorted(word for word, _ in linked)
    for word, place in linked:
        assert word == int((place + 0.5) / target * source + 1e-9)
    if source == target:
        assert linked == [(place, place) for place in range(target)]


def answer(text: str, attention: AttentionMap | None) -> Prediction:
    return Prediction("abc", text, 0.0, tuple(text), attention)


def test_maps_of_right_answers_are_measured_at_both_steps() -> None:
    example = Example("abc", "wxy", links=((1, 0), (2, 1), (2, 2)))  # MAP finds 1 0 2, and one row later 0 2 2
    measured = measure([answer("wxy", MAP)], [example])
    assert {name: error.value for name, error in measured.items()} == pytest.approx(
        {"output step": 1 / 3, "input step": 1 / 3}
    )
    assert measured["input step"].signature == "alignment_error|n:1|positions:3"


def test_wrong_answers_and_maps_that_do_not_fit_are_left_out() -> None:
    example = Example("abc", "wxy", links=((1, 0),))
    words = AttentionMap(torch.ones(1, 2), ("wxy",), ("abc", "</s>"))
    fitting, unfit = answer("wxy", MAP), [answer("wx", MAP), answer("wxy", None), answer("wxy", words)]
    assert measure(unfit, [example] * 3) == {}
    assert measure([fitting], [Example("abc", "wxy")]) == {}
    assert measure([*unfit, fitting], [example] * 4) == measure([fitting], [example])
