"""Laws of converted models: half precision, the meta device, vmap, pickle and deepcopy."""

import copy
import pickle

import pytest
import torch
from small import (
    BATCH,
    KEY,
    QUERY,
    Case,
    Variant,
    every_variant,
    make_attention,
    make_model,
    make_score,
    make_sources,
    near,
    same,
    transformer,
)
from torch import Tensor, nn

from regard.attention import SCOPES, SCORES
from regard.attention.pooling import POOLINGS
from regard.attention.positions import POSITIONS
from regard.attention.scopes import Global
from regard.decoders import ORDERS
from regard.encoders import TransformerEncoder
from regard.errors import RecipeError
from regard.layers.recurrence import CELLS
from regard.layers.transformer import FeedForward
from regard.maps import TEXT
from regard.models import Seq2Seq
from regard.models.letters import LETTERS, Spelled
from regard.search import beam
from regard.types import BEGIN, Memory, Padded, Recurrent, Step
from shapes import unchecked

LENGTHS = (7, 4, 2)
TOKENS = torch.tensor([[BEGIN, 5, 7, 4, 9], [BEGIN, 6, 6, 8, 4], [BEGIN, 9, 4, 5, 5]])
HALVES = {torch.float16: 0.02, torch.bfloat16: 0.12}  # tolerances for the rounding of logits of about one

CASES = [
    *(Case(order, cell, 2) for order in ORDERS for cell in CELLS),
    *(Case(variant=Variant(score)) for score in SCORES),
    *(Case("luong", variant=Variant(scope=scope)) for scope in SCOPES),
    Case("luong_feeding", variant=Variant("additive", heads=3)),
    *(transformer(positions) for positions in POSITIONS),
    *(transformer(variant=Variant(score, heads=2), layers=1) for score in SCORES),
    *(transformer(variant=Variant("scaled_dot", scope=scope, heads=2), layers=1) for scope in ("local_m", "local_p")),
    transformer("learned", "post", order="luong", decoder="recurrent"),
    transformer("rotary", encoder="gnmt", cell="lstm"),
]
every_case = pytest.mark.parametrize("case", dict.fromkeys(CASES), ids=str)


def step_logits(model: Seq2Seq, memory: Memory) -> Tensor:
    """The logits of all tokens, computed step by step."""
    prepared = model.decoder.prepare(memory)
    state, logits = model.decoder.start(prepared), []
    for token in TOKENS.split(1, dim=1):
        step = model.decoder.step(token, state, prepared)
        state, logits = step.state, [*logits, step.logits]
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@every_case
def test_a_model_in_half_precision_gives_nearly_the_same(case, dtype):
    model, source = make_model(case, dtype=torch.float32, scale=0.2), make_sources(*LENGTHS)
    with torch.no_grad(), unchecked():
        expected = model.decoder(TOKENS, model.encoder(source))
        model.to(dtype)
        memory = model.encoder(source)
        whole = model.decoder(TOKENS, memory)
        assert whole.logits.dtype in (dtype, torch.float32)
        near(whole.logits.float(), expected.logits, HALVES[dtype])
        near(step_logits(model, memory).float(), whole.logits.float(), HALVES[dtype])
        if case.attends() and case.variant.scope != "local_p":  # rounding may move its window by a whole key
            near(whole.attention.float(), expected.attention, HALVES[dtype])
        for hypotheses in beam(model.decoder, memory, width=3, limits=[5] * BATCH):
            assert hypotheses[0].score > -50


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("case", [Case(), Case("gnmt", "lstm", 2), transformer()], ids=str)
def test_a_model_in_half_precision_has_finite_gradients(case, dtype):
    model = make_model(case, dtype=dtype, scale=0.2).train()
    step = model.decoder(TOKENS, model.encoder(make_sources(*LENGTHS)))
    step.logits.float().log_softmax(-1)[..., 5].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def on_meta(source: Padded) -> Padded:
    return Padded(source.ids.to("meta"), source.mask.to("meta"))


@every_case
def test_models_have_shapes_on_the_meta_device(case):
    model, source = make_model(case), make_sources(*LENGTHS)
    expected = model.decoder(TOKENS, model.encoder(source))
    model.to("meta")
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            memory = model.encoder(on_meta(source))
            step = model.decoder(TOKENS.to("meta"), memory)
            assert step.logits.is_meta
            assert step.logits.shape == expected.logits.shape
            prepared = model.decoder.prepare(memory)
            step = model.decoder.step(TOKENS[:, :1].to("meta"), model.decoder.start(prepared), prepared)
            assert step.logits.shape[1] == 1


@pytest.mark.parametrize("pooling", POOLINGS)
def test_poolings_have_shapes_on_the_meta_device(pooling):
    module = POOLINGS[pooling](dim=14, directions=2, make=lambda width: make_attention(Variant("dot"), width, width)[0])
    states, mask = torch.empty(BATCH, KEY, 14, device="meta"), torch.ones(BATCH, KEY, dtype=torch.bool, device="meta")
    summary = Recurrent(states[:, :1], None)
    assert module.to("meta")(Memory(states, mask, summary, TEXT)).vector.shape == (BATCH, 14)


@pytest.mark.parametrize("kind", LETTERS)
def test_letters_have_shapes_on_the_meta_device(kind):
    embedding = LETTERS[kind](11, embedding=6, dim=8).to("meta")
    letters = torch.zeros(BATCH, KEY, 9, dtype=torch.long, device="meta")
    words = Spelled(letters[..., 0], torch.ones(BATCH, KEY, dtype=torch.bool, device="meta"), letters)
    assert embedding(words).shape == (BATCH, KEY, 8)


