"""Laws of the Transformer: its equations, its positions, its fused path, its tied weights, and language models."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from equations import POSITION_EQUATIONS, attention_by_equations, bucket, sinusoid, slope
from safetensors.torch import load, save
from small import (
    BATCH,
    DIFFERENTIABLE,
    KEY,
    QUERY,
    TRANSFORMERS,
    Case,
    Variant,
    draw_weights,
    every_transformer,
    leaves,
    make_batch,
    make_model,
    make_recipe,
    make_score,
    make_sources,
    near,
    same,
    transformer,
)
from torch import Tensor, nn
from torch.nn import functional

from regard import recipe as recipes
from regard.attention import NORMALIZERS, POSITIONS, SCOPES, SCORES, MultiHead, SelfAttention, attend, fused, masks
from regard.attention.masks import Causal
from regard.attention.positions import Positions, sinusoids
from regard.decoders import ORDERS, STARTS
from regard.errors import DataError, RecipeError
from regard.kernels.choose import are_definitions_only
from regard.layers.transformer import ACTIVATIONS, INITS, NORM_KINDS, NORMS, FeedForward, Shape, Site
from regard.models import build, load_weights, weights
from regard.models.language import LanguageModel
from regard.models.language import build as build_language_model
from regard.search import beam, sample
from regard.types import BEGIN, Memory, Padded
from shapes import unchecked

LENGTHS = (7, 4, 2)
TARGET = 6
HEADS, HEAD_DIM = 3, 6
every_position = pytest.mark.parametrize("name", POSITIONS)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def make_tokens(rows: int, length: int = TARGET) -> Tensor:
    tokens = torch.randint(4, 9, (rows, length))
    tokens[:, 0] = BEGIN
    return tokens


def make_positions(
    name: str, *, dim: int = 10, heads: int = HEADS, longest: int = 29, causal: bool = False
) -> Positions:
    """Positions with random parameters."""
    positions = POSITIONS[name](dim=dim, heads=heads, longest=longest, causal=causal)
    for parameter in positions.parameters():
        nn.init.normal_(parameter)
    return positions.double()


# The equations of the whole encoder and decoder, one sentence at a time, head by head and token by token.


def gelu(value: Tensor) -> Tensor:
    return value * (1 + torch.erf(value / math.sqrt(2))) / 2


def gelu_tanh(value: Tensor) -> Tensor:
    """Hendrycks and Gimpel 2016, section 2."""
    return 0.5 * value * (1 + torch.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))


ACTIVATION_EQUATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda value: value.clamp(min=0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "swish": lambda value: value / (1 + (-value).exp()),
    "gated_gelu": lambda value: gelu_tanh(value[:, : value.shape[1] // 2]) * value[:, value.shape[1] // 2 :],
}


def affine(layer: nn.Linear, states: Tensor) -> Tensor:
    return states @ layer.weight.T + layer.bias


def layer_norm(norm: nn.LayerNorm, states: Tensor) -> Tensor:
    """Ba et al. 2016, equation 4."""
    centred = states - states.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def rms_norm(norm: nn.RMSNorm, states: Tensor) -> Tensor:
    """Zhang and Sennrich 2019, equation 4."""
    return states / (states.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


NORM_EQUATIONS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {"layer": layer_norm, "rms": rms_norm}


class StackByEquations:
    """A stack of Transformer layers computed from its parameters, for one sentence without padding."""

    def __init__(self, stack: nn.Module, case: Case, *, causal: bool) -> None:
        self.stack, self.case, self.causal = stack, case, causal
        self.positions = POSITION_EQUATIONS[case.stack.positions]
        self.parameters = {name: value.tolist() for name, value in stack.positions.state_dict().items()}
        self.map: Tensor | None = None

    def read(self, ids: Tensor, memory: Tensor | None = None) -> Tensor:
        """The states of the top layer; `memory` are the states that a decoder attends to."""
        words = self.stack.embedding.weight[ids]
        if self.case.stack.embedding_scaled:
            words = words * math.sqrt(words.shape[-1])
        added = [self.positions.embedding(at, words.shape[-1], self.parameters) for at in range(len(ids))]
        states = words + torch.tensor(added, dtype=torch.float64)
        if self.case.stack.embedding_norm:
            states = self.normed(self.stack.embedding_norm, states)
        for layer in self.stack.stack:
            states = self.residual(
                layer.around_attention, states, lambda x, layer=layer: self.attend_to_self(layer.attention, x)
            )
            if memory is not None:
                states = self.residual(
                    layer.around_cross, states, lambda x, layer=layer: self.attend_to_memory(layer.cross, x, memory)
                )
            states = self.residual(layer.around_feed, states, lambda x, layer=layer: self.feed(layer.feed, x))
        return self.normed(self.stack.top.norm, states) if self.case.stack.norm == "pre" else states

    def normed(self, norm: nn.Module, states: Tensor) -> Tensor:
        return NORM_EQUATIONS[self.case.stack.norm_kind](norm, states)

    def residual(self, around: nn.Module, states: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """A residual connection around a sub-layer, with the norm before or after it."""
        if self.case.stack.norm == "pre":
            return states + change(self.normed(around.norm, states))
        return self.normed(around.norm, states + change(states))

    def feed(self, layer: nn.Module, states: Tensor) -> Tensor:
        return affine(layer.out, ACTIVATION_EQUATIONS[self.case.stack.activation](affine(layer.inner, states)))

    def attend_to_self(self, attention: SelfAttention, states: Tensor) -> Tensor:
        heads = self.case.variant.heads
        groups = self.case.variant.groups or heads
        width = states.shape[-1] // heads
        projected = affine(attention.all, states).split(width, dim=-1)
        queries, keys, values = projected[:heads], projected[heads:-groups], projected[-groups:]
        queries, keys = (
            [[self.positions.rotation(vector, at) for at, vector in enumerate(head.tolist())] for head in all_heads]
            for all_heads in (queries, keys)
        )
        time = range(len(states))
        mask = [[key <= query or not self.causal for key in time] for query in time]
        bias = [
            [
                [self.positions.bias(key - query, head, heads, self.causal, self.parameters) for key in time]
                for query in time
            ]
            for head in range(heads)
        ]
        values = [head.tolist() for head in values]
        return affine(attention.out, self.heads(attention.attention, queries, keys, values, mask, bias))

    def attend_to_memory(self, attention: MultiHead, states: Tensor, memory: Tensor) -> Tensor:
        width = attention.query.out_features // self.case.variant.heads
        queries, keys, values = (
            [head.tolist() for head in affine(layer, vectors).split(width, dim=-1)]
            for layer, vectors in ((attention.query, states), (attention.key, memory), (attention.value, memory))
        )
        mask = [[True] * len(memory)] * len(states)
        return affine(attention.out, self.heads(attention.attention, queries, keys, values, mask, None))

    def heads(self, scope, queries, keys, values, mask, bias) -> Tensor:
        """The contexts of all heads, concatenated; several heads may share a group's keys and values."""
        parameters = {name: value.tolist() for name, value in scope.state_dict().items()}
        weights, contexts = [], []
        for head, query in enumerate(queries):
            group = head * len(keys) // len(queries)
            head_bias = None if bias is None else bias[head]
            head_weights, context = attention_by_equations(
                self.case.variant, parameters, query, keys[group], values[group], mask, 0, head_bias
            )
            weights.append(head_weights)
            contexts.append(torch.tensor(context, dtype=torch.float64))
        self.map = torch.tensor(weights, dtype=torch.float64).mean(0)
        return torch.cat(contexts, dim=-1)


