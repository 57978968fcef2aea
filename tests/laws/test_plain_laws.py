"""Laws of plain steps: the steps of a search on plain tensors equal those of the modules."""

from dataclasses import replace
from itertools import chain, product

import pytest
import torch
from small import make_sources, near

from regard import models
from regard import recipe as recipes
from regard.attention import POSITIONS, SCORES
from regard.attention.record import record
from regard.decoders import ORDERS, AnyDecoder
from regard.kernels.choose import FEW_ROWS, count_answers
from regard.kernels.linear import Linear
from regard.models import Seq2Seq
from regard.recipe import Attention, Decoder, Encoder
from regard.search import beam
from regard.types import BEGIN, Memory

LENGTHS = (7, 4, 2)
TOKENS = torch.tensor([[BEGIN, 5, 7, 4, 9], [BEGIN, 6, 6, 8, 4], [BEGIN, 9, 4, 5, 5]])


def build_random(recipe: recipes.Model) -> Seq2Seq:
    """A model with large random weights."""
    model = models.build(recipe, source_size=11, target_size=13).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    return model


def make(
    norm: str = "pre",
    positions: str = "sinusoidal",
    groups: int = 0,
    score: str = "scaled_dot",
    *,
    tied: bool = False,
) -> Seq2Seq:
    sides = {"kind": "transformer", "dim": 12, "layers": 2, "inner_dim": 20}
    recipe = recipes.Model(
        encoder=Encoder(**sides),
        decoder=Decoder(**sides),
        attention=Attention(score=score, heads=2, groups=groups),
        norm=norm,
        positions=positions,
        tied=tied,
    )
    return build_random(recipe)


def steps(decoder: AnyDecoder, memory: Memory, *, plain: bool, width: int = 1) -> list[torch.Tensor]:
    """Logits and maps of all tokens, one step after another."""
    with torch.no_grad():
        prepared = decoder.prepare(memory)
        prepared = prepared if plain else replace(prepared, plain=None)
        state, results = decoder.start(prepared).repeat(width), []
        for token in TOKENS.repeat_interleave(width, dim=0).unsqueeze(-1).unbind(1):
            step = decoder.step(token, state, prepared)
            state = step.state
            results += [step.logits] if step.attention is None else [step.logits, step.attention]
    return results


def steps_alike(model: Seq2Seq, lengths: tuple[int, ...], *, width: int) -> bool:
    """Assert that plain steps equal those of the modules; returns whether the plain path was taken."""
    memory = model.encoder(make_sources(*lengths))
    results = [steps(model.decoder, memory, plain=plain, width=width) for plain in (True, False)]
    for actual, expected in zip(*results, strict=True):
        near(actual, expected)
    with torch.no_grad():
        return model.decoder.prepare(memory).plain is not None


def make_recurrent(order: str, cell: str = "lstm", layers: int = 1, **attention: object) -> Seq2Seq:
    """A recurrent model of any order; `attention` are settings of its attention."""
    recipe = recipes.Model(
        embedding=6,
        encoder=Encoder(cell=cell, dim=8),
        decoder=Decoder(order=order, cell=cell, dim=8, layers=max(layers, 2) if "gnmt" in order else layers),
        attention=Attention(**{"score": "additive", "dim": 6, **attention}),
    )
    return build_random(recipe)


@pytest.mark.takes("plain_recurrent")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize(("lengths", "width"), [((7, 4, 2), 1), ((7, 4, 2), 3), ((4, 4, 4), 2)])
def test_a_plain_step_is_the_step_of_the_order(order, cell, lengths, width):
    model = make_recurrent(order, cell, layers=2 if width == 3 else 1)
    assert steps_alike(model, lengths, width=width)


@pytest.mark.takes("plain_recurrent")
@pytest.mark.parametrize("order", [name for name, order in ORDERS.items() if order.attends()])
def test_a_plain_step_honours_the_gate_of_the_context(order):
    recipe = recipes.Decoder(order=order, cell="lstm", dim=8, layers=2, gated_context=True)
    model = build_random(recipes.Model(embedding=6, encoder=Encoder(dim=8), decoder=recipe))
    assert steps_alike(model, (7, 4, 2), width=3)


