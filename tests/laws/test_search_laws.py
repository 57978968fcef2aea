"""Laws of beam search, over every kind of decoder, on small models with varied predictions."""

from itertools import product
from typing import NamedTuple

import pytest
import torch
from setups import (
    ATTENDING_KINDS,
    DTYPES,
    LENGTHS,
    LIMITS,
    SEEDS,
    SETUP_KINDS,
    TRANSFORMER_KINDS,
    all_setups,
    case_of,
    greedy,
    log_probs,
    make_setup,
    penalty,
    rescored,
    setups,
)
from small import near

from regard.attention import POSITIONS
from regard.errors import NotFiniteError, RecipeError
from regard.layers.transformer import NORMS
from regard.models import Seq2Seq
from regard.search import beam
from regard.types import BEGIN, END, PAD, Memory


class PlainHypothesis(NamedTuple):
    """A hypothesis of the plain searches in this file."""

    score: float
    tokens: list[int]
    finished: bool


def plain_beam(
    model: Seq2Seq, memory: Memory, width: int, limit: int, exponent: float, n_best: int, *, ends_in_beam: bool
) -> list[PlainHypothesis]:
    """Beam search of one sentence in its simplest form: no cache, and no early stop before the limit.

    A hypothesis ends if END is among the `width` best continuations, or, without `ends_in_beam`, is the likeliest word
    after it.
    """
    live, ended = [PlainHypothesis(0.0, [], False)], []
    for length in range(1, limit + 1):
        extended, likeliest = [], []
        next_log_probs = log_probs(model, memory, [hypothesis.tokens for hypothesis in live])[:, -1].tolist()
        for (score, tokens, _), row in zip(live, next_log_probs, strict=True):
            continuations = [
                PlainHypothesis(score + row[word], [*tokens, word], word == END)
                for word in range(len(row))
                if word not in (PAD, BEGIN)
            ]
            extended += continuations
            likeliest += [] if ends_in_beam else [max(continuations)]
        extended.sort(key=lambda each: -each.score)
        ended += [
            PlainHypothesis(each.score / penalty(length, exponent), each.tokens[:-1], True)
            for each in extended
            if each.finished and (each in extended[:width] or each in likeliest)
        ]
        live = [each for each in extended if not each.finished][:width]
    ended.sort(key=lambda each: -each.score)
    if len(ended) < n_best:
        ended += [PlainHypothesis(each.score / penalty(limit, exponent), each.tokens, False) for each in live]
    return ended[:n_best]


@setups
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_beam_of_one_is_greedy(kind, seed, dtype):
    setup = make_setup(kind, seed, dtype)
    results = beam(setup.model.decoder, setup.memory, width=1, limits=LIMITS)
    for (hypothesis,), memory, limit in zip(results, setup.alone, LIMITS, strict=True):
        assert (hypothesis.tokens, hypothesis.finished) == greedy(setup.model, memory, limit)


