"""Laws of sampling, prefixes and what search forbids, over every kind; the exact numbers are in tests/search."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from setups import ATTENDING_KINDS, DTYPES, LENGTHS, LIMITS, SETUP_KINDS, Setup, greedy, make_setup, rescored, setups
from small import leaves, near

from regard.errors import NotFiniteError, RecipeError
from regard.search import beam, sample
from regard.types import BEGIN, END, PAD, Hypothesis
from shapes import unchecked

DRAWS = (11, 22, 33)  # the seeds of the three sentences


@pytest.fixture(autouse=True)
def fast() -> Iterator[None]:
    """As in the laws of search; `test_sampling_runs_with_checked_shapes` checks the shapes."""
    with unchecked():
        yield


def check(setup: Setup, row: int, found: Hypothesis) -> None:
    """A score is its rescoring, a map its forward map, prefix and all."""
    expected = rescored(setup.model, setup.alone[row], found, 0.0)
    assert found.score == pytest.approx(expected, abs=setup.tolerance * LIMITS[row], rel=0)
    assert not {PAD, BEGIN, END} & set(found.tokens)
    rows = len(found.tokens) + found.finished
    assert rows <= LIMITS[row]
    assert found.finished or rows == LIMITS[row]
    step = setup.model.decoder(torch.tensor([[BEGIN, *found.tokens]]), setup.alone[row])
    if step.attention is None:
        assert found.map is None
        return
    assert found.map.shape == (rows, max(LENGTHS))
    near(found.map[:, : LENGTHS[row]], step.attention[0, :rows], setup.tolerance)
    assert (found.map[:, LENGTHS[row] :] == 0).all()


def told(found: list[list[Hypothesis]]) -> list[list[tuple[list[int], bool]]]:
    return [[(each.tokens, each.finished) for each in row] for row in found]


# Sampling


@setups
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sample_is_scored_by_the_model_itself(kind, seed, dtype):
    setup = make_setup(kind, seed, dtype)
    found = sample(
        setup.model.decoder, setup.memory, limits=LIMITS, seeds=DRAWS, temperature=1.7, top_k=5, top_p=0.9, count=3
    )
    assert [len(row) for row in found] == [3, 3, 3]
    for row, hypotheses in enumerate(found):
        for each in hypotheses:
            check(setup, row, each)


@setups
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_coolest_sample_is_greedy(kind, seed, dtype):
    setup = make_setup(kind, seed, dtype)
    expected = [[greedy(setup.model, memory, limit)] for memory, limit in zip(setup.alone, LIMITS, strict=True)]
    for settings in ({"top_k": 1}, {"temperature": 1e-3}, {"top_p": 1e-9}, {"temperature": 1e-37}):
        assert told(sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=DRAWS, **settings)) == expected


@setups
def test_batch_mates_change_no_sample(kind, seed):
    setup = make_setup(kind, seed)
    together = sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=DRAWS, count=3)
    for row, memory in enumerate(setup.alone):
        alone = sample(setup.model.decoder, memory, limits=[LIMITS[row]], seeds=[DRAWS[row]], count=3)
        assert told(alone) == told([together[row]])
        for mine, other in zip(alone[0], together[row], strict=True):
            assert mine.score == pytest.approx(other.score, abs=1e-9, rel=0)


@pytest.mark.parametrize("kind", SETUP_KINDS)
def test_seeds_reproduce_and_differ(kind):
    setup = make_setup(kind)

    def drawn(*seeds: int, count: int = 4) -> list[list[Hypothesis]]:
        return sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=seeds, count=count)

    before = torch.get_rng_state()
    assert told(drawn(1, 2, 3)) == told(drawn(1, 2, 3))
    assert told(drawn(1, 2, 3)) != told(drawn(7, 8, 9))
    assert told(drawn(1, 2, 3, count=2)) == [rows[:2] for rows in told(drawn(1, 2, 3))]  # more change none before
    torch.testing.assert_close(torch.get_rng_state(), before)  # nobody else's chance is used
    assert len({tuple(each.tokens) for each in drawn(1, 2, 3, count=60)[0]}) > 5


@pytest.mark.parametrize("junk", [torch.nan, torch.inf])
def test_predictions_that_are_not_numbers_cannot_be_drawn_from(junk):
    setup = make_setup("luong")
    with torch.no_grad():
        setup.model.decoder.out.bias[5] = junk
    with pytest.raises(NotFiniteError, match="not finite"):
        sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=DRAWS)


# Prefixes


PREFIX = torch.tensor([[4, 9, 5], [8, 8, 8], [6, 4, 7]])


@setups
@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_begin_with_their_prefix(kind, seed, dtype):
    setup = make_setup(kind, seed, dtype)
    found = [
        beam(setup.model.decoder, setup.memory, width=3, limits=LIMITS, n_best=3, prefix=PREFIX),
        sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=DRAWS, count=3, prefix=PREFIX),
    ]
    for hypotheses in found:
        for row in range(len(LENGTHS)):
            assert hypotheses[row]
            for each in hypotheses[row]:
                assert each.tokens[:3] == PREFIX[row].tolist()
                check(setup, row, each)


@pytest.mark.parametrize("kind", SETUP_KINDS)
def test_a_prefix_that_greedy_writes_anyway_changes_nothing(kind):
    setup = make_setup(kind)
    free = beam(setup.model.decoder, setup.memory, width=1, limits=LIMITS)
    for row, ((hypothesis,), memory) in enumerate(zip(free, setup.alone, strict=True)):
        for length in range(min(len(hypothesis.tokens), LIMITS[row] - 1) + 1):
            prefix = torch.tensor([hypothesis.tokens[:length]], dtype=torch.long)
            ((again,),) = beam(setup.model.decoder, memory, width=1, limits=[LIMITS[row]], prefix=prefix)
            assert (again.tokens, again.finished) == (hypothesis.tokens, hypothesis.finished)
            assert again.score == pytest.approx(hypothesis.score, abs=1e-10, rel=0)


@setups
def test_prefill_in_one_call_is_stepping(kind, seed):
    setup = make_setup(kind, seed)
    decoder = setup.model.decoder
    prepared = decoder.prepare(setup.memory)
    tokens = torch.cat([torch.full((3, 1), BEGIN), PREFIX], dim=1)
    once = decoder.step(tokens, decoder.start(prepared), prepared)
    state = decoder.start(prepared)
    for token in tokens.split(1, dim=1):
        step = decoder.step(token, state, prepared)
        state = step.state
    near(step.logits[:, -1], once.logits[:, -1])
    for mine, other in zip(leaves(state), leaves(once.state), strict=True):
        near(mine, other)


@pytest.mark.parametrize(("limits", "least"), [((4, 4, 3), 4), ((3, 9, 9), 4)])
def test_a_prefix_needs_room(limits, least):
    setup = make_setup("luong")
    with pytest.raises(RecipeError, match=f"every one of 3 sentences needs a limit of {least} tokens or more"):
        beam(setup.model.decoder, setup.memory, width=1, limits=limits, prefix=PREFIX)
    with pytest.raises(RecipeError, match=f"every one of 3 sentences needs a limit of {least} tokens or more"):
        sample(setup.model.decoder, setup.memory, limits=limits, seeds=DRAWS, prefix=PREFIX)


# What is forbidden, what is favoured


@setups
@pytest.mark.parametrize(("size", "prefixed"), [(1, False), (2, True), (2, False), (3, True)])
def test_no_n_gram_is_written_twice(kind, seed, size, prefixed):
    setup = make_setup(kind, seed)
    with torch.no_grad():
        setup.model.decoder.out.bias[END] = -3.0  # let it go on, and be tempted
    prefix = torch.tensor([[4, 9, 5], [8, 7, 6], [6, 4, 7]]) if prefixed else None
    settings = {"width": 3, "limits": LIMITS, "n_best": 3, "prefix": prefix}
    found = beam(setup.model.decoder, setup.memory, no_repeat=size, **settings)
    for row, hypotheses in enumerate(found):
        assert hypotheses
        for each in hypotheses:
            grams = [tuple(each.tokens[at : at + size]) for at in range(len(each.tokens) - size + 1)]
            assert len(set(grams)) == len(grams)
            check(setup, row, each)


def test_blocking_had_something_to_block():
    repeats = 0
    for kind, seed in product(SETUP_KINDS, range(3)):
        setup = make_setup(kind, seed)
        with torch.no_grad():
            setup.model.decoder.out.bias[END] = -3.0
        for (found,) in beam(setup.model.decoder, setup.memory, width=3, limits=LIMITS):
            repeats += len(set(zip(found.tokens, found.tokens[1:], strict=False))) < len(found.tokens) - 1
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
    found = beam(setup.model.decoder, setup.memory, **settings)
    for row, hypotheses in enumerate(found):
        for each in hypotheses:
            seen = each.map[:, : LENGTHS[row]].sum(0).tolist()  # the real columns alone
            covered = sum(torch.tensor(min(max(column, 1e-6), 1.0)).double().log().item() for column in seen)
            expected = rescored(setup.model, setup.alone[row], each, 0.6) + weight * covered
            assert each.score == pytest.approx(expected, abs=1e-5, rel=0)
        ranks = [(not each.finished, -each.score) for each in hypotheses]
        assert ranks == sorted(ranks)
        (alone,) = beam(setup.model.decoder, setup.alone[row], **settings | {"limits": [LIMITS[row]]})
        assert told([alone]) == told([hypotheses])
        assert [each.score for each in alone] == pytest.approx([each.score for each in hypotheses], abs=1e-9, rel=0)


@pytest.mark.parametrize("kind", SETUP_KINDS)
def test_sampling_runs_with_checked_shapes(kind, fast):
    from jaxtyping import config

    config.update("jaxtyping_disable", False)
    setup = make_setup(kind)
    assert all(sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=DRAWS, prefix=PREFIX))
    assert all(beam(setup.model.decoder, setup.memory, width=2, limits=LIMITS, no_repeat=2, prefix=PREFIX))
