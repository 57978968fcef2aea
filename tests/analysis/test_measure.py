"""How far maps may be trusted: erasing equals a reference, replaced weights are interventions, measures separate."""

import json
import math
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from commands import shared_commands
from regard import Feed, Permute, Predictor, Uniform
from regard import recipe as recipes
from regard.analysis.forced import force
from regard.analysis.measure import (
    SEED,
    Erased,
    Estimate,
    Replaced,
    Reshuffle,
    Trust,
    agreement,
    erasures,
    estimate,
    kendall,
    measure,
    permuted_columns,
    replacements,
    store,
    without_positions,
)
from regard.attention.record import WITHOUT_RUN
from regard.attention.scopes import Weights
from regard.data.corpora import shapes
from regard.decoders import TransformerDecoder
from regard.errors import CorruptError, DataError, RecipeError
from regard.maps import Grid
from regard.models import CROSS, Seq2Seq
from regard.storage import Run
from regard.tasks import TASKS, Transduce
from regard.trust import sentences
from regard.types import END, Example

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
TRANSLATIONS = sorted(path.name for path in GOLDEN.glob("translate_*"))
EXAMPLES = [Example("abc", "cbad"), Example("dabca", "ac"), Example("bd", "bdc")]
SMALL = (
    *("data.size=2000", "model.embedding=16", "model.encoder.dim=32", "model.decoder.dim=32", "model.attention.dim=16"),
    *("model.attention.scope=global", "model.attention.score=general", "model.decoder.order=luong"),
    *("train.updates=300", "train.validate=300", "train.batch_tokens=600", "train.learning_rate=0.01"),
    *("train.device=cpu", "train.validate_examples=2"),
)


def loaded(name: str, dtype: torch.dtype = torch.float64) -> Predictor:
    predictor = regard.load(GOLDEN / name / "finished", device="cpu")
    predictor.model.to(dtype)
    return predictor


@torch.no_grad()
def log_probs_alone(predictor: Predictor, example: Example, source: list[int]) -> Tensor:
    """The definition: one source by itself, one forward pass, a log-softmax."""
    task = predictor.task
    assert isinstance(task, Transduce)
    batch = task.collate(replace_source(task, example, source), [0])
    logits = predictor.model.eval()(batch).logits[0]
    wanted = [*task.target.encode(example.target), END]
    return torch.stack([logits[row].log_softmax(-1)[token] for row, token in enumerate(wanted)])[:-1]


def replace_source(task: Transduce, example: Example, source: list[int]):
    data = task.encode([example])
    return replace(data, sources=[source], sizes=torch.tensor([len(source) + 1]).numpy())


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_erasing_equals_one_source_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.analysis.measure.ERASED_TOKENS", 25)  # so that there are several batches
    predictor = loaded(name)
    task = predictor.task
    assert isinstance(task, Transduce)
    for example, erased in zip(EXAMPLES, erasures(predictor, EXAMPLES), strict=True):
        ids = task.inputs.encode(example.source)
        full = log_probs_alone(predictor, example, ids)
        columns = [full - log_probs_alone(predictor, example, ids[:at] + ids[at + 1 :]) for at in range(len(ids))]
        assert erased.changes.shape == erased.map.weights.shape == (len(full), len(ids))
        torch.testing.assert_close(erased.changes, torch.stack(columns, dim=1), atol=1e-9, rtol=1e-9)
        forced = force(predictor, [example])[0].map
        assert forced is not None
        assert (erased.map.rows, erased.map.columns) == (forced.rows[:-1], forced.columns[:-1])
        torch.testing.assert_close(erased.map.weights, forced.weights[:-1, :-1])


def test_a_masked_position_is_that_of_its_row_alone() -> None:
    predictor = loaded("translate_bahdanau")
    assert isinstance(predictor.model, Seq2Seq)
    assert isinstance(predictor.task, Transduce)
    item = predictor.task.inputs.encode("dabca")
    with torch.no_grad():
        memory = predictor.model.read(predictor.task.inputs.collate([item]))
        masked = without_positions(memory, torch.tensor([1, 4]))
    assert masked.mask.tolist() == [[place != at for place in range(6)] for at in (1, 4)]
    torch.testing.assert_close(masked.states, memory.states.expand(2, -1, -1))
    assert bool(memory.mask.all())  # the argument is unchanged


