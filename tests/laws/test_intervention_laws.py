"""Laws of interventions: they act in a search as in teacher forcing, and leave nothing behind."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from setups import LIMITS, SETUP_KINDS, make_setup
from small import (
    BATCH,
    Case,
    Variant,
    every_decoder,
    every_kind,
    make_batch,
    make_model,
    make_recipe,
    make_sources,
    near,
    same,
    transformer,
)
from torch import Tensor

from regard import models
from regard.attention.heads import MultiHead, SelfAttention
from regard.attention.intervene import Erase, Feed, Force, Permute, Silence, Swap, Uniform
from regard.attention.record import record
from regard.errors import RecipeError
from regard.models import CROSS, DECODER_SELF, ENCODER_SELF, Seq2Seq, sites
from regard.models.classifier import build as build_classifier
from regard.models.interventions import intervene
from regard.models.language import build as build_language_model
from regard.models.span import build as build_span_model
from regard.recipe import Answer
from regard.search import beam, sample
from regard.types import BEGIN, Memory, Padded
from shapes import unchecked

LENGTHS = (7, 4, 5)
TOKENS = torch.tensor([[BEGIN, 5, 7, 4, 9, 6], [BEGIN, 6, 6, 8, 4, 7], [BEGIN, 9, 4, 5, 5, 8]])
ROWS, COLUMNS, BEAMS = TOKENS.shape[1], max(LENGTHS), 2


@pytest.fixture(autouse=True)
def unchecked_shapes() -> Iterator[None]:
    """Other laws run the same code with checked shapes."""
    with unchecked():
        yield


def sources() -> Padded:
    torch.manual_seed(1)
    return make_sources(*LENGTHS)


def stepped(model: Seq2Seq, memory: Memory) -> tuple[Tensor, Tensor | None]:
    """Logits and maps of steps of single tokens with several beams, those of the first beam."""
    prepared = model.decoder.prepare(memory)
    state, steps = model.decoder.start(prepared).repeat(BEAMS), []
    for token in TOKENS.repeat_interleave(BEAMS, dim=0).split(1, dim=1):
        steps.append(model.decoder.step(token, state, prepared))
        state = steps[-1].state
    maps = [step.attention[::BEAMS] for step in steps if step.attention is not None]
    return torch.cat([step.logits for step in steps], dim=1)[::BEAMS], torch.cat(maps, dim=1) if maps else None


def told(model: Seq2Seq) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """Logits, map and recorded weights of teacher forcing, after a check that steps retell them."""
    with record(model) as recording:
        memory = model.encoder(sources())
        whole = model.decoder(TOKENS, memory)
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            logits, maps = stepped(model, memory)
            near(logits, whole.logits)
            if whole.attention is not None:
                near(maps, whole.attention)
    weights = {name: recording.weights[name] for name in sites(model) if name in recording.calls}
    for name, (site, layer) in sites(model).items():
        if site == CROSS and layer == sum(place.name == CROSS for place in sites(model).values()):
            near(weights[name].flatten(1, -3).mean(1), whole.attention)
    return whole.logits.detach(), whole.attention, weights


def heads_of(weights: Tensor) -> Tensor:
    """Recorded weights as (batch, heads, query, key)."""
    return weights.flatten(1, -3) if weights.ndim > 3 else weights.unsqueeze(1)


def weights_at(model: Seq2Seq, weights: dict[str, Tensor], site: str) -> list[Tensor]:
    return [heads_of(weights[name]) for name, place in sites(model).items() if place.name == site]


def differs(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() > 1e-6)


@every_decoder()
def test_interventions_on_weights_act_alike_in_forward_and_in_steps(case):
    model = make_model(case)
    before, _, weights = told(model)
    if not case.attends():
        with (
            pytest.raises(RecipeError, match=r"is not in this model|has no attention"),
            intervene(model, Silence(CROSS)),
        ):
            pass
        return
    with intervene(model, Silence(CROSS)):
        after, attention, changed = told(model)
        assert not attention.any()
        assert not any(own.any() for own in weights_at(model, changed, CROSS))
        assert differs(after, before)
    with intervene(model, Force(4, 2, CROSS)):
        after, attention, changed = told(model)
        for own in weights_at(model, changed, CROSS):
            same(own[:, :, 3], torch.eye(COLUMNS, dtype=own.dtype)[1].expand_as(own[:, :, 3]))
        same(attention[:, 3], torch.eye(COLUMNS, dtype=attention.dtype)[1].expand(BATCH, -1))
        near(after[:, :3], before[:, :3])
        same(weights_at(model, changed, CROSS)[0][:, :, :3], weights_at(model, weights, CROSS)[0][:, :, :3])
        assert differs(after[:, 3], before[:, 3])
    visible = sources().mask[:, None, None]
    with intervene(model, Uniform(CROSS)):
        _, _, changed = told(model)
        for own in weights_at(model, changed, CROSS):
            assert not own.masked_select(~visible.expand_as(own)).any()
            support = own > 0
            near(own, support.to(own.dtype) / support.sum(-1, keepdim=True).clamp(min=1))
            if not case.variant.scope.startswith("local"):
                assert (support == visible).all()
    with intervene(model, Permute(CROSS, seed=5)):
        _, _, changed = told(model)
        own, plain = weights_at(model, changed, CROSS)[0], weights_at(model, weights, CROSS)[0]
        assert not own.masked_select(~visible.expand_as(own)).any()
        if case.variant.scope != "coverage" and case.order != "bahdanau":
            same(own[:, :, 0].sort(-1).values, plain[:, :, 0].sort(-1).values)  # later rows have other queries
    same(told(model)[0], before)


@every_decoder()
def test_erased_positions_have_no_influence(case):
    model, source = make_model(case), sources()
    before, _, _ = told(model)
    other = Padded(source.ids.clone(), source.mask)
    other.ids[:, 1:3] = (other.ids[:, 1:3] + 2) % 9
    is_read = case.attends() or case.start != "zeros"
    with torch.no_grad():
        assert differs(model.decoder(TOKENS, model.encoder(other)).logits, before) == is_read
    with intervene(model, Erase(2, 3)):
        after, _, weights = told(model)
        with torch.no_grad():
            memory = model.encoder(other)
            same(model.decoder(TOKENS, memory).logits, model.decoder(TOKENS, model.encoder(source)).logits)
        assert not memory.mask[:, 1:3].any()
        assert not memory.states[:, 1:3].any()
        for own in weights_at(model, weights, CROSS) + weights_at(model, weights, ENCODER_SELF):
            assert not own[..., 1:3].any()
    assert differs(after, before) == is_read
    same(told(model)[0], before)


@pytest.mark.parametrize("encoder", ["recurrent", "gnmt"])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_an_encoder_that_reads_in_order_reads_the_rest_as_if_the_erased_were_not_there(encoder, cell):
    model, source = make_model(Case("gnmt", cell, 2, encoder=encoder)), sources()
    kept = [0, 3, 4, 5, 6]
    with torch.no_grad():
        short = model.encoder(Padded(source.ids[:, kept], source.mask[:, kept]))
        with intervene(model, "erase 2-3"):
            memory = model.encoder(source)
    same(memory.states[:, kept], short.states)
    same(memory.summary.hidden, short.summary.hidden)


@every_kind()
def test_a_swap_is_the_other_text(case):
    model, source = make_model(case), sources()
    other = Padded(source.ids.clone(), source.mask)
    other.ids[:, [0, 2]] = source.ids[:, [2, 0]]
    with torch.no_grad():
        expected = model.decoder(TOKENS, model.encoder(other)).logits
        with intervene(model, Swap(1, 3)):
            near(told(model)[0], expected)
            same(model.encoder(source).mask, source.mask)


@every_kind()
def test_a_fed_memory_is_that_of_its_source(case):
    model, source = make_model(case), sources()
    fed = Padded(source.ids[1:2, :3].flip(1), source.mask[1:2, :3])
    with torch.no_grad():
        memory = model.read(fed)
        expected = model.decoder(TOKENS, memory.repeat(BATCH)).logits
        with intervene(model, Feed(memory)):
            same(told(model)[0], expected)
        with intervene(model, Feed(memory.repeat(2))), pytest.raises(RecipeError, match="2 rows, and the batch 3"):
            model.read(source)


def test_a_decoder_that_copies_gets_swapped_and_fed_tokens():
    recipe = make_recipe(Case(tied=True))
    model = (
        models.build(
            recipe.__class__(
                **{**vars(recipe), "decoder": recipe.decoder.__class__(**{**vars(recipe.decoder), "copies": True})}
            ),
            source_size=11,
            target_size=11,
            shared=True,
        )
        .double()
        .eval()
    )
    batch = make_batch([[5, 6, 7, 8], [6, 9, 5, 4]], [[4, 5], [7, 6]])
    other = make_batch([[7, 6, 5, 8], [5, 9, 6, 4]], [[4, 5], [7, 6]])
    with torch.no_grad():
        expected = model(other).logits
        with intervene(model, "swap 1 3"):
            near(model(batch).logits, expected)
        with intervene(model, Feed(model.read(other.source))):
            near(model(batch).logits, expected)
        with intervene(model, "erase 2"):
            erased = model(batch).logits
            batch.source.ids[:, 1] = 10
            same(model(batch).logits, erased)


SEVERAL = [
    Case("luong", variant=Variant("scaled_dot", heads=3)),
    Case("bahdanau", "lstm", 2, Variant("concat", "softmax", "local_p", 3)),
    transformer("rotary"),
    transformer("alibi", "post", Variant("scaled_dot", heads=4, groups=2)),
    transformer("none", variant=Variant("additive", "entmax15", "local_m", 2)),
]


@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_a_silenced_head_adds_zeros_to_the_output_projection(case):
    model = make_model(case)
    _, _, plain = told(model)
    for name, (site, layer) in sites(model).items():
        outer = model.get_submodule(name.rpartition(".")[0])
        assert isinstance(outer, MultiHead | SelfAttention)
        joined: list[Tensor] = []
        hook = outer.out.register_forward_pre_hook(lambda _, inputs, joined=joined: joined.append(inputs[0]))
        with intervene(model, Silence(site, layer, 2)):
            _, _, weights = told(model)
        hook.remove()
        for states in joined:
            parts = states.unflatten(-1, (outer.heads, -1))
            assert not parts[..., 1, :].any()
            assert parts[..., 0, :].any()
        assert not heads_of(weights[name])[:, 1].any()
        assert heads_of(weights[name])[:, 0].any()
        untouched = [other for other, place in sites(model).items() if place.layer < layer and place.name == site]
        assert all(torch.equal(weights[other], plain[other]) for other in untouched)


@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_one_head_of_one_layer_is_forced_and_the_others_stay(case):
    model = make_model(case)
    _, _, plain = told(model)
    for name, (site, layer) in sites(model).items():
        with intervene(model, Force(3, 2, site, layer, 2)):
            _, _, weights = told(model)
        own, before = heads_of(weights[name]), heads_of(plain[name])
        same(own[:, 1, 2], torch.eye(own.shape[-1], dtype=own.dtype)[1].expand(BATCH, -1))
        same(own[:, 0, :2], before[:, 0, :2])
        near(own[:, 0, 2], before[:, 0, 2])


@pytest.mark.parametrize("scope", ["coverage", "location_aware"])
@pytest.mark.parametrize("order", ["bahdanau", "luong"])
def test_forced_weights_are_the_past_of_later_steps(order, scope):
    model = make_model(Case(order, variant=Variant(scope=scope)))
    seen: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad(), intervene(model, Force(2, 3)):
        memory = model.encoder(sources())
        hook = model.decoder.attention.register_forward_hook(
            lambda _, inputs, named, result: seen.append((named["past"].last, named["past"].total)), with_kwargs=True
        )
        step = model.decoder(TOKENS, memory)
        hook.remove()
    last, total = seen[2]
    same(last.flatten(0, -2), torch.eye(COLUMNS, dtype=last.dtype)[2].expand(BATCH, -1))
    near(total.flatten(0, -2), step.attention[:, :2].sum(1))


def test_a_forced_column_may_be_outside_of_the_window_but_not_padding_or_erased():
    model = make_model(Case("luong", variant=Variant(scope="local_m")))
    with torch.no_grad():
        memory = model.encoder(sources())
        with intervene(model, Force(6, 1)):
            assert (model.decoder(TOKENS, memory).attention[:, 5, 0] == 1).all()
        with intervene(model, Force(6, 5)), pytest.raises(RecipeError, match="row=6 column=5: this column is padding"):
            model.decoder(TOKENS, memory)  # the second source has four positions
        with intervene(model, Force(6, 2), Erase(2)), pytest.raises(RecipeError, match="erased"):
            model.decoder(TOKENS, model.encoder(sources()))
        with intervene(model, Force(6, 9)), pytest.raises(RecipeError, match="only 7 columns"):
            model.decoder(TOKENS, memory)


@pytest.mark.parametrize("kind", SETUP_KINDS)
def test_a_search_under_an_intervention_scores_and_maps_as_teacher_forcing_does(kind):
    setup = make_setup(kind, 1)
    model, several = setup.model, [[Erase(2)], [Swap(1, 2)]]
    if sites(model):
        several += [[Silence(layer=1)], [Force(2, 1)], [Uniform()], [Permute(seed=3), Erase(1)]]
    for changes in several:
        with intervene(model, *changes):
            with torch.no_grad():
                memory = model.encoder(setup.source)
            for search in (partial(beam, width=1), partial(beam, width=3, n_best=2), partial(sample, seeds=(1, 2, 3))):
                with record(model) as recording:
                    found = search(model.decoder, memory, limits=LIMITS)
                for row, (best, *_) in enumerate(found):
                    tokens = torch.tensor([[BEGIN, *best.tokens]])
                    with torch.no_grad():
                        step = model.decoder(tokens, memory.select(torch.tensor([row])))
                    scores = step.logits.log_softmax(-1)[0]
                    wanted = [*best.tokens, 3] if best.finished else best.tokens
                    assert abs(sum(scores[at, word].item() for at, word in enumerate(wanted)) - best.score) < 1e-8
                    if best.map is not None:
                        near(step.attention[0, : len(best.map)], best.map)
                assert set(sites(model)) & set(recording.weights) == {
                    name for name, place in sites(model).items() if place.name != ENCODER_SELF
                }


def test_recording_that_began_before_sees_the_changed_weights():
    model = make_model(transformer())
    with record(model) as recording, intervene(model, Silence(CROSS)), torch.no_grad():
        model.decoder(TOKENS, model.encoder(sources()))
    assert not recording.weights["decoder.stack.1.cross.attention"].any()


@every_kind()
def test_nothing_is_left_behind(case):
    model = make_model(case)
    modules = {
        name: (set(vars(part)), len(part._forward_hooks), len(part._forward_pre_hooks))
        for name, part in model.named_modules()
    }
    changes = [Erase(4), Swap(1, 3), *([Silence(), Force(2, 2)] if sites(model) else [])]
    with pytest.raises(ZeroDivisionError), intervene(model, *changes), intervene(model, Erase(1)):
        assert told(model)[0].sum().item() / 0
    with pytest.raises(RecipeError), intervene(model, *changes, Silence("nowhere.at_all")):
        pass
    assert modules == {
        name: (set(vars(part)), len(part._forward_hooks), len(part._forward_pre_hooks))
        for name, part in model.named_modules()
    }


@pytest.mark.takes("plain_transformer", "plain_recurrent")
@pytest.mark.parametrize("case", [Case(), transformer()], ids=str)
def test_fast_steps_run_unless_they_cannot_honour_the_intervention(case):
    model = make_model(case)
    with torch.no_grad():
        with intervene(model, Erase(2)):
            assert model.decoder.prepare(model.encoder(sources())).plain is not None
        with intervene(model, Silence(CROSS)):
            assert model.decoder.prepare(model.encoder(sources())).plain is None


@pytest.mark.parametrize("change", ["silence", "erase 2", "swap 1 2"])
def test_training_is_refused(change):
    model = make_model(transformer()).train()
    batch = make_batch([[5, 6], [4, 5]], [[4], [5]])
    with intervene(model, change), pytest.raises(RecipeError, match="not for training"):
        model(batch)
    with pytest.raises(RecipeError, match="not for training"), intervene(model, Feed(model.read(batch.source))):
        model(batch)


@pytest.mark.parametrize("positions", ["rotary", "alibi", "learned"])
def test_a_language_model_skips_erased_tokens(positions):
    model = build_language_model(make_recipe(transformer(positions)), size=11).double().eval()
    memory = Memory.none(BATCH, torch.device("cpu"), torch.float64)
    other = TOKENS.clone()
    other[:, 2] = 10
    with torch.no_grad():
        assert differs(model.decoder(other, memory).logits[:, 3:], model.decoder(TOKENS, memory).logits[:, 3:])
        with intervene(model, "erase 3"), record(model) as recording:
            whole = model.decoder(TOKENS, memory).logits
            same(model.decoder(other, memory).logits[:, 3:], whole[:, 3:])
            near(stepped(model, memory)[0], whole)
    for weights in recording.calls["decoder.stack.0.attention.attention"]:
        assert not weights[..., 2:3].any()
    for change in ("swap 1 2", Feed(memory)):
        with pytest.raises(RecipeError, match="no encoder"), intervene(model, change):
            pass
    recurrent = build_language_model(make_recipe(Case("none")), size=11)
    with pytest.raises(RecipeError, match="no attention that could skip"), intervene(recurrent, "erase 2"):
        pass


@pytest.mark.parametrize("encoder", ["recurrent", "transformer"])
@pytest.mark.parametrize("pooling", ["mean", "max", "last", "cls", "attention"])
def test_a_classifier_ignores_erased_words(pooling, encoder):
    recipe = make_recipe(transformer(encoder=encoder))
    model = build_classifier(recipe, pooling, size=9, classes=3).double().eval()
    source = sources()
    other = Padded(source.ids.clone(), source.mask)
    other.ids[:, 1] = 8
    with torch.no_grad(), intervene(model, "erase 2"):
        same(model(other).logits, model(source).logits)
        weights = model(source).weights
        assert weights is None or not weights[:, 1].any()
    if pooling == "attention":
        with torch.no_grad(), intervene(model, Force(1, 3)):
            assert (model(source).weights[:, 2] == 1).all()


@pytest.mark.parametrize("encoder", ["recurrent", "transformer"])
def test_a_span_model_neither_reads_nor_answers_erased_words(encoder):
    recipe = make_recipe(transformer(encoder=encoder))
    model = build_span_model(recipe, Answer(segments=True, overlap=True), size=9).double().eval()
    source = Padded(torch.tensor([[4, 5, 3, 4, 6, 7, 5, 3]]), torch.ones(1, 8, dtype=torch.bool))
    context = torch.tensor([[False] * 3 + [True] * 4 + [False]])
    for position in (1, 4):  # in the question, and in the context
        other = Padded(source.ids.clone(), source.mask)
        other.ids[0, position] = 8
        with torch.no_grad():
            assert differs(model(other, context).first.exp(), model(source, context).first.exp())
            with intervene(model, Erase(position + 1)):
                pointed = model(source, context)
                same(model(other, context).first, pointed.first)
                assert pointed.first[0, 4].isneginf() == (position == 4)


def test_places_that_are_not_there_get_a_sentence():
    model = make_model(transformer())
    wrong = {
        Silence("encoder.cross"): "site 'encoder.cross' is not in this model, which has decoder.cross_attention",
        Silence(CROSS, 3): "layer 3 is not there; decoder.cross_attention has layers 1 to 2",
        Silence(CROSS, 1, 3): "head 3 is not there; decoder.cross_attention has heads 1 to 2",
        Force(2, 3, DECODER_SELF): "sees the columns up to its own number, 2",
        Force("a", 3): "a model has no words, so that 'a' cannot be found",
        Erase("a"): "a model has no words",
    }
    for change, message in wrong.items():
        with pytest.raises(RecipeError, match=message), intervene(model, change):
            pass
    for change, message in {
        "erase 9": "only 7 positions",
        "swap 1 9": "only 4 positions",
        "swap 1 5": "only 4 positions",
        "erase 1-7": "nothing is left",
    }.items():
        with pytest.raises(RecipeError, match=message), intervene(model, change):
            model.encoder(sources())
