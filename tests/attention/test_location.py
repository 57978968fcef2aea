"""The location score: its equation, its gradient, and sources longer than its learned positions."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from regard import recipe as recipes
from regard.attention import NORMALIZERS, SCOPES, Past, attend, masks
from regard.attention.normalizers import sample, softmax
from regard.attention.scores import Location
from regard.data.batching import pad
from regard.models import Seq2Seq, build
from regard.models.classifier import build as build_classifier
from regard.search import beam
from regard.types import BEGIN, END

BATCH, QUERY, KEY, LONGEST = 2, 3, 7, 5
QUERY_DIM, KEY_DIM, WIDTH = 4, 6, 8


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-12)


def make_score(longest: int = LONGEST) -> Location:
    return Location(query_dim=QUERY_DIM, key_dim=KEY_DIM, longest=longest).double()


def inputs(keys: int = KEY) -> tuple[Tensor, Tensor]:
    """Random queries, and states that are keys and values."""
    return random(BATCH, QUERY, QUERY_DIM), random(BATCH, keys, KEY_DIM)


@pytest.mark.parametrize("keys", [1, LONGEST - 1, LONGEST, LONGEST + 1, 3 * LONGEST])
def test_it_is_equation_8_for_the_positions_of_the_source(keys):
    """a_t = softmax(W_a h_t); short sources use the first rows of W_a, long ones ignore the words beyond its rows."""
    score = make_score()
    query, states = inputs(keys)
    context, weights, _ = attend(query, score.project(states), states, score=score)
    for row, at in product(range(BATCH), range(QUERY)):
        expected = torch.softmax((score.query.weight @ query[row, at])[:keys], dim=0)
        near(weights[row, at, :LONGEST], expected)
        assert not weights[row, at, LONGEST:].any()
        near(context[row, at], sum(weight * state for weight, state in zip(expected, states[row], strict=False)))


def test_the_content_of_a_key_does_not_matter():
    score = make_score(KEY)
    query, states = inputs()
    scores = score(query, score.project(states))
    assert torch.equal(scores, score(query, score.project(torch.full_like(states, torch.nan))))
    near(score(query, score.project(states)[:, 2:4]), scores[..., 2:4])  # a projected key holds its position


@pytest.mark.parametrize("keys", [LONGEST - 1, KEY])
def test_its_gradient_equals_finite_differences(keys):
    score = make_score()
    query, states = (tensor.requires_grad_() for tensor in inputs(keys))
    mask = masks.over_keys(masks.from_lengths(torch.tensor([keys, 2]), keys))

    def run(query: Tensor, states: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        context, weights, _ = attend(query, score.project(states), states, score=score, mask=mask)
        return context, weights

    assert torch.autograd.gradcheck(run, (query, states, score.query.weight))


@pytest.mark.parametrize(("scope", "normalizer"), list(product(SCOPES, NORMALIZERS)))
def test_keys_beyond_the_learned_positions_have_no_effect(scope, normalizer):
    """A query whose local-m window is wholly beyond sees no key: zero weights and context, finite gradients."""
    attention = (
        SCOPES[scope](make_score(), NORMALIZERS[normalizer].function, query_dim=QUERY_DIM, window=1).double().eval()
    )
    query, states = (tensor.requires_grad_() for tensor in inputs())
    mask = torch.ones(BATCH, 1, KEY, dtype=torch.bool)
    if scope == "local_p":  # its centre depends on the length: both sources must have the same
        mask[..., LONGEST:] = False
    past_weights = random(2, BATCH, QUERY, KEY).abs() * (torch.arange(KEY) < LONGEST)
    past = Past(*past_weights) if attention.uses_past else None
    short, cut_past = states[:, :LONGEST], past and past.map_tensors(lambda tensor: tensor[..., :LONGEST])
    for start in (0, LONGEST - 1):
        attended = attention(query, attention.project(states), states, mask=mask, start=start, past=past)
        cut = attention(query, attention.project(short), short, mask=mask[..., :LONGEST], start=start, past=cut_past)
        near(attended.context, cut.context)
        near(attended.weights[..., :LONGEST], cut.weights)
        assert not attended.weights[..., LONGEST:].any()
        assert bool(attended.weights[:, 2:].any()) != (scope == "local_m" and start > 0)
        with torch.autograd.set_detect_anomaly(True):
            gradients = torch.autograd.grad(attended.context.square().sum(), (query, states), allow_unused=True)
        assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)
        assert not gradients[1][:, LONGEST:].any()


def test_keys_beyond_the_learned_positions_are_never_sampled():
    score = make_score()
    query, states = inputs()
    mask = torch.ones(BATCH, 1, KEY, dtype=torch.bool)
    mask[1, :, :LONGEST] = False
    scores = score(query, score.project(states)).expand(500, BATCH, QUERY, KEY)
    weights, log_prob = sample(scores, mask)
    assert not weights[..., LONGEST:].any()
    assert (weights[:, 0].sum(-1) == 1).all()
    assert not weights[:, 1].any()
    assert not log_prob[:, 1].any()
    probabilities = softmax(scores, mask)[0, 0]
    assert (weights[:, 0].mean(0) - probabilities).abs().max() < 0.1


def make_model(kind: str, longest: int) -> Seq2Seq:
    side = {"kind": kind, "dim": WIDTH}
    model = recipes.Model(
        longest=longest,
        encoder=recipes.Encoder(**side),
        attention=recipes.Attention(score="location", heads=2 if kind == "transformer" else 1),
        decoder=recipes.Decoder(order="luong", **side),
    )
    return build(model, source_size=9, target_size=11).double().eval()


@pytest.mark.parametrize("kind", ["recurrent", "transformer"])
def test_a_model_attends_to_as_many_positions_as_the_recipe_sets(kind):
    model = make_model(kind, LONGEST)
    sizes = {module.query.out_features for module in model.modules() if isinstance(module, Location)}
    assert sizes == {LONGEST}
    memory = model.encoder(pad([[4, 5, 6, 7, 8, 4, 5, END], [6, 5, END]]))
    tokens = torch.tensor([[BEGIN, *range(4, 11)], [BEGIN, *range(10, 3, -1)]])  # longer than its learned positions too
    whole = model.decoder(tokens, memory)
    assert not whole.attention[..., LONGEST:].any()
    near(whole.attention.sum(-1), torch.ones(2, 8, dtype=torch.float64))
    prepared = model.decoder.prepare(memory)
    state = model.decoder.start(prepared)
    for at in range(8):
        step = model.decoder.step(tokens[:, at : at + 1], state, prepared)
        near(step.logits[:, 0], whole.logits[:, at])
        near(step.attention[:, 0], whole.attention[:, at])
        state = step.state
    for best, *_ in beam(model.decoder, memory, width=3, limits=[6, 6]):
        assert best.map is not None
        assert not best.map[..., LONGEST:].any()


def test_a_pooling_attends_to_as_many_positions_as_the_recipe_sets():
    model = replace(recipes.Model(longest=LONGEST), attention=recipes.Attention(score="location"))
    classifier = build_classifier(model, "attention", size=9, classes=3)
    weights = classifier(pad([[4, 5, 6, 7, 8, 4, 5]])).weights
    assert not weights[:, LONGEST:].any()
    assert (weights[:, :LONGEST] > 0).all()
