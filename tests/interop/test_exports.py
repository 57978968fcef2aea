"""Exports compute what the run computes, as other toolkits run them; what they cannot express is refused by its key."""

import json

import numpy as np
import pytest
import torch
from untrained_runs import TEXTS, TRANSFORMER, make_run

import regard
from regard.errors import CorruptError, RecipeError, StorageError
from regard.interop import ctranslate2, export, hugging_face, onnx, parity
from regard.storage.files import create_folder
from regard.tasks import task_of
from regard.training import card
from regard.types import BEGIN, END, Example

# Sources of different lengths, so that batches have padding.
SOURCES = [" ".join(text.split()[:count]) for text in TEXTS for count in (1, 2, 3, 4)]
# Texts with the pieces of special tokens, and with white space that patterns of other toolkits may not know.
SPECIAL_TEXTS = ["das </s> ist", "</s>", "<pad> <unk> <s> haus", "das</s> ist<pad>", "das\x1cist\u2003gut\x85und \tein"]
TARGETS = ["sua sad extra", "llab", "tug tsi sad", "dnu nie", "extra extra nie dnu", "riw nehes"]
BEAMS = (1, 2, 3)  # with 3, an output of pegasus depends on search.ends_in_beam
BLENDERBOT = {"model.positions": "learned", "model.attention.groups": 1}
BLENDERBOT |= {"model.activation": "gelu_tanh", "model.embedding_scaled": False}
CASES = {
    "pegasus": ("word", False, {"model.norm": "pre", "model.activation": "gelu"}),
    "marian": (
        "sentencepiece",
        True,
        {"model.norm": "post", "model.tied": True, "model.attention.score": "dot", "model.activation": "swish"},
    ),
    "blenderbot": ("character", False, BLENDERBOT),
}
RECURRENT = {
    "model.embedding": 10,
    "model.encoder.dim": 12,
    "model.decoder.dim": 14,
    "model.attention.dim": 11,
    "search.max_ratio": 1.0,
}
STEPPED = {
    "transformer": TRANSFORMER
    | {"model.norm": "post", "model.positions": "learned", "model.encoder.layers": 1, "model.decoder.layers": 1},
    "bahdanau": RECURRENT,
    "luong": RECURRENT
    | {"model.decoder.order": "luong", "model.attention.score": "general"}
    | {"model.encoder.cell": "lstm", "model.decoder.cell": "lstm", "model.encoder.layers": 2},
}


@pytest.fixture(params=CASES)
def predictor(request, tmp_path):
    kind, shared, changes = CASES[request.param]
    return regard.load(make_run(tmp_path, kind, shared, **TRANSFORMER | changes))


def forced(predictor):
    """Pairs of token ids, and the logits of the run for every target token."""
    task, model = predictor.task, predictor.model
    data = task.encode([Example(source, target) for source, target in zip(TEXTS, TARGETS, strict=True)])
    batch = task.collate(data, range(len(TEXTS)))
    with torch.no_grad():
        return batch, model(batch).logits


