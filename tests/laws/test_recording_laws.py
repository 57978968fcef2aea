"""Recording never changes the result: over every order, every Transformer and every variant of attention.

A recorded search holds its best output, as if that had been forced.
"""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from equations import PAST_EQUATIONS, SHIFTED_SCORE_EQUATIONS, weights_with_past
from setups import LIMITS, case_of, make_setup, setups
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
    make_recipe,
    make_sources,
    near,
    recurrent_cases,
    same,
    transformer,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from regard.attention.core import Attended
from regard.attention.foreign import attention_names, foreign_modules
from regard.attention.gates import GATES
from regard.attention.masks import materialize
from regard.attention.record import Labels, Recording, record
from regard.attention.scopes import SCOPES, Global, Scope
from regard.decoders import ORDERS
from regard.errors import RecipeError
from regard.kernels.choose import is_observed, pause_observers
from regard.models import Seq2Seq, sites
from regard.models.language import build as build_language_model
from regard.recipe import Search
from regard.search import beam, find, sample
from regard.types import BEGIN, END, PAD, Hypothesis, Memory, Step
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


def gates_of(case: Case, *, training: bool = False) -> set[str]:
    """The names of all gates of a model; with dropout between the layers of a stack, only of the lowest layer."""
    own = {"decoder.context_gate"} if case.gated else set()
    if case.cell != "lstm":
        return own
    layers = range(1 if training else case.layers)
    parts = []
    if case.encoder == "recurrent":
        parts += [("encoder.recurrence", f"l{layer}{suffix}") for layer in layers for suffix in ("", "_reverse")]
    if case.decoder == "recurrent" and "gnmt" not in case.order:
        parts += [("decoder.recurrence", f"l{layer}") for layer in layers]
    towers = [("encoder", case.encoder), ("decoder.recurrence", case.order if case.decoder == "recurrent" else "")]
    for side, kind in towers:
        if "gnmt" in kind:
            parts += [(f"{side}.bottom", ending) for ending in ("l0", "l0_reverse")[: 2 if side == "encoder" else 1]]
            parts += [(f"{side}.tower.stack.{layer}", "l0") for layer in range(case.layers - 1)]
    return own | {f"{part}.rnn.{gate}_{ending}" for part, ending in parts for gate in GATES}


def forward_and_backward(model: Seq2Seq, tokens: Tensor) -> tuple[Step, dict[str, Tensor | None]]:
    """One forward and backward pass with a fixed seed; returns its step and the gradients."""
    torch.manual_seed(5)
    model.zero_grad()
    torch.manual_seed(6)
    step = model.decoder(tokens, model.encoder(make_sources(*LENGTHS)))
    step.logits.logsumexp(-1).sum().backward()
    return step, gradients(model)


@every_decoder()
def test_recording_changes_no_bit(case):
    model = make_model(case, dropout=0.3, dtype=torch.float32).train()
    tokens = make_tokens()
    plain, expected = forward_and_backward(model, tokens)
    with record(model) as recording:
        step, actual = forward_and_backward(model, tokens)
    same(step.logits, plain.logits)
    same(step.attention, plain.attention)
    assert actual.keys() == expected.keys()
    for name in expected:
        same(actual[name], expected[name])
    assert set(recording.weights) == gates_of(case, training=True) | names_of(case)
    if not case.attends():
        return
    weights = recording.weights[name_of(case)]
    has_heads = case.variant.heads > 1 or case.decoder == "transformer"
    assert weights.shape == (BATCH, 1, *[case.variant.heads] * has_heads, TARGET, max(LENGTHS))
    assert not weights.requires_grad
    if case.decoder == "transformer":  # its fused path gives no weights in training
        assert step.attention is None
    else:
        near(weights.flatten(1, -3).mean(1), step.attention.detach(), 0.0 if case.variant.heads == 1 else 1e-6)


ROWS = [0, 2, 3, 5]


def heads_of(case: Case) -> list[int]:
    """Numbers of heads that every attention of the model has; not all of them if there are several."""
    return [1, case.variant.heads] if case.variant.heads > 2 else [case.variant.heads]


def part_of(weights: Tensor, heads: list[int], rows: list[int], *, has_heads: bool) -> Tensor:
    """These heads and rows of the weights of an attention."""
    weights = weights[..., [head - 1 for head in heads], :, :] if has_heads else weights
    return weights[..., [row for row in rows if row < weights.shape[-2]], :]


