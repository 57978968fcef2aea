"""Laws of every pooling: masked states change nothing, and the vector equals its equation."""

from dataclasses import replace

import pytest
import torch
from small import BATCH, KEY, Variant, make_attention, make_sources, near, same
from torch import Tensor, nn

from regard import recipe as recipes
from regard.attention import NORMALIZERS, SCORES
from regard.attention.pooling import POOLINGS, Pooling
from regard.attention.record import record
from regard.errors import RecipeError
from regard.maps import TEXT
from regard.models import classifier
from regard.models.core import text_encoder
from regard.types import Memory, Recurrent

DIM = 12
LENGTHS = (KEY, 4, 1)
ENCODERS = {
    "forward": recipes.Encoder(dim=DIM, bidirectional=False),
    "both": recipes.Encoder(dim=DIM, cell="lstm", layers=2),
    "transformer": recipes.Encoder(kind="transformer", dim=DIM),
}
every_pooling = pytest.mark.parametrize("name", POOLINGS)
every_direction = pytest.mark.parametrize("directions", [1, 2])
DEFAULT_VARIANT = Variant()


def make_pooling(name: str, directions: int = 1, variant: Variant = DEFAULT_VARIANT) -> Pooling:
    def make(width: int) -> nn.Module:
        return make_attention(variant, width, width, DIM)[0]

    return POOLINGS[name](dim=DIM, directions=directions, make=make).double()


def make_memory(states: Tensor | None = None, mask: Tensor | None = None) -> Memory:
    states = torch.randn(BATCH, KEY, DIM, dtype=torch.float64) if states is None else states
    mask = torch.arange(KEY) < torch.tensor(LENGTHS).unsqueeze(-1) if mask is None else mask
    return Memory(states, mask, Recurrent(states[:, :1], None), TEXT)


def mask_with_holes() -> Tensor:
    """A mask that padding could not give."""
    return torch.tensor([[0, 1, 0, 1, 1, 0, 1], [1, 0, 0, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0, 0]], dtype=torch.bool)


@every_pooling
@every_direction
@pytest.mark.parametrize("junk", [1e30, torch.inf, torch.nan])
def test_junk_in_masked_states_changes_nothing(name: str, directions: int, junk: float) -> None:
    pooling = make_pooling(name, directions)
    clean = torch.randn(BATCH, KEY, DIM, dtype=torch.float64)
    results = []
    for mask in (make_memory().mask, mask_with_holes()):
        for fill in (0.0, junk):
            states = clean.masked_fill(~mask.unsqueeze(-1), fill).requires_grad_()
            pooling.zero_grad()
            pooled = pooling(make_memory(states, mask))
            pooled.vector.square().sum().backward()
            assert states.grad is not None
            assert not states.grad[~mask].any()
            gradients = [weight.grad.clone() for weight in pooling.parameters() if weight.grad is not None]
            results.append([pooled.vector.detach(), states.grad, *gradients])
    for one, other in ((results[0], results[1]), (results[2], results[3])):
        for left, right in zip(one, other, strict=True):
            same(left, right)
            assert left.isfinite().all()


@every_pooling
@every_direction
def test_more_padding_changes_nothing(name: str, directions: int) -> None:
    pooling, memory = make_pooling(name, directions), make_memory()
    for row, length in enumerate(LENGTHS):
        alone = make_memory(memory.states[row : row + 1, :length], memory.mask[row : row + 1, :length])
        near(pooling(alone).vector[0], pooling(memory).vector[row])


@every_pooling
@every_direction
def test_a_source_of_padding_alone_gives_zeros_and_finite_gradients(name: str, directions: int) -> None:
    pooling, mask = make_pooling(name, directions, Variant("scaled_dot", heads=2)), make_memory().mask.clone()
    mask[1] = False
    states = torch.randn(BATCH, KEY, DIM, dtype=torch.float64, requires_grad=True)
    pooled = pooling(make_memory(states, mask))
    assert not pooled.vector[1].any()
    assert pooled.vector[0].any()
    pooled.vector.square().sum().backward()
    assert states.grad is not None
    assert not states.grad[1].any()
    assert all(each.grad is None or each.grad.isfinite().all() for each in [states, *pooling.parameters()])