@pytest.mark.takes("plain_recurrent")
@pytest.mark.parametrize("score", SCORES)
def test_recurrent_decoders_take_the_plain_path_with_any_score(score):
    model = make_recurrent("bahdanau", score=score)
    assert steps_alike(model, LENGTHS, width=3)


@pytest.mark.parametrize(
    "attention",
    [{"scope": "local_m", "window": 2}, {"scope": "coverage"}, {"normalizer": "sparsemax"}, {"heads": 2}, {}],
)
def test_other_attentions_and_hooked_modules_take_the_general_path(attention):
    model = make_recurrent("bahdanau", **attention)
    if not attention:
        model.decoder.readout.register_forward_hook(lambda *inputs: None)
    memory = model.encoder(make_sources(*LENGTHS))
    with torch.no_grad():
        prepared = model.decoder.prepare(memory)
        assert prepared.plain is None
        assert model.decoder.step(TOKENS[:, :1], model.decoder.start(prepared), prepared).logits.isfinite().all()


@pytest.mark.takes("plain_transformer")
@pytest.mark.parametrize(("norm", "positions"), list(product(("pre", "post"), POSITIONS)))
@pytest.mark.parametrize("width", [1, 3])
def test_a_plain_step_is_the_step_of_the_layers(norm, positions, width):
    model = make(norm, positions)
    assert steps_alike(model, LENGTHS, width=width)


@pytest.mark.takes("plain_transformer", "one_row_step", "few_queries", "keys_by_columns")
@pytest.mark.parametrize("count", [1, FEW_ROWS, FEW_ROWS + 1])
def test_any_number_of_sources_steps_alike(count, monkeypatch):
    monkeypatch.setitem(globals(), "TOKENS", TOKENS[:1].repeat(count, 1))
    with count_answers() as answers:
        assert steps_alike(make(), tuple(2 + row % 6 for row in range(count)), width=1)
    taken = [bool(answers[name].taken) for name in ("one_row_step", "few_queries", "keys_by_columns")]
    assert taken == [count == 1, count <= FEW_ROWS, count > FEW_ROWS]


@pytest.mark.takes("plain_transformer")
@pytest.mark.parametrize("score", SCORES)
def test_only_dot_and_scaled_dot_take_the_plain_path_and_all_scores_step_alike(score):
    model = make(score=score)
    assert steps_alike(model, LENGTHS, width=1) == (score in ("dot", "scaled_dot"))


@pytest.mark.takes("columns", "tied_columns")
@pytest.mark.parametrize("tied", [False, True])
def test_storing_by_columns_changes_no_result_and_draws_no_random_numbers(tied):
    model = make(tied=tied)
    sources = make_sources(*LENGTHS)
    memory = model.encoder(sources)
    before, generator_state = steps(model.decoder, memory, plain=True), torch.get_rng_state()
    models.store_by_columns(model)
    assert torch.equal(torch.get_rng_state(), generator_state)
    assert all(part.weight.t().is_contiguous() for part in model.modules() if isinstance(part, Linear))
    assert model.decoder.embedding.weight.is_contiguous()
    stored_memory = model.encoder(sources)
    near(stored_memory.states, memory.states)
    for plain in (True, False):
        for mine, other in zip(steps(model.decoder, stored_memory, plain=plain), before, strict=True):
            near(mine, other)


def make_tied(order: str | None) -> Seq2Seq:
    """A Transformer, or a recurrent model of that order, whose output layer is its embedding (tied weights)."""
    if order is None:
        return make(tied=True)
    return build_random(
        recipes.Model(tied=True, embedding=8, encoder=Encoder(dim=10), decoder=Decoder(order=order, dim=8))
    )


