"""Laws of attention, over every score, normaliser and scope."""

import math
from itertools import product

import pytest
import torch
from equations import EQUATIONS, NORMALIZED, SEEN, Matrix, retold
from small import (
    ATTENDING,
    ATTENTIONS,
    BATCH,
    KEY,
    PART,
    QUERY,
    TRANSFORMERS,
    WINDOW,
    Case,
    Variant,
    every_attention,
    gradients,
    inner,
    make_attention,
    make_model,
    make_score,
    make_sources,
    near,
    same,
    sums_to_one,
)
from torch import Tensor

from regard.attention import NORMALIZERS, SCOPES, SCORES, Attention, MultiHead, Past, attend, masks, terms
from regard.attention.normalizers import sample
from regard.attention.scores import Additive
from regard.errors import RecipeError
from regard.maps import TEXT
from regard.types import Memory
from shapes import unchecked

JUNK = (1e30, math.inf, -math.inf, math.nan)
WIDTHS = {"query_dim": 11, "key_dim": 13, "dim": 6}


def attended(scores: Matrix, values: Matrix, mask: list[list[bool]], name: str) -> tuple[Matrix, Matrix]:
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
        [[EQUATIONS[name](q, k, place, part) for place, k in enumerate(keys)] for q in queries]
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
        expected = attended(scores.tolist(), values[row].tolist(), allowed.tolist(), name)
        near(weights[row], torch.tensor(expected[0], dtype=torch.float64))
        near(context[row], torch.tensor(expected[1], dtype=torch.float64))


EVERY_HEAD = [*ATTENTIONS, *(Variant(score, heads=2) for score in SCORES if score not in ("additive", "scaled_dot"))]


