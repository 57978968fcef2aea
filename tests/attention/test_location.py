"""The location score: its equation, its gradient, and sources that are longer than it knows."""

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

BATCH, QUERY, KEY, KNOWN = 2, 3, 7, 5
QUERY_DIM, KEY_DIM, WIDTH = 4, 6, 8


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-12)


def make(longest: int = KNOWN) -> Location:
    return Location(query_dim=QUERY_DIM, key_dim=KEY_DIM, longest=longest).double()


def given(keys: int = KEY) -> tuple[Tensor, Tensor]:
    return random(BATCH, QUERY, QUERY_DIM), random(BATCH, keys, KEY_DIM)


@pytest.mark.parametrize("keys", [1, KNOWN - 1, KNOWN, KNOWN + 1, 3 * KNOWN])
def test_it_is_equation_8_on_the_places_that_there_are(keys):
    """a_t = softmax(W_a h_t), of which short sentences use the top part, and long ones ignore words near the end."""
    score = make()
    query, states = given(keys)
    context, weights, _ = attend(query, score.project(states), states, score=score)
    for row, at in product(range(BATCH), range(QUERY)):
        aligned = torch.softmax((score.query.weight @ query[row, at])[:keys], dim=0)
        near(weights[row, at, :KNOWN], aligned)
        assert not weights[row, at, KNOWN:].any()
        near(context[row, at], sum(share * state for share, state in zip(aligned, states[row], strict=False)))


def test_what_stands_at_a_place_does_not_matter():
    score = make(KEY)
    query, states = given()
    scores = score(query, score.project(states))
    assert torch.equal(scores, score(query, score.project(torch.full_like(states, torch.nan))))
    near(score(query, score.project(states)[:, 2:4]), scores[..., 2:4])  # a key tells its place by itself


@pytest.mark.parametrize("keys", [KNOWN - 1, KEY])
def test_its_gradient_is_that_of_finite_differences(keys):
    score = make()
    query, states = (each.requires_grad_() for each in given(keys))
    mask = masks.over_keys(masks.from_lengths(torch.tensor([keys, 2]), keys))

    def look(query: Tensor, states: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        context, weights, _ = attend(query, score.project(states), states, score=score, mask=mask)
        return context, weights

    assert torch.autograd.gradcheck(look, (query, states, score.query.weight))


@pytest.mark.parametrize(("scope", "normalizer"), list(product(SCOPES, NORMALIZERS)))
def test_what_is_beyond_is_as_if_it_were_not_there(scope, normalizer):
    """Queries that local-m sends wholly beyond see nothing: no weight, no context, and gradients all the same."""
    attention = SCOPES[scope](make(), NORMALIZERS[normalizer].function, query_dim=QUERY_DIM, window=1).double().eval()
    query, states = (each.requires_grad_() for each in given())
    mask = torch.ones(BATCH, 1, KEY, dtype=torch.bool)
    if scope == "local_p":  # its places are shares of the source: let both have as many
        mask[..., KNOWN:] = False
    before = random(2, BATCH, QUERY, KEY).abs() * (torch.arange(KEY) < KNOWN)
    past = Past(*before) if attention.uses_past else None
    short, cut_past = states[:, :KNOWN], past and past.map_tensors(lambda each: each[..., :KNOWN])
    for start in (0, KNOWN - 1):
        attended = attention(query, attention.project(states), states, mask=mask, start=start, past=past)
        cut = attention(query, attention.project(short), short, mask=mask[..., :KNOWN], start=start, past=cut_past)
        near(attended.context, cut.context)
        near(attended.weights[..., :KNOWN], cut.weights)
        assert not attended.weights[..., KNOWN:].any()
        assert bool(attended.weights[:, 2:].any()) != (scope == "local_m" and start > 0)
        with torch.autograd.set_detect_anomaly(True):
            found = torch.autograd.grad(attended.context.square().sum(), (query, states), allow_unused=True)
        assert all(each is None or each.isfinite().all() for each in found)
        assert not found[1][:, KNOWN:].any()


def test_nothing_beyond_is_drawn():
    score = make()
    query, states = given()
    mask = torch.ones(BATCH, 1, KEY, dtype=torch.bool)
    mask[1, :, :KNOWN] = False
    scores = score(query, score.project(states)).expand(500, BATCH, QUERY, KEY)
    weights, log_prob = sample(scores, mask)
    assert not weights[..., KNOWN:].any()
    assert (weights[:, 0].sum(-1) == 1).all()
    assert not weights[:, 1].any()
    assert not log_prob[:, 1].any()
    chances = softmax(scores, mask)[0, 0]
    assert (weights[:, 0].mean(0) - chances).abs().max() < 0.1


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
def test_a_model_looks_at_as_many_places_as_the_recipe_says(kind):
    model = make_model(kind, KNOWN)
    sizes = {each.query.out_features for each in model.modules() if isinstance(each, Location)}
    assert sizes == {KNOWN}
    memory = model.encoder(pad([[4, 5, 6, 7, 8, 4, 5, END], [6, 5, END]]))
    tokens = torch.tensor([[BEGIN, *range(4, 11)], [BEGIN, *range(10, 3, -1)]])  # longer than it knows as well
    whole = model.decoder(tokens, memory)
    assert not whole.attention[..., KNOWN:].any()
    near(whole.attention.sum(-1), torch.ones(2, 8, dtype=torch.float64))
    prepared = model.decoder.prepare(memory)
    state = model.decoder.start(prepared)
    for at in range(8):
        step = model.decoder.step(tokens[:, at : at + 1], state, prepared)
        near(step.logits[:, 0], whole.logits[:, at])
        near(step.attention[:, 0], whole.attention[:, at])
        state = step.state
    for found, *_ in beam(model.decoder, memory, width=3, limits=[6, 6]):
        assert found.map is not None
        assert not found.map[..., KNOWN:].any()


def test_a_pooling_has_its_places_from_the_recipe_too():
    model = replace(recipes.Model(longest=KNOWN), attention=recipes.Attention(score="location"))
    classifier = build_classifier(model, "attention", size=9, classes=3)
    weights = classifier(pad([[4, 5, 6, 7, 8, 4, 5]])).weights
    assert not weights[:, KNOWN:].any()
    assert (weights[:, :KNOWN] > 0).all()