@setups
@pytest.mark.parametrize("exponent", [0.0, 0.7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_score_is_its_rescoring_and_a_map_its_forward_map(kind, seed, exponent, dtype):
    setup, width = make_setup(kind, seed, dtype), 3
    results = beam(setup.model.decoder, setup.memory, width=width, limits=LIMITS, length_penalty=exponent, n_best=width)
    for row, hypotheses in enumerate(results):
        for each in hypotheses:
            expected = rescored(setup.model, setup.alone[row], each, exponent)
            assert each.score == pytest.approx(expected, abs=setup.tolerance * LIMITS[row], rel=0)
            assert PAD not in each.tokens
            assert BEGIN not in each.tokens
            assert END not in each.tokens
            rows = len(each.tokens) + each.finished
            assert rows <= LIMITS[row]
            assert each.finished or rows == LIMITS[row]
            step = setup.model.decoder(torch.tensor([[BEGIN, *each.tokens]]), setup.alone[row])
            if step.attention is None:
                assert each.map is None
                continue
            assert each.map.shape == (rows, max(LENGTHS))
            near(each.map[:, : LENGTHS[row]], step.attention[0, :rows], setup.tolerance)
            assert (each.map[:, LENGTHS[row] :] == 0).all()


@all_setups
@pytest.mark.parametrize(
    ("width", "n_best", "exponent", "ends_in_beam"),
    [(2, 1, 0.0, False), (3, 2, 1.0, False), (4, 4, 0.0, False), (2, 1, 0.0, True), (3, 3, 1.0, True)],
)
def test_beam_is_the_plain_beam(kind, seed, width, n_best, exponent, ends_in_beam):
    """So the cache, the shared memory and the early stop of `beam` change nothing."""
    setup = make_setup(kind, seed)
    settings = {"width": width, "n_best": n_best, "ends_in_beam": ends_in_beam}
    results = beam(setup.model.decoder, setup.memory, limits=LIMITS, length_penalty=exponent, **settings)
    for hypotheses, memory, limit in zip(results, setup.alone, LIMITS, strict=True):
        expected = plain_beam(setup.model, memory, limit=limit, exponent=exponent, **settings)
        assert [(each.tokens, each.finished) for each in hypotheses] == [
            (each.tokens, each.finished) for each in expected
        ]
        for mine, other in zip(hypotheses, expected, strict=True):
            assert mine.score == pytest.approx(other.score, abs=1e-9, rel=0)


@pytest.mark.parametrize("kind", SETUP_KINDS)
@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("exponent", [0.0, 0.8])
def test_a_beam_as_wide_as_all_hypotheses_finds_the_best(kind, seed, exponent):
    setup = make_setup(kind, seed, vocabulary=6)  # words: <unk>, 4, 5 and END
    limit, words = 4, (1, 4, 5)
    results = beam(
        setup.model.decoder,
        setup.memory,
        width=128,
        limits=[limit] * len(LENGTHS),
        length_penalty=exponent,
        n_best=45,
    )
    for memory, hypotheses in zip(setup.alone, results, strict=True):
        ended, cut = [], []
        for length in range(limit + 1):
            outputs = [list(tokens) for tokens in product(words, repeat=length)]
            for tokens, rows in zip(outputs, log_probs(setup.model, memory, outputs).tolist(), strict=True):
                with_end = [*tokens, END][:limit]
                total = sum(rows[at][word] for at, word in enumerate(with_end))
                (ended if length < limit else cut).append((-total / penalty(len(with_end), exponent), tokens))
        ended.sort()
        cut.sort()
        assert (len(ended), len(cut)) == (1 + 3 + 9 + 27, 81)
        assert [each.tokens for each in hypotheses] == [tokens for _, tokens in (ended + cut)[:45]]
        assert [each.finished for each in hypotheses] == [True] * 40 + [False] * 5
        for mine, (score, _) in zip(hypotheses, ended + cut, strict=False):
            assert mine.score == pytest.approx(-score, abs=1e-10, rel=0)


@setups
@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_the_n_best_are_sorted_and_distinct(kind, seed, exponent):
    setup = make_setup(kind, seed)
    for hypotheses in beam(
        setup.model.decoder, setup.memory, width=5, limits=LIMITS, length_penalty=exponent, n_best=5
    ):
        assert len(hypotheses) == 5
        assert len({(tuple(each.tokens), each.finished) for each in hypotheses}) == 5
        ranks = [(not each.finished, -each.score) for each in hypotheses]
        assert ranks == sorted(ranks)  # finished hypotheses come before those cut at the limit


@setups
@pytest.mark.parametrize(("length_penalty", "coverage_penalty"), [(0.0, 0.0), (1.3, 0.0), (0.6, 0.4)])
def test_a_smaller_n_best_gives_the_first_of_a_larger_one(kind, seed, length_penalty, coverage_penalty):
    """A search goes on until the last of its n best is found, so a larger n leaves the first as they are."""
    if coverage_penalty and kind not in ATTENDING_KINDS:
        pytest.skip("a coverage penalty needs attention")
    setup = make_setup(kind, seed)
    settings = {"length_penalty": length_penalty, "coverage_penalty": coverage_penalty}
    results = {
        n_best: beam(setup.model.decoder, setup.memory, width=4, limits=LIMITS, n_best=n_best, **settings)
        for n_best in (1, 2, 4)
    }
    for one, two, four in zip(*results.values(), strict=True):
        tokens = [[(each.tokens, each.finished) for each in hypotheses] for hypotheses in (one, two, four)]
        assert tokens[0] == tokens[2][:1]
        assert tokens[1] == tokens[2][:2]


@pytest.mark.parametrize("kind", ATTENDING_KINDS)
@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize(("exponent", "weight"), [(0.0, 0.5), (0.9, 0.2), (2.0, 3.0)])
def test_a_wide_beam_finds_the_best_under_both_penalties(kind, seed, exponent, weight):
    """The bound that stops a search is sound: no live hypothesis that could still win is given up."""
    setup, limit = make_setup(kind, seed, vocabulary=6), 4
    settings = {"length_penalty": exponent, "coverage_penalty": weight}
    results = beam(setup.model.decoder, setup.memory, width=128, limits=[limit] * len(LENGTHS), **settings)
    for row, ((best,), memory) in enumerate(zip(results, setup.alone, strict=True)):
        scores = []
        for length in range(limit):
            outputs = list(product((1, 4, 5), repeat=length))
            with torch.no_grad():
                step = setup.model.decoder(
                    torch.tensor([[BEGIN, *tokens] for tokens in outputs]), memory.repeat(len(outputs))
                )
            words = torch.tensor([[*tokens, END] for tokens in outputs])
            totals = step.logits.log_softmax(-1).gather(-1, words.unsqueeze(-1)).sum((1, 2))
            covered = step.attention.sum(1).clamp(1e-6, 1.0).log().sum(-1)
            total = totals / penalty(length + 1, exponent) + weight * covered
            scores += zip(total.tolist(), map(list, outputs), strict=True)
        score, tokens = max(scores)
        assert (best.tokens, best.finished) == (tokens, True)
        assert best.score == pytest.approx(score, abs=1e-9, rel=0)
        assert len(best.map) == len(tokens) + 1
        assert best.map.shape[1] == max(LENGTHS)
        assert row < len(LENGTHS)


@all_setups
@pytest.mark.parametrize("width", [2, 5])
def test_a_beam_that_keeps_the_greedy_output_is_never_worse(kind, seed, width):
    """Without penalties, and if each prefix of the greedy output stayed among the live hypotheses.

    An output that is cut at its limit is incomplete, and is compared only with others that are cut.
    """
    setup = make_setup(kind, seed)
    results = beam(setup.model.decoder, setup.memory, width=width, limits=LIMITS)
    greedy_results = beam(setup.model.decoder, setup.memory, width=1, limits=LIMITS)
    for (best,), (greedy_best,), memory, limit in zip(results, greedy_results, setup.alone, LIMITS, strict=True):
        live = plain_live(setup.model, memory, width, limit)
        stayed_live = all(greedy_best.tokens[:length] in live[length] for length in range(1, len(greedy_best.tokens)))
        if not stayed_live or greedy_best.tokens not in live[len(greedy_best.tokens)]:
            continue
        assert best.finished or not greedy_best.finished
        if best.finished == greedy_best.finished:
            assert best.score >= greedy_best.score - 1e-9


def plain_live(model: Seq2Seq, memory: Memory, width: int, limit: int) -> list[list[list[int]]]:
    """The live hypotheses of a beam search by their length, the empty one first."""
    live = [[([], 0.0)]]
    for _ in range(limit):
        next_log_probs = log_probs(model, memory, [tokens for tokens, _ in live[-1]])[:, -1].tolist()
        extended = [
            ([*tokens, word], score + row[word])
            for (tokens, score), row in zip(live[-1], next_log_probs, strict=True)
            for word in range(len(row))
            if word not in (PAD, BEGIN, END)
        ]
        live.append(sorted(extended, key=lambda each: -each[1])[:width])
    return [[tokens for tokens, _ in hypotheses] for hypotheses in live]


@pytest.mark.parametrize(("width", "n_best"), [(1, 2), (3, 4), (3, 0)])
def test_an_n_best_beyond_the_width_is_refused(width, n_best):
    setup = make_setup("luong")
    with pytest.raises(RecipeError, match=f"a beam of width {width} finds 1 to {width} hypotheses, not {n_best}"):
        beam(setup.model.decoder, setup.memory, width=width, limits=LIMITS, n_best=n_best)


@pytest.mark.parametrize("kind", SETUP_KINDS)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("unlikely", [-1e4, -torch.inf])
@pytest.mark.parametrize("limits", [(3, 3, 3), (5, 1, 3), (1, 4, 1)])
def test_limits_cut_outputs_that_never_end(kind, width, unlikely, limits):
    setup = make_setup(kind)
    with torch.no_grad():
        setup.model.decoder.out.bias[END] = unlikely
    results = beam(setup.model.decoder, setup.memory, width=width, limits=limits)
    for (hypothesis,), memory, limit in zip(results, setup.alone, limits, strict=True):
        assert not hypothesis.finished
        assert len(hypothesis.tokens) == limit
        assert hypothesis.score == pytest.approx(rescored(setup.model, memory, hypothesis, 0.0), abs=1e-10, rel=0)
        assert hypothesis.map is None or len(hypothesis.map) == limit


@pytest.mark.parametrize("kind", SETUP_KINDS)
def test_if_only_end_is_possible_the_result_is_one_empty_hypothesis(kind):
    setup = make_setup(kind)
    with torch.no_grad():
        setup.model.decoder.out.bias.fill_(-torch.inf)[END] = 0.0
    for hypotheses in beam(setup.model.decoder, setup.memory, width=3, limits=LIMITS, n_best=3):
        assert [(each.tokens, each.score, each.finished) for each in hypotheses] == [([], 0.0, True)]


@pytest.mark.parametrize("kind", SETUP_KINDS)
def test_a_beam_wider_than_the_vocabulary_gives_possible_hypotheses(kind):
    setup = make_setup(kind, vocabulary=6)
    for hypotheses in beam(setup.model.decoder, setup.memory, width=11, limits=(2, 1, 2), n_best=3):
        assert hypotheses
        assert all(each.score > -torch.inf for each in hypotheses)


@setups
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3])
def test_batch_mates_change_nothing(kind, seed, dtype, width):
    setup = make_setup(kind, seed, dtype)
    together = beam(setup.model.decoder, setup.memory, width=width, limits=LIMITS, length_penalty=0.5, n_best=width)
    for row, (memory, limit) in enumerate(zip(setup.alone, LIMITS, strict=True)):
        (alone,) = beam(setup.model.decoder, memory, width=width, limits=[limit], length_penalty=0.5, n_best=width)
        for mine, others in zip(alone, together[row], strict=True):
            assert (mine.tokens, mine.finished) == (others.tokens, others.finished)
            assert mine.score == pytest.approx(others.score, abs=setup.tolerance * limit, rel=0)
            if mine.map is not None:
                near(mine.map, others.map[:, : LENGTHS[row]], setup.tolerance)