@every_transformer()
def test_a_transformer_is_its_equations(case):
    with torch.no_grad():
        model = make_model(case)
        source, tokens = make_sources(*LENGTHS), make_tokens(BATCH)
        memory = model.encoder(source)
        step = model.decoder(tokens, memory)
        for row, length in enumerate(LENGTHS):
            if case.encoder == "transformer":
                states = StackByEquations(model.encoder, case, causal=False).read(source.ids[row, :length])
                near(memory.states[row, :length], states)
                near(memory.summary.hidden[row], states.mean(0, keepdim=True))
            if case.decoder == "transformer":
                by_equations = StackByEquations(model.decoder, case, causal=True)
                states = by_equations.read(tokens[row], memory.states[row, :length])
                words = model.decoder.embedding if case.tied else model.decoder.out
                near(step.logits[row], states @ words.weight.T + getattr(words, "bias", 0.0))
                near(step.attention[row, :, :length], by_equations.map)


def test_every_entry_of_every_table_is_tested():
    assert set(POSITION_EQUATIONS) == set(POSITIONS) == set(CHANGES) == set(PARAMETER_COUNTS)
    assert set(ACTIVATION_EQUATIONS) == set(ACTIVATIONS)
    assert set(NORM_EQUATIONS) == set(NORM_KINDS)
    assert FUSED == ["dot", "scaled_dot", "general"]
    assert {case.stack.positions for case in LANGUAGE if case.decoder == "transformer"} == set(POSITIONS)
    assert {case.start for case in LANGUAGE if case.decoder == "recurrent"} == set(STARTS) - {"last"}


# Grouped heads