@pytest.mark.parametrize("order", [None, "bahdanau"])
def test_storing_by_columns_keeps_parameters_ties_and_the_keys_of_the_state_dict(order):
    model = make_tied(order)
    parameters, keys = list(model.named_parameters()), list(model.state_dict())
    models.store_by_columns(model)
    assert all(mine is other for (_, mine), (_, other) in zip(model.named_parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("order", [None, "bahdanau"])
def test_tied_weights_stored_by_columns_follow_every_change_of_the_embedding(order):
    model, sources = make_tied(order), make_sources(*LENGTHS)
    models.store_by_columns(model)
    steps(model.decoder, model.encoder(sources), plain=True)
    other = make_tied(order)
    model.load_state_dict(other.state_dict())
    with torch.no_grad():
        for changed in (model, other):
            changed.decoder.embedding.weight[5] += 1.0
    expected_steps = steps(other.decoder, other.encoder(sources), plain=True)
    for actual, expected in zip(steps(model.decoder, model.encoder(sources), plain=True), expected_steps, strict=True):
        near(actual, expected)
    model.decoder(TOKENS, model.encoder(sources)).logits.sum().backward()
    other.decoder(TOKENS, other.encoder(sources)).logits.sum().backward()
    near(model.decoder.embedding.weight.grad, other.decoder.embedding.weight.grad)


@pytest.mark.parametrize("order", [None, "bahdanau", "luong_feeding"])
def test_recording_plain_steps_changes_no_bit_and_equals_recording_the_modules(order):
    model = make_recurrent(order) if order else make()
    memory = model.encoder(make_sources(*LENGTHS))
    expected = steps(model.decoder, memory, plain=True, width=3)
    recorded = []
    for plain in (True, False):
        with record(model.decoder) as recording:
            actual = steps(model.decoder, memory, plain=plain, width=3)
        recorded.append(recording.calls)
        if plain:
            assert all(torch.equal(mine, other) for mine, other in zip(actual, expected, strict=True))
    assert recorded[0].keys() == recorded[1].keys()
    for name, calls in recorded[0].items():
        for mine, other in zip(calls, recorded[1][name], strict=True):
            near(mine, other)


def test_recording_a_search_changes_no_result():
    model = make()
    memory = model.encoder(make_sources(*LENGTHS))
    expected = beam(model.decoder, memory, width=3, limits=[6] * 3, n_best=3)
    with record(model.decoder):
        actual = beam(model.decoder, memory, width=3, limits=[6] * 3, n_best=3)
    for mine, other in zip(chain(*actual), chain(*expected), strict=True):
        assert (mine.tokens, mine.score) == (other.tokens, other.score)
        assert torch.equal(mine.map, other.map)


def test_two_steps_from_one_state_do_not_disturb_each_other():
    """Both write into the cache after the state, and neither into the keys that the other reads."""
    model = make()
    memory = model.encoder(make_sources(*LENGTHS))
    with torch.no_grad():
        prepared = model.decoder.prepare(memory)
        state = model.decoder.step(TOKENS[:, :1], model.decoder.start(prepared), prepared).state
        keys_before = [layer.keys.clone() for layer in state.layers]
        first = model.decoder.step(TOKENS[:, 1:2], state, prepared)
        keys_of_first = [layer.keys.clone() for layer in first.state.layers]
        other = model.decoder.step(TOKENS[:, 2:3], state, prepared)
        again = model.decoder.step(TOKENS[:, 1:2], state, prepared)
    assert torch.equal(first.logits, again.logits)
    assert not torch.equal(first.logits, other.logits)
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(state.layers, keys_before, strict=True))
    assert all(torch.equal(layer.keys, keys) for layer, keys in zip(first.state.layers, keys_of_first, strict=True))


@pytest.mark.parametrize("obstacle", ["score", "groups", "hook", "grad", "training", "nothing to see"])
def test_the_modules_step_if_something_prevents_the_plain_path(obstacle):
    model = make(score="additive" if obstacle == "score" else "scaled_dot", groups=int(obstacle == "groups"))
    memory = model.encoder(make_sources(*LENGTHS))
    if obstacle == "hook":
        model.decoder.layers[0].feed.register_forward_hook(lambda *inputs: None)
    if obstacle == "training":
        model.train()
    if obstacle == "nothing to see":
        memory.mask[1] = False
    with torch.set_grad_enabled(obstacle == "grad"):
        prepared = model.decoder.prepare(memory)
        assert prepared.plain is None
        step = model.decoder.step(TOKENS[:, :1], model.decoder.start(prepared), prepared)
    assert step.logits.isfinite().all()


def test_maps_of_a_search_may_be_part_of_a_loss():
    model = make()
    ((best,),) = beam(model.decoder, model.encoder(make_sources(3)), width=1, limits=[4])
    weight = torch.ones_like(best.map, requires_grad=True)
    (best.map * weight).sum().backward()
    assert torch.equal(weight.grad, best.map)