@every_decoder()
def test_recording_some_heads_and_rows_changes_no_bit_and_gives_a_part_of_all(case):
    model = make_model(case, dropout=0.3, dtype=torch.float32).train()
    tokens, heads = make_tokens(), heads_of(case)
    plain, expected = forward_and_backward(model, tokens)
    with record(model, heads=heads, rows=ROWS) as part:
        step, actual = forward_and_backward(model, tokens)
    same(step.logits, plain.logits)
    assert actual.keys() == expected.keys()
    for name in expected:
        same(actual[name], expected[name])
    names = set(part.weights)
    # In float64: products of other sizes are summed in another order, and in float32 that shows if scores are large.
    model = model.double()
    with record(model) as whole:
        forward_and_backward(model, tokens)
    with record(model, heads=heads, rows=ROWS) as part:
        forward_and_backward(model, tokens)
    assert names == set(part.weights) == set(whole.weights)
    for name, weights in whole.weights.items():
        gate = name not in names_of(case)
        has_heads = not gate and ("stack" in name or case.variant.heads > 1)
        near(part.weights[name], part_of(weights, heads, ROWS, has_heads=has_heads), 1e-12)
        assert part.row_numbers(name) == tuple(row for row in ROWS if row < weights.shape[-2])


@every_decoder()
def test_recorded_weights_are_those_of_the_definition_in_float64_for_the_same_queries_and_keys(case):
    model, tokens, heads = make_model(case, dtype=torch.float32), make_tokens(), heads_of(case)
    scopes = {name: module for name, module in model.named_modules() if isinstance(module, Scope)}
    exact = {name: [] for name, scope in scopes.items() if not scope.uses_past}
    for name in exact:
        scopes[name].register_forward_hook(partial(weigh_in_float64, exact[name]), with_kwargs=True)
    with record(model) as whole, record(model, heads=heads, rows=ROWS) as part, unchecked(), torch.no_grad():
        model.decoder(tokens, model.encoder(make_sources(*LENGTHS)))
    for name, calls in exact.items():
        expected = torch.cat(calls, -2)
        has_heads = "stack" in name or case.variant.heads > 1
        near(whole.weights[name].double(), expected, 1e-5)
        near(part.weights[name].double(), part_of(expected, heads, ROWS, has_heads=has_heads), 1e-5)


def weigh_in_float64(found: list[Tensor], scope: Scope, inputs: tuple, named: dict, result: object) -> None:
    """A forward hook that computes the weights of a call once more, in float64."""
    query, keys, _ = inputs
    bias = named.get("bias")
    found.append(
        copy.deepcopy(scope)
        .double()
        .weigh(
            query.double(),
            keys.double(),
            mask=named.get("mask"),
            bias=None if bias is None else bias.double(),
            start=named.get("start", 0),
        )
    )


WITH_PAST = [case for case in recurrent_cases() if SCOPES[case.variant.scope].uses_past]


@pytest.mark.parametrize("case", WITH_PAST, ids=str)
def test_recorded_weights_that_use_the_past_are_those_of_the_equations(case):
    model, tokens = make_model(case, dtype=torch.float32), make_tokens()
    scope = model.get_submodule(NAME)
    queries: list[Tensor] = []
    scope.register_forward_hook(lambda module, inputs, result: queries.append(inputs[0]))
    with record(model) as whole, record(model, heads=[1], rows=ROWS) as part, torch.no_grad():
        memory = model.encoder(make_sources(*LENGTHS))
        model.decoder(tokens, memory)
    parameters = {name: value.double().tolist() for name, value in scope.named_parameters()}
    sentences = (torch.cat(queries, -2).flatten(1, -2), memory.states, memory.mask)
    expected = [
        weights_with_past(case.variant, parameters, *(tensor.tolist() for tensor in sentence))
        for sentence in zip(*sentences, strict=True)
    ]
    exact = torch.tensor(expected, dtype=torch.float64).unsqueeze(1)
    near(whole.weights[NAME].double(), exact, 1e-5)
    near(part.weights[NAME].double(), exact[..., ROWS, :], 1e-5)


def test_every_scope_with_a_past_has_an_equation():
    assert {case.variant.scope for case in WITH_PAST} == PAST_EQUATIONS.keys()
    assert {case.variant.score for case in WITH_PAST} == SHIFTED_SCORE_EQUATIONS.keys()


