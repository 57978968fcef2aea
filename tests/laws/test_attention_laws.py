"""Laws of attention, over every score, normaliser and scope."""

import math

import pytest
import torch
from small import (
    BATCH,
    KEY,
    LOOKING,
    QUERY,
    every_attention,
    gradients,
    make_attention,
    make_model,
    make_score,
    make_sources,
    near,
    same,
    unchecked,
)
from torch import Tensor

from regard.attention import NORMALIZERS, SCORES, attend, masks
from regard.attention.scores import Additive
from regard.errors import RecipeError
from regard.types import Memory

Vector = list[float]
Matrix = list[Vector]
JUNK = (1e30, math.inf, -math.inf, math.nan)

# The equations once more, in plain Python numbers: a new entry of a table writes its own here.


def dot(query: Vector, key: Vector, part: dict[str, Matrix]) -> float:
    return sum(q * k for q, k in zip(query, key, strict=True))


def scaled_dot(query: Vector, key: Vector, part: dict[str, Matrix]) -> float:
    return dot(query, key, part) / len(key) ** 0.5


def general(query: Vector, key: Vector, part: dict[str, Matrix]) -> float:
    turned = [sum(w * k for w, k in zip(row, key, strict=True)) for row in part["key.weight"]]
    return dot(query, turned, part)


def additive(query: Vector, key: Vector, part: dict[str, Matrix]) -> float:
    total = 0.0
    for inner, out in enumerate(part["out.weight"][0]):
        mixed = part["key.bias"][inner]
        mixed += sum(w * q for w, q in zip(part["query.weight"][inner], query, strict=True))
        mixed += sum(w * k for w, k in zip(part["key.weight"][inner], key, strict=True))
        total += out * math.tanh(mixed)
    return total


EQUATIONS = {"dot": dot, "scaled_dot": scaled_dot, "general": general, "additive": additive}


def softmax(scores: Vector) -> Vector:
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]


NORMALIZED = {"softmax": softmax}


def looked(scores: Matrix, values: Matrix, mask: list[list[bool]], name: str) -> tuple[Matrix, Matrix]:
    """Weights and contexts of one sentence: only what a query may see takes part at all."""
    weights, contexts = [], []
    for row, allowed in zip(scores, mask, strict=True):
        seen = [key for key, may in enumerate(allowed) if may]
        shares = dict(zip(seen, NORMALIZED[name]([row[key] for key in seen]), strict=True)) if seen else {}
        weights.append([shares.get(key, 0.0) for key in range(len(row))])
        contexts.append(
            [sum(share * values[key][dim] for key, share in shares.items()) for dim in range(len(values[0]))]
        )
    return weights, contexts


def some_mask() -> Tensor:
    """Per query, with padding behind it, one query that sees nothing, and one sentence that shows nothing."""
    mask = torch.rand(BATCH, QUERY, KEY) < 0.7
    mask &= masks.over_keys(masks.from_lengths(torch.tensor([KEY, 4, 0]), KEY))
    mask[0, 2] = False
    mask[0, 3] = True
    return mask


def inputs(query_dim: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(BATCH, QUERY, query_dim, dtype=dtype),
        torch.randn(BATCH, KEY, 13, dtype=dtype),
        torch.randn(BATCH, KEY, 19, dtype=dtype),
    )


