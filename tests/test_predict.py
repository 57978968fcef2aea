"""The public Python interface: train, load, predict, score, and pictures in notebooks."""

import inspect
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import regard
from regard import Prediction, Predictor, Run, models
from regard import recipe as recipes
from regard.analysis.forced import force
from regard.analysis.vectors import vectors
from regard.encoders import Encoder
from regard.errors import CorruptError, DataError, RecipeError, ResourceError
from regard.maps import AttentionMap
from regard.storage import MODEL, RECIPE
from regard.tasks import transduce
from regard.types import UNKNOWN, Example

TEXTS = ["abc", "hello", "z", "attention", "aa"]


def tiny(*overrides: str) -> recipes.Recipe:
    sizes = ["model.embedding=16", "model.encoder.dim=24", "model.decoder.dim=20", "model.attention.dim=12"]
    data = ["name=tiny", "data.corpus=reverse", "data.size=600", "data.max_length=10", "train.device=cpu"]
    settings = ["train.updates=40", "train.validate=20", "train.batch_tokens=300", "train.learning_rate=0.01"]
    search = ["search.max_ratio=1", "search.max_extra=4"]
    return recipes.parse("", "tiny", [*sizes, *data, *settings, *search, *overrides])


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models are faster with one thread, and less disturbed by other processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return regard.train(tiny(), runs=tmp_path_factory.mktemp("runs"), quiet=True)


@pytest.fixture(scope="module")
def predictor(run: Run) -> Predictor:
    return regard.load(run)


def test_a_run_is_loaded_by_object_path_or_name(run: Run, predictor: Predictor) -> None:
    expected = predictor.predict(["abc"])[0]
    for source in (run, run.path, str(run.path)):
        prediction = regard.load(source, device="cpu").predict(["abc"])[0]
        assert (prediction.text, prediction.score) == (expected.text, expected.score)


@pytest.mark.parametrize("kind", ["recurrent", "transformer"])
def test_a_loaded_model_has_tied_weights_and_the_same_parameters(tmp_path: Path, kind: str) -> None:
    kinds = [f"model.{side}.kind={kind}" for side in ("encoder", "decoder")]
    widths = ["model.embedding=24", "model.decoder.dim=24", "model.tied=true", "tokens.shared=true"]
    run = regard.train(tiny("train.updates=2", *kinds, *widths), runs=tmp_path, quiet=True)
    predictor = regard.load(run, device="cpu")
    loaded, built = predictor.model, predictor.task.build()
    assert loaded.decoder.out is None
    assert loaded.encoder.embedding.weight is loaded.decoder.embedding.weight
    assert loaded.state_dict().keys() == built.state_dict().keys()
    assert models.weights(loaded).keys() == models.stored_weights(run, loaded).keys()
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (loaded, built)]
    assert counts[0] == counts[1]


def test_in_a_run_of_the_first_format_gnmt_means_gnmt_v2(tmp_path: Path) -> None:
    """Before recipes named a format, gnmt was what gnmt_v2 is today; the weights of both fit either."""
    run = regard.train(tiny("model.decoder.order=gnmt_v2", "model.decoder.layers=2"), runs=tmp_path, quiet=True)
    expected = regard.load(run).predict(TEXTS)
    stored = run.read(RECIPE).decode()
    assert stored.startswith("format = 5\n")

    def answers(recipe: str) -> list[tuple[str, float]]:
        run.replace(RECIPE, recipe.encode())
        return [(prediction.text, prediction.score) for prediction in regard.load(run).predict(TEXTS)]

    current = stored.replace('"gnmt_v2"', '"gnmt"')
    without_format = current.replace("format = 5\n", "")
    assert answers(without_format) == [(prediction.text, prediction.score) for prediction in expected]
    assert run.recipe() == recipes.parse(stored, "it")
    assert answers(current) != answers(without_format)
    # A recipe outside a run has the present format.
    assert recipes.parse(without_format, "it").model.decoder.order == "gnmt"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("call", ["predict", "score", "force", "vectors"])