@pytest.mark.parametrize("rows", [range(1, 6, 2), slice(None, 4), slice(3, None), slice(0, None, 3), [4], (5, 1, 5)])
@pytest.mark.parametrize("case", [Case(), transformer(), transformer("rotary")], ids=str)
def test_rows_are_counted_over_all_calls(case, rows):
    model, tokens = make_model(case), make_tokens()
    memory = model.encoder(make_sources(*LENGTHS))
    with record(model) as whole:
        model.decoder(tokens, memory)
    chosen = list(range(TARGET))[rows] if isinstance(rows, slice) else sorted(set(rows))
    prepared = model.decoder.prepare(memory)
    state = model.decoder.start(prepared)
    with record(model, rows=rows) as part:
        for chunk in tokens.split((1, 3, 2), dim=1):
            state = model.decoder.step(chunk, state, prepared).state
    for name, weights in whole.weights.items():
        assert part.row_numbers(name) == tuple(chosen)
        near(part.weights[name], weights[..., chosen, : part.weights[name].shape[-1]])
        assert not weights[..., chosen, part.weights[name].shape[-1] :].any()  # keys after the last recorded row


@setups
def test_recording_some_rows_of_a_search_changes_no_token(kind, seed):
    setup = make_setup(kind, seed, torch.float32)
    search = partial(beam, setup.model.decoder, setup.memory, width=3, n_best=2, limits=LIMITS)
    with unchecked():
        expected = search()
        with record(setup.model) as whole:
            search()
        with record(setup.model, rows=[0, 2], heads=[1]) as part:
            found = search()
    assert [[best.tokens for best in row] for row in found] == [[best.tokens for best in row] for row in expected]
    assert [[best.score for best in row] for row in found] == [[best.score for best in row] for row in expected]
    for name, weights in whole.weights.items():
        kept = [row for row in (0, 2) if row < weights.shape[-2]]
        assert part.row_numbers(name) == tuple(kept)
        if name in part.sites:
            near(part.map(name).weights, whole.map(name, head=1).weights[kept], 1e-6)


def test_heads_and_rows_that_are_not_there_are_errors_with_a_sentence():
    model = make_model(transformer(variant=Variant("scaled_dot", heads=3)))
    name = "encoder.stack.0.attention.attention"
    with pytest.raises(RecipeError, match=rf"^head 4: {name} has heads 1 to 3$"):
        run(model, heads=[1, 4])
    with pytest.raises(RecipeError, match=rf"^head 2: {NAME} has one head, head 1$"):
        run(make_model(), heads=[2])
    for message, settings in {
        "heads: 0 is not allowed; give whole numbers from 1": {"heads": [0]},
        "heads: 1.5 is not allowed; give whole numbers from 1": {"heads": [1.5]},
        "heads=() records nothing; give numbers of heads, counted from 1, or None for all": {"heads": []},
        "rows: -1 is not allowed; give whole numbers from 0": {"rows": [-1]},
        "rows: -2 is not allowed; give whole numbers from 0": {"rows": slice(-2, None)},
        "rows: -3 is not allowed; give whole numbers from 1": {"rows": slice(5, 0, -3)},
        "heads: 1 is no list of whole numbers; write heads=[...]": {"heads": 1},
        "rows: 3 is no list of whole numbers; write rows=[...]": {"rows": 3},
        "layers: 'decoder' is no list; write layers=[NAME] with names of modules": {"layers": "decoder"},
        "layers: the model has no module 1; give the name of a module": {"layers": [1]},
        f"layers: decoder has no attention of its own; these modules have weights: {NAME}": {"layers": ["decoder"]},
        f"layers=[] records nothing; leave it out, or give names; these modules have weights: {NAME}": {"layers": []},
        "layers: the model has no module 'decoder.atention'; did you mean 'decoder.attention'?": {
            "layers": ["decoder.atention"]
        },
    }.items():
        with unchecked(), pytest.raises(RecipeError) as caught:
            run(make_model(), **settings)
        assert str(caught.value) == message
    recording = run(model, heads=[1, 3])
    with pytest.raises(RecipeError, match=rf"^head 2: of {name}, only 1, 3 were recorded$"):
        recording.map(name, head=2)
    with pytest.raises(RecipeError, match=r"^head 2: encoder.self_attention was recorded for 1, 3 only$"):
        recording.maps().pick("encoder.self_attention", head=2)


