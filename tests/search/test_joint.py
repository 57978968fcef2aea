"""Joint CTC and attention scores in the beam search: prefix scores against all outputs, and rescoring of hypotheses."""

import math
from itertools import groupby, pairwise, product

import pytest
import torch
from test_exact import Table, memory
from torch import Tensor

from regard.search import PrefixScorer, beam
from regard.search.scorers import best_words
from regard.types import BEGIN, END, PAD

SIZE = 7  # <pad>, <unk>, <s>, </s>, 4, 5, 6
WORDS = (1, 4, 5, 6)


def make_log_probs(*lengths: int, seed: int = 0, sharpness: float = 1.5) -> tuple[Tensor, Tensor]:
    """Log-probabilities of each token at each position, junk at padding, and the mask."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(len(lengths), max(lengths), SIZE, generator=generator, dtype=torch.float64)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return logits.log_softmax(-1), mask


def enumerate_outputs(log_probs: Tensor) -> dict[tuple[int, ...], float]:
    """The probability of every output: the sum over its alignments."""
    found: dict[tuple[int, ...], float] = {}
    for path in product(range(SIZE), repeat=len(log_probs)):
        output = tuple(token for token, _ in groupby(path) if token != PAD)
        probability = float(sum(log_probs[time, token] for time, token in enumerate(path)).exp())
        found[output] = found.get(output, 0.0) + probability
    return found


def state_of(scorer: PrefixScorer, tokens: list[list[int]]):
    """The state after these tokens, row by row, all of one length."""
    state = scorer.start()
    for words in torch.tensor(tokens).T:
        state = scorer.advance(state, words)
    return state


def ctc_log_prob(log_probs: Tensor, mask: Tensor, tokens: list[int]) -> float:
    """-ctc_loss of torch in float64."""
    target = torch.tensor([tokens], dtype=torch.long).reshape(1, -1)
    loss = torch.nn.functional.ctc_loss(
        log_probs.unsqueeze(1), target, mask.sum().view(1), torch.tensor([len(tokens)]), PAD, reduction="none"
    )
    return -float(loss)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_prefix_scores_are_sums_over_all_outputs_that_begin_with_them(length):
    log_probs, mask = make_log_probs(length, seed=length)
    outputs = enumerate_outputs(log_probs[0])
    scorer = PrefixScorer.of(log_probs, mask, 0.3)
    for size in range(4):
        for prefix in product(WORDS, repeat=size):
            state = state_of(scorer, [list(prefix)])
            begun = sum(chance for output, chance in outputs.items() if output[:size] == prefix)
            assert math.exp(state.log_probs[0]) == pytest.approx(begun, abs=1e-12)
            scores = scorer.score(state, torch.tensor([[*WORDS, END]])).exp()[0].tolist()
            longer = [
                sum(chance for output, chance in outputs.items() if output[: size + 1] == (*prefix, word))
                for word in WORDS
            ]
            assert scores == pytest.approx([*longer, outputs.get(prefix, 0.0)], abs=1e-12)


def test_whole_outputs_score_as_the_ctc_loss_with_padding_and_several_rows():
    lengths = (9, 3, 6)
    log_probs, mask = make_log_probs(*lengths, seed=3)
    scorer = PrefixScorer.of(log_probs, mask, 0.3)
    rows = [[4, 4, 6], [5, 4, 5], [1, 6, 5], [4, 6, 4], [6, 5, 6], [5, 5, 1]]  # two for each sentence
    state = scorer.start().repeat(2)
    for words in torch.tensor(rows).T:
        state = scorer.advance(state, words)
    whole = scorer.score(state, torch.full((6, 1), END)).squeeze(1).tolist()
    for row, tokens in enumerate(rows):
        sentence = row // 2
        own = log_probs[sentence, : lengths[sentence]]
        assert whole[row] == pytest.approx(ctc_log_prob(own, mask[sentence], tokens), abs=1e-10)
    impossible = scorer.advance(scorer.start(), torch.tensor([4, 4, 4]))
    for _ in range(2):
        impossible = scorer.advance(impossible, torch.tensor([4, 4, 4]))
    assert impossible.log_probs.isneginf().tolist() == [False, True, False]  # 4 4 4 needs five positions
    assert not impossible.with_token.isnan().any()
    assert not impossible.with_blank.isnan().any()


def test_junk_at_padding_and_other_sentences_change_no_bit():
    log_probs, mask = make_log_probs(8, 5, seed=4)
    junk = log_probs.masked_fill(~mask.unsqueeze(-1), 3.0)
    alone = PrefixScorer.of(log_probs[1:, :5], mask[1:, :5], 0.3)
    words = torch.tensor([[4, 5, 6, END]])
    expected = alone.score(state_of(alone, [[4, 5]]), words)
    for given in (log_probs, junk):
        scorer = PrefixScorer.of(given, mask, 0.3)
        assert torch.equal(scorer.score(state_of(scorer, [[6, 6], [4, 5]]), words.repeat(2, 1))[1:], expected)


def test_scores_never_rise():
    log_probs, mask = make_log_probs(7, seed=5)
    scorer = PrefixScorer.of(log_probs, mask, 0.3)
    totals = [float(state_of(scorer, [[4, 6, 6, 5, 1][:size]]).log_probs) for size in range(1, 6)]
    assert all(later < earlier <= 0 for earlier, later in pairwise(totals))


# in the search


def make_decoder(seed: int) -> Table:
    generator = torch.Generator().manual_seed(seed)
    return Table(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64).softmax(-1))


def joint_score(decoder: Table, own: Tensor, tokens: list[int], weight: float, finished: bool) -> float:
    """The score of a hypothesis, computed again by itself."""
    steps = pairwise([BEGIN, *tokens, *([END] if finished else [])])
    attention = sum(float(decoder.probabilities[before, after].log()) for before, after in steps)
    if finished:
        ctc = ctc_log_prob(own, torch.ones(len(own), dtype=torch.bool), tokens)
    else:
        scorer = PrefixScorer.of(own[None], torch.ones(1, len(own), dtype=torch.bool), 1.0)
        ctc = float(state_of(scorer, [tokens]).log_probs)
    return (1 - weight) * attention + weight * ctc


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("weight", [0.3, 0.5, 1.0])
def test_the_score_of_a_hypothesis_is_that_of_rescoring_it(width, weight):
    lengths, decoder = (6, 9, 3), make_decoder(width)
    log_probs, mask = make_log_probs(*lengths, seed=width + 7)
    scorer = PrefixScorer.of(log_probs, mask, weight)
    found = beam(decoder, memory(*lengths), width=width, limits=[4, 7, 5], n_best=width, scorer=scorer)
    assert any(not hypothesis.finished for group in found for hypothesis in group) or width > 1
    for sentence, group in enumerate(found):
        own = log_probs[sentence, : lengths[sentence]]
        for hypothesis in group:
            again = joint_score(decoder, own, hypothesis.tokens, weight, hypothesis.finished)
            assert hypothesis.score == pytest.approx(again, abs=1e-9)
        (alone,) = beam(
            decoder,
            memory(lengths[sentence]),
            width=width,
            limits=[[4, 7, 5][sentence]],
            n_best=width,
            scorer=PrefixScorer.of(own[None], mask[sentence : sentence + 1, : lengths[sentence]], weight),
        )
        assert [other.tokens for other in alone] == [hypothesis.tokens for hypothesis in group]


@pytest.mark.parametrize("seed", range(4))
def test_a_wide_beam_finds_the_best_of_all_outputs(seed):
    decoder, weight, limit = make_decoder(seed), 0.4, 4
    log_probs, mask = make_log_probs(3, seed=seed, sharpness=3.0)
    outputs = [list(tokens) for size in range(limit) for tokens in product(WORDS, repeat=size)]
    scores = {
        tuple(tokens): joint_score(decoder, log_probs[0], tokens, weight, True)
        for tokens in outputs
        if len(tokens) + sum(a == b for a, b in pairwise(tokens)) <= 3  # CTC can align no others
    }
    best = sorted(scores, key=lambda tokens: -scores[tokens])[:3]
    settings = {"width": 100, "limits": [limit], "n_best": 3}
    (found,) = beam(decoder, memory(3), scorer=PrefixScorer.of(log_probs, mask, weight), **settings)
    assert [tuple(hypothesis.tokens) for hypothesis in found] == best
    (narrow,) = beam(decoder, memory(3), scorer=PrefixScorer.of(log_probs, mask, weight), **settings | {"n_best": 1})
    assert narrow[0].tokens == found[0].tokens


def test_a_prefix_is_scored_too():
    decoder, weight = make_decoder(3), 0.3
    log_probs, mask = make_log_probs(6, 6, seed=9)
    prefix = torch.tensor([[4, 5], [6, 6]])
    scorer = PrefixScorer.of(log_probs, mask, weight)
    found = beam(decoder, memory(6, 6), width=3, limits=[6, 6], prefix=prefix, scorer=scorer)
    for sentence, (hypothesis,) in enumerate(found):
        assert hypothesis.tokens[:2] == prefix[sentence].tolist()
        again = joint_score(decoder, log_probs[sentence], hypothesis.tokens, weight, hypothesis.finished)
        assert hypothesis.score == pytest.approx(again, abs=1e-9)


def test_ctc_changes_what_attention_alone_would_write():
    """The decoder repeats itself; CTC knows what is in the recording."""
    probabilities = torch.full((SIZE, SIZE), 0.02, dtype=torch.float64)
    probabilities[:, 4], probabilities[:, END] = 0.6, 0.3
    decoder = Table(probabilities)
    log_probs = torch.full((1, 6, SIZE), -12.0, dtype=torch.float64)
    for time, token in enumerate((5, PAD, 6, 6, PAD, 5)):
        log_probs[0, time, token] = 0.0
    log_probs, mask = log_probs.log_softmax(-1), torch.ones(1, 6, dtype=torch.bool)
    for width in (1, 4):
        ((alone,),) = beam(decoder, memory(6), width=width, limits=[5])
        assert alone.tokens in ([], [4, 4, 4, 4, 4])
        ((joint,),) = beam(decoder, memory(6), width=width, limits=[5], scorer=PrefixScorer.of(log_probs, mask, 0.5))
        assert joint.tokens == [5, 6, 5]


def test_end_is_always_rated():
    """With a large vocabulary the scorer rates only the words that the decoder finds most likely, and END."""
    size = 500
    logits = torch.zeros(1, 4, size, dtype=torch.float64)
    logits[..., PAD] = 20.0  # blank is almost certain, so only the empty output is likely
    scorer = PrefixScorer.of(logits.log_softmax(-1), torch.ones(1, 4, dtype=torch.bool), 0.9)
    own = torch.linspace(-1.0, -20.0, size, dtype=torch.float64).unsqueeze(0)
    own[0, PAD], own[0, END] = -math.inf, -30.0
    assert int(best_words(scorer, scorer.start(), own, 1).words) == END
