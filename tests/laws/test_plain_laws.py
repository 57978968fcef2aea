"""Laws of plain steps: what a search does token by token on plain tensors is what the layers do."""

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


def built(recipe: recipes.Model) -> Seq2Seq:
    """With weights that matter."""
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
    return built(recipe)


def steps(decoder: AnyDecoder, memory: Memory, *, plain: bool, width: int = 1) -> list[torch.Tensor]:
    """Logits and maps of all tokens, one by one."""
    with torch.no_grad():
        prepared = decoder.prepare(memory)
        prepared = prepared if plain else replace(prepared, plain=None)
        state, found = decoder.start(prepared).repeat(width), []
        for token in TOKENS.repeat_interleave(width, dim=0).unsqueeze(-1).unbind(1):
            step = decoder.step(token, state, prepared)
            state = step.state
            found += [step.logits] if step.attention is None else [step.logits, step.attention]
    return found


def steps_alike(model: Seq2Seq, lengths: tuple[int, ...], *, width: int) -> bool:
    """Hold the steps of a search against those of the modules; whether they went the plain way."""
    memory = model.encoder(make_sources(*lengths))
    ways = [steps(model.decoder, memory, plain=plain, width=width) for plain in (True, False)]
    for mine, other in zip(*ways, strict=True):
        near(mine, other)
    with torch.no_grad():
        return model.decoder.prepare(memory).plain is not None


def make_recurrent(order: str, cell: str = "lstm", layers: int = 1, **look: object) -> Seq2Seq:
    """An order that looks, or one that does not."""
    recipe = recipes.Model(
        embedding=6,
        encoder=Encoder(cell=cell, dim=8),
        decoder=Decoder(order=order, cell=cell, dim=8, layers=max(layers, 2) if "gnmt" in order else layers),
        attention=Attention(**{"score": "additive", "dim": 6, **look}),
    )
    return built(recipe)


@pytest.mark.takes("plain_recurrent")
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize(("lengths", "width"), [((7, 4, 2), 1), ((7, 4, 2), 3), ((4, 4, 4), 2)])
def test_a_plain_step_is_the_step_of_the_order(order, cell, lengths, width):
    model = make_recurrent(order, cell, layers=2 if width == 3 else 1)
    assert steps_alike(model, lengths, width=width)


@pytest.mark.takes("plain_recurrent")
@pytest.mark.parametrize("score", SCORES)
def test_recurrent_decoders_look_plainly_with_any_score(score):
    model = make_recurrent("bahdanau", score=score)
    assert steps_alike(model, LENGTHS, width=3)


@pytest.mark.parametrize(
    "look",
    [{"scope": "local_m", "window": 2}, {"scope": "coverage"}, {"normalizer": "sparsemax"}, {"heads": 2}, {}],
)
def test_other_looks_and_watched_modules_go_the_general_way(look):
    model = make_recurrent("bahdanau", **look)
    if not look:
        model.decoder.readout.register_forward_hook(lambda *given: None)
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
        assert steps_alike(make(), tuple(2 + place % 6 for place in range(count)), width=1)
    taken = [bool(answers[name].taken) for name in ("one_row_step", "few_queries", "keys_by_columns")]
    assert taken == [count == 1, count <= FEW_ROWS, count > FEW_ROWS]


@pytest.mark.takes("plain_transformer")
@pytest.mark.parametrize("score", SCORES)
def test_only_dot_products_of_the_states_themselves_go_the_plain_way_and_all_step_alike(score):
    model = make(score=score)
    assert steps_alike(model, LENGTHS, width=1) == (score in ("dot", "scaled_dot"))


@pytest.mark.takes("columns", "tied_columns")
@pytest.mark.parametrize("tied", [False, True])
def test_a_settled_model_says_the_same_and_leaves_the_chance_of_others_alone(tied):
    model = make(tied=tied)
    sources = make_sources(*LENGTHS)
    memory = model.encoder(sources)
    before, chance = steps(model.decoder, memory, plain=True), torch.get_rng_state()
    models.store_by_columns(model)
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(part.weight.t().is_contiguous() for part in model.modules() if isinstance(part, Linear))
    assert model.decoder.embedding.weight.is_contiguous()
    settled = model.encoder(sources)
    near(settled.states, memory.states)
    for plain in (True, False):
        for mine, other in zip(steps(model.decoder, settled, plain=plain), before, strict=True):
            near(mine, other)


def make_tied(order: str | None) -> Seq2Seq:
    """A Transformer, or a recurrent model of that order, whose decoder predicts words with what embeds them."""
    if order is None:
        return make(tied=True)
    return built(recipes.Model(tied=True, embedding=8, encoder=Encoder(dim=10), decoder=Decoder(order=order, dim=8)))


