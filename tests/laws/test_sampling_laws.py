"""Laws of sampling, prefixes, n-gram blocking and coverage, over every kind of decoder.

The exact numbers are in tests/search.
"""

from collections import Counter
from itertools import product

import pytest
import torch
from setups import (
    ATTENDING_KINDS,
    DTYPES,
    LENGTHS,
    LIMITS,
    SETUP_KINDS,
    Setup,
    greedy,
    log_probs,
    make_setup,
    rescored,
    setups,
)
from small import leaves, near

from regard.errors import NotFiniteError, RecipeError
from regard.search import beam, sample, sample_batch
from regard.search.hypotheses import FORBIDDEN_TOKENS
from regard.search.sample import shape
from regard.types import BEGIN, END, PAD, Hypothesis

DRAWS = (11, 22, 33)  # the seeds of the three sentences


def check(setup: Setup, row: int, hypothesis: Hypothesis) -> None:
    """Assert that score and map equal those of teacher forcing, including a prefix."""
    expected = rescored(setup.model, setup.alone[row], hypothesis, 0.0)
    assert hypothesis.score == pytest.approx(expected, abs=setup.tolerance * LIMITS[row], rel=0)
    assert not {PAD, BEGIN, END} & set(hypothesis.tokens)
    rows = len(hypothesis.tokens) + hypothesis.finished
    assert rows <= LIMITS[row]
    assert hypothesis.finished or rows == LIMITS[row]
    step = setup.model.decoder(torch.tensor([[BEGIN, *hypothesis.tokens]]), setup.alone[row])
    if step.attention is None:
        assert hypothesis.map is None
        return
    assert hypothesis.map.shape == (rows, max(LENGTHS))
    near(hypothesis.map[:, : LENGTHS[row]], step.attention[0, :rows], setup.tolerance)
    assert (hypothesis.map[:, LENGTHS[row] :] == 0).all()


def outputs_of(results: list[list[Hypothesis]]) -> list[list[tuple[list[int], bool]]]:
    """The tokens of all hypotheses, and whether they are finished."""
    return [[(hypothesis.tokens, hypothesis.finished) for hypothesis in row] for row in results]


# Sampling


@setups
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sample_is_scored_by_the_model_itself(kind, seed, dtype):
    setup = make_setup(kind, seed, dtype)
    results = sample(
        setup.model.decoder, setup.memory, limits=LIMITS, seeds=DRAWS, temperature=1.7, top_k=5, top_p=0.9, count=3
    )
    assert [len(row) for row in results] == [3, 3, 3]
    for row, hypotheses in enumerate(results):
        for each in hypotheses:
            check(setup, row, each)


@setups
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sample_of_the_likeliest_word_alone_is_greedy(kind, seed, dtype):
    setup = make_setup(kind, seed, dtype)
    expected = [[greedy(setup.model, memory, limit)] for memory, limit in zip(setup.alone, LIMITS, strict=True)]
    for settings in ({"top_k": 1}, {"temperature": 1e-3}, {"top_p": 1e-9}, {"temperature": 1e-37}):
        assert outputs_of(sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=DRAWS, **settings)) == expected


@setups
def test_batch_mates_change_no_sample(kind, seed):
    setup = make_setup(kind, seed)
    together = sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=DRAWS, count=3)
    for row, memory in enumerate(setup.alone):
        alone = sample(setup.model.decoder, memory, limits=[LIMITS[row]], seeds=[DRAWS[row]], count=3)
        assert outputs_of(alone) == outputs_of([together[row]])
        for mine, other in zip(alone[0], together[row], strict=True):
            assert mine.score == pytest.approx(other.score, abs=1e-9, rel=0)


@pytest.mark.parametrize("kind", SETUP_KINDS)
def test_seeds_reproduce_and_differ(kind):
    setup = make_setup(kind)

    def samples(*seeds: int, count: int = 4) -> list[list[Hypothesis]]:
        return sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=seeds, count=count)

    before = torch.get_rng_state()
    assert outputs_of(samples(1, 2, 3)) == outputs_of(samples(1, 2, 3))
    assert outputs_of(samples(1, 2, 3)) != outputs_of(samples(7, 8, 9))
    # a larger count leaves the first samples as they are
    assert outputs_of(samples(1, 2, 3, count=2)) == [rows[:2] for rows in outputs_of(samples(1, 2, 3))]
    torch.testing.assert_close(torch.get_rng_state(), before)  # the global generator is not used
    assert len({tuple(each.tokens) for each in samples(1, 2, 3, count=60)[0]}) > 5


