"""Laws of attention, over every score, normaliser and scope."""

import math
from itertools import product

import pytest
import torch
from equations import NORMALIZER_EQUATIONS, SCOPE_EQUATIONS, SCORE_EQUATIONS, Matrix, attention_by_equations
from small import (
    ATTENDING,
    BATCH,
    HEAD_DIM,
    KEY,
    QUERY,
    TRANSFORMERS,
    VARIANTS,
    WINDOW,
    Case,
    Variant,
    every_variant,
    gradients,
    make_attention,
    make_model,
    make_score,
    make_sources,
    near,
    same,
    scope_of,
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


def attend_by_definition(scores: Matrix, values: Matrix, mask: list[list[bool]], name: str) -> tuple[Matrix, Matrix]:
    """Weights and contexts of one sentence, computed only from the keys that the mask allows."""
    weights, contexts = [], []
    for row, mask_row in zip(scores, mask, strict=True):
        allowed = [key for key, is_allowed in enumerate(mask_row) if is_allowed]
        normalized = NORMALIZER_EQUATIONS[name]([row[key] for key in allowed]) if allowed else []
        weight_of = dict(zip(allowed, normalized, strict=True))
        weights.append([weight_of.get(key, 0.0) for key in range(len(row))])
        contexts.append(
            [sum(weight * values[key][dim] for key, weight in weight_of.items()) for dim in range(len(values[0]))]
        )
    return weights, contexts


def random_mask() -> Tensor:
    """A mask per query, with padding; one query may see no key, and one sentence is all padding."""
    mask = torch.rand(BATCH, QUERY, KEY) < 0.7
    mask &= masks.over_keys(masks.from_lengths(torch.tensor([KEY, 4, 0]), KEY))
    mask[0, 2] = False
    mask[0, 3] = True
    return mask


def inputs(query_dim: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, states (the keys before projection) and values."""
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
    parameters = {key: value.tolist() for key, value in score.state_dict().items()}
    expected = [
        [[SCORE_EQUATIONS[name](q, k, position, parameters) for position, k in enumerate(keys)] for q in queries]
        for queries, keys in zip(query.tolist(), states.tolist(), strict=True)
    ]
    near(score(query, score.project(states)), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_attend_is_its_definition(name, masked, biased):
    score, query_dim = make_score("dot")
    query, states, values = inputs(query_dim)
    mask = random_mask() if masked else None
    bias = torch.randn(1, QUERY, KEY, dtype=torch.float64) if biased else None
    context, weights, _ = attend(
        query, states, values, score=score, mask=mask, bias=bias, normalize=NORMALIZERS[name].function
    )
    for row in range(BATCH):
        scores = query[row] @ states[row].T + (0.0 if bias is None else bias[0])
        allowed = torch.ones(QUERY, KEY, dtype=torch.bool) if mask is None else mask[row]
        expected = attend_by_definition(scores.tolist(), values[row].tolist(), allowed.tolist(), name)
        near(weights[row], torch.tensor(expected[0], dtype=torch.float64))
        near(context[row], torch.tensor(expected[1], dtype=torch.float64))


WITH_ALL_SCORES_IN_HEADS = [
    *VARIANTS,
    *(Variant(score, heads=2) for score in SCORES if score not in ("additive", "scaled_dot")),
]


@pytest.mark.parametrize("variant", WITH_ALL_SCORES_IN_HEADS, ids=str)
@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_is_its_equations(variant, start, masked):
    attention, query_dim = make_attention(variant)
    attention.double()
    query, states, _ = inputs(query_dim)
    mask = random_mask() if masked else None
    keys, values = attention.project(states), attention.content(states)
    context, weights, _ = attention(query, keys, values, mask=mask, start=start)
    parameters = {name: value.tolist() for name, value in scope_of(attention).state_dict().items()}
    for row in range(BATCH):
        allowed = torch.ones(QUERY, KEY, dtype=torch.bool) if mask is None else mask[row]
        if variant.heads == 1:
            head_queries, head_keys, head_values = [query[row]], [states[row]], [states[row]]
        else:
            head_queries, head_keys, head_values = (
                (vectors @ layer.weight.T + layer.bias).split(HEAD_DIM, dim=-1)
                for layer, vectors in (
                    (attention.query, query[row]),
                    (attention.key, states[row]),
                    (attention.value, states[row]),
                )
            )
            head_keys, head_values = (
                [head for head in groups for _ in range(variant.heads // len(groups))]
                for groups in (head_keys, head_values)
            )
        expected = [
            attention_by_equations(variant, parameters, *(tensor.tolist() for tensor in (*head, allowed)), start)
            for head in zip(head_queries, head_keys, head_values, strict=True)
        ]
        contexts = torch.cat([torch.tensor(head[1], dtype=torch.float64) for head in expected], dim=-1)
        if variant.heads > 1:
            contexts = contexts @ attention.out.weight.T + attention.out.bias
        near(weights[row], torch.tensor([head[0] for head in expected], dtype=torch.float64).mean(0))
        near(context[row], contexts)


def test_local_p_multiplies_after_the_softmax_and_does_not_normalise_again():
    attention, query_dim = make_attention(Variant(scope="local_p"))
    attention.double()
    query, states, _ = inputs(query_dim)
    sums = attention(query, attention.project(states), states, mask=None).weights.sum(-1)
    assert (sums < 1).all()
    assert sums.std() > 0.01


@pytest.mark.parametrize("start", [0, 3, KEY + WINDOW - 1, KEY + WINDOW, 100])
def test_local_m_attends_around_the_position_of_the_target(start):
    attention, query_dim = make_attention(Variant(scope="local_m"))
    query, states, _ = inputs(query_dim, torch.float32)
    weights = attention(query, attention.project(states), states, mask=None, start=start).weights
    for row in range(QUERY):
        near_by = [abs(key - start - row) <= WINDOW for key in range(KEY)]
        assert (weights[:, row] > 0).tolist() == [near_by] * BATCH


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("start", [0, 1])
def test_a_causal_mask_hides_later_keys(name, start):
    score, query_dim = make_score(name)
    score.double()
    query, states, values = inputs(query_dim)
    keys = score.project(states)
    context, weights, _ = attend(query, keys, values, score=score, mask=masks.causal(QUERY, KEY, start))
    allowed = [[key <= start + row for key in range(KEY)] for row in range(QUERY)]
    for row in range(BATCH):
        scores = score(query[row], keys[row]).tolist()
        expected = attend_by_definition(scores, values[row].tolist(), allowed, "softmax")
        near(weights[row], torch.tensor(expected[0], dtype=torch.float64))
        near(context[row], torch.tensor(expected[1], dtype=torch.float64))


@every_variant()
def test_gradients_equal_finite_differences(variant):
    if not NORMALIZERS[variant.normalizer].differentiable:
        pytest.skip(f"{variant.normalizer} is not differentiable")
    attention, query_dim = make_attention(variant, query_dim=4, key_dim=6, dim=7)
    attention.double()
    query = torch.randn(2, 3, query_dim, dtype=torch.float64, requires_grad=True)
    states = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], [[1, 1, 0, 0, 0]] * 3]).bool()

    def run(query: Tensor, states: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = attention.project(states), attention.content(states)
        context, weights, _ = attention(query, keys, values, mask=mask)
        return context, weights

    run(query, states)
    with unchecked():
        # Multi-head attention has many parameters: random directions suffice, as its scopes are checked in full.
        fast_mode = variant.heads > 1
        assert torch.autograd.gradcheck(run, (query, states, *attention.parameters()), fast_mode=fast_mode)


@every_variant()
def test_weights_are_not_negative_and_zero_if_masked(variant):
    attention, query_dim = make_attention(variant)
    attention.double()
    query, states, _ = inputs(query_dim)
    mask = random_mask()
    weights = attention(query, attention.project(states), attention.content(states), mask=mask).weights
    assert weights.shape == (BATCH, QUERY, KEY)
    assert (weights >= 0).all()
    assert (weights[~mask] == 0).all()
    assert (weights > 0).any()
    if NORMALIZERS[variant.normalizer].sums_to_one:
        assert (weights.sum(-1) <= 1 + 1e-10).all()  # a scope may multiply them by less than one
    if sums_to_one(variant):
        sums = weights.sum(-1)
        near(sums, (sums > 0).double())
        near(sums[0, 3], torch.ones((), dtype=torch.float64))  # this query may see all keys


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_sum_to_one_or_to_zero_without_visible_keys(name, scale, dtype):
    mask = random_mask()
    weights = NORMALIZERS[name].function(scale * torch.randn(BATCH, QUERY, KEY, dtype=dtype), mask)
    assert weights.dtype == dtype
    assert (weights >= 0).all()
    assert (weights[~mask] == 0).all()
    if NORMALIZERS[name].sums_to_one:
        near(weights.sum(-1), mask.any(-1).to(dtype), 1e-5 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_mask_that_hides_nothing_equals_no_mask(name):
    scores = torch.randn(BATCH, QUERY, KEY, dtype=torch.float64)
    function = NORMALIZERS[name].function
    near(function(scores, torch.ones_like(scores, dtype=torch.bool)), function(scores, None))


@every_variant()
@pytest.mark.parametrize("junk", JUNK)
def test_junk_in_masked_keys_changes_no_bit(variant, junk):
    attention, query_dim = make_attention(variant)
    query, states, _ = inputs(query_dim, torch.float32)
    mask = random_mask()
    hidden = ~mask.any(dim=-2)
    assert hidden.any()
    assert not hidden.all()

    def run(filling: float) -> list[Tensor | None]:
        attention.zero_grad()
        queries = query.clone().requires_grad_()
        keys, values = attention.project(states).detach(), attention.content(states).detach()
        masked = hidden.view(BATCH, *[1] * (keys.ndim - 3), KEY, 1)
        keys, values = (tensor.masked_fill(masked, filling).requires_grad_() for tensor in (keys, values))
        context, weights, _ = attention(queries, keys, values, mask=mask)
        (context.square().sum() + weights.square().sum()).backward()
        results = [context.detach(), weights.detach(), queries.grad, keys.grad, values.grad]
        return results + list(gradients(attention).values())

    for clean, dirty in zip(run(0.5), run(junk), strict=True):
        same(dirty, clean)
        assert clean is None or clean.isfinite().all()


@pytest.mark.parametrize(
    "case",
    [Case(ATTENDING[number % len(ATTENDING)], variant=variant) for number, variant in enumerate(VARIANTS)]
    + [Case(order, variant=Variant(scope=scope)) for order, scope in product(ATTENDING, SCOPES)]
    + [case for case in TRANSFORMERS if case.attends()],
    ids=str,
)
def test_junk_in_masked_states_of_the_memory_changes_no_bit(case):
    model = make_model(case, dtype=torch.float32)
    source = make_sources(7, 4, 2)
    memory = model.encoder(source)
    tokens = torch.randint(4, 11, (BATCH, QUERY))

    def forward_and_backward(filling: float) -> list[Tensor | None]:
        model.zero_grad()
        states = memory.states.detach().clone()
        states[~source.mask] = filling
        states.requires_grad_()
        summary = memory.summary.map_tensors(Tensor.detach)
        step = model.decoder(tokens, Memory(states, source.mask, summary, TEXT))
        step.logits.logsumexp(-1).sum().backward()
        results = [step.logits.detach(), step.attention.detach(), states.grad]
        return results + list(gradients(model.decoder).values())

    clean_results = forward_and_backward(0.0)
    for junk in JUNK:
        for clean, dirty in zip(clean_results, forward_and_backward(junk), strict=True):
            same(dirty, clean)
            # hard scores get a gradient only from sampling; location reads the position of a key, not its content
            assert clean is not None or case.variant.normalizer == "hard" or case.variant.score == "location"
            assert clean is None or clean.isfinite().all()


@every_variant()
def test_a_query_without_visible_keys_gets_zeros_and_no_gradient(variant):
    attention, query_dim = make_attention(variant)
    query, states, _ = inputs(query_dim, torch.float32)
    for tensor in (query, states):
        tensor.requires_grad_()
    mask = random_mask()
    sees_nothing = ~mask.any(-1)
    assert sees_nothing[0, 2]
    assert sees_nothing[2].all()
    with torch.autograd.set_detect_anomaly(True):  # no NaN in the backward pass, not even in an intermediate result
        keys, values = attention.project(states), attention.content(states)
        context, weights, _ = attention(query, keys, values, mask=mask)
        (context.square().sum() + weights.square().sum() + context.sum()).backward()
    empty = attention.out.bias if variant.heads > 1 else torch.zeros(13)  # the projection after the heads has a bias
    same(context[sees_nothing], empty.expand_as(context[sees_nothing]))
    assert (weights[sees_nothing] == 0).all()
    assert query.grad is None or (query.grad[sees_nothing] == 0).all()
    differentiable = NORMALIZERS[variant.normalizer].differentiable
    for tensor in (states, *((query, *attention.score.parameters()) if differentiable and variant.heads == 1 else ())):
        assert tensor.grad.isfinite().all()
    for parameter in attention.parameters():  # there is no past yet, so its parameters have no gradient
        assert parameter.grad is None or parameter.grad.isfinite().all()


class TestMasksAreRefused:
    def attend(self, mask: Tensor, check: bool = False) -> None:
        query, states, values = inputs(13)
        if check:
            masks.check(mask, query, states)
        else:
            attend(query, states, values, score=make_score("dot")[0], mask=mask)

    @pytest.mark.parametrize("shape", [(BATCH, KEY), (QUERY, KEY), (KEY,), (1, BATCH, 1, KEY)])
    def test_with_too_few_or_many_axes(self, shape):
        with pytest.raises(ValueError, match=r"a mask needs the 3 axes \(\*batch, query, key\)") as error:
            self.attend(torch.ones(shape, dtype=torch.bool))
        assert "write mask.unsqueeze(-2) for a (batch, key) mask" in str(error.value)
        assert "mask.unsqueeze(0) for a (query, key) mask" in str(error.value)
        assert str(shape) in str(error.value)

    def test_a_mask_of_keys_alone_even_if_its_shape_would_fit(self):
        query = torch.randn(5, 5, 13)
        with pytest.raises(ValueError, match="a mask needs the 3 axes"):
            attend(query, query, query, score=make_score("dot")[0], mask=torch.ones(5, 5, dtype=torch.bool))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
    def test_that_are_not_boolean(self, dtype):
        mask = torch.ones(BATCH, 1, KEY, dtype=dtype)
        with pytest.raises(TypeError, match=f"a mask is boolean .True = may be attended., not {dtype}"):
            self.attend(mask, check=True)
        with pytest.raises(TypeError):  # here the checked signature raises first
            self.attend(mask)

    @pytest.mark.parametrize(
        "shape", [(BATCH, QUERY, KEY - 1), (BATCH, QUERY + 1, KEY), (2, 1, KEY), (BATCH, KEY, QUERY)]
    )
    def test_that_do_not_broadcast(self, shape):
        with pytest.raises(ValueError, match="does not broadcast to") as error:
            self.attend(torch.ones(shape, dtype=torch.bool))
        assert str(shape) in str(error.value)
        assert str((BATCH, QUERY, KEY)) in str(error.value)

    @pytest.mark.parametrize("shape", [(BATCH, 1, KEY), (1, QUERY, KEY), (1, 1, 1), (BATCH, QUERY, 1)])
    def test_but_not_those_that_broadcast(self, shape):
        self.attend(torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_are_computed_in_full_precision(name, dtype):
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
    """Equal keys get equal weights, in whatever order a CPU sums: every product and sum here is exact.

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


@every_variant()
def test_autocast_changes_no_weight(variant):
    attention, query_dim = make_attention(variant._replace(heads=1))
    query, states, _ = inputs(query_dim, torch.float32)
    keys = attention.project(states)
    expected = attention(query, keys, states, mask=None).weights
    with torch.autocast("cpu", torch.bfloat16):
        same(attention(query, keys, states, mask=None).weights, expected)


@every_variant()
def test_double_precision_stays_double(variant):
    attention, query_dim = make_attention(variant)
    attention.double()
    query, states, _ = inputs(query_dim)
    keys, values = attention.project(states), attention.content(states)
    context, weights, _ = attention(query, keys, values, mask=random_mask())
    assert context.dtype == weights.dtype == torch.float64


@every_variant()
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


@every_variant()
def test_queries_one_by_one_equal_queries_together(variant):
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
    message = f"{heads} heads share {groups} groups of keys evenly only if {groups} divides {heads}"
    with pytest.raises(RecipeError, match=message):
        MultiHead(
            lambda width: SCOPES["global"](make_score("dot")[0], query_dim=width), **WIDTHS, heads=heads, groups=groups
        )


@pytest.mark.parametrize("heads", [4, 5])
def test_heads_share_the_width_evenly(heads):
    with pytest.raises(RecipeError, match=f"{heads} heads share a width of 6 evenly only if {heads} divides it"):
        MultiHead(lambda width: SCOPES["global"](make_score("dot")[0], query_dim=width), **WIDTHS, heads=heads)


@pytest.mark.parametrize("scope", [name for name, scope in SCOPES.items() if scope.uses_past])
def test_every_query_has_its_own_past(scope):
    attention, query_dim = make_attention(Variant(scope=scope))
    attention.double()
    query, states = (torch.randn(BATCH, length, dim).double() for length, dim in ((QUERY, query_dim), (KEY, 13)))
    past = [torch.rand(BATCH, QUERY, KEY).double() for _ in range(2)]
    mask = masks.over_keys(masks.from_lengths(torch.tensor([7, 4, 2]), KEY))
    keys, values = attention.project(states), attention.content(states)
    together = attention(query, keys, values, mask=mask, past=Past(*past))
    for at in range(QUERY):
        alone = attention(
            query[:, at : at + 1], keys, values, mask=mask, past=Past(*(tensor[:, at : at + 1] for tensor in past))
        )
        near(together.context[:, at], alone.context[:, 0])
        near(together.weights[:, at], alone.weights[:, 0])
    empty_past = Past(*(torch.zeros_like(tensor) for tensor in past))
    first = attention(query, keys, values, mask=mask).weights
    near(attention(query, keys, values, mask=mask, past=empty_past).weights, first)
    assert not torch.allclose(together.weights, first)


def test_every_variant_is_an_attention_and_declares_its_past():
    for variant in VARIANTS:
        attention, _ = make_attention(variant)
        assert isinstance(attention, Attention)
        assert attention.uses_past is SCOPES[variant.scope].uses_past


def test_every_entry_of_every_table_is_tested():
    tables = {"score": SCORES, "normalizer": NORMALIZERS, "scope": SCOPES}
    for field, table in tables.items():
        assert {getattr(variant, field) for variant in VARIANTS} == set(table)
        recurrent = {"hard", *(name for name, scope in SCOPES.items() if scope.uses_past)}  # Transformers refuse these
        assert {getattr(case.variant, field) for case in TRANSFORMERS} == set(table) - recurrent
    assert set(SCORE_EQUATIONS) == set(SCORES)
    assert set(NORMALIZER_EQUATIONS) == set(NORMALIZERS)
    assert set(SCOPE_EQUATIONS) == set(SCOPES)


@pytest.mark.parametrize("name", SCORES)
def test_scores_take_any_widths_or_name_the_reason_in_the_error(name):
    try:
        SCORES[name](query_dim=11, key_dim=13, dim=17)
    except RecipeError as error:
        assert name in str(error)  # noqa: PT017
        assert "11 and 13" in str(error)  # noqa: PT017


def test_additive_names_its_parameters():
    score = Additive(query_dim=11, key_dim=13, dim=17)
    assert {name: tuple(value.shape) for name, value in score.state_dict().items()} == {
        "query.weight": (17, 11),
        "key.weight": (17, 13),
        "key.bias": (17,),
        "out.weight": (1, 17),
    }


# Hard attention, which samples keys, and the loss terms on maps


def test_samples_follow_the_softmax_and_report_their_log_probability():
    torch.manual_seed(5)
    scores = torch.randn(1, 2, KEY, dtype=torch.float64)
    mask = torch.tensor([[[True] * 5 + [False] * 2, [False] * KEY]])
    weights, log_prob = sample(scores.expand(20_000, -1, -1), mask.expand(20_000, -1, -1))
    probabilities = NORMALIZERS["softmax"].function(scores, mask)
    near(weights[:, 0].mean(0), probabilities[0, 0], 0.02)
    near(log_prob[:, 0], (weights[:, 0] * probabilities[0, 0].clamp(min=1e-9).log()).sum(-1))
    assert not weights[:, 1].any()
    assert not log_prob[:, 1].any()


def test_hard_attention_samples_only_in_training():
    attention, query_dim = make_attention(Variant(normalizer="hard"))
    query, states, _ = inputs(query_dim, torch.float32)
    tensors = query, attention.project(states), attention.content(states)
    in_eval = attention(*tensors, mask=None)
    assert in_eval.log_prob is None
    same(in_eval.weights, attention(*tensors, mask=None).weights)
    attention.train()
    samples = [attention(*tensors, mask=None) for _ in range(20)]
    assert any(not torch.equal(samples[0].weights, attended.weights) for attended in samples)
    for attended in samples:
        chosen = attended.weights.argmax(-1)
        near(attended.context, torch.stack([row[key] for row, key in zip(tensors[2], chosen, strict=True)]))
        assert attended.log_prob.requires_grad


def test_the_expected_reinforce_gradient_is_the_gradient_of_the_expected_reward():
    """The sum over all samples of one step, weighted by probability: minus the gradient of reward and entropy."""
    scores = torch.randn(4, dtype=torch.float64, requires_grad=True)
    costs, entropy, baseline = torch.rand(4, dtype=torch.float64), 0.3, 0.7
    probabilities = scores.softmax(0)
    expected = (probabilities * -costs).sum() - entropy * (probabilities * probabilities.log()).sum()
    (expected_gradient,) = torch.autograd.grad(-expected, scores)
    gradient = torch.zeros_like(expected_gradient)
    for choice in range(4):
        log_prob = scores.log_softmax(0)[choice].view(1, 1)
        mean = torch.tensor(baseline, dtype=torch.float64)
        loss = terms.reinforce(log_prob, costs[choice].view(1, 1), torch.ones(1, 1, dtype=torch.bool), mean, entropy)
        gradient += probabilities[choice].detach() * torch.autograd.grad(loss, scores)[0]
        near(mean, baseline + (1 - terms.FORGETS) * (-costs[choice] - baseline))
    near(gradient, expected_gradient)


def test_the_reward_of_a_step_is_the_mean_of_its_own_and_all_later_steps():
    log_prob = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    costs, real = torch.tensor([[1.0, 2.0, 4.0]]).double(), torch.tensor([[True, True, False]])
    terms.reinforce(log_prob, costs, real, torch.zeros((), dtype=torch.float64), 0.0).backward()
    near(log_prob.grad, torch.tensor([[1.5, 2.0, 0.0]]).double())


def test_loss_terms_on_maps_equal_those_of_the_papers():
    weights = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.0, 0.75], [1.0, 0.0, 0.0]]]).double()
    real, source = torch.tensor([[True, True, False]]), torch.tensor([[True, True, True]])
    near(terms.coverage(weights, real), torch.tensor(0.25).double())  # only the first key gets weight twice
    once = (1 - 0.75) ** 2 + (1 - 0.5) ** 2 + (1 - 0.75) ** 2
    near(terms.doubly_stochastic(weights, real, source), torch.tensor(once).double())
    links = torch.tensor([[[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]).double()
    near(terms.guided(weights, links), -torch.tensor(1.0 * 0.75).double().log())