@every_decoder()
def test_maps_of_a_recording_know_site_layer_and_head(case):
    model = make_model(case)
    heads = heads_of(case)
    whole, part = run(model), run(model, heads=heads, rows=[1, 4])
    if not names_of(case):
        with pytest.raises(RecipeError, match=r"^there are no maps; (nothing was|only gates were) recorded"):
            whole.maps()
        return
    assert set(whole.sites) == names_of(case)
    assert whole.sites == sites(model)
    labels = {"decoder.cross_attention": Labels("abcdef", "tuvwxyz")}
    labels = labels if case.attends() else {}
    for recording, rows in ((whole, slice(None)), (part, [1, 4])):
        maps = recording.maps(1, labels=labels)
        assert [(layer.site, layer.layer) for layer in maps.layers] == list(recording.sites.values())
        for name, layer in zip(recording.sites, maps.layers, strict=True):
            for attention in map(layer.map, layer.numbers):
                same(attention.weights, recording.map(name, 1, head=attention.place.head).weights)
                assert attention.place == recording.map(name, 1, head=attention.place.head).place
            if layer.site in labels:
                assert "".join(layer.rows) == "".join(np.array(list("abcdef"))[rows])
                assert "".join(layer.columns) == "tuvwxyz"


@every_transformer()
def test_recorded_weights_and_values_give_the_context(case):
    """Also under dropout, in every layer, and if a fused path gave no weights."""
    model = make_model(case, dropout=0.3).train()
    values_and_contexts: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in model.named_modules():
        if name in names_of(case):
            module.register_forward_hook(
                lambda _, inputs, outputs, name=name: values_and_contexts.update({name: (inputs[2], outputs[0])})
            )
    with record(model) as recording:
        memory = model.encoder(make_sources(*LENGTHS))
        model.decoder(make_tokens()[:, :1] if case.decoder == "recurrent" else make_tokens(), memory)
    assert set(values_and_contexts) == names_of(case)
    for name, (values, context) in values_and_contexts.items():
        near(recording.weights[name] @ values.detach(), context.detach())
        assert (recording.weights[name].flatten(0, -3).amax((-2, -1)) > 0).all()


@every_transformer()
def test_the_map_is_what_the_top_layer_recorded(case):
    model = make_model(case)
    with record(model) as recording:
        step = model.decoder(make_tokens(), model.encoder(make_sources(*LENGTHS)))
    if case.attends():
        near(recording.weights[name_of(case)].flatten(1, -3).mean(1), step.attention)


@setups
def test_recording_changes_no_decoded_token(kind, seed):
    setup = make_setup(kind, seed, torch.float32)
    decoder, memory = setup.model.decoder, setup.memory

    def search() -> list[list[object]]:
        settings = {"limits": LIMITS, "prefix": None}
        results = [
            beam(decoder, memory, width=1, **settings),
            beam(decoder, memory, width=3, n_best=3, **settings),
            sample(decoder, memory, seeds=(1, 2, 3), count=2, **settings),
        ]
        hypotheses = [hypothesis for rows in results for row in rows for hypothesis in row]
        return [
            [each.tokens, each.score, each.finished, None if each.map is None else each.map.tolist()]
            for each in hypotheses
        ]

    with unchecked():
        expected = search()
        with record(setup.model):
            assert search() == expected


SEARCHES: dict[str, Callable[..., list[list[Hypothesis]]]] = {
    "greedy": partial(beam, width=1),
    "beam": partial(beam, width=3, n_best=2),
    "sample": partial(sample, seeds=(1, 2, 3), count=2),
    "find": partial(find, settings=Search(beam=2), seeds=(1, 2, 3), n_best=3),  # makes two searches
    "find a sample": partial(find, settings=Search(temperature=1.5), seeds=(1, 2, 3), n_best=1),
}
PREFIX = torch.tensor([[5, 8], [6, 4], [9, 4]])


def best_inputs(found: list[list[Hypothesis]]) -> Tensor:
    """The decoder's inputs while it writes the first output of each sentence, without END's step."""
    rows = [torch.tensor([BEGIN, *hypotheses[0].tokens[:-1]]) for hypotheses in found]
    return pad_sequence(rows, batch_first=True, padding_value=PAD)


def assert_same_calls(actual: Recording, expected: Recording) -> None:
    """Assert that two recordings hold the same calls, bit for bit."""
    assert actual.calls.keys() == expected.calls.keys()
    for name, calls in expected.calls.items():
        for call, again in zip(actual.calls[name], calls, strict=True):
            same(call, again)
            assert not call.is_inference()


@setups
def test_a_recorded_search_holds_its_best_output_as_if_forced(kind, seed):
    setup, case = make_setup(kind, seed, torch.float32), case_of(kind, seed)
    decoder, memory = setup.model.decoder, setup.memory
    for search, prefix in product(SEARCHES.values(), (None, PREFIX)):
        with unchecked(), record(setup.model) as recording:
            found = search(decoder, memory, limits=LIMITS, prefix=prefix)
        with unchecked(), torch.no_grad(), record(setup.model) as forced:
            decoder(best_inputs(found), memory)
        assert_same_calls(recording, forced)
        if not case.attends():
            continue
        weights = recording.weights[name_of(case)].flatten(1, -3).mean(1)
        for row, (best, *_) in enumerate(found):
            near(weights[row, : len(best.tokens)], best.map[: len(best.tokens)], setup.tolerance)