@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
def test_sampling_from_predictions_that_are_not_finite_is_an_error(junk):
    setup = make_setup("luong")
    with torch.no_grad():
        setup.model.decoder.out.bias[5] = junk
    with pytest.raises(NotFiniteError, match="not finite"):
        sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=DRAWS)


def test_a_temperature_that_is_zero_in_float32_draws_the_likeliest_word():
    log_probs = torch.randn(3, 7).log_softmax(-1)
    wanted = log_probs.index_fill(-1, torch.tensor(FORBIDDEN_TOKENS), -torch.inf).argmax(-1)
    torch.testing.assert_close(shape(log_probs, 1e-320, 0, 1.0), torch.eye(7)[wanted])


# Sampling of a batch at once, for training


@setups
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sampled_batch_has_rows_that_end_with_end_or_at_their_limit(kind, seed, dtype):
    setup = make_setup(kind, seed, dtype)
    limits, generator = (4, 2, 3), torch.Generator().manual_seed(5)
    drawn = sample_batch(setup.model.decoder, setup.memory, limits=limits, count=40, generator=generator)
    assert (drawn.ids[:, 0] == BEGIN).all()
    assert torch.equal(drawn.mask, drawn.ids != PAD)
    ended = 0
    for number, row in enumerate(drawn.ids[:, 1:].tolist()):
        real = [token for token in row if token != PAD]
        assert row == real + [PAD] * (len(row) - len(real))
        assert BEGIN not in real
        assert END not in real[:-1]
        assert real[-1] == END or len(real) == limits[number // 40]
        ended += real[-1] == END
    assert 0 < ended < 120
    again = torch.Generator().manual_seed(5)
    same = sample_batch(setup.model.decoder, setup.memory, limits=limits, count=40, generator=again)
    assert torch.equal(same.ids, drawn.ids)


@setups
def test_outputs_of_a_sampled_batch_are_as_frequent_as_they_are_likely(kind, seed):
    """Of two tokens, for each of three sources: the probabilities by teacher forcing, and the share of 3,000 rows."""
    setup, count = make_setup(kind, seed), 3000
    generator = torch.Generator().manual_seed(1)
    drawn = sample_batch(setup.model.decoder, setup.memory, limits=(2, 2, 2), count=count, generator=generator)
    words = [token for token in range(10) if token not in (PAD, BEGIN, END)]
    for number, memory in enumerate(setup.alone):
        rows = log_probs(setup.model, memory, [[word] for word in words])
        rows[..., [PAD, BEGIN]] = -torch.inf
        first, second = rows[0, 0].softmax(-1), rows[:, 1].softmax(-1)
        likely = {(END, PAD): first[END].item()}
        likely |= {
            (word, token): (first[word] * second[row, token]).item()
            for row, word in enumerate(words)
            for token in range(10)
        }
        outputs = Counter(map(tuple, drawn.ids[number * count : (number + 1) * count, 1:].tolist()))
        assert sum(likely.values()) == pytest.approx(1, abs=1e-9)
        assert set(outputs) <= {output for output, chance in likely.items() if chance}
        for output, chance in likely.items():
            deviation = (chance * (1 - chance) / count) ** 0.5
            assert abs(outputs[output] / count - chance) <= 5 * deviation + 1 / count


# Prefixes


PREFIX = torch.tensor([[4, 9, 5], [8, 8, 8], [6, 4, 7]])


@setups
@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_begin_with_their_prefix(kind, seed, dtype):
    setup = make_setup(kind, seed, dtype)
    searches = [
        beam(setup.model.decoder, setup.memory, width=3, limits=LIMITS, n_best=3, prefix=PREFIX),
        sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=DRAWS, count=3, prefix=PREFIX),
    ]
    for results in searches:
        for row in range(len(LENGTHS)):
            assert results[row]
            for each in results[row]:
                assert each.tokens[:3] == PREFIX[row].tolist()
                check(setup, row, each)


@pytest.mark.parametrize("kind", SETUP_KINDS)
def test_a_prefix_of_the_greedy_output_changes_nothing(kind):
    setup = make_setup(kind)
    without_prefix = beam(setup.model.decoder, setup.memory, width=1, limits=LIMITS)
    for row, ((hypothesis,), memory) in enumerate(zip(without_prefix, setup.alone, strict=True)):
        for length in range(min(len(hypothesis.tokens), LIMITS[row] - 1) + 1):
            prefix = torch.tensor([hypothesis.tokens[:length]], dtype=torch.long)
            ((with_prefix,),) = beam(setup.model.decoder, memory, width=1, limits=[LIMITS[row]], prefix=prefix)
            assert (with_prefix.tokens, with_prefix.finished) == (hypothesis.tokens, hypothesis.finished)
            assert with_prefix.score == pytest.approx(hypothesis.score, abs=1e-10, rel=0)