@pytest.mark.parametrize("variant", EVERY_HEAD, ids=str)
@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("masked", [True, False])
def test_an_attention_is_its_equations(variant, start, masked):
    attention, query_dim = make_attention(variant)
    attention.double()
    query, states, _ = inputs(query_dim)
    mask = some_mask() if masked else None
    keys, values = attention.project(states), attention.content(states)
    context, weights, _ = attention(query, keys, values, mask=mask, start=start)
    part = {name: value.tolist() for name, value in inner(attention).state_dict().items()}
    for row in range(BATCH):
        allowed = torch.ones(QUERY, KEY, dtype=torch.bool) if mask is None else mask[row]
        if variant.heads == 1:
            asked, answered, said = [query[row]], [states[row]], [states[row]]
        else:
            asked, answered, said = (
                (given @ layer.weight.T + layer.bias).split(PART, dim=-1)
                for layer, given in (
                    (attention.query, query[row]),
                    (attention.key, states[row]),
                    (attention.value, states[row]),
                )
            )
            answered, said = (
                [head for head in groups for _ in range(variant.heads // len(groups))] for groups in (answered, said)
            )
        told = [
            retold(variant, part, *(each.tolist() for each in (*head, allowed)), start)
            for head in zip(asked, answered, said, strict=True)
        ]
        contexts = torch.cat([torch.tensor(each[1], dtype=torch.float64) for each in told], dim=-1)
        if variant.heads > 1:
            contexts = contexts @ attention.out.weight.T + attention.out.bias
        near(weights[row], torch.tensor([each[0] for each in told], dtype=torch.float64).mean(0))
        near(context[row], contexts)


def test_local_p_is_multiplied_after_the_softmax_and_not_normalised_again():
    attention, query_dim = make_attention(Variant(scope="local_p"))
    attention.double()
    query, states, _ = inputs(query_dim)
    sums = attention(query, attention.project(states), states, mask=None).weights.sum(-1)
    assert (sums < 1).all()
    assert sums.std() > 0.01


@pytest.mark.parametrize("start", [0, 3, KEY + WINDOW - 1, KEY + WINDOW, 100])
def test_local_m_looks_where_the_target_stands(start):
    attention, query_dim = make_attention(Variant(scope="local_m"))
    query, states, _ = inputs(query_dim, torch.float32)
    weights = attention(query, attention.project(states), states, mask=None, start=start).weights
    for row in range(QUERY):
        near_by = [abs(key - start - row) <= WINDOW for key in range(KEY)]
        assert (weights[:, row] > 0).tolist() == [near_by] * BATCH


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
        expected = attended(scores, values[row].tolist(), allowed, "softmax")
        near(weights[row], torch.tensor(expected[0], dtype=torch.float64))
        near(context[row], torch.tensor(expected[1], dtype=torch.float64))


@every_attention()
def test_gradients_are_right(variant):
    if not NORMALIZERS[variant.normalizer].differentiable:
        pytest.skip(f"{variant.normalizer} is not differentiable")
    attention, query_dim = make_attention(variant, query_dim=4, key_dim=6, dim=7)
    attention.double()
    query = torch.randn(2, 3, query_dim, dtype=torch.float64, requires_grad=True)
    states = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], [[1, 1, 0, 0, 0]] * 3]).bool()

    def look(query: Tensor, states: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = attention.project(states), attention.content(states)
        context, weights, _ = attention(query, keys, values, mask=mask)
        return context, weights

    look(query, states)
    with unchecked():
        quick = variant.heads > 1  # by random directions: heads have many parameters, their scopes are checked in full
        assert torch.autograd.gradcheck(look, (query, states, *attention.parameters()), fast_mode=quick)


@every_attention()
def test_weights_are_weights(variant):
    attention, query_dim = make_attention(variant)
    attention.double()
    query, states, _ = inputs(query_dim)
    mask = some_mask()
    weights = attention(query, attention.project(states), attention.content(states), mask=mask).weights
    assert weights.shape == (BATCH, QUERY, KEY)
    assert (weights >= 0).all()
    assert (weights[~mask] == 0).all()
    assert (weights > 0).any()
    if NORMALIZERS[variant.normalizer].sums_to_one:
        assert (weights.sum(-1) <= 1 + 1e-10).all()  # a scope may narrow it afterwards
    if sums_to_one(variant):
        sums = weights.sum(-1)
        near(sums, (sums > 0).double())
        near(sums[0, 3], torch.ones((), dtype=torch.float64))  # it may see all


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
def test_junk_that_no_query_may_see_changes_no_bit(variant, junk):
    attention, query_dim = make_attention(variant)
    query, states, _ = inputs(query_dim, torch.float32)
    mask = some_mask()
    hidden = ~mask.any(dim=-2)
    assert hidden.any()
    assert not hidden.all()

    def look(filling: float) -> list[Tensor | None]:
        attention.zero_grad()
        asked = query.clone().requires_grad_()
        keys, seen = attention.project(states).detach(), attention.content(states).detach()
        behind = hidden.view(BATCH, *[1] * (keys.ndim - 3), KEY, 1)
        keys, seen = (each.masked_fill(behind, filling).requires_grad_() for each in (keys, seen))
        context, weights, _ = attention(asked, keys, seen, mask=mask)
        (context.square().sum() + weights.square().sum()).backward()
        told = [context.detach(), weights.detach(), asked.grad, keys.grad, seen.grad]
        return told + list(gradients(attention).values())

    for clean, dirty in zip(look(0.5), look(junk), strict=True):
        same(dirty, clean)
        assert clean is None or clean.isfinite().all()


@pytest.mark.parametrize(
    "case",
    [Case(ATTENDING[number % len(ATTENDING)], variant=variant) for number, variant in enumerate(ATTENTIONS)]
    + [Case(order, variant=Variant(scope=scope)) for order, scope in product(ATTENDING, SCOPES)]
    + [case for case in TRANSFORMERS if case.attends()],
    ids=str,
)
def test_junk_behind_the_memory_mask_changes_no_bit(case):
    decoder = make_model(case, dtype=torch.float32)
    source = make_sources(7, 4, 2)
    memory = decoder.encoder(source)
    tokens = torch.randint(4, 11, (BATCH, QUERY))

    def learn(filling: float) -> list[Tensor | None]:
        decoder.zero_grad()
        states = memory.states.detach().clone()
        states[~source.mask] = filling
        states.requires_grad_()
        summary = memory.summary.map_tensors(Tensor.detach)
        step = decoder.decoder(tokens, Memory(states, source.mask, summary, TEXT))
        step.logits.logsumexp(-1).sum().backward()
        told = [step.logits.detach(), step.attention.detach(), states.grad]
        return told + list(gradients(decoder.decoder).values())

    cleans = learn(0.0)
    for junk in JUNK:
        for clean, dirty in zip(cleans, learn(junk), strict=True):
            same(dirty, clean)
            # scores of hard learn by what is drawn alone; location asks where a key stands, and not what it is
            assert clean is not None or case.variant.normalizer == "hard" or case.variant.score == "location"
            assert clean is None or clean.isfinite().all()


@every_attention()
def test_who_sees_nothing_gets_nothing_and_passes_nothing_back(variant):
    attention, query_dim = make_attention(variant)
    query, states, _ = inputs(query_dim, torch.float32)
    for tensor in (query, states):
        tensor.requires_grad_()
    mask = some_mask()
    blind = ~mask.any(-1)
    assert blind[0, 2]
    assert blind[2].all()
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way back either, not even one that is covered
        keys, values = attention.project(states), attention.content(states)
        context, weights, _ = attention(query, keys, values, mask=mask)
        (context.square().sum() + weights.square().sum() + context.sum()).backward()
    nothing = attention.out.bias if variant.heads > 1 else torch.zeros(13)  # what heads join has a bias of its own
    same(context[blind], nothing.expand_as(context[blind]))
    assert (weights[blind] == 0).all()
    assert query.grad is None or (query.grad[blind] == 0).all()
    learns = NORMALIZERS[variant.normalizer].differentiable
    for each in (states, *((query, *attention.score.parameters()) if learns and variant.heads == 1 else ())):
        assert each.grad.isfinite().all()
    for each in attention.parameters():  # nothing was remembered yet, so what remembers has no gradient
        assert each.grad is None or each.grad.isfinite().all()


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
    """Equal keys get equal weights, whatever the order in which a CPU sums: every product and sum here is exact.

    The query has one component, a power of two, the keys are a power of two, the weights are eighths.
    """
    score, query_dim = make_score(name)
    with torch.no_grad():
        for parameter in score.parameters():
            parameter.copy_((parameter * 8).round() / 8)
    query = torch.zeros(BATCH, QUERY, query_dim, dtype=torch.float16)
    query[..., 0] = 2048.0
    keys = torch.full_like(score.project(torch.zeros(BATCH, KEY, 13)), 256.0, dtype=torch.float16)
    context, weights, _ = attend(query, keys, torch.ones(BATCH, KEY, 19, dtype=torch.float16), score=score)
    assert torch.finfo(torch.float16).max < 2048.0 * 256.0 / math.sqrt(13)
    near(weights, torch.full((BATCH, QUERY, KEY), 1 / KEY), 1e-6)
    assert context.isfinite().all()


@every_attention()
def test_autocast_changes_no_weight(variant):
    attention, query_dim = make_attention(variant._replace(heads=1))
    query, states, _ = inputs(query_dim, torch.float32)
    keys = attention.project(states)
    expected = attention(query, keys, states, mask=None).weights
    with torch.autocast("cpu", torch.bfloat16):
        same(attention(query, keys, states, mask=None).weights, expected)


@every_attention()
def test_double_precision_stays_double(variant):
    attention, query_dim = make_attention(variant)
    attention.double()
    query, states, _ = inputs(query_dim)
    keys, values = attention.project(states), attention.content(states)
    context, weights, _ = attention(query, keys, values, mask=some_mask())
    assert context.dtype == weights.dtype == torch.float64


@every_attention()
def test_leading_axes_broadcast(variant):
    attention, query_dim = make_attention(variant)
    attention.double()
    width = 2
    query = torch.randn(BATCH, width, QUERY, query_dim, dtype=torch.float64)
    _, states, _ = inputs(query_dim)
    mask = masks.over_keys(masks.from_lengths(torch.tensor([7, 4, 2]), KEY))
    keys, values = attention.project(states), attention.content(states)
    shared = attention(query, keys.unsqueeze(1), values.unsqueeze(1), mask=mask.unsqueeze(1), start=1)
    assert shared.context.shape == (BATCH, width, QUERY, 13)
    for beam in range(width):
        alone = attention(query[:, beam], keys, values, mask=mask, start=1)
        near(shared.context[:, beam], alone.context)
        near(shared.weights[:, beam], alone.weights)


@every_attention()
def test_rows_asked_alone_are_rows_asked_together(variant):
    attention, query_dim = make_attention(variant)
    attention.double()
    query, states, _ = inputs(query_dim)
    mask = masks.over_keys(masks.from_lengths(torch.tensor([7, 4, 2]), KEY))
    keys, values = attention.project(states), attention.content(states)
    together = attention(query, keys, values, mask=mask, start=1)
    for row in range(QUERY):
        alone = attention(query[:, row : row + 1], keys, values, mask=mask, start=1 + row)
        near(alone.context[:, 0], together.context[:, row])
        near(alone.weights[:, 0], together.weights[:, row])


@pytest.mark.parametrize(("heads", "groups"), [(6, 4), (2, 3), (3, 2)])
def test_heads_share_groups_evenly(heads, groups):
    said = f"{heads} heads share {groups} groups of keys evenly only if {groups} divides {heads}"
    with pytest.raises(RecipeError, match=said):
        MultiHead(
            lambda width: SCOPES["global"](make_score("dot")[0], query_dim=width), **WIDTHS, heads=heads, groups=groups
        )


@pytest.mark.parametrize("heads", [4, 5])
def test_heads_share_the_width_evenly(heads):
    with pytest.raises(RecipeError, match=f"{heads} heads share a width of 6 evenly only if {heads} divides it"):
        MultiHead(lambda width: SCOPES["global"](make_score("dot")[0], query_dim=width), **WIDTHS, heads=heads)


@pytest.mark.parametrize("scope", [name for name, kind in SCOPES.items() if kind.uses_past])
def test_every_query_has_its_own_past(scope):
    attention, query_dim = make_attention(Variant(scope=scope))
    attention.double()
    query, states = (torch.randn(BATCH, length, dim).double() for length, dim in ((QUERY, query_dim), (KEY, 13)))
    given = [torch.rand(BATCH, QUERY, KEY).double() for _ in range(2)]
    mask = masks.over_keys(masks.from_lengths(torch.tensor([7, 4, 2]), KEY))
    keys, values = attention.project(states), attention.content(states)
    together = attention(query, keys, values, mask=mask, past=Past(*given))
    for at in range(QUERY):
        alone = attention(
            query[:, at : at + 1], keys, values, mask=mask, past=Past(*(each[:, at : at + 1] for each in given))
        )
        near(together.context[:, at], alone.context[:, 0])
        near(together.weights[:, at], alone.weights[:, 0])
    nothing = Past(*(torch.zeros_like(each) for each in given))
    first = attention(query, keys, values, mask=mask).weights
    near(attention(query, keys, values, mask=mask, past=nothing).weights, first)
    assert not torch.allclose(together.weights, first)


def test_attentions_are_attentions():
    for variant in ATTENTIONS:
        attention, _ = make_attention(variant)
        assert isinstance(attention, Attention)
        assert attention.uses_past is SCOPES[variant.scope].uses_past


def test_every_entry_meets_the_laws():
    tables = {"score": SCORES, "normalizer": NORMALIZERS, "scope": SCOPES}
    for field, table in tables.items():
        assert {getattr(variant, field) for variant in ATTENTIONS} == set(table)
        recurrent = {"hard", *(name for name, kind in SCOPES.items() if kind.uses_past)}  # Transformers refuse these
        assert {getattr(case.variant, field) for case in TRANSFORMERS} == set(table) - recurrent
    assert set(EQUATIONS) == set(SCORES)
    assert set(NORMALIZED) == set(NORMALIZERS)
    assert set(SEEN) == set(SCOPES)


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


# What is drawn, and what maps cost


def test_draws_are_by_softmax_and_tell_their_chance():
    torch.manual_seed(5)
    scores = torch.randn(1, 2, KEY, dtype=torch.float64)
    mask = torch.tensor([[[True] * 5 + [False] * 2, [False] * KEY]])
    weights, log_prob = sample(scores.expand(20_000, -1, -1), mask.expand(20_000, -1, -1))
    chances = NORMALIZERS["softmax"].function(scores, mask)
    near(weights[:, 0].mean(0), chances[0, 0], 0.02)
    near(log_prob[:, 0], (weights[:, 0] * chances[0, 0].clamp(min=1e-9).log()).sum(-1))
    assert not weights[:, 1].any()
    assert not log_prob[:, 1].any()


def test_hard_attention_draws_in_training_alone():
    attention, query_dim = make_attention(Variant(normalizer="hard"))
    query, states, _ = inputs(query_dim, torch.float32)
    given = query, attention.project(states), attention.content(states)
    calm = attention(*given, mask=None)
    assert calm.log_prob is None
    same(calm.weights, attention(*given, mask=None).weights)
    attention.train()
    variant = [attention(*given, mask=None) for _ in range(20)]
    assert any(not torch.equal(variant[0].weights, each.weights) for each in variant)
    for each in variant:
        near(each.context, torch.stack([row[at] for row, at in zip(given[2], each.weights.argmax(-1), strict=True)]))
        assert each.log_prob.requires_grad


def test_the_score_function_estimator_is_the_gradient_of_what_is_expected():
    """Over all draws of one look, weighed by their chance: minus the gradient of the expected reward and entropy."""
    scores = torch.randn(4, dtype=torch.float64, requires_grad=True)
    costs, entropy, baseline = torch.rand(4, dtype=torch.float64), 0.3, 0.7
    chances = scores.softmax(0)
    expected = (chances * -costs).sum() - entropy * (chances * chances.log()).sum()
    (wanted,) = torch.autograd.grad(-expected, scores)
    found = torch.zeros_like(wanted)
    for choice in range(4):
        log_prob = scores.log_softmax(0)[choice].view(1, 1)
        mean = torch.tensor(baseline, dtype=torch.float64)
        loss = terms.reinforce(log_prob, costs[choice].view(1, 1), torch.ones(1, 1, dtype=torch.bool), mean, entropy)
        found += chances[choice].detach() * torch.autograd.grad(loss, scores)[0]
        near(mean, baseline + (1 - terms.FORGETS) * (-costs[choice] - baseline))
    near(found, wanted)


def test_a_look_earns_what_comes_after_it():
    log_prob = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    costs, real = torch.tensor([[1.0, 2.0, 4.0]]).double(), torch.tensor([[True, True, False]])
    terms.reinforce(log_prob, costs, real, torch.zeros((), dtype=torch.float64), 0.0).backward()
    near(log_prob.grad, torch.tensor([[1.5, 2.0, 0.0]]).double())


def test_maps_cost_what_the_papers_say():
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.0, 0.75], [1.0, 0.0, 0.0]]]).double()
    real, source = torch.tensor([[True, True, False]]), torch.tensor([[True, True, True]])
    near(terms.coverage(weights, real), torch.tensor(0.25).double())  # only the first key is looked at again
    once = (1 - 0.75) ** 2 + (1 - 0.5) ** 2 + (1 - 0.75) ** 2
    near(terms.doubly_stochastic(weights, real, source), torch.tensor(once).double())
    links = torch.tensor([[[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).double()
    near(terms.guided(weights, links), -torch.tensor(1.0 * 0.75).double().log())