def written(folder, content):
    create_folder(folder, content, "test")
    return folder


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_computes_the_same_logits_and_tokens(predictor, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = written(tmp_path / "hf", hugging_face.files(predictor))
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    batch, logits = forced(predictor)
    with torch.no_grad():
        inputs = {"input_ids": batch.source.ids, "attention_mask": batch.source.mask.long()}
        theirs = model(**inputs, decoder_input_ids=batch.target.ids[:, :-1]).logits
    real = batch.target.mask[:, 1:]
    assert (theirs[..., : logits.shape[-1]] - logits)[real].abs().max() < 1e-4
    assert (theirs[..., logits.shape[-1] :] < -1e8).all()  # rows that only the source vocabulary has
    translator = hugging_face.Translator(folder, predictor.task)
    for beam in BEAMS:
        measured, _ = parity.compare(predictor.task, predictor.model, translator, SOURCES, beam)
        assert measured.same == measured.sentences == len(SOURCES)


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_tokenizers_encode_alike(predictor, tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = written(tmp_path / "hf", hugging_face.files(predictor))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in [*TEXTS, *SPECIAL_TEXTS]:
        assert tokenizer(text)["input_ids"] == [*predictor.task.source.encode(text), END]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["word", "character"])
def test_hugging_face_tokenizers_add_an_end_as_the_run_does(kind, tmp_path):
    pytest.importorskip("transformers")
    predictor = regard.load(make_run(tmp_path, kind, ends=False, **TRANSFORMER))
    translator = hugging_face.Translator(written(tmp_path / "hf", hugging_face.files(predictor)), predictor.task)
    assert translator.encoded_otherwise([*TEXTS, *SPECIAL_TEXTS]) == []
    assert translator.tokenizer("das ist")["input_ids"] == predictor.task.source.encode("das ist")


@pytest.mark.filterwarnings("ignore")
def test_a_tokenizer_that_encodes_otherwise_is_not_written(tmp_path):
    pytest.importorskip("transformers")
    predictor = regard.load(make_run(tmp_path, "sentencepiece", **TRANSFORMER))
    with pytest.raises(CorruptError, match="1 of 25 texts get other ids, such as '>>fra<< das ist'"):
        export.export(predictor, "huggingface", tmp_path / "out", [*SOURCES, ">>fra<< das ist"])
    assert not (tmp_path / "out").exists()
    export.export(predictor, "huggingface", tmp_path / "out", SOURCES)


def test_ctranslate2_computes_the_same_log_probabilities_and_tokens(predictor, tmp_path):
    pytest.importorskip("ctranslate2")
    task = predictor.task
    translator = ctranslate2.Translator(written(tmp_path / "ct2", ctranslate2.files(predictor)), task)
    batch, logits = forced(predictor)
    sources = [[task.source.piece(token) for token in task.source.encode(text)] for text in TEXTS]
    ids = [task.target.encode(text) for text in TARGETS]
    scored = translator.engine.score_batch(sources, [[task.target.piece(token) for token in row] for row in ids])
    log_probs = logits.log_softmax(-1).gather(-1, batch.target.ids[:, 1:, None]).squeeze(-1)
    for row, result in enumerate(scored):
        np.testing.assert_allclose(result.log_probs, log_probs[row, : len(ids[row]) + 1], atol=1e-4)
    for beam in BEAMS:
        measured, _ = parity.compare(task, predictor.model, translator, SOURCES, beam)
        assert measured.same == measured.sentences == len(SOURCES)


@pytest.mark.parametrize("name", ["transformer", "bahdanau", pytest.param("luong", marks=pytest.mark.slow)])
def test_onnx_computes_the_same_logits_and_maps(name, tmp_path):
    pytest.importorskip("onnxruntime")
    predictor = regard.load(make_run(tmp_path, "word", **STEPPED[name]))
    onnx.check(predictor.task.recipe)
    graphs = onnx.Graphs(written(tmp_path / "onnx", onnx.files(predictor)))
    for texts in (TEXTS, TEXTS[1:2]):
        difference = onnx.compare(predictor.task, predictor.model, graphs, texts)
        assert difference.logits < 1e-4
        assert difference.map is not None
        assert difference.map < 1e-4
    tokens = np.array([[END, END]])
    first = graphs.step(np.array([[BEGIN]]), graphs.read(tokens))
    assert first["map"].shape == (1, 2)
    assert first["map"].sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("module", "changes", "message"),
    [
        (ctranslate2, RECURRENT, "model.encoder.kind = recurrent: it takes transformer; --to onnx takes recurrent"),
        (ctranslate2, TRANSFORMER | {"model.positions": "rotary"}, "model.positions = rotary"),
        (hugging_face, TRANSFORMER | {"model.attention.score": "additive"}, "self_attention.score = additive"),
        (hugging_face, TRANSFORMER | {"model.norm": "post", "model.positions": "learned"}, "takes sinusoidal"),
        (hugging_face, TRANSFORMER | {"model.decoder.cross_attention.normalizer": "sparsemax"}, "cross_attention"),
        (onnx, RECURRENT | {"model.decoder.order": "none"}, "model.decoder.order"),
        (onnx, RECURRENT | {"model.attention.scope": "coverage"}, "scope = global, not coverage"),
    ],
)
def test_what_a_toolkit_cannot_express_is_refused_by_its_key(module, changes, message, tmp_path):
    predictor = regard.load(make_run(tmp_path, "word", **changes))
    with pytest.raises(RecipeError, match=message):
        module.check(predictor.task.recipe)