def test_cells_of_a_picture_are_masked_in_the_memory() -> None:
    keys = ("picture.channels=3", "picture.blocks=3", "model.embedding=12", "model.encoder.dim=12")
    keys += ("model.decoder.dim=12", "model.attention.dim=12", "train.device=cpu")
    recipe = recipes.load("shapes", list(keys))
    examples = shapes(seed=1, size=5).train[:2]
    task = TASKS["translate"].learn(recipe, examples)
    assert isinstance(task, Transduce)
    predictor = Predictor(Run(Path("nowhere")), task, task.build().double().eval())
    for example, erased in zip(examples, erasures(predictor, examples), strict=True):
        assert isinstance(erased.map.layout, Grid)
        assert isinstance(predictor.model, Seq2Seq)
        cells = erased.map.layout.height * erased.map.layout.width
        assert erased.changes.shape[1] == cells
        data = task.encode([example])
        batch = task.collate(data, [0])
        wanted = torch.tensor([*data.targets[0], END])
        with torch.no_grad():
            memory = predictor.model.read(batch.source)
            logits = []
            for mask in (memory.mask, memory.mask & (torch.arange(cells) != cells - 1)):
                step = predictor.model.decoder(batch.target.ids[:, :-1], replace(memory, mask=mask))
                logits.append(step.logits[0].log_softmax(-1)[torch.arange(len(wanted)), wanted][:-1])
        torch.testing.assert_close(erased.changes[:, -1], logits[0] - logits[1], atol=1e-9, rtol=1e-9)


# ---- agreement


def tau_by_pairs(first: list[float], second: list[float]) -> float:
    pairs = [(a - b, c - d) for (a, c), (b, d) in combinations(zip(first, second, strict=True), 2)]
    signed = sum(math.copysign(1, one * other) for one, other in pairs if one * other)
    untied = [sum(1 for pair in pairs if pair[side]) for side in (0, 1)]
    return signed / math.sqrt(untied[0] * untied[1]) if all(untied) else 0.0


def test_kendall_counts_pairs_and_ties() -> None:
    first = torch.tensor([[1.0, 2, 3, 4, 5], [1, 2, 2, 3, 0], [1, 1, 1, 1, 1], [5, 4, 3, 2, 1]])
    second = torch.tensor([[2.0, 4, 6, 8, 9], [3, 1, 1, 4, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]])
    expected = [tau_by_pairs(*rows) for rows in zip(first.tolist(), second.tolist(), strict=True)]
    assert kendall(first, second).tolist() == pytest.approx(expected)
    assert expected[0] == 1
    assert expected[2:] == [0, -1]