LANGUAGE_MODELS = [Case("none", "lstm", 2), transformer("rotary"), transformer()]


@pytest.mark.parametrize("case", LANGUAGE_MODELS, ids=str)
def test_a_recorded_language_model_holds_its_prefix_and_its_best_output(case):
    torch.manual_seed(3)
    model = build_language_model(make_recipe(case), size=11).eval()
    memory = Memory.none(BATCH, torch.device("cpu"))
    for search in SEARCHES.values():
        plain = search(model.decoder, memory, limits=LIMITS, prefix=PREFIX)
        with record(model) as recording:
            found = search(model.decoder, memory, limits=LIMITS, prefix=PREFIX)
        with torch.no_grad(), record(model) as forced:
            model.decoder(best_inputs(found), memory)
        assert found == plain
        assert recording.calls
        assert_same_calls(recording, forced)


def test_an_empty_output_has_one_row():
    setup = make_setup("luong")
    with torch.no_grad():
        setup.model.decoder.out.bias[END] = 100.0
    with record(setup.model) as recording:
        found = beam(setup.model.decoder, setup.memory, width=2, limits=LIMITS)
    assert [best.tokens for best, *_ in found] == [[], [], []]
    assert recording.weights[NAME].shape == (BATCH, 1, 1, max(LENGTHS))


def test_every_recording_of_a_search_has_its_own_layers():
    setup = make_setup("transformer_pre", 1)
    name, search = "decoder.stack.0.cross.attention", partial(SEARCHES["beam"], limits=LIMITS)
    with record(setup.model) as whole, record(setup.model.decoder) as inner, record(setup.model, layers=[name]) as one:
        found = search(setup.model.decoder, setup.memory)
    assert list(one.weights) == [name]
    assert {f"decoder.{key}" for key in inner.weights} == set(whole.weights)
    for key, weights in inner.weights.items():
        same(weights, whole.weights[f"decoder.{key}"])
        assert weights.shape[-2] == max(len(best.tokens) for best, *_ in found)
    same(one.weights[name], whole.weights[name])


def test_a_search_whose_decoder_is_not_recorded_makes_no_further_pass():
    setup, calls = make_setup("transformer_pre"), []
    setup.model.decoder.register_forward_hook(lambda *_: calls.append(1))
    encoder_layers = [name for name in sites(setup.model) if name.startswith("encoder")]
    for layers, passes in ((encoder_layers, 0), (None, 1)):
        calls.clear()
        with record(setup.model, layers=layers):
            beam(setup.model.decoder, setup.memory, width=2, limits=LIMITS)
        assert len(calls) == passes


def test_a_hook_that_changes_the_weights_also_acts_on_what_a_search_records():
    setup = make_setup("bahdanau")
    decoder = setup.model.decoder
    decoder.attention.register_forward_hook(lambda module, inputs, result: result._replace(weights=result.weights / 2))
    with unchecked(), record(setup.model) as recording:
        found = beam(decoder, setup.memory, width=2, limits=LIMITS)
    near(found[0][0].map.sum(-1), torch.full_like(found[0][0].map[:, 0], 0.5))
    near(recording.weights[NAME].sum(-1), torch.full_like(recording.weights[NAME][..., 0], 0.5))


def test_a_search_in_training_mode_draws_the_same_numbers_when_recorded():
    model = make_model(transformer(), dropout=0.3).train()
    memory = model.encoder(make_sources(*LENGTHS))
    after = []
    for layers in (["encoder.stack.0.attention.attention"], None):
        torch.manual_seed(7)
        with unchecked(), record(model, layers=layers):
            beam(model.decoder, memory, width=2, limits=LIMITS)
        after.append(torch.get_rng_state())
    same(*after)


def test_a_search_that_fails_leaves_recording_on():
    setup = make_setup("luong")
    with record(setup.model) as recording:
        with pytest.raises(RecipeError, match="a beam of width 1 finds 1 to 1 hypotheses"):
            beam(setup.model.decoder, setup.memory, width=1, n_best=2, limits=LIMITS)
        assert not recording.calls
        setup.model.decoder(PREFIX, setup.memory)
    assert list(recording.weights) == [NAME]


