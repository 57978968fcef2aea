"""Search with a decoder that is a table of probabilities, so that every number can be computed by hand."""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from regard.decoders import Decoder
from regard.errors import NotFiniteError, RecipeError
from regard.maps import TEXT
from regard.search import beam, sample
from regard.search.penalties import coverage, forbid_repeats, length
from regard.search.sample import shape
from regard.types import BEGIN, END, PAD, SPECIALS, Memory, Prepared, Recurrent, State, Step


@dataclass(frozen=True)
class TableReady(Prepared):
    """Only the source mask."""

    mask: Tensor


@dataclass(frozen=True)
class TableState(State):
    """An empty state: the next word depends only on the last token."""

    nothing: Tensor


class Table(Decoder[TableReady, TableState]):
    """The next word depends only on the last one; word w attends to source position w, modulo the source length."""

    def __init__(self, probabilities: Tensor) -> None:
        super().__init__()
        self.probabilities = probabilities

    def prepare(self, memory: Memory) -> TableReady:
        return TableReady(memory.mask)

    def start(self, prepared: TableReady) -> TableState:
        return TableState(torch.zeros(len(prepared.mask), 1))

    def step(self, tokens: Tensor, state: TableState, prepared: TableReady) -> Step:
        attention = torch.nn.functional.one_hot(tokens % prepared.mask.shape[1], prepared.mask.shape[1]).double()
        return Step(self.probabilities[tokens].log(), state, attention)


WORDS = 8
ROW = (0.0, 0.02, 0.0, 0.08, 0.4, 0.25, 0.15, 0.1)  # of <pad>, <unk>, <s>, </s>, 4, 5, 6, 7


def table(row: tuple[float, ...] = ROW) -> Table:
    return Table(torch.tensor([row] * WORDS, dtype=torch.float64))


def memory(*lengths: int) -> Memory:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    summary = Recurrent(torch.zeros(len(lengths), 1, 2), None)
    return Memory(torch.zeros(len(lengths), max(lengths), 2), mask, summary, TEXT)


# The shaped distribution


def shaped(row: tuple[float, ...], temperature: float, top_k: int, top_p: float) -> list[float]:
    """Temperature, top-k and top-p, transcribed from their papers, one word after another."""
    probabilities = [0.0 if word in (PAD, BEGIN) else chance ** (1 / temperature) for word, chance in enumerate(row)]
    probabilities = [chance / sum(probabilities) for chance in probabilities]
    candidates, total = [], 0.0
    for word in sorted(range(len(row)), key=lambda word: -probabilities[word]):
        if total >= top_p or (top_k and len(candidates) == top_k):
            break
        candidates.append(word)
        total += probabilities[word]
    total = sum(probabilities[word] for word in candidates)
    return [probabilities[word] / total if word in candidates else 0.0 for word in range(len(row))]


SHAPES = [
    (1.0, 0, 1.0),
    (0.5, 0, 1.0),
    (2.0, 0, 1.0),
    (1.0, 3, 1.0),
    (1.0, 0, 0.7),
    (1.0, 0, 0.65 - 1e-9),
    (1.3, 4, 0.8),
    (0.7, 2, 0.99),
    (1.0, 100, 1.0),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SHAPES)
def test_the_shaped_distribution_equals_its_definition(temperature, top_k, top_p):
    row = tuple(chance or 1e-12 for chance in ROW)  # <pad> and <s> get a probability above 0, to be removed
    distribution = shape(torch.tensor([row], dtype=torch.float64).log(), temperature, top_k, top_p)[0]
    assert distribution.tolist() == pytest.approx(shaped(row, temperature, top_k, top_p), abs=1e-12)
    assert distribution[PAD] == distribution[BEGIN] == 0


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SHAPES)
def test_draws_are_as_frequent_as_the_shaped_distribution_says(temperature, top_k, top_p):
    count = 2000
    (hypotheses,) = sample(
        table(),
        memory(5),
        limits=[1],
        seeds=[0],
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        count=count,
    )
    drawn = Counter(hypothesis.tokens[0] if hypothesis.tokens else END for hypothesis in hypotheses)
    expected = shaped(ROW, temperature, top_k, top_p)
    assert all(expected[word] > 0 for word in drawn)
    kinds = [word for word in range(WORDS) if expected[word] > 0]
    distance = sum((drawn[word] - count * expected[word]) ** 2 / (count * expected[word]) for word in kinds)
    freedom = len(kinds) - 1
    assert distance < freedom + 4 * math.sqrt(2 * freedom) + 4  # chi-square: its mean and its spread