class LargestTensor(TorchDispatchMode):
    """In the block, the number of elements of the largest tensor that an operation returns."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for own in result if isinstance(result, list | tuple) else [result]:
            if isinstance(own, Tensor):
                self.largest = max(self.largest, own.numel())
        return result


def kendall_at_once(first: Tensor, second: Tensor) -> Tensor:
    one, other = (
        torch.sign(side.double().unsqueeze(-1) - side.double().unsqueeze(-2)).flatten(-2) for side in (first, second)
    )
    untied = (one.abs().sum(-1) * other.abs().sum(-1)).sqrt()
    return torch.where(untied > 0, (one * other).sum(-1) / untied.clamp(min=1.0), torch.zeros_like(untied))


@pytest.mark.parametrize(("rows", "columns"), [(40, 90), (1, 400), (3, 1), (5, 0), (0, 5)])
def test_kendall_is_the_same_in_blocks_of_bounded_memory(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = torch.Generator().manual_seed(1)
    first = torch.rand(rows, columns, generator=random)
    second = torch.randint(0, 7, (rows, columns), generator=random).float()  # with ties
    second[:1] = 1.0  # orders nothing
    for pairs in (1, 1000, 10_000, 10**8):
        monkeypatch.setattr("regard.analysis.measure.PAIRS", pairs)
        with LargestTensor() as used:
            found = kendall(first, second)
        assert torch.equal(found, kendall_at_once(first, second))
        assert used.largest <= max(pairs, 3 * rows * max(1, columns))


def test_agreement_is_with_the_size_of_changes_and_leaves_out_single_positions() -> None:
    weights = torch.tensor([[0.1, 0.3, 0.6], [0.6, 0.3, 0.1]])
    change = torch.tensor([[0.1, -0.5, 2.0], [-3.0, 0.2, 0.0]])
    assert agreement([weights, weights[:, :1], weights[:0]], [change, change[:, :1], change[:0]]) == [1.0]


def test_the_bootstrap_interval_holds_the_mean_and_narrows() -> None:
    few, many = estimate([0.0, 1.0] * 5), estimate([0.0, 1.0] * 500)
    assert few.value == many.value == 0.5
    assert few.low < many.low < 0.5 < many.high < few.high
    assert estimate([0.25] * 3) == Estimate(0.25, 0.25, 0.25)
    with pytest.raises(DataError, match="no example has two source positions"):
        estimate([])


# ---- replaced weights


def test_each_call_is_shuffled_with_the_next_seed() -> None:
    call = Weights(torch.rand(2, 5, 7, generator=torch.Generator().manual_seed(1)), None, None, 0)
    change = Reshuffle(CROSS)
    for seed in range(SEED, SEED + 3):
        assert torch.equal(change.change(call, heads=False), Permute(CROSS, seed=seed).change(call, heads=False))


def test_a_permuted_map_has_the_weights_of_its_rows() -> None:
    weights = torch.rand(5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    permuted = permuted_columns(weights, torch.Generator().manual_seed(1))
    torch.testing.assert_close(permuted.sort(-1).values, weights.sort(-1).values)
    assert not torch.equal(permuted, weights)


def test_in_a_window_columns_without_weight_keep_their_places() -> None:
    weights = torch.rand(50, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights[:, 5:] = weights[::2, 0] = 0.0
    permuted = permuted_columns(weights, torch.Generator().manual_seed(1), in_window=True)
    assert torch.equal(permuted == 0, weights == 0)
    torch.testing.assert_close(permuted.sort(-1).values, weights.sort(-1).values)
    assert not torch.equal(permuted, weights)


@pytest.mark.parametrize("scope", ["local_m", "local_p"])
def test_an_untrained_model_with_a_window_is_not_trusted(scope: str) -> None:
    keys = [key for key in SMALL if not key.startswith("model.attention.scope")]
    recipe = recipes.load("copy", [*keys, f"model.attention.scope={scope}", "model.attention.window=2"])
    examples = TASKS["translate"].examples(recipe)
    task = TASKS["translate"].learn(recipe, examples.train)
    torch.manual_seed(4)
    untrained = measure(Predictor(Run(Path("nowhere")), task, task.build().eval()), examples.test[:30])
    assert not untrained.is_above_floor


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_replaced_weights_are_those_of_interventions_and_go_with_the_block(name: str) -> None:
    predictor = loaded(name)
    sources = [example.source for example in EXAMPLES]
    before = [(answer.text, answer.score) for answer in predictor.predict(sources, beam=1)]
    scores = [score for prediction in force(predictor, EXAMPLES) for score in prediction.token_scores]
    found = replacements(predictor, EXAMPLES)
    for name, change in {"uniform": Uniform(CROSS), "permuted": Reshuffle(CROSS)}.items():
        with regard.intervene(predictor, change):
            others = [answer.text for answer in predictor.predict(sources, beam=1)]
            own = [score for prediction in force(predictor, EXAMPLES) for score in prediction.token_scores]
        differing = sum(one != other for (one, _), other in zip(before, others, strict=True))
        assert found[name].changed == differing / len(EXAMPLES)
        assert found[name].log_prob == pytest.approx(sum(own) / len(own) - sum(scores) / len(scores), abs=1e-9)
        assert found[name].log_prob != 0
    assert [(answer.text, answer.score) for answer in predictor.predict(sources, beam=1)] == before


# ---- the result: it separates


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return regard.load(regard.train("copy", *SMALL, runs=tmp_path_factory.mktemp("runs"), quiet=True), device="cpu")


@pytest.fixture(scope="module")
def strings(trained: Predictor) -> list[Example]:
    return [example for example in trained.task.examples(trained.task.recipe).test if len(example.source) > 4][:24]


def test_a_trained_map_agrees_with_erasing_and_others_do_not(trained: Predictor, strings: list[Example]) -> None:
    trust = measure(trained, strings)
    assert trust.is_used
    assert trust.is_above_floor
    assert trust.agreement.value > 0.3
    assert abs(trust.floor.value) < 0.1
    assert trust.line.startswith("trust the map")
    assert trust.uniform.changed > 0.5
    assert trust.alignment.keys() == {"output step", "input step"}

    with regard.intervene(trained, Reshuffle(CROSS)):
        shuffled = _agreement(erasures(trained, strings))
    assert shuffled.low < trust.floor.high
    assert shuffled.high < trust.agreement.low
    for seed in (1, 2, 3):  # one order for all passes, so agreement is possible
        with regard.intervene(trained, Permute(CROSS, seed=seed)):
            permuted = measure(trained, strings)
        assert not permuted.is_above_floor
        assert permuted.agreement.high < trust.agreement.low
        assert permuted.line.startswith("do not trust the map")

    fresh = Predictor(trained.run, trained.task, trained.task.build().eval())
    untrained = measure(fresh, strings)
    assert not untrained.is_above_floor
    assert untrained.agreement.high < trust.agreement.low
    assert untrained.line.startswith(("do not trust the map", "attention is not used"))

    same = measure(trained, strings[:4], other=trained)
    assert same.ceiling == Estimate(1.0, 1.0, 1.0)


def _agreement(erased: list[Erased]) -> Estimate:
    return estimate(agreement([one.map.weights for one in erased], [one.changes for one in erased]))


def test_attention_that_reaches_no_output_is_not_used() -> None:
    predictor = loaded("translate_transformer")
    assert isinstance(predictor.model, Seq2Seq)
    assert isinstance(predictor.model.decoder, TransformerDecoder)
    for layer in predictor.model.decoder.layers:
        assert layer.cross is not None
        torch.nn.init.zeros_(layer.cross.out.weight)
    trust = measure(predictor, EXAMPLES * 4)
    assert trust.uniform == trust.permuted == Replaced(0.0, 0.0)
    assert trust.line == (
        "attention is not used, so the map explains nothing: uniform weights change 0% of the outputs, permuted ones 0%"
    )


def test_the_line_names_the_ceiling_and_grades_by_it() -> None:
    trust = Trust(
        *(10, 35, Estimate(0.4, 0.35, 0.45), Estimate(0.0, -0.05, 0.05), None),
        *(Replaced(0.9, -1.0), Replaced(1.0, -2.0)),
        *(0.1, 0.2, {}, "the map", "tokens removed"),
    )
    assert trust.line == (
        "trust the map in part: its agreement with erasing source positions is 0.40 (0.35 to 0.45), a permuted map's "
        "0.00 (-0.05 to 0.05); uniform weights change 90% of the outputs, permuted ones 100%"
    )
    assert replace(trust, ceiling=Estimate(0.5, 0.4, 0.6)).line.startswith("trust the map: ")
    assert ", another run's 0.80 (0.7" in replace(trust, ceiling=Estimate(0.8, 0.7, 0.9)).line
    assert replace(trust, agreement=Estimate(0.2, 0.14, 0.3)).line.startswith("do not trust the map: ")
    too_few = "too few to show how far the map may be trusted; measure on at least 10"
    assert replace(trust, examples=9).line == f"9 examples are {too_few}"
    assert replace(trust, examples=1).line == f"1 example is {too_few}"
    content = json.loads(json.dumps(trust.to_dict()))
    assert content["agreement"] == {"value": 0.4, "low": 0.35, "high": 0.45}
    assert content["ceiling"] is None
    assert content["uniform"] == {"changed": 0.9, "log_prob": -1.0}
    assert content["line"] == trust.line


def test_another_run_must_have_the_same_tokens() -> None:
    first, other = loaded("translate_bahdanau", torch.float32), loaded("translate_luong", torch.float32)
    forced = [force(predictor, EXAMPLES)[0].map for predictor in (first, other)]
    if forced[0] is not None and forced[1] is not None and forced[0].columns != forced[1].columns:
        with pytest.raises(RecipeError, match="splits texts into other tokens"):
            measure(first, EXAMPLES, other=other)
    with pytest.raises(DataError, match="no examples to measure on"):
        measure(first, [])


@pytest.mark.parametrize("name", ["translate_bahdanau", "translate_transformer"])
def test_pairs_that_are_too_long_are_left_out_and_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = loaded(name, torch.float32), loaded(name, torch.float32)
    assert isinstance(first.task, Transduce)
    longest = first.task.longest
    long = " ".join("a" * (longest + 1))
    long_pairs = [Example(long, "b"), Example("ab", long)]
    plain, trust = measure(first, EXAMPLES), measure(first, [long_pairs[0], *EXAMPLES, long_pairs[1]])
    assert (plain.left_out, trust.left_out) == (0, 2)
    assert replace(trust, left_out=0) == plain
    assert "|n:3|skipped:2|" in trust.signature
    assert "skipped" not in plain.signature
    with pytest.raises(DataError, match=rf"^every pair has a side of more than {longest:,} tokens; give shorter"):
        measure(first, long_pairs)
    sizes = [max(sides) - 1 for sides in first.task.encode(EXAMPLES).lengths()]
    limit = property(lambda task: max(sizes) - 1 if task is other.task else longest)  # of the other run alone
    monkeypatch.setattr(Transduce, "longest", limit)
    assert measure(first, EXAMPLES, other=other).left_out == sizes.count(max(sizes))


def test_other_tasks_are_refused() -> None:
    with pytest.raises(RecipeError, match="only runs of translate"):
        measure(regard.load(GOLDEN / "classify" / "finished", device="cpu"), EXAMPLES)


# ---- stored in the run


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN / "translate_bahdanau" / "finished", tmp_path / "run")
    return tmp_path / "run"


def test_the_line_is_stored_for_these_weights(copied: Path) -> None:
    predictor = regard.load(copied, device="cpu")
    assert (predictor.trust, predictor.predict(["abc"])[0].trust) == ("", "")
    assert under(predictor) == ("not measured; regard measure RUN shows how far this map may be trusted",)
    trust = measure(predictor, EXAMPLES)
    store(predictor.run, trust)
    again = regard.load(copied, device="cpu")
    assert again.trust == trust.line
    [prediction] = again.predict(["abc"])
    assert prediction.trust == trust.line
    assert under(again) == (trust.line,)
    assert prediction.to_dict()["trust"] == trust.line
    assert "trust" not in prediction.to_dict(maps=False)
    assert force(again, EXAMPLES)[0].trust == trust.line
    run = Run.open(copied)
    assert not (copied / ".lock").exists()
    assert run.finished()
    run.replace("model.safetensors", run.read("model.safetensors") + b" ")  # other weights: no longer measured
    assert run.trust() == ""


def under(predictor: Predictor, text: str = "abc", *, all_maps: bool = False) -> tuple[str, ...]:
    """The sentences under the maps of a prediction."""
    [prediction] = predictor.predict([text], all_maps=all_maps)
    return tuple(own.trust for own in prediction.maps or [prediction.map] if own is not None)


def test_maps_of_other_layers_and_heads_say_what_was_measured() -> None:
    predictor = regard.load(GOLDEN / "translate_transformer" / "finished", device="cpu")
    predictor.trust = "trust the map"
    [prediction] = predictor.predict(["abc"], all_maps=True)
    maps = prediction.maps
    assert maps is not None
    other = "this map was not measured; for the map that predictions show: trust the map"
    assert maps.pick().trust == maps.pick().words().trust == "trust the map"
    for attention in [*maps, maps.rollout(), maps.max(), maps.by_norm().pick()]:
        assert attention.trust == (
            "trust the map" if attention.place == maps.pick().place and attention == maps.pick() else other
        )
    difference = maps.pick().minus(maps.pick(layer=1)).trust
    assert difference.startswith("a difference of two maps is not measured; regard measure RUN measures")


def test_recorded_maps_say_what_was_measured() -> None:
    predictor = regard.load(GOLDEN / "translate_transformer" / "finished", device="cpu")

    def recorded(source: object, *changes: str) -> set[str]:
        with regard.record(source) as recording, regard.intervene(predictor, *changes):
            predictor.predict(["abc"])
        maps = recording.maps()
        one = recording.map(next(iter(recording.weights)))
        return {own.trust for own in [*maps, maps.max(), one]}

    assert recorded(predictor) == {
        "not measured; regard measure RUN shows how far the map that predictions show may be trusted"
    }
    predictor.trust = "trust the map"
    assert recorded(predictor) == {"this map was not measured; for the map that predictions show: trust the map"}
    assert recorded(predictor, "uniform") == {"not measured: the model was changed by uniform"}
    assert recorded(predictor.model) == {WITHOUT_RUN}
    assert WITHOUT_RUN.startswith("not measured; regard measure RUN measures")


def test_a_recorded_map_keeps_the_sentence_of_every_change_before_it() -> None:
    predictor = regard.load(GOLDEN / "translate_transformer" / "finished", device="cpu")
    predictor.trust = "trust the map"
    model, task = predictor.model, predictor.task
    assert isinstance(task, Transduce)
    source = task.inputs.collate([task.inputs.encode("abc")])
    silence = "silence site=encoder.self_attention"
    with torch.no_grad(), regard.record(predictor) as recording:
        with regard.intervene(predictor, silence):
            memory = model.read(source)
        model.decoder(torch.tensor([[2, 5, 6]]), memory)  # the model is as before, but its memory is not
    changed = f"not measured: the model was changed by {silence}"
    assert {own.trust for own in recording.maps()} == {changed}
    with torch.no_grad(), regard.record(predictor) as recording:
        memory = model.read(source)
        with regard.intervene(predictor, "uniform"):
            model.decoder(torch.tensor([[2, 5, 6]]), memory)
        with regard.intervene(predictor, silence, "uniform"):
            model.decoder(torch.tensor([[2, 5, 6]]), memory)
    both = f"not measured: the model was changed by uniform, {silence}"
    for name in recording.weights:  # the encoder ran before the changes
        before = "this map was not measured; for the map that predictions show: trust the map"
        assert recording.trust[name] == (before if name.startswith("encoder") else both)


def test_maps_of_a_decoder_that_was_fed_name_all_changes() -> None:
    predictor = regard.load(GOLDEN / "translate_transformer" / "finished", device="cpu")
    predictor.trust = "trust the map"
    with regard.intervene(predictor, "permute seed=2"):
        result = predictor.intervene("abc", ['feed "cab"', "uniform"])
    assert result.before.map.trust == "not measured: the model was changed by permute seed=2"
    changed = 'not measured: the model was changed by permute seed=2, feed "cab", uniform'
    assert {own.trust for own in result.after.maps} == {changed}


CHANGES = ["permute seed=3", "force row=1 column=2", "erase 1", "swap 1 2", "uniform", 'feed "cab"']


@pytest.mark.parametrize("change", CHANGES)
def test_maps_of_a_changed_model_do_not_have_the_sentence_of_the_unchanged_one(change: str) -> None:
    predictor = regard.load(GOLDEN / "translate_transformer" / "finished", device="cpu")
    predictor.trust = "trust the map"
    result = predictor.intervene("abc", [change])
    (written,) = map(str, result.interventions)
    changed = f"not measured: the model was changed by {written}"
    assert result.before.trust == result.before.map.trust == "trust the map"
    for prediction in (result.after, result.forced):
        assert prediction.trust == ""
        assert {own.trust for own in [prediction.map, *prediction.maps]} == {changed}
    active: str | Feed = change
    if change.startswith("feed"):  # a model takes a memory
        task = predictor.task
        assert isinstance(task, Transduce)
        active = Feed(predictor.model.read(task.inputs.collate([task.inputs.encode("cab")])))
        changed = "not measured: the model was changed by feed Memory"
    with regard.intervene(predictor, active):
        assert set(under(predictor, all_maps=True)) == {changed}
        assert force(predictor, EXAMPLES[:1])[0].trust == ""
    assert under(predictor) == ("trust the map",)


def test_the_sentence_names_the_interventions_of_all_open_blocks() -> None:
    predictor = regard.load(GOLDEN / "translate_transformer" / "finished", device="cpu")
    twice, part = Uniform(), nn.ModuleDict({"decoder": predictor.model.decoder})
    with regard.intervene(part, twice):  # another model, which has a part of this one
        with regard.intervene(predictor, "permute seed=2", twice):
            assert under(predictor) == ("not measured: the model was changed by uniform, permute seed=2, uniform",)
        assert under(predictor) == ("not measured: the model was changed by uniform",)
        result = predictor.intervene("abc", "erase 2")
        assert result.before.map.trust == "not measured: the model was changed by uniform"
        assert result.after.map.trust == "not measured: the model was changed by uniform, erase 2"
    assert under(predictor)[0].startswith("not measured; regard measure RUN")


@pytest.mark.parametrize("run", ["classify", "masked_lm", "answer"])
def test_maps_that_cannot_be_measured_say_so(run: str) -> None:
    text = "a\tb c" if run == "answer" else "abc"
    found = under(regard.load(GOLDEN / run / "finished", device="cpu"), text, all_maps=True)
    assert found
    assert set(found) <= {f"not measured; regard measure cannot measure maps of task = {run} yet"}


def test_a_model_without_attention_to_a_source_says_so() -> None:
    said = sentences("translate", "", attends=False)
    assert (
        said.shown == said.other == "not measured; regard measure needs attention to a source, and this model has none"
    )


@pytest.mark.parametrize("content", [b"{}", b'{"line": 3}', b'{"line": ""}', b"[]", b"nonsense"])
def test_a_damaged_line_is_refused(copied: Path, content: bytes) -> None:
    Run.open(copied).store_measures(content)
    with pytest.raises(CorruptError, match=r"measures.json is damaged"):
        Run.open(copied).trust()


@pytest.mark.parametrize("weights", [None, 3, "a digest", {}])
def test_a_measurement_that_names_no_weights_is_refused(copied: Path, weights: object) -> None:
    Run.open(copied).store_measures(json.dumps({"weights": weights, "line": "trust the map"}).encode())
    sentence = r"measures.json is damaged: it does not list the digests of the weights; run regard measure again$"
    with pytest.raises(CorruptError, match=sentence):
        Run.open(copied).trust()


@pytest.mark.parametrize("line", [None, 3, "", "a" * 1001])
def test_a_measurement_of_the_present_weights_needs_a_sentence(copied: Path, line: object) -> None:
    run = Run.open(copied)
    weights = run.manifest().files["model.safetensors"]
    run.store_measures(json.dumps({"weights": weights, "line": line}).encode())
    with pytest.raises(CorruptError, match=r"measures.json is damaged: it has no sentence; run regard measure again$"):
        run.trust()
    run.store_measures(json.dumps({"weights": ["0" * 64], "line": line}).encode())
    assert run.trust() == ""  # it is about other weights


def test_the_command_prints_stores_and_shows_the_line(copied: Path, tmp_path: Path) -> None:
    pairs = "abc\tcba\ndabca\tac\nbd\tbdc\n"
    (tmp_path / "few.tsv").write_text(pairs, encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text(pairs * 4, encoding="utf-8")
    regard_command = shared_commands()
    as_json = regard_command("measure", copied, "few.tsv", "--json", "--quiet", folder=tmp_path)
    as_json.assert_behaved()
    content = json.loads(as_json.out)
    assert content["examples"] == 3
    assert content["line"].startswith("3 examples are too few to show how far")
    assert not (copied / "measures.json").exists()
    (tmp_path / "long.tsv").write_text(f"{pairs}{'a' * 5001}\tb\n", encoding="utf-8")
    with_long = regard_command("measure", copied, "long.tsv", folder=tmp_path)
    with_long.assert_behaved()
    assert "1 pair with a side that is too long left out" in with_long.error
    plain = regard_command("measure", copied, "pairs.tsv", "--quiet", "--other", copied, folder=tmp_path)
    plain.assert_behaved()
    assert plain.lines[0].startswith("agreement with erasing source positions")
    assert "of the other run's effects of erasing  1.00 (1.00 to 1.00)" in plain.lines[2]
    look = regard_command("look", copied, "abc", folder=tmp_path)
    assert look.lines[-1] == plain.lines[-1]
    chosen = regard_command("look", copied, "abc", "--layer", 1, folder=tmp_path)
    assert chosen.lines[-1] == plain.lines[-1]  # it has one layer with one head, so this is the same map
    for options, endings in (((), ("html", "svg", "gif")), (("--all",), ("html",)), (("--matrix",), ("svg",))):
        files = [part for ending in endings for part in ("-o", f"map.{ending}")]
        regard_command("look", copied, "abc", *options, *files, folder=tmp_path).assert_behaved()
        for ending in endings:
            content = (tmp_path / f"map.{ending}").read_bytes()
            assert plain.lines[-1][:20].encode() in content or ending == "gif"