@pytest.mark.parametrize("name", SCORES)
def test_score_is_its_equation(name):
    score, query_dim = make_score(name)
    score.double()
    query, states, _ = inputs(query_dim)
    part = {key: value.tolist() for key, value in score.state_dict().items()}
    expected = [
        [[EQUATIONS[name](q, k, part) for k in keys] for q in queries]
        for queries, keys in zip(query.tolist(), states.tolist(), strict=True)
    ]
    near(score(query, score.project(states)), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_attend_is_its_definition(name, masked, biased):
    score, query_dim = make_score("dot")
    query, states, values = inputs(query_dim)
    mask = some_mask() if masked else None
    bias = torch.randn(1, QUERY, KEY, dtype=torch.float64) if biased else None
    context, weights, _ = attend(
        query, states, values, score=score, mask=mask, bias=bias, normalize=NORMALIZERS[name].function
    )
    for row in range(BATCH):
        scores = query[row] @ states[row].T + (0.0 if bias is None else bias[0])
        allowed = torch.ones(QUERY, KEY, dtype=torch.bool) if mask is None else mask[row]
        expected = looked(scores.tolist(), values[row].tolist(), allowed.tolist(), name)
        near(weights[row], torch.tensor(expected[0], dtype=torch.float64))
        near(context[row], torch.tensor(expected[1], dtype=torch.float64))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("start", [0, 1])
def test_causal_mask_hides_what_comes_after(name, start):
    score, query_dim = make_score(name)
    score.double()
    query, states, values = inputs(query_dim)
    keys = score.project(states)
    context, weights, _ = attend(query, keys, values, score=score, mask=masks.causal(QUERY, KEY, start))
    allowed = [[key <= start + row for key in range(KEY)] for row in range(QUERY)]
    for row in range(BATCH):
        scores = score(query[row], keys[row]).tolist()
        expected = looked(scores, values[row].tolist(), allowed, "softmax")
        near(weights[row], torch.tensor(expected[0], dtype=torch.float64))
        near(context[row], torch.tensor(expected[1], dtype=torch.float64))


@every_attention()
def test_gradients_are_right(score, normalizer, scope):
    if not NORMALIZERS[normalizer].differentiable:
        pytest.skip(f"{normalizer} is not differentiable")
    attention, query_dim = make_attention(score, normalizer, scope, query_dim=4, key_dim=6, dim=7)
    attention.double()
    query = torch.randn(2, 3, query_dim, dtype=torch.float64, requires_grad=True)
    states = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], [[1, 1, 0, 0, 0]] * 3]).bool()

    def look(query: Tensor, states: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        context, weights, _ = attention(query, attention.project(states), states, mask=mask)
        return context, weights

    look(query, states)
    with unchecked():
        assert torch.autograd.gradcheck(look, (query, states, *attention.parameters()))


@every_attention()
def test_weights_are_weights(score, normalizer, scope):
    attention, query_dim = make_attention(score, normalizer, scope)
    attention.double()
    query, states, values = inputs(query_dim)
    mask = some_mask()
    weights = attention(query, attention.project(states), values, mask=mask).weights
    assert weights.shape == (BATCH, QUERY, KEY)
    assert (weights >= 0).all()
    assert (weights[~mask] == 0).all()
    if NORMALIZERS[normalizer].sums_to_one:
        assert (weights.sum(-1) <= 1 + 1e-10).all()  # a scope may narrow it afterwards


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_sum_to_one_or_to_nothing(name, scale, dtype):
    mask = some_mask()
    weights = NORMALIZERS[name].function(scale * torch.randn(BATCH, QUERY, KEY, dtype=dtype), mask)
    assert weights.dtype == dtype
    assert (weights >= 0).all()
    assert (weights[~mask] == 0).all()
    if NORMALIZERS[name].sums_to_one:
        near(weights.sum(-1), mask.any(-1).to(dtype), 1e-5 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_mask_that_hides_nothing_is_no_mask(name):
    scores = torch.randn(BATCH, QUERY, KEY, dtype=torch.float64)
    function = NORMALIZERS[name].function
    near(function(scores, torch.ones_like(scores, dtype=torch.bool)), function(scores, None))


@every_attention()
@pytest.mark.parametrize("junk", JUNK)
def test_junk_that_no_query_may_see_changes_no_bit(score, normalizer, scope, junk):
    attention, query_dim = make_attention(score, normalizer, scope)
    query, states, values = inputs(query_dim, torch.float32)
    mask = some_mask()
    hidden = ~mask.any(dim=-2)
    assert hidden.any()
    assert not hidden.all()

    def look(filling: float) -> list[Tensor | None]:
        attention.zero_grad()
        asked = query.clone().requires_grad_()
        keys = attention.project(states).detach()
        keys[hidden] = filling
        seen = values.clone()
        seen[hidden] = filling
        keys.requires_grad_(), seen.requires_grad_()
        context, weights, _ = attention(asked, keys, seen, mask=mask)
        (context.square().sum() + weights.square().sum()).backward()
        told = [context.detach(), weights.detach(), asked.grad, keys.grad, seen.grad]
        return told + list(gradients(attention).values())

    for clean, dirty in zip(look(0.5), look(junk), strict=True):
        same(dirty, clean)
        assert clean is None or clean.isfinite().all()


@pytest.mark.parametrize("order", LOOKING)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("junk", JUNK)
def test_junk_behind_the_memory_mask_changes_no_bit(order, score, junk):
    decoder = make_model(order, score=score, dtype=torch.float32)
    source = make_sources(7, 4, 2)
    memory = decoder.encoder(source)
    tokens = torch.randint(4, 11, (BATCH, QUERY))

    def learn(filling: float) -> list[Tensor | None]:
        decoder.zero_grad()
        states = memory.states.detach().clone()
        states[~source.mask] = filling
        states.requires_grad_()
        summary = memory.summary.each(Tensor.detach)
        step = decoder.decoder(tokens, Memory(states, source.mask, summary))
        step.logits.logsumexp(-1).sum().backward()
        told = [step.logits.detach(), step.attention.detach(), states.grad]
        return told + list(gradients(decoder.decoder).values())

    for clean, dirty in zip(learn(0.0), learn(junk), strict=True):
        same(dirty, clean)
        assert clean is not None
        assert clean.isfinite().all()


@every_attention()
def test_who_sees_nothing_gets_nothing_and_passes_nothing_back(score, normalizer, scope):
    attention, query_dim = make_attention(score, normalizer, scope)
    query, states, values = inputs(query_dim, torch.float32)
    for tensor in (query, states, values):
        tensor.requires_grad_()
    mask = some_mask()
    blind = ~mask.any(-1)
    assert blind[0, 2]
    assert blind[2].all()
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way back either, not even one that is covered
        context, weights, _ = attention(query, attention.project(states), values, mask=mask)
        (context.square().sum() + weights.square().sum() + context.sum()).backward()
    assert (context[blind] == 0).all()
    assert (weights[blind] == 0).all()
    assert (query.grad[blind] == 0).all()
    for each in (query, states, values, *attention.parameters()):
        assert each.grad.isfinite().all()


class TestMasksAreRefused:
    def look(self, mask: Tensor, check: bool = False) -> None:
        query, states, values = inputs(13)
        if check:
            masks.check(mask, query, states)
        else:
            attend(query, states, values, score=make_score("dot")[0], mask=mask)

    @pytest.mark.parametrize("shape", [(BATCH, KEY), (QUERY, KEY), (KEY,), (1, BATCH, 1, KEY)])
    def test_with_too_few_or_many_axes(self, shape):
        with pytest.raises(ValueError, match=r"a mask needs the 3 axes \(\*batch, query, key\)") as told:
            self.look(torch.ones(shape, dtype=torch.bool))
        assert "write mask.unsqueeze(-2) for a (batch, key) mask" in str(told.value)
        assert "mask.unsqueeze(0) for a (query, key) mask" in str(told.value)
        assert str(shape) in str(told.value)

    def test_a_bare_key_mask_even_where_it_would_fit(self):
        query = torch.randn(5, 5, 13)
        with pytest.raises(ValueError, match="a mask needs the 3 axes"):
            attend(query, query, query, score=make_score("dot")[0], mask=torch.ones(5, 5, dtype=torch.bool))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
    def test_that_are_not_boolean(self, dtype):
        mask = torch.ones(BATCH, 1, KEY, dtype=dtype)
        with pytest.raises(TypeError, match=f"a mask is boolean .True = may be attended., not {dtype}"):
            self.look(mask, check=True)
        with pytest.raises(TypeError):  # in the test run, the checked signature speaks first
            self.look(mask)

    @pytest.mark.parametrize(
        "shape", [(BATCH, QUERY, KEY - 1), (BATCH, QUERY + 1, KEY), (2, 1, KEY), (BATCH, KEY, QUERY)]
    )
    def test_that_do_not_broadcast(self, shape):
        with pytest.raises(ValueError, match="does not broadcast to") as told:
            self.look(torch.ones(shape, dtype=torch.bool))
        assert str(shape) in str(told.value)
        assert str((BATCH, QUERY, KEY)) in str(told.value)

    @pytest.mark.parametrize("shape", [(BATCH, 1, KEY), (1, QUERY, KEY), (1, 1, 1), (BATCH, QUERY, 1)])
    def test_but_not_those_that_do(self, shape):
        self.look(torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_are_made_in_full_precision(name, dtype):
    score, query_dim = make_score(name)
    query, states, values = inputs(query_dim, torch.float32)
    query, keys, values = query.to(dtype), score.project(states).detach().to(dtype), values.to(dtype)
    context, weights, _ = attend(query, keys, values, score=score)
    expected = attend(query.float(), keys.float(), values.float(), score=score).weights
    assert weights.dtype == torch.float32
    assert context.dtype == dtype
    same(weights, expected)
    with torch.autocast("cpu", torch.bfloat16):
        same(attend(query.float(), keys.float(), values.float(), score=score).weights, expected)


@pytest.mark.parametrize("name", SCORES)
def test_scores_beyond_half_precision_stay_finite(name):
    score, query_dim = make_score(name)
    query = torch.full((BATCH, QUERY, query_dim), 300.0, dtype=torch.float16)
    keys = torch.full_like(score.project(torch.zeros(BATCH, KEY, 13)), 300.0, dtype=torch.float16)
    context, weights, _ = attend(query, keys, torch.ones(BATCH, KEY, 19, dtype=torch.float16), score=score)
    assert torch.finfo(torch.float16).max < 300.0 * 300.0 * 13
    near(weights, torch.full((BATCH, QUERY, KEY), 1 / KEY), 1e-6)
    assert context.isfinite().all()


@every_attention()
def test_double_precision_stays_double(score, normalizer, scope):
    attention, query_dim = make_attention(score, normalizer, scope)
    attention.double()
    query, states, values = inputs(query_dim)
    context, weights, _ = attention(query, attention.project(states), values, mask=some_mask())
    assert context.dtype == weights.dtype == torch.float64


@every_attention()
def test_leading_axes_broadcast(score, normalizer, scope):
    attention, query_dim = make_attention(score, normalizer, scope)
    attention.double()
    width = 2
    query = torch.randn(BATCH, width, QUERY, query_dim, dtype=torch.float64)
    _, states, values = inputs(query_dim)
    mask = masks.over_keys(masks.from_lengths(torch.tensor([7, 4, 2]), KEY))
    keys = attention.project(states)
    shared = attention(query, keys.unsqueeze(1), values.unsqueeze(1), mask=mask.unsqueeze(1))
    assert shared.context.shape == (BATCH, width, QUERY, 19)
    for beam in range(width):
        alone = attention(query[:, beam], keys, values, mask=mask)
        near(shared.context[:, beam], alone.context)
        near(shared.weights[:, beam], alone.weights)


@pytest.mark.parametrize("name", SCORES)
def test_scores_take_any_widths_or_say_why_not(name):
    try:
        SCORES[name](query_dim=11, key_dim=13, dim=17)
    except RecipeError as error:
        assert name in str(error)  # noqa: PT017
        assert "11 and 13" in str(error)  # noqa: PT017


def test_additive_names_its_parts():
    score = Additive(query_dim=11, key_dim=13, dim=17)
    assert {name: tuple(value.shape) for name, value in score.state_dict().items()} == {
        "query.weight": (17, 11),
        "key.weight": (17, 13),
        "key.bias": (17,),
        "out.weight": (1, 17),
    }