@pytest.mark.parametrize("order", [None, "bahdanau"])
def test_settling_keeps_every_parameter_its_ties_and_its_keys(order):
    model = make_tied(order)
    parameters, keys = list(model.named_parameters()), list(model.state_dict())
    models.store_by_columns(model)
    assert all(mine is other for (_, mine), (_, other) in zip(model.named_parameters(), parameters, strict=True))
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("order", [None, "bahdanau"])
def test_a_settled_tied_model_predicts_with_what_embeds_words_after_every_change(order):
    model, memory_of = make_tied(order), make_sources(*LENGTHS)
    models.store_by_columns(model)
    steps(model.decoder, model.encoder(memory_of), plain=True)
    other = make_tied(order)
    model.load_state_dict(other.state_dict())
    with torch.no_grad():
        for each in (model, other):
            each.decoder.embedding.weight[5] += 1.0
    wanted = steps(other.decoder, other.encoder(memory_of), plain=True)
    for mine, others in zip(steps(model.decoder, model.encoder(memory_of), plain=True), wanted, strict=True):
        near(mine, others)
    model.decoder(TOKENS, model.encoder(memory_of)).logits.sum().backward()
    other.decoder(TOKENS, other.encoder(memory_of)).logits.sum().backward()
    near(model.decoder.embedding.weight.grad, other.decoder.embedding.weight.grad)


@pytest.mark.parametrize("order", [None, "bahdanau", "luong_feeding"])
def test_looking_on_changes_no_bit_and_sees_what_the_layers_would_show(order):
    model = make_recurrent(order) if order else make()
    memory = model.encoder(make_sources(*LENGTHS))
    alone = steps(model.decoder, memory, plain=True, width=3)
    shown = []
    for plain in (True, False):
        with record(model.decoder) as recording:
            found = steps(model.decoder, memory, plain=plain, width=3)
        shown.append(recording.calls)
        if plain:
            assert all(torch.equal(mine, other) for mine, other in zip(found, alone, strict=True))
    assert shown[0].keys() == shown[1].keys()
    for name, calls in shown[0].items():
        for mine, other in zip(calls, shown[1][name], strict=True):
            near(mine, other)


def test_a_search_looked_at_finds_the_same():
    model = make()
    memory = model.encoder(make_sources(*LENGTHS))
    alone = beam(model.decoder, memory, width=3, limits=[6] * 3, n_best=3)
    with record(model.decoder):
        seen = beam(model.decoder, memory, width=3, limits=[6] * 3, n_best=3)
    for mine, other in zip(chain(*seen), chain(*alone), strict=True):
        assert (mine.tokens, mine.score) == (other.tokens, other.score)
        assert torch.equal(mine.map, other.map)


def test_a_state_may_be_gone_on_with_twice():
    """Both write after it, and neither into what the other reads."""
    model = make()
    memory = model.encoder(make_sources(*LENGTHS))
    with torch.no_grad():
        prepared = model.decoder.prepare(memory)
        state = model.decoder.step(TOKENS[:, :1], model.decoder.start(prepared), prepared).state
        before = [each.keys.clone() for each in state.layers]
        first = model.decoder.step(TOKENS[:, 1:2], state, prepared)
        kept = [each.keys.clone() for each in first.state.layers]
        other = model.decoder.step(TOKENS[:, 2:3], state, prepared)
        again = model.decoder.step(TOKENS[:, 1:2], state, prepared)
    assert torch.equal(first.logits, again.logits)
    assert not torch.equal(first.logits, other.logits)
    assert all(torch.equal(each.keys, kept) for each, kept in zip(state.layers, before, strict=True))
    assert all(torch.equal(each.keys, kept) for each, kept in zip(first.state.layers, kept, strict=True))


@pytest.mark.parametrize("why", ["score", "groups", "hook", "grad", "training", "nothing to see"])
def test_elsewhere_the_layers_step(why):
    model = make(score="additive" if why == "score" else "scaled_dot", groups=int(why == "groups"))
    memory = model.encoder(make_sources(*LENGTHS))
    if why == "hook":
        model.decoder.layers[0].feed.register_forward_hook(lambda *given: None)
    if why == "training":
        model.train()
    if why == "nothing to see":
        memory.mask[1] = False
    with torch.set_grad_enabled(why == "grad"):
        prepared = model.decoder.prepare(memory)
        assert prepared.plain is None
        step = model.decoder.step(TOKENS[:, :1], model.decoder.start(prepared), prepared)
    assert step.logits.isfinite().all()


def test_maps_that_search_gives_may_be_learned_from():
    model = make()
    ((best,),) = beam(model.decoder, model.encoder(make_sources(3)), width=1, limits=[4])
    weight = torch.ones_like(best.map, requires_grad=True)
    (best.map * weight).sum().backward()
    assert torch.equal(weight.grad, best.map)