@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (6, 3), (3, 1)])
def test_groups_are_heads_whose_keys_and_values_are_equal(heads, groups):
    """Ainslie et al. 2023, for self-attention and for attention to a memory."""
    width = heads * HEAD_DIM

    def make(width: int) -> nn.Module:
        return SCOPES["global"](make_score("scaled_dot", width, width)[0], query_dim=width, fused=True)

    shared = MultiHead(make, query_dim=11, key_dim=13, dim=width, heads=heads, groups=groups).double()
    apart = MultiHead(make, query_dim=11, key_dim=13, dim=width, heads=heads).double()
    shared_self, apart_self = (
        SelfAttention(make, dim=width, heads=heads, groups=count).double() for count in (groups, None)
    )

    def for_each_head(of_groups: Tensor) -> Tensor:
        return of_groups.unflatten(0, (groups, HEAD_DIM)).repeat_interleave(heads // groups, dim=0).flatten(0, 1)

    with torch.no_grad():
        for mine, other in ((shared, apart), (shared_self, apart_self)):
            mine.out.bias.normal_()
            other.out.load_state_dict(mine.out.state_dict())
        apart.query.load_state_dict(shared.query.state_dict())
        for name, kind in product(("key", "value"), ("weight", "bias")):
            getattr(getattr(apart, name), kind).copy_(for_each_head(getattr(getattr(shared, name), kind)))
        for kind in ("weight", "bias"):
            query, keys, values = getattr(shared_self.all, kind).split([width, groups * HEAD_DIM, groups * HEAD_DIM])
            getattr(apart_self.all, kind).copy_(torch.cat([query, for_each_head(keys), for_each_head(values)]))
    query, states, own = random(BATCH, QUERY, 11), random(BATCH, KEY, 13), random(BATCH, QUERY, width)
    mask = masks.over_keys(masks.from_lengths(torch.tensor([7, 4, 2]), KEY))
    attended = [each(query, each.project(states), each.content(states), mask=mask) for each in (shared, apart)]
    near(attended[0].context, attended[1].context)
    near(attended[0].weights, attended[1].weights)
    positions = make_positions("rotary", heads=heads)
    layers = (shared_self, apart_self)
    results = [layer(own, mask=Causal(), bias=None, positions=positions) for layer in layers]
    near(results[0][0], results[1][0])
    assert results[0][1].keys.shape == (BATCH, groups, QUERY, HEAD_DIM)  # the cache has keys per group, not per head


# The fused path


FUSED = [name for name in SCORES if make_score(name, 6, 6, 6)[0].dot_scale is not None]
MASKS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "keys": lambda: masks.from_lengths(torch.tensor([7, 4, 0]), KEY)[:, None, None],
    "queries": lambda: _some_rows_see_nothing(BATCH, 1),
    "heads": lambda: _some_rows_see_nothing(BATCH, HEADS),
    "causal": lambda: Causal(),
    "causal_later": lambda: Causal(2),
    "causal_nearly": lambda: Causal(KEY - 2),
    "causal_last": lambda: Causal(KEY - 1),
}


def _some_rows_see_nothing(*axes: int) -> Tensor:
    mask = torch.rand(*axes, QUERY, KEY) < 0.6
    mask[0, ..., 2, :] = False
    mask[1, ..., 3] = False
    return mask


def assert_fused_is_attend(
    score: nn.Module, query: Tensor, keys: Tensor, values: Tensor, mask: object, bias: Tensor | None
) -> None:
    """Assert that the fused path and the definition give the same contexts and gradients, and no NaN."""
    results = []
    for path in ("attend", "fused"):
        tensors = [query, keys, values] if bias is None else [query, keys, values, bias]
        inputs = [tensor.detach().clone().requires_grad_() for tensor in tensors]
        bias_input = inputs[3] if bias is not None else None
        with torch.autograd.set_detect_anomaly(True):  # no NaN in the backward pass
            if path == "attend":
                context = attend(*inputs[:3], score=score, mask=mask, bias=bias_input, cleared=True).context
            else:
                context = fused.dot(*inputs[:3], scale=score.dot_scale, mask=mask, bias=bias_input)
            (context.square().sum() + context.sum()).backward()
        results.append([context.detach(), *(tensor.grad for tensor in inputs)])
    for expected, actual in zip(*results, strict=True):
        assert expected.isfinite().all()
        near(actual, expected)
    allowed = masks.materialize(mask, query, keys)
    if allowed is not None:
        sees_nothing = (~allowed.any(-1)).expand(query.shape[:-1])
        context, query_gradient, *_ = results[1]
        assert (context[sees_nothing] == 0).all()
        assert (query_gradient[sees_nothing] == 0).all()


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("square", [False, True])
def test_the_fused_dot_is_attend(name, mask, biased, square):
    score, _ = make_score(name, HEAD_DIM, HEAD_DIM)
    score.double()
    queries = KEY if square else QUERY
    hidden = MASKS[mask]()
    if isinstance(hidden, Tensor) and hidden.shape[-2] > 1:
        hidden = torch.cat([hidden] * 2, dim=-2)[..., :queries, :]
    bias = random(HEADS, queries, KEY) if biased else None
    keys, values = random(BATCH, HEADS, KEY, HEAD_DIM), random(BATCH, HEADS, KEY, HEAD_DIM + 2)
    assert_fused_is_attend(score, random(BATCH, HEADS, queries, HEAD_DIM), keys, values, hidden, bias)