def test_recording_is_paused_in_one_thread_and_for_earlier_recordings_only():
    model, tokens = make_model(), make_tokens()
    memory = model.encoder(make_sources(*LENGTHS))
    with record(model) as outer:
        with pause_observers():
            model.decoder(tokens, memory)
            assert not outer.calls
            assert not is_observed(model.decoder.attention)
            with record(model) as inner, pause_observers():
                model.decoder(tokens, memory)
            assert not inner.calls
            with record(model) as inner:
                model.decoder(tokens, memory)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(model.decoder, tokens, memory).result()
        assert len(inner.calls[NAME]) == len(outer.calls[NAME]) == TARGET
        model.decoder(tokens, memory)
    assert len(outer.calls[NAME]) == 2 * TARGET


@pytest.mark.parametrize("case", [case for case in KINDS if case.attends()], ids=str)
def test_recorded_steps_are_rows_of_the_whole_map(case):
    model, tokens = make_model(case), make_tokens()
    memory = model.encoder(make_sources(*LENGTHS))
    with record(model) as whole:
        expected = model.decoder(tokens, memory)
    prepared = model.decoder.prepare(memory)
    state = model.decoder.start(prepared)
    with record(model) as stepped:
        for chunk in tokens.split((1, 3, 2), dim=1):
            state = model.decoder.step(chunk, state, prepared).state
    names = names_of(case) | gates_of(case)
    assert set(stepped.weights) == {name for name in names if name.startswith("decoder")}
    for name, weights in stepped.weights.items():
        near(weights, whole.weights[name])
    near(stepped.weights[name_of(case)].flatten(1, -3).mean(1), expected.attention)


def test_weights_of_batches_of_several_lengths_are_not_one_map():
    model = make_model(transformer())
    with record(model) as recording:
        for lengths in (LENGTHS, (5, 4, 2)):
            model.encoder(make_sources(*lengths))
    with pytest.raises(RecipeError, match=r"ran on batches of several sizes"):
        _ = recording.weights


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("order", ORDERS)
def test_gates_of_every_order_are_recorded_in_forward_and_in_steps(order, layers):
    case = Case(order, "lstm", layers, gated=order in ATTENDING)
    model, tokens = make_model(case), make_tokens()
    with record(model) as whole:
        memory = model.encoder(make_sources(*LENGTHS))
        model.decoder(tokens, memory)
    assert gates_of(case) == set(whole.weights) - {NAME}
    prepared = model.decoder.prepare(memory)
    state = model.decoder.start(prepared)
    with record(model.decoder) as stepped:
        for chunk in tokens.split((1, 3, 2), dim=1):
            state = model.decoder.step(chunk, state, prepared).state
    for name in gates_of(case):
        gate = whole.weights[name]
        if name.startswith("decoder"):
            assert gate.shape[:2] == (BATCH, TARGET)
            near(stepped.weights[name.removeprefix("decoder.")], gate)
        else:
            assert gate.shape == (BATCH, max(LENGTHS), 7)
            assert [int(row.any(-1).sum()) for row in gate] == list(LENGTHS)  # zeros at padding


WITH_HEADS = [Case(order, variant=Variant(heads=3)) for order in ATTENDING]
WITH_HEADS += [transformer(positions, variant=Variant("scaled_dot", heads=3)) for positions in ("alibi", "rotary")]


@pytest.mark.parametrize("case", WITH_HEADS, ids=str)
def test_every_head_has_a_map_of_its_own(case):
    model, tokens = make_model(case), make_tokens()
    with record(model) as recording:
        step = model.decoder(tokens, model.encoder(make_sources(*LENGTHS)))
    weights = recording.weights[name_of(case)]
    maps = [recording.map(name_of(case), 1, head=head).weights for head in (1, 2, 3)]
    for head, head_map in enumerate(maps):
        same(head_map, weights[1, 0, head])
        near(head_map.sum(-1), torch.ones(TARGET, dtype=torch.float64))
    assert (maps[0] - maps[1]).abs().max() > 1e-3
    near(sum(maps) / 3, step.attention[1])
    near(recording.map(name_of(case), 1).weights, step.attention[1])
    for head in (0, 4):  # counted from 1, as in AttentionMaps.pick
        with pytest.raises(RecipeError, match=rf"^head {head}: {name_of(case)} has heads 1 to 3$"):
            recording.map(name_of(case), 1, head=head)
    for name in names_of(case) - {name_of(case)}:
        for head in range(3):
            head_map = recording.map(name, 1, head=head + 1).weights
            near(head_map.sum(-1), torch.ones(len(head_map), dtype=torch.float64))
            same(head_map, recording.weights[name][1].flatten(0, -3)[head])  # without the axis of beams