@setups
def test_a_prefix_in_one_call_equals_steps(kind, seed):
    setup = make_setup(kind, seed)
    decoder = setup.model.decoder
    prepared = decoder.prepare(setup.memory)
    tokens = torch.cat([torch.full((3, 1), BEGIN), PREFIX], dim=1)
    in_one_call = decoder.step(tokens, decoder.start(prepared), prepared)
    state = decoder.start(prepared)
    for token in tokens.split(1, dim=1):
        step = decoder.step(token, state, prepared)
        state = step.state
    near(step.logits[:, -1], in_one_call.logits[:, -1])
    for mine, other in zip(leaves(state), leaves(in_one_call.state), strict=True):
        near(mine, other)


@pytest.mark.parametrize(("limits", "least"), [((4, 4, 3), 4), ((3, 9, 9), 4)])
def test_a_limit_must_be_longer_than_the_prefix(limits, least):
    setup = make_setup("luong")
    with pytest.raises(RecipeError, match=f"every one of 3 sentences needs a limit of {least} tokens or more"):
        beam(setup.model.decoder, setup.memory, width=1, limits=limits, prefix=PREFIX)
    with pytest.raises(RecipeError, match=f"every one of 3 sentences needs a limit of {least} tokens or more"):
        sample(setup.model.decoder, setup.memory, limits=limits, seeds=DRAWS, prefix=PREFIX)


# N-gram blocking and the coverage penalty


@setups
@pytest.mark.parametrize(("size", "prefixed"), [(1, False), (2, True), (2, False), (3, True)])
def test_no_n_gram_is_written_twice(kind, seed, size, prefixed):
    setup = make_setup(kind, seed)
    with torch.no_grad():
        setup.model.decoder.out.bias[END] = -3.0  # long outputs, which would repeat n-grams
    prefix = torch.tensor([[4, 9, 5], [8, 7, 6], [6, 4, 7]]) if prefixed else None
    settings = {"width": 3, "limits": LIMITS, "n_best": 3, "prefix": prefix}
    results = beam(setup.model.decoder, setup.memory, no_repeat=size, **settings)
    for row, hypotheses in enumerate(results):
        assert hypotheses
        for each in hypotheses:
            grams = [tuple(each.tokens[at : at + size]) for at in range(len(each.tokens) - size + 1)]
            assert len(set(grams)) == len(grams)
            check(setup, row, each)


def test_without_blocking_n_grams_are_repeated():
    repeats = 0
    for kind, seed in product(SETUP_KINDS, range(3)):
        setup = make_setup(kind, seed)
        with torch.no_grad():
            setup.model.decoder.out.bias[END] = -3.0
        for (best,) in beam(setup.model.decoder, setup.memory, width=3, limits=LIMITS):
            repeats += len(set(zip(best.tokens, best.tokens[1:], strict=False))) < len(best.tokens) - 1
    assert repeats > 10


@setups
@pytest.mark.parametrize("weight", [0.2, 2.0])
def test_coverage_is_added_to_the_score(kind, seed, weight):
    setup = make_setup(kind, seed)
    settings = {"width": 3, "limits": LIMITS, "length_penalty": 0.6, "n_best": 3, "coverage_penalty": weight}
    if kind not in ATTENDING_KINDS:
        with pytest.raises(RecipeError, match="a coverage penalty needs a decoder with attention"):
            beam(setup.model.decoder, setup.memory, **settings)
        return
    results = beam(setup.model.decoder, setup.memory, **settings)
    for row, hypotheses in enumerate(results):
        for each in hypotheses:
            column_sums = each.map[:, : LENGTHS[row]].sum(0).tolist()  # without padding
            covered = sum(torch.tensor(min(max(column, 1e-6), 1.0)).double().log().item() for column in column_sums)
            expected = rescored(setup.model, setup.alone[row], each, 0.6) + weight * covered
            assert each.score == pytest.approx(expected, abs=1e-5, rel=0)
        ranks = [(not each.finished, -each.score) for each in hypotheses]
        assert ranks == sorted(ranks)
        (alone,) = beam(setup.model.decoder, setup.alone[row], **settings | {"limits": [LIMITS[row]]})
        assert outputs_of([alone]) == outputs_of([hypotheses])
        assert [each.score for each in alone] == pytest.approx([each.score for each in hypotheses], abs=1e-9, rel=0)