BEAMS = 2
BEAM_MASKS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "keys": lambda: masks.from_lengths(torch.tensor([7, 4, 0]), KEY)[:, None, None, None],
    "queries": lambda: _some_rows_see_nothing(BATCH, 1, 1),
    "beams": lambda: _some_rows_see_nothing(BATCH, BEAMS, 1),
    "alone": lambda: _some_rows_see_nothing(BATCH, BEAMS, HEADS),
    "causal": lambda: Causal(2),
}


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("mask", BEAM_MASKS)
@pytest.mark.parametrize("biased", [False, True])
def test_the_fused_dot_is_attend_for_beams_that_share_their_keys(name, mask, biased):
    score, _ = make_score(name, HEAD_DIM, HEAD_DIM)
    score.double()
    bias = random(HEADS, QUERY, KEY) if biased else None
    query = random(BATCH, BEAMS, HEADS, QUERY, HEAD_DIM)
    keys, values = random(BATCH, 1, HEADS, KEY, HEAD_DIM), random(BATCH, 1, HEADS, KEY, HEAD_DIM + 2)
    assert_fused_is_attend(score, query, keys, values, BEAM_MASKS[mask](), bias)


@pytest.mark.takes("fused_attention")
def test_a_fused_scope_gives_no_weights():
    scope = SCOPES["global"](make_score("scaled_dot", HEAD_DIM, HEAD_DIM)[0], query_dim=HEAD_DIM, fused=True)
    inputs = (
        torch.randn(BATCH, HEADS, QUERY, HEAD_DIM),
        torch.randn(BATCH, HEADS, KEY, HEAD_DIM),
        torch.randn(BATCH, HEADS, KEY, 2),
    )
    fast, defined = (scope(*inputs, mask=None, cleared=cleared) for cleared in (True, False))
    assert fast.weights is None
    assert defined.weights is not None
    torch.testing.assert_close(fast.context, defined.context)


@pytest.mark.parametrize("fused_path", [False, True])
@pytest.mark.parametrize("normalizer", DIFFERENTIABLE)
def test_dropped_weights_are_missing_in_the_context_and_the_others_are_scaled_up(normalizer, fused_path):
    """The values are unit vectors, one for each key, so that a context is the row of its weights."""
    keys, values = random(200, HEADS, KEY, HEAD_DIM), torch.eye(KEY, dtype=torch.float64).expand(200, HEADS, -1, -1)
    query = random(200, HEADS, QUERY, HEAD_DIM)
    mask = (torch.rand(200, 1, 1, KEY) < 0.7).index_fill_(-1, torch.tensor([0]), True)
    scope = SCOPES["global"](
        make_score("scaled_dot", HEAD_DIM, HEAD_DIM)[0].double(),
        NORMALIZERS[normalizer].function,
        query_dim=HEAD_DIM,
        fused=fused_path,
        dropout=0.25,
    )

    def context() -> Tensor:
        return scope(query, keys, values, mask=mask, cleared=True).context

    whole, dropped = scope.eval() and context(), scope.train() and context()
    near(whole, scope.weigh(query, keys, mask=mask))
    positive = whole > 0
    kept = dropped > 0
    assert not kept[~positive].any()
    near(dropped[kept], whole[kept] / 0.75)
    assert kept[positive].double().mean().item() == pytest.approx(0.75, abs=0.01)
    assert not torch.equal(dropped, context())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_inner_states_of_feed_forward_layers_are_dropped_and_the_others_are_scaled_up(activation):
    site = Site(lambda width: None, heads=1, groups=0)
    sizes = {"attention": site, "cross": site, "dim": 8, "layers": 1, "inner_dim": 4000, "longest": 8}
    shares = {"dropout": 0.0, "inner_dropout": 0.25}
    names = {"norm": "pre", "activation": activation, "positions": "none"}
    feed, inner_states = FeedForward(Shape(**sizes, **shares, **names)), []
    feed.out.register_forward_pre_hook(lambda module, inputs: inner_states.append(inputs[0].detach()))
    states = torch.randn(5, 3, 8)
    feed.eval()(states)
    feed.train()(states)
    whole, dropped = inner_states
    kept = dropped != 0
    assert not kept[whole == 0].any()
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.75, rtol=1e-4, atol=1e-6)
    assert kept[whole != 0].double().mean().item() == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize("name", INITS)