def test_top_p_of_one_cuts_nothing_even_if_rounded_sums_reach_one():
    row = torch.tensor([[0.0, 1e-9, 0.0, 1e-9, 1 - 4e-9, 1e-9, 1e-9, 0.0]])
    assert (shape(row.log(), 1.0, 0, 1.0)[0] > 0).tolist() == [False, True, False, True, True, True, True, False]


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-37])
def test_a_tiny_temperature_leaves_only_the_best_word(temperature):
    assert shape(torch.tensor([ROW]).log(), temperature, 0, 1.0)[0].tolist() == [0, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.0}, {"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"count": 0}],
)
def test_invalid_sampling_settings_are_refused(settings):
    with pytest.raises(RecipeError, match="sampling needs temperature > 0, top_k >= 0, 0 < top_p <= 1 and a count"):
        sample(table(), memory(5), limits=[3], seeds=[0], **settings)


def test_a_sample_ends_at_its_limit_or_at_end():
    (hypotheses,) = sample(table(), memory(5), limits=[4], seeds=[1], count=200)
    assert {len(hypothesis.tokens) + hypothesis.finished for hypothesis in hypotheses} == {1, 2, 3, 4}
    for hypothesis in hypotheses:
        assert hypothesis.finished or len(hypothesis.tokens) == 4
        outputs = [*hypothesis.tokens, *[END] * hypothesis.finished]
        assert hypothesis.score == pytest.approx(sum(math.log(ROW[word]) for word in outputs), abs=1e-12)
        inputs = [BEGIN, *hypothesis.tokens][: len(outputs)]
        assert hypothesis.map.argmax(-1).tolist() == [word % 5 for word in inputs]


# The penalties


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
def test_the_length_penalty_is_eq_14(exponent):
    for tokens in (1, 7, 40):
        assert length(tokens, exponent) == pytest.approx((5 + tokens) ** exponent / (5 + 1) ** exponent, rel=1e-12)


def test_the_coverage_penalty_is_eq_14_over_real_columns_only():
    attention = torch.rand(4, 6, dtype=torch.float64) * 0.4
    attention[:, 2] = 0.5  # sums to 2, which counts as 1
    real = torch.tensor([True, True, True, True, False, False])
    expected = sum(math.log(min(1.0, sum(row[column] for row in attention.tolist()))) for column in range(4))
    assert coverage(attention, real, 1.0) == pytest.approx(expected, abs=1e-12)
    assert coverage(attention, real, 0.3) == pytest.approx(0.3 * expected, abs=1e-12)
    assert coverage(torch.ones(1, 6), real, 2.0) == 0.0
    assert coverage(torch.zeros(3, 6, dtype=torch.float64), real, 1.0) == pytest.approx(4 * math.log(1e-6))


def test_a_coverage_penalty_without_a_map_is_refused():
    with pytest.raises(RecipeError, match="a coverage penalty needs a decoder with attention; this model's"):
        coverage(None, torch.ones(3, dtype=torch.bool), 1.0)


def test_a_coverage_penalty_prefers_the_hypothesis_that_covers_more():
    chances = torch.zeros(WORDS, WORDS, dtype=torch.float64)
    chances[BEGIN, 4], chances[BEGIN, 5] = 0.6, 0.4  # of two sources, 4 attends to the first, 5 to the second
    chances[4, END] = chances[5, END] = 1.0
    decoder, source = Table(chances), memory(2)
    ((plain,),) = beam(decoder, source, width=3, limits=[4])
    assert plain.tokens == [4]  # <s> and 4 both attend to the first source
    ((covering,),) = beam(decoder, source, width=3, limits=[4], coverage_penalty=0.1)
    assert covering.tokens == [5]
    assert covering.score == pytest.approx(math.log(0.4), abs=1e-9)


@pytest.mark.parametrize(
    ("written", "size", "forbidden"),
    [
        ([4, 5, 4], 1, {4, 5}),
        ([4, 5, 4], 2, {5}),
        ([4, 5, 4, 6, 4], 2, {5, 6}),
        ([4, 5, 6, 4, 5], 3, {6}),
        ([4, 5, 6, 5, 4], 3, set()),
        ([4, 4], 2, {4}),
        ([4], 2, set()),
        ([], 1, set()),
        ([4, 5, 4], 0, set()),
    ],
)
def test_a_word_that_would_repeat_an_n_gram_is_forbidden(written, size, forbidden):
    log_probs = torch.zeros(1, WORDS)
    allowed = forbid_repeats(log_probs, torch.tensor([written], dtype=torch.long), size)
    assert {word for word in range(WORDS) if allowed[0, word] == -math.inf} == forbidden
    assert (log_probs == 0).all()  # the argument is not changed


