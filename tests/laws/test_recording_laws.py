"""Looking never changes the result: over every order, every Transformer and every way to look."""

import pytest
import torch
from small import (
    ATTENDING,
    BATCH,
    KINDS,
    Case,
    Variant,
    every_decoder,
    every_transformer,
    gradients,
    make_attention,
    make_model,
    make_sources,
    near,
    same,
    transformer,
)
from torch import Tensor
from worlds import LIMITS, make_world, worlds

from regard.attention.gates import GATES
from regard.attention.record import Recording, record
from regard.decoders import ORDERS
from regard.models import Seq2Seq
from regard.search import beam, sample
from regard.types import BEGIN, Step
from shapes import unchecked

LENGTHS = (7, 4, 2)
TARGET = 6
NAME = "decoder.attention"


def make_tokens() -> Tensor:
    tokens = torch.randint(4, 11, (BATCH, TARGET))
    tokens[:, 0] = BEGIN
    return tokens


def name_of(case: Case) -> str:
    """The name of the attention whose map the decoder reports."""
    if case.decoder == "transformer":
        return f"decoder.stack.{case.layers - 1}.cross.attention"
    return f"{NAME}.attention" if case.variant.heads > 1 else NAME


def names_of(case: Case) -> set[str]:
    """The names of all attentions of a model."""
    parts = [("encoder", "attention")] * (case.encoder == "transformer")
    parts += [("decoder", "attention"), ("decoder", "cross")] * (case.decoder == "transformer")
    names = {f"{side}.stack.{layer}.{part}.attention" for side, part in parts for layer in range(case.layers)}
    return names | ({name_of(case)} if case.attends() else set())


def gates_of(case: Case, *, learning: bool = False) -> set[str]:
    """The names of all gates of a model; while dropout falls between the layers of one stack, of the lowest alone."""
    if case.cell != "lstm":
        return set()
    layers = range(1 if learning else case.layers)
    parts = []
    if case.encoder == "recurrent":
        parts += [("encoder.recurrence", f"l{layer}{way}") for layer in layers for way in ("", "_reverse")]
    if case.decoder == "recurrent" and "gnmt" not in case.order:
        parts += [("decoder.recurrence", f"l{layer}") for layer in layers]
    towers = [("encoder", case.encoder), ("decoder.recurrence", case.order if case.decoder == "recurrent" else "")]
    for side, kind in towers:
        if "gnmt" in kind:
            parts += [(f"{side}.bottom", way) for way in ("l0", "l0_reverse")[: 2 if side == "encoder" else 1]]
            parts += [(f"{side}.tower.stack.{layer}", "l0") for layer in range(case.layers - 1)]
    return {f"{part}.rnn.{gate}_{place}" for part, place in parts for gate in GATES}


def learn(model: Seq2Seq, tokens: Tensor) -> tuple[Step, dict[str, Tensor | None]]:
    """One pass in training, with its chance, and back."""
    torch.manual_seed(5)
    model.zero_grad()
    torch.manual_seed(6)
    step = model.decoder(tokens, model.encoder(make_sources(*LENGTHS)))
    step.logits.logsumexp(-1).sum().backward()
    return step, gradients(model)


@every_decoder()
def test_looking_changes_no_bit(case):
    model = make_model(case, dropout=0.3, dtype=torch.float32).train()
    tokens = make_tokens()
    plain, expected = learn(model, tokens)
    with record(model) as seen:
        step, found = learn(model, tokens)
    same(step.logits, plain.logits)
    same(step.attention, plain.attention)
    assert found.keys() == expected.keys()
    for name in expected:
        same(found[name], expected[name])
    assert set(seen.weights) == gates_of(case, learning=True) | names_of(case)
    if not case.attends():
        return
    weights = seen.weights[name_of(case)]
    several = case.variant.heads > 1 or case.decoder == "transformer"
    assert weights.shape == (BATCH, 1, *[case.variant.heads] * several, TARGET, max(LENGTHS))
    assert not weights.requires_grad
    if case.decoder == "transformer":  # its fused path gives no map in training
        assert step.attention is None
    else:
        near(weights.flatten(1, -3).mean(1), step.attention.detach(), 0.0 if case.variant.heads == 1 else 1e-6)


