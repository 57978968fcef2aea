"""All maps of an output: they change no output, equal those of forced decoding, and are chosen by site, layer, head."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import Predictor
from regard import recipe as recipes
from regard.attention.record import Recording
from regard.errors import RecipeError
from regard.maps import AttentionMap, AttentionMaps, LayerMaps
from regard.models import sites
from regard.tasks.core import Axes, recorded_maps
from regard.types import END, Example, Prediction

GOLDEN = Path(__file__).parent / "golden" / "runs"
CROSS, DECODER, ENCODER = "decoder.cross_attention", "decoder.self_attention", "encoder.self_attention"
SITES = {
    "answer": (ENCODER,),
    "classify": ("classify.pooling",),
    "forecast": (DECODER,),
    "language_model_lines": (DECODER,),
    "masked_lm": (ENCODER,),
    "translate_bahdanau": (CROSS,),
    "translate_coverage": (CROSS,),
    "translate_gnmt": (CROSS,),
    "translate_luong": (CROSS,),
    "translate_transformer": (CROSS, DECODER, ENCODER),
}
TRANSLATIONS = [name for name in SITES if name.startswith("translate")]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def golden(name: str) -> tuple[Predictor, list[str]]:
    """A stored run, and texts for it."""
    answers = json.loads((GOLDEN / name / "expected.json").read_text(encoding="utf-8"))["answers"]
    return regard.load(GOLDEN / name / "finished", device="cpu"), [answer["source"] for answer in answers[:4]]


def in_layers(layers: int = 2, heads: int = 3) -> Predictor:
    """A Transformer of several layers and heads with new weights, for character pairs."""
    sizes = [f"model.{side}.{key}" for side in ("encoder", "decoder") for key in (f"layers={layers}", "dim=12")]
    kinds = [f"model.{side}.kind=transformer" for side in ("encoder", "decoder")]
    attention = [f"model.attention.heads={heads}", "model.attention.score=scaled_dot", "model.attention.dim=12"]
    recipe = recipes.parse("", "it", [*sizes, *kinds, *attention, "name=tiny", "model.embedding=12"])
    predictor, _ = golden("translate_transformer")
    task = type(predictor.task).learn(recipe, [Example("abc de", "xyz")])
    return Predictor(predictor.run, task, task.build().eval())


def continuing(window: int) -> Predictor:
    """A Transformer of two layers with new weights that continues texts by 11 characters; window 0: no window."""
    keys = ["task=language_model", f"language_model.window={window}", "name=tiny"]
    keys += ["model.decoder.kind=transformer", "model.decoder.layers=2", "model.decoder.dim=12", "model.embedding=12"]
    keys += ["model.attention.heads=3", "model.attention.score=scaled_dot", "search.max_extra=11"]
    predictor, _ = golden("language_model_lines")
    torch.manual_seed(1)
    task = type(predictor.task).learn(recipes.parse("", "it", keys), [Example("", "abcabc")])
    model = task.build().eval()
    with torch.no_grad():
        model.decoder.out.bias[END] = -torch.inf  # so that it writes as long as it may
    return Predictor(predictor.run, task, model)


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir()))
def test_all_maps_change_no_output_and_contain_the_map_of_the_prediction(name: str) -> None:
    predictor, texts = golden(name)
    plain, full = predictor.predict(texts), predictor.predict(texts, all_maps=True)
    for one, other in zip(plain, full, strict=True):
        assert one.maps is None
        assert replace(other, maps=None) == one
        assert (other.maps is not None) == (name in SITES)
        if other.maps is None:
            continue
        assert other.maps.sites == SITES[name]
        for attention in other.maps:
            torch.testing.assert_close(attention.weights.sum(-1), torch.ones(len(attention.rows)), atol=1e-5, rtol=0)
        own = other.maps.pick()
        if one.map is not None and own.weights.shape == one.map.weights.shape:  # else it has fewer rows
            assert (own.rows, own.columns, own.layout) == (one.map.rows, one.map.columns, one.map.layout)
            torch.testing.assert_close(own.weights, one.map.weights, atol=1e-5, rtol=0)
    assert not any(module._forward_hooks for module in predictor.model.modules())


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_maps_after_a_search_are_those_of_a_forced_pass(name: str) -> None:
    predictor, texts = golden(name)
    answers = predictor.predict(texts, beam=3, n_best=2, all_maps=True)
    forced = regard.force(predictor, [(answer.source, answer.text) for answer in answers], all_maps=True)
    same = [(answer, again) for answer, again in zip(answers, forced, strict=True) if answer.tokens == again.tokens]
    assert same  # the model may write a word in other pieces than the tokenizer does
    for answer, again in same:
        assert answer.maps is not None
        assert again.maps is not None
        assert len(answer.maps) == len(again.maps)
        for found, given in zip(answer.maps, again.maps, strict=True):
            assert found.place == given.place
            rows, columns = found.weights.shape
            assert found.rows == given.rows[:rows]
            assert found.columns == given.columns[:columns]
            torch.testing.assert_close(found.weights, given.weights[:rows, :columns], atol=1e-5, rtol=0)
        assert all(alternative.maps is None for alternative in answer.alternatives)
        alone = predictor.predict([answer.source], beam=3, all_maps=True)[0]
        assert alone.maps is not None
        for found, among in zip(alone.maps, answer.maps, strict=True):  # batch mates and their padding change nothing
            assert (found.rows, found.columns) == (among.rows, among.columns)
            torch.testing.assert_close(found.weights, among.weights, atol=1e-5, rtol=0)


def assert_same(actual: Recording, expected: Recording) -> None:
    """Assert that two recordings hold the same calls, bit for bit."""
    assert actual.calls.keys() == expected.calls.keys()
    for name, calls in expected.calls.items():
        assert len(actual.calls[name]) == len(calls)
        assert all(map(torch.equal, actual.calls[name], calls))


SEARCHES = [{"beam": 1}, {"beam": 5}, {"beam": 2, "n_best": 3}, {"search": {"temperature": 1.5}, "n_best": 2}]
every_search = pytest.mark.parametrize("settings", SEARCHES, ids=str)


@every_search
@pytest.mark.parametrize("name", TRANSLATIONS)
def test_recording_a_prediction_gives_its_best_output_as_if_forced(name: str, settings: dict[str, Any]) -> None:
    predictor, [text, *_] = golden(name)
    plain = predictor.predict([text], **settings)[0]
    with regard.record(predictor.model) as recording:
        prediction = predictor.predict([text], **settings)[0]
    assert prediction == plain
    with regard.record(predictor.model) as among_all:
        full = predictor.predict([text], **settings, all_maps=True)[0]
    assert_same(among_all, recording)  # nothing is recorded twice
    with regard.record(predictor.model) as forced:
        regard.force(predictor, [(text, prediction.text)])
    assert recording.calls.keys() == forced.calls.keys()
    rows = len(prediction.tokens)
    for layer, weights in forced.weights.items():
        own = recording.weights[layer]
        if layer.startswith("encoder"):
            assert torch.equal(own, weights)  # of its one pass
        elif "rnn" not in layer:
            assert own.shape[-2] == rows
            columns = own.shape[-1]
            torch.testing.assert_close(own, weights[..., :rows, :columns], atol=1e-5, rtol=0)
    assert full.maps is not None
    for layer, place in sites(predictor.model).items():
        labelled = full.maps.pick(*place)
        own = recording.map(layer, rows=labelled.rows, columns=labelled.columns)
        torch.testing.assert_close(own.weights, labelled.weights, atol=1e-5, rtol=0)
    assert prediction.map is not None
    name_of_map = [name for name, (site, _) in sites(predictor.model).items() if site == CROSS][-1]
    own = recording.map(name_of_map, rows=prediction.tokens)
    torch.testing.assert_close(own.weights, prediction.map.weights, atol=1e-5, rtol=0)


@every_search
@pytest.mark.parametrize("window", [0, 8])
def test_recording_a_continuation_gives_prompt_and_output_once(window: int, settings: dict[str, Any]) -> None:
    predictor, text = continuing(window), "abca"
    plain = predictor.predict([text], **settings)[0]
    with regard.record(predictor.model) as recording:
        prediction = predictor.predict([text], **settings)[0]
    with regard.record(predictor.model) as among_all:
        full = predictor.predict([text], **settings, all_maps=True)[0]
    assert prediction == plain == replace(full, maps=None)
    assert_same(among_all, recording)
    prompt, rows = len(text), len(text) + len(prediction.tokens)
    assert rows == prompt + 11
    assert len(recording.weights) == 2
    for weights in recording.weights.values():
        assert weights.shape[-2] == min(rows, window or rows)
    assert (full.maps is None) == bool(window)
    for layer, place in sites(predictor.model).items():
        if full.maps is not None:
            torch.testing.assert_close(full.maps.pick(*place).weights, recording.map(layer).weights[prompt:])


def test_maps_do_not_keep_the_batch_in_memory() -> None:
    predictor, texts = golden("translate_transformer")
    for prediction in predictor.predict(texts, all_maps=True):
        assert prediction.maps is not None
        for layer in prediction.maps.layers:
            assert layer.weights.untyped_storage().nbytes() == layer.weights.numel() * 4


def test_sites_layers_and_heads_are_those_that_record_finds() -> None:
    predictor = in_layers()
    [answer] = regard.force(predictor, [("abc", "xy")], all_maps=True)
    assert answer.maps is not None
    names = {"cross": CROSS, "self": DECODER}
    with regard.record(predictor.model) as recording:
        regard.force(predictor, [("abc", "xy")])
    wanted = {f"encoder.stack.{layer}.attention.attention": (ENCODER, layer + 1) for layer in range(2)}
    for layer in range(2):
        wanted[f"decoder.stack.{layer}.attention.attention"] = (names["self"], layer + 1)
        wanted[f"decoder.stack.{layer}.cross.attention"] = (names["cross"], layer + 1)
    assert sites(predictor.model) == wanted
    for name, (site, layer) in wanted.items():
        for head in (1, 2, 3):
            whole = recording.map(name, head=head).weights
            assert torch.equal(answer.maps.pick(site, layer, head).weights, whole)
        assert torch.equal(answer.maps.pick(site, layer).weights, recording.weights[name].flatten(0, -3).mean(0))


def test_a_row_of_decoder_self_attention_is_the_token_written_and_its_columns_were_read_before() -> None:
    [answer] = regard.force(in_layers(), [("abc", "xyz")], all_maps=True)
    assert answer.maps is not None
    own = answer.maps.pick(DECODER)
    assert own.rows == ("x", "y", "z", "</s>")
    assert own.columns == ("<s>", "x", "y", "z")
    assert torch.equal(own.weights, own.weights.tril())
    assert (own.weights.tril() > 0).sum() == 10
    assert answer.maps.pick(ENCODER).rows == ("a", "b", "c", "</s>") == answer.maps.pick(ENCODER).columns


def test_a_language_model_has_maps_over_the_prompt_and_what_it_wrote() -> None:
    predictor, texts = golden("language_model_lines")
    [answer] = predictor.predict(texts[:1], all_maps=True)
    assert answer.maps is not None
    own = answer.maps.pick()
    prompt = [predictor.task.source.piece(token) for token in predictor.task.source.encode(texts[0])]
    assert own.rows == answer.tokens
    assert own.columns == ("<s>", *prompt, *answer.tokens[:-1])
    assert torch.equal(own.weights, own.weights.tril(len(prompt)))


def test_what_is_not_there_is_refused_with_what_is() -> None:
    [answer] = regard.force(in_layers(), [("abc", "xy")], all_maps=True)
    assert answer.maps is not None
    for layer in (0, 3, 7):
        with pytest.raises(RecipeError, match=f"^layer {layer}: {CROSS} has layers 1 to 2$"):
            answer.maps.pick(layer=layer)
    with pytest.raises(RecipeError, match=f"^layer 7: {ENCODER} has layers 1 to 2$"):
        answer.maps.pick(ENCODER, 7)
    with pytest.raises(RecipeError, match=r"^layer 7: this model has layers 1 to 2$"):
        answer.maps.select(layer=7)
    for head in (0, 4):
        with pytest.raises(RecipeError, match=f"^head {head}: {CROSS} of this model has heads 1 to 3$"):
            answer.maps.pick(head=head)
    with pytest.raises(RecipeError, match=f"^site 'cross': this model has {CROSS}, {DECODER}, {ENCODER}$"):
        answer.maps.pick("cross")
    predictor, texts = golden("translate_bahdanau")
    [recurrent] = predictor.predict(texts[:1], all_maps=True)
    assert recurrent.maps is not None
    with pytest.raises(RecipeError, match=f"^layer 2: {CROSS} has one layer, layer 1$"):
        recurrent.maps.pick(layer=2)


def test_token_scores_add_up_to_the_score() -> None:
    predictor, texts = golden("translate_luong")
    for answer in regard.force(predictor, [Example(text, "DET NOUN") for text in texts]):
        assert len(answer.token_scores) == len(answer.tokens) + 1
        assert sum(answer.token_scores) == pytest.approx(answer.score, abs=1e-4)
        assert answer.to_dict()["token_scores"] == list(answer.token_scores)
        assert answer.maps is None


def test_reprs_are_short() -> None:
    predictor = in_layers()
    [answer] = regard.force(predictor, [("abc", "xy")], all_maps=True)
    assert answer.maps is not None
    path = str(GOLDEN / "translate_transformer" / "finished")
    assert repr(predictor.run) == f"Run({path!r})"
    parameters = sum(parameter.numel() for parameter in predictor.model.parameters())
    assert repr(predictor) == f"Predictor({path!r}, task translate, {parameters:,} parameters)"
    assert repr(answer.map) == "AttentionMap(3 × 4)"
    assert repr(answer.maps.pick(head=2)) == f"AttentionMap(3 × 4, {CROSS}, layer 2, head 2)"
    layers = ", ".join(f"{site} with 2 layers of 3 heads" for site in (CROSS, DECODER, ENCODER))
    assert repr(answer.maps) == f"AttentionMaps({layers})"
    short = Prediction("x" * 1000, "y", -1.5, ("y",), answer.map)
    assert repr(short).startswith("Prediction('xxxx")
    assert repr(short).endswith("' → 'y', score -1.5, map 3 × 4)")
    assert len(repr(short)) < 200
    with regard.record(predictor.model) as recording:
        assert repr(recording) == "Recording(nothing yet)"
        regard.force(predictor, [("abc", "xy")])
    assert repr(recording).startswith("Recording(6 weights: encoder.stack.0.attention.attention, ")
    assert repr(recording).endswith(", ...)")


def test_predictions_and_maps_are_saved_by_the_ending_of_the_file(tmp_path: Path) -> None:
    [answer] = regard.force(in_layers(), [("abc", "xy")], all_maps=True)
    assert answer.map is not None
    assert answer.maps is not None
    answer.save(tmp_path / "all.html")
    replace(answer, maps=None).save(tmp_path / "one.html")
    answer.save(tmp_path / "one.svg")
    assert b'"Site"' in (tmp_path / "all.html").read_bytes()
    assert b'"Site"' not in (tmp_path / "one.html").read_bytes()
    assert "abc → xy".encode() in (tmp_path / "one.svg").read_bytes()
    with pytest.raises(RecipeError, match=r"x.svg' holds one map; write all of them to a .html file, or pick one"):
        answer.maps.save(tmp_path / "x.svg")
    with pytest.raises(RecipeError, match=r"unknown picture ending '.bmp'"):
        answer.map.save(tmp_path / "x.bmp")
    with pytest.raises(RecipeError, match=r"^'a' has no map to save: it is blank, or the model has no attention$"):
        Prediction("a", "b", 0.0, ("b",), None).save(tmp_path / "x.svg")
    assert len(list(tmp_path.iterdir())) == 3


def test_weights_that_do_not_fit_the_labels_get_numbers() -> None:
    """An encoder of another package may attend to fewer positions than the source has labels."""
    predictor = in_layers(layers=1)
    recording = Recording({"encoder.stack.0.attention.attention": [torch.ones(1, 3, 2, 2)]})
    axes = {ENCODER: Axes(tuple("abcd"), tuple("abcd"))}
    maps = recorded_maps(predictor.model, recording, 0, axes)
    assert maps is not None
    assert (maps.pick().rows, maps.pick().columns) == (("1", "2"), ("1", "2"))


def test_a_stack_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="there are no maps without a layer"):
        AttentionMaps(())
    layer = LayerMaps("x", 1, torch.ones(1, 1, 2), ("a",), ("b", "c"))
    assert [attention.place for attention in AttentionMaps((layer,))] == [("x", 1, 1)]
    assert AttentionMaps((layer,)).pick() == AttentionMap(torch.ones(1, 2), ("a",), ("b", "c"))


def test_the_code_of_the_page_about_looking_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[1] / "docs" / "looking.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    block = "import regard\n" + "".join(blocks[:2])  # the others are about models of other packages
    monkeypatch.chdir(tmp_path)
    run = GOLDEN / "translate_transformer" / "finished"
    names: dict[str, object] = {}
    exec(re.sub('"runs/(mine|other)"', repr(str(run)), block), names)
    assert b'"Site"' in (tmp_path / "maps.html").read_bytes()
    assert b'"choices":["Output","Site","Layer","Head"]' in (tmp_path / "rivals.html").read_bytes()
    assert isinstance(names["page"], bytes)
    assert b'"panels":[' in names["page"]