def test_repeats_are_forbidden_row_by_row():
    allowed = forbid_repeats(torch.zeros(2, WORDS), torch.tensor([[4, 4], [5, 6]]), 1)
    assert [(row == -math.inf).nonzero().flatten().tolist() for row in allowed] == [[4], [5, 6]]


def test_an_output_ends_if_every_other_word_would_repeat():
    row = (0.0, 0.0, 0.0, 1e-6, 0.6, 0.4, 0.0, 0.0)
    ((best,),) = beam(table(row), memory(2), width=2, limits=[9], no_repeat=1)
    assert best.tokens in ([4, 5], [5, 4])
    assert best.finished


# The end of a sentence


def confident(words: int = 6) -> Table:
    """A model that predicts 4, 5, ..., END almost surely; after any other word END follows at once."""
    size = len(SPECIALS) + words
    chances = torch.full((size, size), 1e-4, dtype=torch.float64)
    chances[:, END] = 2e-3
    for word, after in pairwise([BEGIN, *range(len(SPECIALS), size), END]):
        chances[word, after] = 1.0
    return Table(chances / chances.sum(-1, keepdim=True))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_bad_hypotheses_that_end_early_do_not_stop_the_search(width, length_penalty):
    """The lower beams of a confident model end one after another while its best hypothesis is still live."""
    ((best,),) = beam(confident(), memory(5), width=width, limits=[20], length_penalty=length_penalty)
    assert (best.tokens, best.finished) == ([4, 5, 6, 7, 8, 9], True)


def test_an_output_cut_at_the_limit_comes_after_finished_ones():
    """It is only the beginning of an output, and more likely than any finished output that begins with it."""
    ((first, second),) = beam(confident(), memory(5), width=2, limits=[3], n_best=2, no_repeat=1)
    assert (first.finished, second.finished) == (True, True)
    ((cut,),) = beam(confident(), memory(5), width=1, limits=[3])
    assert (cut.tokens, cut.finished) == ([4, 5, 6], False)
    assert cut.score > first.score


def test_a_sentence_without_any_possible_output_is_an_error():
    with pytest.raises(NotFiniteError, match="no output of a probability above 0"):
        beam(
            table((0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0)), memory(3), width=2, limits=[4], prefix=torch.tensor([[5]])
        )


def test_search_stops_as_soon_as_no_live_hypothesis_can_win():
    """The upper bound is used: of the 500 steps that the limit allows, few are run."""
    decoder, steps = confident(), []
    original = decoder.step

    def counted(tokens: Tensor, state: TableState, prepared: TableReady) -> Step:
        steps.append(len(tokens))
        return original(tokens, state, prepared)

    decoder.step = counted
    beam(decoder, memory(5, 5), width=4, limits=[500, 500])
    assert len(steps) <= 8


def test_a_hypothesis_ends_if_end_is_its_most_likely_word():
    """END is the most likely word after 5, but only third among all continuations of the sentence."""
    chances = torch.zeros(WORDS, WORDS, dtype=torch.float64)
    chances[BEGIN, 4], chances[BEGIN, 5] = 0.6, 0.4
    chances[4, 6] = chances[4, 7] = 0.5
    chances[5, END], chances[5, 7] = 0.6, 0.4
    chances[6, 6] = chances[7, 7] = 0.95
    chances[6, END] = chances[7, END] = 0.05
    ((best,),) = beam(Table(chances), memory(5), width=2, limits=[6])
    assert (best.tokens, best.finished) == ([5], True)
    ((best,),) = beam(Table(chances), memory(5), width=2, limits=[6], ends_in_beam=True)
    assert best.tokens[0] == 4  # END was no more than third


# Prefixes


def test_a_prefix_counts_in_the_score_and_has_rows_in_the_map():
    prefix = torch.tensor([[5, 6], [7, 7]])
    best = beam(table(), memory(5, 3), width=2, limits=[4, 5], prefix=prefix)
    for (hypothesis,), beginning in zip(best, prefix.tolist(), strict=True):
        outputs = [*hypothesis.tokens, *[END] * hypothesis.finished]
        assert hypothesis.tokens[:2] == beginning
        assert hypothesis.score == pytest.approx(sum(math.log(ROW[word]) for word in outputs), abs=1e-12)
        assert hypothesis.map.argmax(-1).tolist()[:3] == [word % 5 for word in (BEGIN, *beginning)]
        assert len(hypothesis.map) == len(outputs)