def test_rows_and_columns_of_a_map_have_labels_or_numbers():
    model, tokens = make_model(), make_tokens()
    with record(model) as recording:
        step = model.decoder(tokens, model.encoder(make_sources(*LENGTHS)))
    numbered = recording.map(NAME, 2)
    assert numbered.rows == ("0", "1", "2", "3", "4", "5")
    assert numbered.columns == ("0", "1", "2", "3", "4", "5", "6")
    near(numbered.weights, step.attention[2])
    labelled = recording.map(NAME, 2, rows="abcdef", columns="tuvwxyz")
    assert (labelled.rows, labelled.columns) == (tuple("abcdef"), tuple("tuvwxyz"))
    same(labelled.weights, numbered.weights)


def test_a_name_that_was_not_recorded_is_an_error_with_the_nearest_names():
    model = make_model()
    with record(model) as recording:
        with pytest.raises(RecipeError, match=r"^'attention' is not in the recording; nothing was recorded: run the"):
            recording.joined("attention")
        model.decoder(make_tokens(), model.encoder(make_sources(*LENGTHS)))
    for access in (recording.map, recording.joined):
        with pytest.raises(RecipeError, match=rf"^'atention' is not in the recording; the nearest names are {NAME}$"):
            access("atention")


def test_rows_that_no_module_has_and_a_model_without_a_name_are_named_in_sentences():
    model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    states = torch.randn(2, 5, 8)
    with record(model, rows=[99]) as recording:
        model(states, states, states)
    for access in (recording.maps, lambda: recording.map("")):
        with pytest.raises(RecipeError, match=r"the modules that ran have rows 0 to 4, and none of those in rows=$"):
            access()
    with record(model) as recording:
        model(states, states, states)
    for access, sentence in (
        (lambda: recording.map("x"), "^'x' is not in the recording; the nearest names are the model itself$"),
        (lambda: recording.map("", head=9), "^head 9: the model itself has heads 1 to 2$"),
        (lambda: recording.map("", rows=["a"]), "^the model itself has 5 rows; give as many labels, not 1$"),
        (lambda: recording.map("", columns=["a"] * 6), "^the model itself has 5 columns; give as many labels, not 6$"),
    ):
        with pytest.raises(RecipeError, match=sentence):
            access()


def run(model: Seq2Seq, **settings: object) -> Recording:
    """The recording of one forward pass."""
    with record(model, **settings) as recording:
        model.decoder(make_tokens(), model.encoder(make_sources(*LENGTHS)))
    return recording


def test_only_the_requested_layers_are_recorded():
    model = make_model()
    assert list(run(model).weights) == [NAME]
    assert list(run(model, layers=[NAME]).weights) == [NAME]
    rnn = "decoder.recurrence.rnn"
    assert list(run(make_model(Case(cell="lstm")), layers=[rnn]).weights) == [f"{rnn}.{gate}_l0" for gate in GATES]


def test_several_batches_are_not_joined_to_one_map():
    for model, name in (
        (make_model(transformer()), "encoder.stack.0.attention.attention"),
        (make_model(transformer()), "decoder.stack.1.attention.attention"),
    ):
        with record(model, layers=[name]) as recording:
            for _ in range(2):
                model.decoder(make_tokens(), model.encoder(make_sources(*LENGTHS)))
        for access in (recording.maps, partial(recording.map, name)):
            with pytest.raises(
                RecipeError, match=r"^\S+ has 1\d rows and \d columns, since it was called 2 times in the"
            ):
                access()


def test_wrong_arguments_of_maps_get_a_sentence():
    recording = run(make_model())
    for row in (BATCH, -1, "a", 1.0):
        with pytest.raises(RecipeError, match=r"^row .*: the batch that was recorded has rows 0 to 2$"):
            recording.maps(row)
    for labels in (["a"], ("a", "b"), 3, (["a"], 3)):
        with pytest.raises(RecipeError, match=r"give those of the rows and of the columns"):
            recording.maps(labels={"decoder.cross_attention": labels})
    with pytest.raises(RecipeError, match=r"^labels: \['a'\] gives no labels by site"):
        recording.maps(labels=["a"])
    with pytest.raises(RecipeError, match=r"^record takes a model, .* not 'model'$"), record("model"):
        pass


class AttentionOfAPlugin(Global):
    """The same as `global`, defined outside of the package."""


class Fused(nn.Module):
    """An attention function as a module, which the watcher of other packages would see."""

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)