def test_weights_are_initialised_as_in_the_papers(name):
    torch.manual_seed(1)
    sides = {"kind": "transformer", "dim": 64, "layers": 2}
    model = build(
        recipes.Model(
            init=name,
            encoder=recipes.Encoder(**sides),
            decoder=recipes.Decoder(**sides),
            attention=recipes.Attention(score="scaled_dot", heads=2),
        ),
        source_size=3000,
        target_size=3000,
    )
    for part, layer in model.named_modules():
        if not isinstance(layer, nn.Linear) or part == "decoder.out":
            continue
        glorot = math.sqrt(2 / (layer.in_features + layer.out_features))
        small = 0.02 / 2 if part.endswith("out") else 0.02
        assert layer.weight.std().item() == pytest.approx({"glorot": glorot, "small": small}[name], rel=0.1)
        assert not layer.bias.any()
    words = model.encoder.embedding.weight
    size = {"glorot": 1.0, "small": 0.02}[name]  # after the factor sqrt(width)
    assert words[4:].std().item() * math.sqrt(64) == pytest.approx(size, rel=0.1)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("normalizer", "scope"),
    dict.fromkeys([*product(["softmax"], SCOPES), *product(NORMALIZERS, ["global"]), ("sparsemax", "local_p")]),
)
def test_weigh_of_a_fused_scope_gives_the_weights_of_the_definition(score, normalizer, scope):
    score_module, _ = make_score(score, HEAD_DIM, HEAD_DIM, HEAD_DIM)
    function = NORMALIZERS[normalizer].function
    fast, defined = (
        SCOPES[scope](score_module, function, query_dim=HEAD_DIM, window=2, fused=is_fused)
        for is_fused in (True, False)
    )
    draw_weights(fast, 0.5)
    defined.load_state_dict(fast.state_dict())
    for attention in (fast, defined):
        attention.double().eval()
    query, keys = random(BATCH, HEADS, QUERY, HEAD_DIM), fast.project(random(BATCH, HEADS, KEY, HEAD_DIM))
    values, bias = random(BATCH, HEADS, KEY, HEAD_DIM), random(HEADS, QUERY, KEY)
    for mask, bias_or_none in product((None, MASKS["keys"](), Causal(2)), (None, bias)):
        options = {"mask": mask, "bias": bias_or_none, "start": 2}
        expected = defined(query, keys, values, **options)
        same(fast.weigh(query, keys, **options), expected.weights)
        attended = fast(query, keys, values, cleared=True, **options)
        near(attended.context, expected.context)
        is_fused = score in FUSED and normalizer == "softmax" and scope != "local_p" and not are_definitions_only()
        assert (attended.weights is None) == is_fused


# Positions