@pytest.mark.parametrize(
    ("wrong", "precision"), [("float32", "float32"), ("float32", "int8"), ("int8", "int8")]
)  # files of another model are written in `wrong`
def test_an_export_that_does_not_match_is_not_written(wrong, precision, tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    predictor = regard.load(make_run(tmp_path, "word", **TRANSFORMER))
    other = regard.load(make_run(tmp_path / "other", "word", seed=5, **TRANSFORMER))
    right = ctranslate2.files
    monkeypatch.setattr(ctranslate2, "files", lambda own, each: right(other if each == wrong else own, each))
    with pytest.raises(CorruptError, match=f"the export to CTranslate2 in {wrong} does not match the run"):
        export.export(predictor, "ctranslate2", tmp_path / "out", SOURCES, precision=precision)
    assert not (tmp_path / "out").exists()
    forced_out = export.export(predictor, "ctranslate2", tmp_path / "out", SOURCES, precision=precision, force=True)
    assert "does not match" in forced_out.parity


@pytest.mark.parametrize("precision", ctranslate2.TYPES)
def test_ctranslate2_adds_no_end_to_sources_of_a_run_without_it(precision, tmp_path):
    engine = pytest.importorskip("ctranslate2")
    predictor = regard.load(make_run(tmp_path, "word", ends=False, **TRANSFORMER))
    done = export.export(predictor, "ctranslate2", tmp_path / "out", SOURCES, precision=precision)
    assert f"float32: greedily, {len(SOURCES)} of {len(SOURCES)} outputs are the same" in done.parity
    assert json.loads((done.path / "config.json").read_text())["add_source_eos"] is False
    own = predictor.predict(["wir sehen"], beam=1, search={"ends_in_beam": True})[0].text
    if precision == "float32":
        written_out = engine.Translator(str(done.path)).translate_batch([["wir", "sehen"]], beam_size=1)
        assert " ".join(written_out[0].hypotheses[0]) == own


def test_an_export_has_a_model_card_and_never_replaces_a_folder(tmp_path):
    pytest.importorskip("ctranslate2")
    predictor = regard.load(make_run(tmp_path, "word", **TRANSFORMER))
    done = export.export(predictor, "ctranslate2", tmp_path / "out", SOURCES, precision="int8")
    text = (tmp_path / "out" / "README.md").read_text()
    assert done.parity in text
    assert "CTranslate2, int8" in text
    with pytest.raises(StorageError, match="there already"):
        export.export(predictor, "ctranslate2", tmp_path / "out", SOURCES)
    with pytest.raises(RecipeError, match="writes float32, not int8"):
        export.export(predictor, "onnx", tmp_path / "other", SOURCES, precision="int8")
    with pytest.raises(RecipeError, match="unknown format 'ctranslate'"):
        export.export(predictor, "ctranslate", tmp_path / "other", SOURCES)


def card_of(run):
    return card.write(run, task_of(run), run.metrics())


def test_a_model_card_names_data_and_parts(tmp_path):
    text = card_of(make_run(tmp_path, "word", **RECURRENT))
    for part in ("corpus `reverse`", "order bahdanau", "score additive", "no recorded scores"):
        assert part in text


VALIDATIONS = [(10, 0.9, 0.2), (20, 0.5, 0.4), (30, 0.7, 0.6), (40, 0.8, 0.3)]  # update, dev loss, metric
SIGNATURE = "exact_match|beam:5"


def trained_run(folder, changes, *, finished=True):
    """A run with the metrics of a training."""
    run = make_run(folder, "word", **RECURRENT | changes)
    entries = [
        {"update": update, "dev_loss": loss, "dev_exact_match": metric, "tokens_per_second": 1.0}
        for update, loss, metric in VALIDATIONS
    ]
    for entry in entries:
        run.record(entry)
    if finished:
        run.record({"exact_match": 0.55, "signature": SIGNATURE, "train_seconds": 1.0})
        run.finish()
    return run


@pytest.mark.parametrize(
    ("changes", "update", "loss", "metric"),
    [
        ({}, 20, "0.5", "0.4"),
        ({"train.best_by": "metric"}, 30, "0.7", "0.6"),
        ({"train.keep": "last"}, 40, "0.8", "0.3"),
    ],
)
def test_a_model_card_has_the_scores_of_the_stored_weights(changes, update, loss, metric, tmp_path):
    text = card_of(trained_run(tmp_path, changes))
    assert f"after {update} updates" in text
    assert f"| dev_loss | {loss} |" in text
    assert f"| dev_exact_match, on a part, greedily | {metric} |" in text
    assert "| exact_match, on all of the dev data | 0.55 |" in text
    assert f"Signature of the score on all of the dev data: `{SIGNATURE}`" in text


def test_a_model_card_of_a_run_that_is_not_finished_has_no_final_score(tmp_path):
    text = card_of(trained_run(tmp_path, {}, finished=False))
    assert "| dev_loss | 0.5 |" in text
    assert "Signature" not in text
    assert "all of the dev data" not in text