@pytest.mark.parametrize("kind", SETUP_KINDS)
@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
@pytest.mark.parametrize("width", [1, 3])
def test_predictions_that_are_not_numbers_are_an_error(kind, junk, width):
    setup = make_setup(kind)
    with torch.no_grad():
        setup.model.decoder.out.bias[5] = junk
    with pytest.raises(NotFiniteError, match="not finite"):
        beam(setup.model.decoder, setup.memory, width=width, limits=LIMITS)


@pytest.mark.parametrize("kind", SETUP_KINDS)
def test_search_changes_no_memory_and_keeps_no_tensors_alive(kind):
    """Its maps need no gradient, and own no more memory than they show."""
    setup = make_setup(kind)
    states = setup.memory.states.clone()
    results = beam(setup.model.decoder, setup.memory, width=3, limits=LIMITS, n_best=3)
    assert torch.equal(states, setup.memory.states)
    maps = [each.map for hypotheses in results for each in hypotheses if each.map is not None]
    assert not any(each.requires_grad for each in maps)
    assert all(each.untyped_storage().nbytes() == each.nbytes for each in maps)


def test_the_setups_are_varied():
    """Their outputs differ enough for the laws above to prove something."""
    hypotheses = []
    for kind, seed in product(SETUP_KINDS, SEEDS):
        setup = make_setup(kind, seed)
        hypotheses += [best for (best,) in beam(setup.model.decoder, setup.memory, width=2, limits=LIMITS)]
    assert len({tuple(each.tokens) for each in hypotheses}) > len(hypotheses) // 3
    assert len({len(each.tokens) for each in hypotheses}) > 4
    assert {each.finished for each in hypotheses} == {True, False}


def test_every_kind_of_positions_and_norm_is_searched():
    cases = [case_of(kind, seed) for kind, seed in product(TRANSFORMER_KINDS, SEEDS)]  # as in the law of the plain beam
    assert {case.stack.positions for case in cases} == set(POSITIONS)
    assert {case.stack.norm for case in cases} == set(NORMS)