def test_sinusoids_are_their_equation():
    """Vaswani et al. 2017, 3.5; sine and cosine of a pair share the exponent 2i / dim."""
    for dim in (2, 6, 7, 10):
        table = sinusoids(torch.arange(40), dim)
        near(table, torch.tensor([sinusoid(at, dim) for at in range(40)], dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("dim", [6, 10])
def test_sinusoids_of_a_later_position_are_a_rotation_by_the_distance(dim):
    """Vaswani et al. 2017, 3.5: PE(pos + k) is a linear function of PE(pos): each pair is rotated by k's angle."""
    table = sinusoids(torch.arange(200), dim)
    for step in range(60):
        matrix = torch.zeros(dim, dim, dtype=torch.float64)
        for pair in range(dim // 2):
            angle, both = step / 10000 ** (2 * pair / dim), slice(2 * pair, 2 * pair + 2)
            matrix[both, both] = torch.tensor(
                [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64
            )
        near(table[: 200 - step] @ matrix, table[step:])


def test_wavelengths_run_from_two_pi_to_ten_thousand_times_as_much():
    dim = 6
    sines = sinusoids(torch.arange(400_000), dim)[:, 0::2]
    for pair in range(dim // 2):
        wave = sines[:, pair]
        crossings = ((wave[:-1] < 0) & (wave[1:] >= 0)).nonzero().flatten()
        length = (crossings[-1] - crossings[0]).item() / (len(crossings) - 1)
        expected = 2 * math.pi * 10000 ** (2 * pair / dim)
        assert length == pytest.approx(expected, rel=2e-5)
    assert expected == 2 * math.pi * 10000 ** ((dim - 2) / dim)


@pytest.mark.parametrize("start", [0, 5, 27, 40])
def test_sinusoids_beyond_the_table_are_computed(start):
    positions, words = make_positions("sinusoidal"), random(BATCH, 4, 10)
    expected = torch.tensor([sinusoid(at, 10) for at in range(start, start + 4)], dtype=torch.float64)
    near(positions.embed(words, start) - words, expected.expand(BATCH, -1, -1))


def test_learned_positions_are_rows_of_a_table_and_longer_texts_are_refused():
    positions, words = make_positions("learned", longest=9), random(BATCH, 4, 10)
    near(positions.embed(words, 5) - words, positions.table.weight[5:9].expand(BATCH, -1, -1))
    message = (
        "a text of 10 tokens is longer than the 9 positions that were learned; "
        "raise model.longest and train again, or choose model.positions = sinusoidal"
    )
    with pytest.raises(DataError) as error:
        positions.embed(words, 6)
    assert str(error.value) == message
    model = make_model(transformer("learned"))
    with pytest.raises(DataError, match="a text of 30 tokens is longer than the 29"):
        model.encoder(make_sources(30))
    with pytest.raises(DataError, match="a text of 31 tokens is longer than the 29"):
        model.decoder(make_tokens(1, 31), model.encoder(make_sources(5)))


def test_rotation_keeps_norms_and_the_first_position():
    positions, vectors = make_positions("rotary"), random(BATCH, HEADS, 40, HEAD_DIM)
    rotated = positions.rotate(vectors, 0)
    near(rotated.norm(dim=-1), vectors.norm(dim=-1))
    same(rotated[:, :, 0], vectors[:, :, 0])
    near(positions.rotate(vectors[:, :, 13:17], 13), rotated[:, :, 13:17])
    assert (rotated[:, :, 1:] - vectors[:, :, 1:]).abs().amax(-1).min() > 1e-3
    coarse = vectors.to(torch.bfloat16)
    assert positions.rotate(coarse, 0).dtype == torch.bfloat16
    near(positions.rotate(coarse, 500).double(), positions.rotate(coarse.double(), 500), 0.03)  # angles are not rounded


def test_products_of_rotated_vectors_depend_only_on_the_distance():
    positions, query, key = make_positions("rotary"), random(HEAD_DIM), random(HEAD_DIM)

    def product_at(query_position: int, key_position: int) -> Tensor:
        rotated_query = positions.rotate(query.unsqueeze(0), query_position)[0]
        return rotated_query @ positions.rotate(key.unsqueeze(0), key_position)[0]

    for distance in (0, 1, 7, 50):
        for at in (1, 12, 300):
            near(product_at(at + distance, at), product_at(distance, 0))
            near(product_at(at, at + distance), product_at(0, distance))
    assert abs(product_at(3, 0) - product_at(0, 3)) > 1e-3  # the sign of the distance matters
    near(product_at(5, 5), query @ key)


@pytest.mark.parametrize("causal", [True, False])
def test_buckets_are_those_of_the_paper(causal):
    positions = make_positions("relative", causal=causal)
    distances = range(-300, 301)
    expected = [bucket(distance, causal) for distance in distances]
    assert positions.bucket(torch.tensor([list(distances)]))[0].tolist() == expected
    # bucket 16 would be for later keys at distance 0, of which there are none
    assert set(expected) == set(range(32)) - (set() if causal else {16})
    bias = positions.bias(QUERY, KEY, 2)
    assert bias.shape == (HEADS, QUERY, KEY)
    for head, query, key in product(range(HEADS), range(QUERY), range(KEY)):
        near(bias[head, query, key], positions.weight.weight[bucket(key - query - 2, causal), head])


@pytest.mark.parametrize("heads", [1, 2, 3, 8])
def test_slopes_are_those_of_the_paper(heads):
    positions = POSITIONS["alibi"](dim=24, heads=heads, longest=29, causal=False)
    expected = torch.tensor([slope(head, heads) for head in range(heads)])
    torch.testing.assert_close(positions.slopes, expected, rtol=1e-6, atol=0.0)
    if heads == 8:
        assert positions.slopes.tolist() == [2.0**-head for head in range(1, 9)]
    bias = positions.bias(KEY, KEY, 0)
    same(bias, bias.transpose(1, 2))  # the same for earlier and later keys
    assert (bias.diagonal(dim1=1, dim2=2) == 0).all()
    for query, key in product(range(QUERY), range(KEY)):
        near(positions.bias(QUERY, KEY, 2)[:, query, key], -positions.slopes * abs(key - query - 2), 1e-6)
    assert not list(positions.parameters())


@every_position
@pytest.mark.parametrize("causal", [True, False])
def test_tokens_from_a_later_start_have_the_positions_of_the_whole_text(name, causal):
    """This holds for embeddings, rotations and biases of every kind of positions."""
    positions, words, vectors = (
        make_positions(name, causal=causal),
        random(BATCH, 8, 10),
        random(BATCH, HEADS, 8, HEAD_DIM),
    )
    near(positions.embed(words[:, 3:], 3), positions.embed(words, 0)[:, 3:])
    near(positions.rotate(vectors[:, :, 3:], 3), positions.rotate(vectors, 0)[:, :, 3:])
    whole, part = positions.bias(8, 8, 0), positions.bias(5, 8, 3)
    same(part, None if whole is None else whole[:, 3:])


# Which of embeddings, rotations and biases each kind of positions changes; a new entry of the table adds its own.
CHANGES = {
    "none": set(),
    "sinusoidal": {"embed"},
    "learned": {"embed"},
    "rotary": {"rotate"},
    "relative": {"bias"},
    "alibi": {"bias"},
}
PARAMETER_COUNTS = {"none": 0, "sinusoidal": 0, "learned": 29 * 10, "rotary": 0, "relative": 32 * HEADS, "alibi": 0}


@every_position
def test_positions_change_only_their_own_step_and_have_only_their_parameters(name):
    positions, words, vectors = make_positions(name), random(BATCH, 8, 10), random(BATCH, HEADS, 8, HEAD_DIM)
    is_changed = {
        "embed": not torch.equal(positions.embed(words, 0), words),
        "rotate": not torch.equal(positions.rotate(vectors, 0), vectors),
        "bias": positions.bias(8, 8, 0) is not None,
    }
    assert {step for step, changed in is_changed.items() if changed} == CHANGES[name]
    assert sum(parameter.numel() for parameter in positions.parameters()) == PARAMETER_COUNTS[name]
    assert all(key.endswith("weight") for key in positions.state_dict())  # only learned tables are stored


@every_position
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_only_an_encoder_without_positions_ignores_the_order_of_tokens(name, norm):
    model = make_model(transformer(name, norm))
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    source = make_sources(7, 7)
    permuted = Padded(source.ids[:, order], source.mask)
    states, permuted_states = (model.encoder(batch).states for batch in (source, permuted))
    if name == "none":
        near(permuted_states, states[:, order])
    else:
        assert (permuted_states - states[:, order]).abs().max() > 1e-3


# Later tokens must not leak into earlier predictions


@pytest.mark.parametrize("case", [case for case in TRANSFORMERS if case.decoder == "transformer"], ids=str)
def test_later_tokens_change_no_bit_of_earlier_predictions(case):
    model, tokens = make_model(case, dtype=torch.float32), make_tokens(BATCH, TARGET)
    memory = model.encoder(make_sources(*LENGTHS))
    expected = model.decoder(tokens, memory)
    for known in range(1, TARGET):
        other = tokens.clone()
        other[:, known:] = (tokens[:, known:] - 4 + torch.randint(1, 5, (BATCH, TARGET - known))) % 5 + 4
        assert (other[:, known:] != tokens[:, known:]).all()
        with unchecked():
            step = model.decoder(other, memory)
        same(step.logits[:, :known], expected.logits[:, :known])
        same(step.attention[:, :known], expected.attention[:, :known])
        assert not torch.equal(step.logits[:, known:], expected.logits[:, known:])


@every_transformer()
def test_an_embedding_is_a_product_with_one_hot_vectors(case):
    model, tokens = make_model(case), make_tokens(BATCH)
    table = model.decoder.embedding.weight
    hot = functional.one_hot(tokens, len(table)).double()
    near(hot @ table, model.decoder.embedding(tokens))
    source = make_sources(*LENGTHS)
    hot = functional.one_hot(source.ids, len(model.encoder.embedding.weight)).double()
    memory = model.encoder.read(hot @ model.encoder.embedding.weight, source.mask)
    for mine, other in zip(leaves(memory), leaves(model.encoder(source)), strict=True):
        near(mine, other) if mine.is_floating_point() else same(mine, other)


# Tied weights


TIED = [
    transformer(tied=True),
    transformer("relative", encoder="recurrent", tied=True),
    transformer("learned", decoder="recurrent", tied=True),
    Case(tied=True),
]


@pytest.mark.parametrize("case", TIED, ids=str)
def test_one_matrix_embeds_both_sides_and_predicts(case):
    model = make_model(case)
    assert model.encoder.embedding.weight is model.decoder.embedding.weight
    assert model.decoder.out is None
    apart = make_model(case._replace(tied=False))
    assert apart.encoder.embedding.weight is not apart.decoder.embedding.weight
    assert apart.decoder.out.weight is not apart.decoder.embedding.weight
    step = model.decoder(make_tokens(BATCH), model.encoder(make_sources(*LENGTHS)))
    step.logits.logsumexp(-1).sum().backward()
    gradient = model.decoder.embedding.weight.grad
    assert gradient.any(-1).all()  # every word has one, at least as an output


@pytest.mark.parametrize("case", [*TIED, transformer("alibi"), Case(cell="lstm", layers=2)], ids=str)
def test_weights_are_stored_and_loaded_without_change(case):
    model, other = make_model(case), make_model(case)
    stored = weights(model)
    pointers = [tensor.data_ptr() for tensor in stored.values()]
    assert len(set(pointers)) == len(pointers) == len(list(model.parameters()))
    source, tokens = make_sources(*LENGTHS), make_tokens(BATCH)
    expected = model.decoder(tokens, model.encoder(source)).logits
    assert not torch.equal(other.decoder(tokens, other.encoder(source)).logits, expected)
    load_weights(other, load(save(stored)))
    same(other.decoder(tokens, other.encoder(source)).logits, expected)
    if case.tied:
        assert other.encoder.embedding.weight is other.decoder.embedding.weight


def test_weights_that_do_not_fit_are_refused():
    model = make_model(transformer(tied=True))
    stored = weights(model)
    name = next(name for name in stored if name.endswith("embedding.weight"))
    with pytest.raises(RuntimeError, match=name):
        load_weights(model, {other: tensor for other, tensor in stored.items() if other != name})
    with pytest.raises(RuntimeError, match="surplus"):
        load_weights(model, stored | {"surplus": torch.zeros(3)})
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_weights(model, stored | {name: torch.zeros(3, 5)})


def test_one_matrix_for_both_sides_needs_one_width():
    with pytest.raises(RecipeError, match=r"model.tied with tokens.shared needs encoder and decoder of one width"):
        build(make_recipe(transformer(tied=True)), source_size=11, target_size=11, shared=True)


# Language models


LANGUAGE = [
    *(transformer(positions, NORMS[number % 2], layers=1) for number, positions in enumerate(POSITIONS)),
    transformer("rotary", variant=Variant("scaled_dot", "softmax", "local_m", 4, 2)),
    transformer("sinusoidal", tied=True),
    Case("none", "lstm", 2),
    Case("none", "gru", start="zeros"),
    Case("none", "rnn", tied=True),
]
every_language_model = pytest.mark.parametrize("case", LANGUAGE, ids=str)


def make_language_model(case: Case, dtype: torch.dtype = torch.float64) -> LanguageModel:
    model = build_language_model(make_recipe(case), size=11)
    draw_weights(model, 0.5)
    return model.to(dtype).eval()


def empty_memory(rows: int, dtype: torch.dtype = torch.float64) -> Memory:
    return Memory.none(rows, torch.device("cpu"), dtype)


@every_language_model
@pytest.mark.parametrize("chunks", [(1,) * TARGET, (2, 1, 3)], ids=len)
def test_stepping_retells_forward_without_a_source(case, chunks):
    decoder, tokens, memory = make_language_model(case).decoder, make_tokens(BATCH), empty_memory(BATCH)
    expected = decoder(tokens, memory)
    assert expected.logits.shape == (BATCH, TARGET, 11)
    assert expected.attention is None
    prepared = decoder.prepare(memory)
    state = decoder.start(prepared)
    for chunk, wanted in zip(tokens.split(chunks, dim=1), expected.logits.split(chunks, dim=1), strict=True):
        step = decoder.step(chunk, state, prepared)
        near(step.logits, wanted)
        assert step.attention is None
        state = step.state
    for mine, other in zip(leaves(state), leaves(expected.state), strict=True):
        near(mine, other)


@every_language_model
def test_a_language_model_is_searched_like_any_other(case):
    with unchecked():
        decoder, memory = make_language_model(case).decoder, empty_memory(BATCH)
        prefix, limits = torch.tensor([[4, 5], [6, 4], [5, 5]]), [7, 5, 8]
        results = beam(decoder, memory, width=3, limits=limits, n_best=2, prefix=prefix)
        results += sample(decoder, memory, limits=limits, seeds=(1, 2, 3), prefix=prefix)
        for row, best in [(row % BATCH, best) for row, hypotheses in enumerate(results) for best in hypotheses]:
            assert best.tokens[:2] == prefix[row].tolist()
            assert best.map is None
            tokens = [*best.tokens, 3][: len(best.tokens) + best.finished]
            words = decoder(torch.tensor([[BEGIN, *tokens[:-1]]]), empty_memory(1)).logits.log_softmax(-1)[0]
            assert best.score == pytest.approx(sum(words[at, word].item() for at, word in enumerate(tokens)), abs=1e-9)


@every_language_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_language_model_predicts_each_token_from_earlier_ones(case, dtype):
    model = make_language_model(case, dtype)
    batch = make_batch([[4]] * 3, [[4, 5, 6], [7, 5], [8]])
    logits = model(batch).logits
    assert logits.shape == (3, 4, 11)
    assert logits.dtype == dtype
    alone = model.decoder(batch.target.ids[:1, :3], empty_memory(1, dtype)).logits
    near(logits[0, :3], alone[0], 1e-10 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("order", [order for order in ORDERS if ORDERS[order].needs_source()])
def test_an_order_that_needs_a_source_is_no_language_model(order):
    message = f"a language model has no source to attend to; choose model.decoder.order = none, not {order}"
    with pytest.raises(RecipeError, match=message):
        make_language_model(Case(order))


def test_only_the_order_none_without_the_start_last_needs_no_source():
    assert [order for order in ORDERS if not ORDERS[order].needs_source()] == ["none"]
    with pytest.raises(RecipeError, match="the start 'last' hands the encoder's state over as it is"):
        make_language_model(Case("none", start="last"))


def test_rotary_positions_need_even_heads():
    recipe = make_recipe(transformer("rotary"))
    odd = replace(recipe, decoder=replace(recipe.decoder, dim=10))
    with pytest.raises(RecipeError, match=r"rotary positions rotate pairs of numbers, so the width .* must be even"):
        build_language_model(odd, size=11)