@every_pooling
def test_the_vector_of_a_single_state_is_that_state(name: str) -> None:
    states = torch.randn(BATCH, 1, DIM, dtype=torch.float64)
    mask = torch.ones(BATCH, 1, dtype=torch.bool)
    near(make_pooling(name)(make_memory(states, mask)).vector, states[:, 0])


@every_pooling
def test_only_attention_pooling_returns_weights(name: str) -> None:
    weights = make_pooling(name)(make_memory()).weights
    assert (weights is not None) == (name == "attention")


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("score", SCORES)
def test_weights_are_zero_if_masked_and_the_vector_is_the_weighted_sum(score: str, normalizer: str) -> None:
    pooling, memory = make_pooling("attention", variant=Variant(score, normalizer)), make_memory()
    with torch.no_grad():
        vector, weights = pooling(memory)
    assert weights is not None
    assert (weights >= 0).all()
    assert not weights[~memory.mask].any()
    if NORMALIZERS[normalizer].sums_to_one:
        near(weights.sum(-1), torch.ones(BATCH).double())
    near(vector, torch.einsum("bs,bsd->bd", weights, memory.states))


def test_recording_changes_no_bit() -> None:
    pooling, memory = make_pooling("attention"), make_memory()
    expected = pooling(memory)
    with record(pooling) as recording:
        pooled = pooling(memory)
    same(pooled.vector, expected.vector)
    same(recording.weights["attention"].squeeze(1), expected.weights)


def test_poolings_equal_vectors_computed_by_hand() -> None:
    states = torch.tensor([[[1.0, 8.0], [3.0, 2.0], [5.0, -4.0], [9.0, 9.0]]]).double()
    memory = make_memory(states, torch.tensor([[True, True, True, False]]))
    expected = {"mean": [3.0, 2.0], "max": [5.0, 8.0], "last": [5.0, -4.0], "cls": [1.0, 8.0]}
    for name, vector in expected.items():
        pooled = POOLINGS[name](dim=2, directions=1, make=lambda width: nn.Identity())(memory).vector
        assert pooled.tolist() == [vector]
    both = POOLINGS["last"](dim=2, directions=2, make=lambda width: nn.Identity())(memory).vector
    assert both.tolist() == [[5.0, 8.0]]


def recipe_of(kind: str) -> recipes.Model:
    attention = recipes.Attention(score="scaled_dot", heads=2, dim=8)
    return recipes.Model(embedding=10, encoder=ENCODERS[kind], attention=attention)


@pytest.mark.parametrize("kind", ["forward", "both"])
def test_the_last_state_of_a_recurrent_encoder_is_its_summary(kind: str) -> None:
    encoder = text_encoder(recipe_of(kind), 9).double()
    memory = encoder(make_sources(*LENGTHS))
    near(classifier.make_pooling(recipe_of(kind), "last", DIM)(memory).vector, memory.summary.hidden[:, -1])


def test_the_mean_of_a_transformer_is_its_summary() -> None:
    encoder = text_encoder(recipe_of("transformer"), 9).double()
    memory = encoder(make_sources(*LENGTHS))
    near(classifier.make_pooling(recipe_of("transformer"), "mean", DIM)(memory).vector, memory.summary.hidden[:, 0])


@every_pooling
@pytest.mark.parametrize("kind", ENCODERS)
def test_every_classifier_learns_on_every_encoder_and_batch_mates_change_nothing(kind: str, name: str) -> None:
    if (kind, name) == ("forward", "cls"):
        with pytest.raises(RecipeError, match=r"cls reads the first state.*choose last"):
            classifier.build(recipe_of(kind), name, size=9, classes=5)
        return
    model = classifier.build(recipe_of(kind), name, size=9, classes=5).double()
    sources = make_sources(*LENGTHS)
    together = model(sources)
    assert together.logits.shape == (BATCH, 5)
    for row, length in enumerate(LENGTHS):
        alone = replace(sources, ids=sources.ids[row : row + 1, :length], mask=sources.mask[row : row + 1, :length])
        near(model(alone).logits[0], together.logits[row])
    together.logits.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def test_dropout_acts_only_in_training() -> None:
    settings = replace(recipe_of("both"), encoder=replace(ENCODERS["both"], dropout=0.5))
    model, sources = classifier.build(settings, "attention", size=9, classes=5), make_sources(*LENGTHS)
    assert not torch.equal(model(sources).logits, model(sources).logits)
    model.eval()
    same(model(sources).logits, model(sources).logits)