def test_too_little_memory_for_an_answer_is_a_resource_error(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, call: str, threads: int
) -> None:
    def raise_out_of_memory(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    examples = [Example(text, text) for text in TEXTS]
    for encoder_class in {type(module) for module in predictor.model.modules() if isinstance(module, Encoder)}:
        monkeypatch.setattr(encoder_class, "forward", raise_out_of_memory)
    monkeypatch.setattr(transduce, "SEARCH_TOKENS", 8)  # several batches, in parallel
    calls = {
        "predict": lambda: predictor.predict(TEXTS),
        "score": lambda: predictor.score(examples),
        "force": lambda: force(predictor, examples),
        "vectors": lambda: vectors(predictor, TEXTS),
    }
    torch.set_num_threads(threads)
    try:
        with pytest.raises(ResourceError, match=r"not enough memory for an answer; lower the beam") as caught:
            calls[call]()
    finally:
        torch.set_num_threads(1)
    assert caught.value.exit_code == 6


def test_predictions_and_maps_are_equal_by_value(predictor: Predictor) -> None:
    first, same = (predictor.predict(["hello"], beam=2, n_best=2)[0] for _ in range(2))
    assert first.map is not None
    assert first.map.weights is not same.map.weights
    assert first == same
    assert first.map == same.map
    assert hash(first) == hash(same)
    assert len({first, same, predictor.predict(["abc"])[0]}) == 2
    weights = first.map.weights.clone()
    weights[0, 0] += 1e-3
    others = [
        replace(first.map, weights=weights),
        replace(first.map, weights=first.map.weights.double()),
        replace(first.map, rows=tuple(f"{row}!" for row in first.map.rows)),
        AttentionMap(torch.zeros(1, 1), ("a",), ("b",)),
        None,
    ]
    for other in others:
        assert (first.map == other) is False
        assert (first == replace(first, map=other)) is False
    assert first != "hello"


def test_a_loaded_model_has_no_dropout(tmp_path: Path) -> None:
    run = regard.train(tiny("train.updates=2", "model.decoder.dropout=0.5"), runs=tmp_path, quiet=True)
    predictor = regard.load(run)
    assert not predictor.model.training
    assert predictor.predict(["hello"])[0].score == predictor.predict(["hello"])[0].score


def test_each_text_has_its_answer_in_order(predictor: Predictor) -> None:
    predictions = predictor.predict(TEXTS)
    assert [prediction.source for prediction in predictions] == TEXTS
    assert all(isinstance(prediction, Prediction) for prediction in predictions)
    assert all("".join(prediction.tokens) == prediction.text for prediction in predictions)
    assert all(prediction.score <= 0 for prediction in predictions)
    assert any(prediction.text for prediction in predictions)


def test_an_empty_list_has_no_predictions(predictor: Predictor) -> None:
    assert predictor.predict([]) == []


@pytest.mark.parametrize("blank", ["", " ", "\t", "\u3000", "\u2028"])
def test_a_blank_text_gets_a_blank_answer_and_no_map(predictor: Predictor, blank: str) -> None:
    before, answer, after = predictor.predict(["abc", blank, "hello"])
    assert answer == Prediction(blank, "", 0.0, (), None)
    assert [before.text, after.text] == [prediction.text for prediction in predictor.predict(["abc", "hello"])]


def test_an_input_that_is_too_long_has_a_problem_and_no_score_to_show(predictor: Predictor) -> None:
    answers = predictor.predict(["ab", "a" * 5001, ""])
    assert [answer.problem for answer in answers] == ["", "more than 5,000 tokens", ""]
    assert answers[1].text == ""
    assert repr(answers[1]).endswith("→ '', more than 5,000 tokens)")
    assert answers[1].to_dict()["error"] == "more than 5,000 tokens"


def test_unknown_characters_are_answered_too(predictor: Predictor) -> None:
    prediction = predictor.predict(["日本"])[0]
    assert prediction.map is not None
    assert prediction.map.columns == ("<unk>", "<unk>", "</s>")


def test_a_single_string_is_refused(predictor: Predictor) -> None:
    with pytest.raises(RecipeError, match=r"^predict takes a list of texts; write predict\(\[text\]\)$"):
        predictor.predict("abc")


def test_the_map_has_labelled_axes_and_rows_that_sum_to_one(predictor: Predictor) -> None:
    for prediction in predictor.predict(TEXTS):
        assert prediction.map is not None
        assert prediction.map.rows == prediction.tokens
        assert prediction.map.columns == (*prediction.source, "</s>")
        assert tuple(prediction.map.weights.shape) == (len(prediction.tokens), len(prediction.source) + 1)
        torch.testing.assert_close(prediction.map.weights.sum(-1), torch.ones(len(prediction.tokens)))


def test_alternatives_come_best_first(predictor: Predictor) -> None:
    for best in predictor.predict(TEXTS, beam=4, n_best=4):
        scores = [best.score, *(other.score for other in best.alternatives)]
        assert len(scores) == 4
        assert scores == sorted(scores, reverse=True)
        assert len({best.tokens, *(other.tokens for other in best.alternatives)}) == 4
        for other in best.alternatives:
            assert other.source == best.source
            assert other.alternatives == ()
            assert other.map is not None
            assert other.map.rows == other.tokens


def test_by_default_there_are_no_alternatives(predictor: Predictor) -> None:
    assert all(prediction.alternatives == () for prediction in predictor.predict(TEXTS, beam=3))


@pytest.mark.parametrize("search", [{}, {"beam": 2}, {"beam": 3, "length_penalty": 1.0}, {"temperature": 1.5}])
@pytest.mark.parametrize("n_best", [2, 3, 7])
def test_more_alternatives_do_not_change_the_first_answer(
    predictor: Predictor, search: dict[str, float], n_best: int
) -> None:
    alone, several = (predictor.predict(TEXTS, search=search, n_best=count) for count in (1, n_best))
    for single, more in zip(alone, several, strict=True):
        assert (single.text, single.score) == (more.text, pytest.approx(more.score, abs=1e-5))
        assert len(more.alternatives) == n_best - 1
        if "temperature" not in search:
            assert len({more.tokens, *(other.tokens for other in more.alternatives)}) == n_best


@pytest.mark.parametrize(
    "settings",
    [{"beam": 0}, {"beam": -1}, {"n_best": 0}, {"search": {"length_penalty": -1.0}}, {"search": {"tmperature": 1.0}}],
)
def test_settings_out_of_range_are_refused(predictor: Predictor, settings: dict[str, float]) -> None:
    with pytest.raises(RecipeError):
        predictor.predict(["abc"], **settings)


def test_beam_search_scores_at_least_as_high_as_greedy_search(predictor: Predictor) -> None:
    greedy, wide = predictor.predict(TEXTS, beam=1), predictor.predict(TEXTS, beam=8)
    assert sum(prediction.score for prediction in wide) >= sum(prediction.score for prediction in greedy)


@pytest.mark.parametrize("beam", [1, 3])
def test_other_texts_of_a_batch_change_nothing(predictor: Predictor, beam: int) -> None:
    together = predictor.predict([*TEXTS, "a much longer companion that pads all others"], beam=beam)
    for text, among in zip(TEXTS, together, strict=False):
        [alone] = predictor.predict([text], beam=beam)
        assert alone.text == among.text
        assert alone.score == pytest.approx(among.score, abs=1e-5)
        assert alone.map is not None
        assert among.map is not None
        torch.testing.assert_close(alone.map.weights, among.map.weights, atol=1e-5, rtol=1e-5)


def test_many_texts_in_several_batches_stay_in_order(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = [prediction.text for prediction in predictor.predict(TEXTS)]
    monkeypatch.setattr("regard.tasks.transduce.SEARCH_TOKENS", 7)
    assert [prediction.text for prediction in predictor.predict(TEXTS)] == at_once


def test_a_decoder_order_without_attention_has_no_map(tmp_path: Path) -> None:
    run = regard.train(tiny("model.decoder.order=none", "train.updates=2"), runs=tmp_path, quiet=True)
    prediction = regard.load(run).predict(["abc"], beam=2, n_best=2)[0]
    assert prediction.map is None
    assert prediction.alternatives[0].map is None
    assert prediction._repr_svg_() is None


def test_a_notebook_shows_the_map(predictor: Predictor) -> None:
    prediction = predictor.predict(["hello"])[0]
    assert prediction.map is not None
    drawing = prediction._repr_svg_()
    assert drawing is not None
    assert drawing == prediction.map._repr_svg_()
    root = ElementTree.fromstring(drawing)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    titles = list(root.iter("{http://www.w3.org/2000/svg}title"))
    assert len(titles) == len(prediction.tokens) * 6


def test_score_in_total_and_by_group(predictor: Predictor) -> None:
    answers = [prediction.text for prediction in predictor.predict(TEXTS)]
    examples = [
        Example(text, answer if index < 3 else "wrong", group="ab"[index % 2])
        for index, (text, answer) in enumerate(zip(TEXTS, answers, strict=True))
    ]
    scored = predictor.score(examples)
    assert scored.metric == "exact_match"
    assert scored.measured.value == 3 / 5
    assert scored.groups == {"a": 2 / 3, "b": 1 / 2}
    assert predictor.score(examples, metric="character_errors").metric == "character_errors"
    with pytest.raises(RecipeError, match=r"unknown metric 'blue'.*did you mean 'bleu'\?"):
        predictor.score(examples, metric="blue")


def test_a_source_with_several_references_counts_once_and_is_right_by_any(predictor: Predictor) -> None:
    [first, second] = [prediction.text for prediction in predictor.predict(TEXTS[:2])]
    targets = [(TEXTS[0], "x y"), (TEXTS[1], second), (TEXTS[0], first), (TEXTS[1], "x"), (TEXTS[1], "y")]
    scored = predictor.score([Example(*pair) for pair in targets], metric="word_error_share")
    assert scored.measured == (0.0, "word_error_share|n:2|refs:closest|stress digits kept")
    assert scored.groups == {}
    others = ["phoneme_errors", "phoneme_errors_unstressed", "word_error_share_unstressed"]
    assert list(scored.others) == others
    assert [measured.value for measured in scored.others.values()] == [0.0] * 3
    wrong = predictor.score([Example(*pair) for pair in targets if pair[1] != second], metric="word_error_share")
    assert wrong.measured.value == 1 / 2
    assert predictor.score([Example(*pair) for pair in targets], metric="exact_match").measured.value == 2 / 5


def test_captions_have_all_targets_of_a_source_as_references(predictor: Predictor) -> None:
    texts = [prediction.text for prediction in predictor.predict(TEXTS[:2])]
    examples = [Example(*pair) for pair in [*zip(TEXTS, texts, strict=False), (TEXTS[0], "x"), (TEXTS[1], "y")]]
    scored = predictor.score(examples, metric="bleu_1")
    assert scored.measured.value == pytest.approx(1)
    assert scored.measured.signature.startswith("bleu_1|n:2|refs:2|")
    assert list(scored.others) == ["bleu_2", "bleu_3", "bleu_4", "cider_d", "rouge_l"]
    assert scored.others["rouge_l"].value == pytest.approx(1)


def test_groups_keep_their_own_references(predictor: Predictor) -> None:
    text = predictor.predict(["abc"])[0].text
    examples = [Example("abc", text, group="a"), Example("abc", "x", group="b"), Example("abc", "y", group="a")]
    scored = predictor.score(examples, metric="word_error_share")
    assert scored.groups == {"a": 0.0, "b": 1.0}
    assert scored.measured.value == 1 / 2


def test_a_missing_run_is_an_error_with_a_suggestion(run: Run) -> None:
    with pytest.raises(DataError, match=r"is not there; did you mean '.*tiny'\?"):
        regard.load(run.path.with_name("tinny"))


def test_weights_that_do_not_fit_the_recipe_are_an_error(tmp_path: Path) -> None:
    small, large = (
        regard.train(tiny("train.updates=1", f"model.decoder.dim={dim}"), runs=tmp_path, quiet=True) for dim in (20, 28)
    )
    small.replace(MODEL, large.read(MODEL))
    with pytest.raises(CorruptError, match=f"{MODEL} does not fit the run's recipe"):
        regard.load(small)


def test_a_damaged_file_of_weights_is_an_error(tmp_path: Path) -> None:
    run = regard.train(tiny("train.updates=1"), runs=tmp_path, quiet=True)
    run.replace(MODEL, b"not tensors at all")
    with pytest.raises(CorruptError, match=MODEL):
        regard.load(run)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_stored_weights_that_are_not_finite_are_an_error(tmp_path: Path, value: float) -> None:
    run = regard.train(tiny("train.updates=1"), runs=tmp_path, quiet=True)
    tensors = load_tensors(run.read(MODEL))
    tensors["encoder.embedding.weight"][UNKNOWN, 3] = value
    run.replace(MODEL, save_tensors(tensors))
    with pytest.raises(CorruptError, match=f"{MODEL} cannot be used: the tensor encoder.embedding.weight holds NaN"):
        regard.load(run)
    with pytest.raises(CorruptError, match=r"encoder\.embedding\.weight"):
        regard.train(tiny("name=next", f"train.start_from={run.path}"), runs=tmp_path, quiet=True)
    assert not (tmp_path / "next").exists()


def test_the_public_names_exist_and_have_docstrings() -> None:
    for name in regard.__all__:
        assert inspect.getdoc(getattr(regard, name))
    assert set(regard.__all__) <= set(dir(regard))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = regard.trian