@every_transformer()
def test_what_is_recorded_made_the_context(case):
    """Also under dropout, in every layer, and where a fused path gave no weights."""
    model = make_model(case, dropout=0.3).train()
    made: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in model.named_modules():
        if name in names_of(case):
            module.register_forward_hook(lambda _, given, said, name=name: made.update({name: (given[2], said[0])}))
    with record(model) as seen:
        memory = model.encoder(make_sources(*LENGTHS))
        model.decoder(make_tokens()[:, :1] if case.decoder == "recurrent" else make_tokens(), memory)
    assert set(made) == names_of(case)
    for name, (values, context) in made.items():
        near(seen.weights[name] @ values.detach(), context.detach())
        assert (seen.weights[name].flatten(0, -3).amax((-2, -1)) > 0).all()


@every_transformer()
def test_the_map_is_what_the_top_layer_recorded(case):
    model = make_model(case)
    with record(model) as seen:
        step = model.decoder(make_tokens(), model.encoder(make_sources(*LENGTHS)))
    if case.attends():
        near(seen.weights[name_of(case)].flatten(1, -3).mean(1), step.attention)


@worlds
def test_looking_changes_no_decoded_token(order, seed):
    world = make_world(order, seed, torch.float32)
    decoder, memory = world.model.decoder, world.memory

    def found() -> list[list[object]]:
        settings = {"limits": LIMITS, "prefix": None}
        searches = [
            beam(decoder, memory, width=1, **settings),
            beam(decoder, memory, width=3, n_best=3, **settings),
            sample(decoder, memory, seeds=(1, 2, 3), count=2, **settings),
        ]
        hypotheses = [each for search in searches for row in search for each in row]
        return [
            [each.tokens, each.score, each.finished, None if each.map is None else each.map.tolist()]
            for each in hypotheses
        ]

    with unchecked():
        expected = found()
        with record(world.model):
            assert found() == expected


@pytest.mark.parametrize("order", ["luong", "transformer_post"])
def test_what_a_search_recorded_is_no_one_map(order):
    world = make_world(order)
    with unchecked(), record(world.model) as seen:
        beam(world.model.decoder, world.memory, width=2, limits=(9, 1, 4))
    with pytest.raises(
        ValueError, match=r"ran on batches of several sizes.*in a search take the map of each hypothesis"
    ):
        _ = seen.weights


@pytest.mark.parametrize("case", [case for case in KINDS if case.attends()], ids=str)
def test_stepping_is_recorded_row_by_row(case):
    model, tokens = make_model(case), make_tokens()
    memory = model.encoder(make_sources(*LENGTHS))
    with record(model) as whole:
        expected = model.decoder(tokens, memory)
    prepared = model.decoder.prepare(memory)
    state = model.decoder.start(prepared)
    with record(model) as stepped:
        for piece in tokens.split((1, 3, 2), dim=1):
            state = model.decoder.step(piece, state, prepared).state
    assert set(stepped.weights) == {name for name in names_of(case) if name.startswith("decoder")}
    for name, weights in stepped.weights.items():
        near(weights, whole.weights[name])
    near(stepped.weights[name_of(case)].flatten(1, -3).mean(1), expected.attention)


def test_passes_over_other_keys_are_no_one_map():
    model = make_model(transformer())
    with record(model) as seen:
        for lengths in (LENGTHS, (5, 4, 2)):
            model.encoder(make_sources(*lengths))
    with pytest.raises(ValueError, match=r"ran on batches of several sizes"):
        _ = seen.weights


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_the_gates_of_every_order_are_recorded_in_whole_and_in_steps(order, layers):
    case = Case(order, "lstm", layers)
    model, tokens = make_model(case), make_tokens()
    with record(model) as whole:
        memory = model.encoder(make_sources(*LENGTHS))
        model.decoder(tokens, memory)
    assert gates_of(case) == set(whole.weights) - {NAME}
    prepared = model.decoder.prepare(memory)
    state = model.decoder.start(prepared)
    with record(model.decoder) as stepped:
        for piece in tokens.split((1, 3, 2), dim=1):
            state = model.decoder.step(piece, state, prepared).state
    for name in gates_of(case):
        gate = whole.weights[name]
        if name.startswith("decoder"):
            assert gate.shape[:2] == (BATCH, TARGET)
            near(stepped.weights[name.removeprefix("decoder.")], gate)
        else:
            assert gate.shape == (BATCH, max(LENGTHS), 7)
            assert [int(row.any(-1).sum()) for row in gate] == list(LENGTHS)  # zeros at padding