class ScopeWithAPart(Global):
    """The same as `global`, computed by a part of the scope."""

    def make_parameters(self, query_dim):
        self.part = Fused()

    def forward(self, query, keys, values, *, mask, **_):
        mask = materialize(mask, query, keys)
        if query.ndim == 5:  # beams, which share the keys of their source
            keys, values = (states.expand(-1, query.shape[1], -1, -1, -1) for states in (keys, values))
        return Attended(self.part(query, keys, values, mask, self.score.dot_scale), None)


@pytest.mark.parametrize("kind", [AttentionOfAPlugin, ScopeWithAPart])
def test_a_scope_of_another_package_is_recorded_once(kind, monkeypatch):
    monkeypatch.setitem(SCOPES, "plugin", kind)
    tokens, recordings, outputs = make_tokens(), [], []
    for scope in ("global", "plugin"):
        torch.manual_seed(4)
        model = make_model(transformer("rotary", variant=Variant("scaled_dot", scope=scope, heads=2)))
        with torch.no_grad(), record(model) as recording:
            outputs.append(model.decoder(tokens, model.encoder(make_sources(*LENGTHS))).logits)
        recordings.append(recording)
    assert any(isinstance(module, kind) for module in model.modules())
    expected, actual = recordings
    near(outputs[1], outputs[0])
    assert actual.runs == expected.runs
    assert set(actual.runs.values()) == {1}
    assert actual.weights.keys() == expected.weights.keys()
    for name, weights in expected.weights.items():
        near(actual.weights[name], weights)
    assert [own.place for own in actual.maps()] == [own.place for own in expected.maps()]
    assert not foreign_modules(model)
    assert not attention_names(model)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("case", [transformer(), Case(cell="lstm")], ids=str)
def test_what_a_gradient_checkpoint_computes_again_is_not_recorded(case, reentrant):
    model = make_model(case).train()
    tokens, memory = make_tokens(), model.encoder(make_sources(*LENGTHS))

    def logits(states: Tensor) -> Tensor:
        return model.decoder(tokens, replace(memory, states=states)).logits

    with record(model) as recording:
        states = memory.states.detach().requires_grad_()
        output = checkpoint(logits, states, use_reentrant=reentrant)
        before, runs = recording.weights, dict(recording.runs)
        output.logsumexp(-1).sum().backward()
    assert states.grad is not None
    assert recording.runs == runs
    for name, weights in recording.weights.items():
        same(weights, before[name])


def test_an_object_with_a_model_is_recorded_as_its_model():
    model = make_model()
    assert list(run(SimpleNamespace(model=model, decoder=model.decoder, encoder=model.encoder)).weights) == [NAME]


def test_a_layer_that_was_not_recorded_is_not_said_to_be_there():
    recording = run(make_model(transformer()), layers=["encoder.stack.1.attention.attention"])
    with pytest.raises(RecipeError, match=r"^layer 1: of encoder.self_attention, only 2 was recorded$"):
        recording.maps().pick(layer=1)


def test_a_rollout_needs_all_rows_and_layers():
    model = make_model(transformer())
    some = run(model, rows=range(3), layers=[f"encoder.stack.{layer}.attention.attention" for layer in (0, 1)])
    with pytest.raises(
        RecipeError, match=r"^rollout of encoder.self_attention needs a row for each column, but it has 3"
    ):
        some.maps().rollout()
    top = run(model, layers=["encoder.stack.1.attention.attention"])
    with pytest.raises(RecipeError, match=r"needs every layer from 1 on, but only 2 was recorded"):
        top.maps().rollout()
    assert run(model.double()).maps().rollout("encoder.self_attention").weights.dtype == torch.float64


def test_after_the_block_nothing_is_recorded_even_after_an_error():
    model = make_model()
    with pytest.raises(RuntimeError, match="on purpose"), record(model) as recording:  # noqa: PT012
        model.decoder(make_tokens(), model.encoder(make_sources(*LENGTHS)))
        raise RuntimeError("on purpose")
    before = recording.weights[NAME]
    model.decoder(make_tokens(), model.encoder(make_sources(*LENGTHS)))
    same(recording.weights[NAME], before)
    assert not any(module._forward_hooks for module in model.modules())


def test_recorded_weights_are_copies():
    attention, query_dim = make_attention(Variant())
    query, states = torch.randn(BATCH, TARGET, query_dim), torch.randn(BATCH, 7, 13)
    with torch.no_grad(), record(attention) as recording:
        weights = attention(query, attention.project(states), states, mask=None).weights
        before = weights.clone()
        weights.zero_()  # changes the tensor of the model
    same(recording.weights[""], before)