COUNT = 4  # the size of the axis that vmap maps over


def assert_vmap_is_a_loop(layer: nn.Module, function: object, *inputs: Tensor) -> None:
    """Assert that vmap gives the results and the per-example gradients of a loop."""
    layer.double()
    expected = torch.stack([function(*rows) for rows in zip(*inputs, strict=True)])
    near(torch.func.vmap(function)(*inputs), expected)
    gradients = torch.func.vmap(torch.func.grad(lambda *rows: function(*rows).square().sum()))(*inputs)
    leaf = inputs[0].clone().requires_grad_()
    (0 * leaf.sum() + sum(function(*rows).square().sum() for rows in zip(leaf, *inputs[1:], strict=True))).backward()
    near(gradients, leaf.grad, 1e-8)


@pytest.mark.parametrize("name", SCORES)
def test_vmap_of_a_score_is_a_loop(name):
    score, query_dim = make_score(name)
    query, states = (torch.randn(COUNT, BATCH, *size).double() for size in ((QUERY, query_dim), (KEY, 13)))
    with unchecked():
        assert_vmap_is_a_loop(score, lambda query, states: score(query, score.project(states)), query, states)


@every_variant()
def test_vmap_of_an_attention_is_a_loop(variant):
    attention, query_dim = make_attention(variant)
    query, states = (torch.randn(COUNT, BATCH, *size).double() for size in ((QUERY, query_dim), (KEY, 13)))
    mask = torch.ones(BATCH, 1, KEY, dtype=torch.bool)
    mask[1, :, 4:] = False

    def context(query: Tensor, states: Tensor) -> Tensor:
        return attention(query, attention.project(states), attention.content(states), mask=mask).context

    with unchecked():
        assert_vmap_is_a_loop(attention, context, query, states)


@pytest.mark.parametrize("case", [transformer("rotary"), transformer("alibi", "post", Variant(heads=2))], ids=str)
def test_vmap_of_transformer_layers_is_a_loop(case):
    model = make_model(case)
    assert isinstance(model.encoder, TransformerEncoder)
    layer, mask = model.encoder.stack[0], torch.ones(BATCH, 1, 1, KEY, dtype=torch.bool)
    states = torch.randn(COUNT, BATCH, KEY, model.encoder.dim).double()
    positions = model.encoder.positions
    bias = positions.bias(KEY, KEY, 0)
    with unchecked():
        assert_vmap_is_a_loop(
            layer, lambda rows: layer.attention(rows, mask=mask, bias=bias, positions=positions)[0], states
        )
        assert isinstance(layer.feed, FeedForward)
        assert_vmap_is_a_loop(layer, layer.feed, states)


@pytest.mark.parametrize("case", [Case(), transformer("sinusoidal", "post", Variant(heads=2))], ids=str)
def test_per_example_gradients_equal_those_of_each_example_alone(case):
    """Computed by functional_call, grad and vmap over the target rows of a decoder."""
    model = make_model(case)
    memory = model.encoder(make_sources(5)).map_tensors(lambda rows: rows.detach())
    weights = dict(model.decoder.named_parameters())
    rows = TOKENS.unsqueeze(1)

    def loss(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
        step: Step = torch.func.functional_call(model.decoder, weights, (tokens, memory))
        return step.logits.square().sum()

    with unchecked():
        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, rows)
        for number, tokens in enumerate(rows):
            model.zero_grad()
            loss(weights, tokens).backward()
            for name, weight in weights.items():
                near(gradients[name][number], torch.zeros_like(weight) if weight.grad is None else weight.grad, 1e-8)


COPY_FUNCTIONS = {"pickle": lambda model: pickle.loads(pickle.dumps(model)), "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("copy_function", COPY_FUNCTIONS.values(), ids=list(COPY_FUNCTIONS))
@every_case
def test_a_copy_of_a_model_gives_the_same_logits(case, copy_function):
    model, source = make_model(case), make_sources(*LENGTHS)
    other = copy_function(model)
    assert not {id(each) for each in other.parameters()} & {id(each) for each in model.parameters()}
    with torch.no_grad(), unchecked():
        same(other.decoder(TOKENS, other.encoder(source)).logits, model.decoder(TOKENS, model.encoder(source)).logits)
        same(step_logits(other, other.encoder(source)), step_logits(model, model.encoder(source)))


@pytest.mark.parametrize(
    "variant", [Variant(scope="coverage"), Variant(scope="location_aware"), Variant(normalizer="hard")]
)
def test_a_transformer_encoder_has_plain_attention_if_the_decoder_has_a_past_or_is_hard(variant):
    model = make_model(transformer(variant=variant, decoder="recurrent", order="bahdanau", layers=1))
    encoder_attention = model.encoder.stack[0].attention.attention
    assert type(encoder_attention) is Global
    assert encoder_attention.normalize.__name__ == "softmax"
    assert type(model.decoder.attention) is SCOPES[variant.scope]
    assert model.decoder.attention.normalize.__name__ == variant.normalizer
    step = model.decoder(TOKENS, model.encoder(make_sources(*LENGTHS)))
    assert step.logits.isfinite().all()
    with pytest.raises(RecipeError):
        make_model(transformer(variant=variant))