HEADED = [Case(order, variant=Variant(heads=3)) for order in ATTENDING]
HEADED += [transformer(positions, variant=Variant("scaled_dot", heads=3)) for positions in ("alibi", "rotary")]


@pytest.mark.parametrize("case", HEADED, ids=str)
def test_every_head_has_a_map_of_its_own(case):
    model, tokens = make_model(case), make_tokens()
    with record(model) as seen:
        step = model.decoder(tokens, model.encoder(make_sources(*LENGTHS)))
    weights = seen.weights[name_of(case)]
    maps = [seen.map(name_of(case), 1, head=head).weights for head in range(3)]
    for head, each in enumerate(maps):
        same(each, weights[1, 0, head])
        near(each.sum(-1), torch.ones(TARGET, dtype=torch.float64))
    assert (maps[0] - maps[1]).abs().max() > 1e-3
    near(sum(maps) / 3, step.attention[1])
    near(seen.map(name_of(case), 1).weights, step.attention[1])
    with pytest.raises(IndexError):
        seen.map(name_of(case), 1, head=3)
    for name in names_of(case) - {name_of(case)}:
        for head in range(3):
            each = seen.map(name, 1, head=head).weights
            near(each.sum(-1), torch.ones(len(each), dtype=torch.float64))
            same(each, seen.weights[name][1].flatten(0, -3)[head])  # less the axis of beams


def test_a_map_has_labels_or_numbers():
    model, tokens = make_model(), make_tokens()
    with record(model) as seen:
        step = model.decoder(tokens, model.encoder(make_sources(*LENGTHS)))
    plain = seen.map(NAME, 2)
    assert plain.rows == ("0", "1", "2", "3", "4", "5")
    assert plain.columns == ("0", "1", "2", "3", "4", "5", "6")
    near(plain.weights, step.attention[2])
    labelled = seen.map(NAME, 2, rows="abcdef", columns="tuvwxyz")
    assert (labelled.rows, labelled.columns) == (tuple("abcdef"), tuple("tuvwxyz"))
    same(labelled.weights, plain.weights)


def run(model: Seq2Seq, **settings: object) -> Recording:
    with record(model, **settings) as seen:
        model.decoder(make_tokens(), model.encoder(make_sources(*LENGTHS)))
    return seen


def test_only_the_layers_asked_for_are_kept():
    model = make_model()
    assert list(run(model).weights) == [NAME]
    assert list(run(model, layers=[NAME]).weights) == [NAME]
    assert run(model, layers=["decoder"]).weights == {}
    rnn = "decoder.recurrence.rnn"
    assert list(run(make_model(Case(cell="lstm")), layers=[rnn]).weights) == [f"{rnn}.{gate}_l0" for gate in GATES]
    assert run(model, layers=[]).weights == {}


def test_after_the_block_nothing_is_kept_even_after_an_error():
    model = make_model()
    with pytest.raises(RuntimeError, match="on purpose"), record(model) as seen:  # noqa: PT012
        model.decoder(make_tokens(), model.encoder(make_sources(*LENGTHS)))
        raise RuntimeError("on purpose")
    before = seen.weights[NAME]
    model.decoder(make_tokens(), model.encoder(make_sources(*LENGTHS)))
    same(seen.weights[NAME], before)
    assert not any(module._forward_hooks for module in model.modules())


def test_what_is_kept_is_a_copy():
    attention, query_dim = make_attention(Variant())
    query, states = torch.randn(BATCH, TARGET, query_dim), torch.randn(BATCH, 7, 13)
    with torch.no_grad(), record(attention) as seen:
        weights = attention(query, attention.project(states), states, mask=None).weights
        before = weights.clone()
        weights.zero_()  # whatever becomes of the model's own
    same(seen.weights[""], before)
