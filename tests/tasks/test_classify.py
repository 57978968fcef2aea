"""Text classification: from files to a run, and from a run to predictions with their maps."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import regard
from regard import Predictor, Run
from regard import recipe as recipes
from regard.analysis.vectors import vectors
from regard.attention.pooling import POOLINGS
from regard.data.corpora import moods
from regard.data.corpora.moods import WORDS
from regard.errors import CorruptError, DataError, RecipeError
from regard.metrics import METRICS
from regard.recipe import Recipe
from regard.storage import MODEL
from regard.tasks import Classify, core
from regard.tasks.classify import LABELS, _check_labels, divergence
from regard.types import BEGIN, END, SPECIALS, UNKNOWN, Example

SIZES = ["model.embedding=8", "model.encoder.dim=12", "model.attention.dim=6", "train.device=cpu", "name=small"]
SHORT = ["train.updates=4", "train.validate=2", "train.batch_tokens=100", "data.size=200"]
NOT_GREAT = "the soup was great , not bad"


def small(*overrides: str) -> Recipe:
    return recipes.load("moods", [*SIZES, *SHORT, *overrides])


def write(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


@pytest.fixture
def sentences(tmp_path: Path) -> str:
    lines = [f"{word} day {number}\t{mood} " for mood, words in WORDS.items() for number, word in enumerate(words)]
    return write(tmp_path / "sentences.tsv", "sentence\tlabel", *lines)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the embedded recipe, without a shortened training."""
    overrides = ("train.device=cpu", "train.threads=1")
    return regard.train("moods", *overrides, runs=tmp_path_factory.mktemp("runs"), quiet=True)


@pytest.fixture(scope="module")
def predictor(run: Run) -> Predictor:
    return regard.load(run)


def test_the_recipe_learns_that_the_order_of_words_decides(predictor: Predictor) -> None:
    scored = predictor.score(moods(1, 1).test)
    assert scored.measured.signature == "accuracy|n:1000"
    assert scored.measured.value > 0.97
    assert set(scored.groups) == {"plain", "negated", "contrast", "turn"}
    assert min(scored.groups.values()) > 0.9
    answers = predictor.predict([NOT_GREAT, "the soup was bad , not great"])
    assert [answer.text for answer in answers] == ["positive", "negative"]


def test_an_answer_has_its_log_probability_and_a_map_of_one_row(predictor: Predictor) -> None:
    [answer] = predictor.predict([NOT_GREAT])
    assert answer.tokens == (answer.text,)
    assert -0.7 < answer.score <= 0
    assert answer.alternatives == ()
    assert answer.map is not None
    assert answer.map.rows == ("positive",)
    assert answer.map.columns == (*NOT_GREAT.split(), SPECIALS[END])
    assert answer.map.weights.sum().item() == pytest.approx(1.0, abs=1e-5)


def test_alternatives_are_the_other_labels_with_their_probabilities_and_maps(predictor: Predictor) -> None:
    [answer] = predictor.predict([NOT_GREAT], n_best=5)
    [other] = answer.alternatives
    assert {answer.text, other.text} == {"positive", "negative"}
    assert math.exp(answer.score) + math.exp(other.score) == pytest.approx(1.0, abs=1e-5)
    assert answer.score >= other.score
    assert other.map is not None
    assert other.map.rows == (other.text,)


def test_blank_and_unknown_texts_are_answered_in_order(predictor: Predictor) -> None:
    first, blank, unknown = predictor.predict([NOT_GREAT, " ", "zebra"])
    assert (first.text, blank.text, blank.map) == ("positive", "", None)
    assert unknown.text in WORDS
    assert not predictor.task.too_long("the")


def test_other_texts_of_a_batch_change_nothing(predictor: Predictor) -> None:
    texts = [example.source for example in moods(1, 1).dev[:40]]
    together = predictor.predict(texts)
    for text, answer in zip(texts[:5], together, strict=False):
        [alone] = predictor.predict([text])
        assert alone.text == answer.text
        assert alone.score == pytest.approx(answer.score, abs=1e-5)


def test_labels_are_stored_in_the_run(run: Run) -> None:
    assert json.loads(run.read(LABELS)) == ["negative", "positive"]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"[1]", b"\xff"])
def test_damaged_labels_are_refused(content: bytes, predictor: Predictor) -> None:
    files = predictor.task.files() | {LABELS: content}
    with pytest.raises(CorruptError, match=r"labels\.json is damaged"):
        Classify.restore(predictor.task.recipe, files.__getitem__)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("encoder", ["recurrent", "transformer"])
def test_every_pooling_trains_is_stored_and_answers(pooling: str, encoder: str, tmp_path: Path) -> None:
    settings = small(f"classify.pooling={pooling}", f"model.encoder.kind={encoder}")
    predictor = regard.load(regard.train(settings, runs=tmp_path, quiet=True))
    [answer] = predictor.predict([NOT_GREAT])
    assert answer.text in WORDS
    assert (answer.map is not None) == (pooling == "attention")


# Consistency (R-Drop)


def a_bench(*overrides: str) -> tuple[Classify, Any, Any]:
    recipe = small("data.size=40", *overrides)
    examples = Classify.examples(recipe).train
    task = Classify.learn(recipe, examples)
    torch.manual_seed(5)
    return task, task.build().double(), task.collate(task.encode(examples), range(8))


def test_the_divergence_is_the_mean_of_both_directions() -> None:
    one, other = torch.randn(2, 5, 3, dtype=torch.float64).log_softmax(-1)
    both = [
        functional.kl_div(*pair, reduction="none", log_target=True).sum(-1) for pair in ((one, other), (other, one))
    ]
    torch.testing.assert_close(divergence(one + 7.0, other - 2.0), (both[0] + both[1]) / 2)
    assert (divergence(one, one) == 0).all()
    assert divergence(one.bfloat16(), other.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("dropped", ["model.encoder.dropout=0.4", "train.word_dropout=0.4"])
def test_consistency_adds_how_far_two_readings_differ(dropped: str) -> None:
    """Halved, so that its loss has the scale of a single reading: (CE1 + CE2 + weight (KL12 + KL21) / 2) / 2."""
    losses = {}
    for weight in (1e-9, 1.0, 3.0):
        task, model, batch = a_bench(dropped, f"classify.consistency={weight}")
        torch.manual_seed(7)
        losses[weight] = task.loss(model.train(), batch, 0.1).item()
        plain = task.loss(model.eval(), batch, 0.1).item()
    task, model, batch = a_bench(dropped)
    torch.manual_seed(7)
    twice = batch.map_tensors(lambda rows: torch.cat([rows, rows]))
    logits = model.train()(core.drop_words(twice.source, task.recipe.train.word_dropout)).logits
    torch.manual_seed(7)
    assert losses[1e-9] == pytest.approx(task.loss(model, twice, 0.1).item() / 2, rel=1e-7)
    apart = divergence(logits[:8], logits[8:]).sum().item() / 2
    assert apart > 1e-6
    assert losses[3.0] - losses[1e-9] == pytest.approx(3 * apart, rel=1e-6)
    assert losses[1.0] - losses[1e-9] == pytest.approx(apart, rel=1e-6)
    assert plain == task.loss(model.eval(), batch, 0.1).item()


def test_consistency_makes_the_readings_of_a_trained_model_agree() -> None:
    apart = []
    for weight in (0, 10):
        task, model, batch = a_bench("model.encoder.dropout=0.3", f"classify.consistency={weight}")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(30):
            optimizer.zero_grad()
            task.loss(model.train(), batch).backward()
            optimizer.step()
        with torch.no_grad():
            readings = [model(batch.source).logits for _ in range(20)]
        apart.append(torch.stack([divergence(*pair) for pair in pairwise(readings)]).mean().item())
    assert apart[1] < apart[0] / 2


TRANSFORMER = ("model.encoder.kind=transformer", "model.attention.score=scaled_dot")
WITHOUT_MAP = (*TRANSFORMER, "classify.pooling=mean")


@pytest.mark.parametrize(
    ("settings", "drops"),
    [
        ((), False),
        (("model.encoder.dropout=0.1",), True),
        (("train.word_dropout=0.1",), True),
        (("model.attention.dropout=0.1",), True),
        (("model.attention.dropout=0.1", "classify.pooling=mean"), False),
        (("model.encoder.inner_dropout=0.1",), False),
        ((*TRANSFORMER, "model.encoder.inner_dropout=0.1"), True),
        ((*WITHOUT_MAP, "model.attention.dropout=0.1"), True),
        ((*WITHOUT_MAP, "model.encoder.self_attention.dropout=0.1"), True),
        ((*WITHOUT_MAP, "model.attention.dropout=0.1", "model.encoder.self_attention.dropout=0"), False),
    ],
)
def test_consistency_is_refused_if_nothing_is_dropped(settings: tuple[str, ...], drops: bool) -> None:
    none = ["model.encoder.dropout=0", "model.attention.dropout=0", "train.word_dropout=0"]
    Classify.check(small(*none, *settings))
    if drops:
        Classify.check(small(*none, "classify.consistency=1", *settings))
    else:
        with pytest.raises(
            RecipeError, match=r"only dropout makes them differ: set model\.encoder\.dropout, for example"
        ):
            Classify.check(small(*none, "classify.consistency=1", *settings))
    _, model, batch = a_bench(*none, *settings)
    readings = [model.train()(core.drop_words(batch.source, 0.1 * ("train.word_dropout=0.1" in settings))).logits]
    readings += [model(core.drop_words(batch.source, 0.1 * ("train.word_dropout=0.1" in settings))).logits]
    assert (divergence(*readings) > 0).any() == drops


def test_cls_puts_a_token_before_the_first_word() -> None:
    examples = [Example("a b", "x"), Example("b", "y")]
    for pooling, first in (("cls", [BEGIN]), ("mean", [])):
        task = Classify.learn(small(f"classify.pooling={pooling}"), examples)
        data = task.encode(examples)
        batch = task.collate(data, [0, 1])
        assert batch.source.ids[0].tolist() == [*first, *data.sources[0], END]
        assert batch.labels.tolist() == [0, 1]
        assert task.tokens(batch) == 2


def test_training_prints_the_shares_of_the_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [*(f"{number} a\tdull" for number in range(6)), *(f"{number} b\tgood" for number in range(2))]
    train, dev = write(tmp_path / "train.tsv", *lines), write(tmp_path / "dev.tsv", "c\tgood", "d\tdull", "e\tgood")
    regard.train(small(f"data.train={train}", f"data.dev={dev}"), runs=tmp_path)
    messages = capsys.readouterr().err
    assert "8 sentences to learn from, 3 dev sentences" in messages
    assert "2 labels: dull 75.0%, good 25.0%; always saying 'dull' is right on 33.3% of dev" in messages


def test_a_header_is_skipped_if_the_recipe_says_so(sentences: str) -> None:
    examples = Classify.examples(small(f"data.train={sentences}", "classify.header=true"))
    assert {example.target for example in [*examples.train, *examples.dev]} == set(WORDS)
    assert len(examples.train) + len(examples.dev) == sum(map(len, WORDS.values()))
    read = Classify.reader(small(f"data.train={sentences}"))
    assert read((sentences,)).examples[0].target == "label"


@pytest.mark.parametrize("key", ["data.dev", "data.test"])
def test_a_dev_or_test_label_that_no_training_example_has_is_refused(key: str, sentences: str, tmp_path: Path) -> None:
    other = write(tmp_path / "other.tsv", "sentence\tlabel", "fine\tpositive", "so so\tmixed")
    settings = small(f"data.train={sentences}", f"{key}={other}", "classify.header=true")
    with pytest.raises(DataError, match=r"other\.tsv:3: no training example has the label 'mixed'; there are 'neg"):
        regard.train(settings, runs=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


def test_scoring_refuses_a_label_that_no_training_example_has(predictor: Predictor) -> None:
    with pytest.raises(DataError, match=r"^here:7: no training example has the label 'long.*\.\.\.") as error:
        _check_labels([Example("a", "long" * 1_000_000, origin="here:7")], {"negative" * 1000})
    assert len(str(error.value)) < 400
    with pytest.raises(DataError, match=r"^pairs\.tsv:7: no training example has the label 'mixed'"):
        predictor.score([Example("the soup was bad", "mixed", origin="pairs.tsv:7")])


def test_training_data_with_only_one_label_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "one.tsv", *(f"{number} a\tdull" for number in range(6)))
    with pytest.raises(DataError, match="every training example has the label 'dull'; give at least two"):
        regard.train(small(f"data.train={path}"), runs=tmp_path / "runs", quiet=True)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("classify.pooling=middle", "unknown pooling 'middle'; choose from mean, max, last, cls, attention"),
        ("metric=bleu", "the metric 'bleu' does not fit this task; choose from accuracy, f1, exact_match"),
        ("tokens.source=wrd", "unknown tokenizer 'wrd'"),
        ("model.attention.heads=5", "5 heads share a width of 6 evenly"),
        ("model.attention.normalizer=hard", "hard is learned with REINFORCE, which only recurrent .* choose softmax"),
    ],
)
def test_what_does_not_fit_is_refused_before_data_is_read(override: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        regard.train(small("data.train=nowhere.tsv", override), runs=tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def test_hard_attention_is_allowed_if_the_pooling_uses_no_attention() -> None:
    Classify.check(small("model.attention.normalizer=hard", "classify.pooling=mean"))


def test_word_dropout_hides_words_in_training_only() -> None:
    examples = [Example(f"{word} day", mood) for mood, words in WORDS.items() for word in words]
    task = Classify.learn(small("train.word_dropout=0.5"), examples)
    data = task.encode(examples)
    batch, model = task.collate(data, range(len(examples))), task.build()
    hidden = core.drop_words(batch.source, 0.5).ids
    changed = hidden != batch.source.ids
    assert (hidden[changed] == UNKNOWN).all()
    assert not changed[batch.source.ids == END].any()
    assert 0.3 < changed.sum().item() / (2 * len(examples)) < 0.7
    losses = []
    for mode in (True, False):
        model.train(mode)
        losses.append({task.loss(model, batch).item() for _ in range(3)})
    assert [len(values) for values in losses] == [3, 1]


def test_a_stopped_and_resumed_run_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small("train.word_dropout=0.3", "model.encoder.dropout=0.2")
    whole = regard.train(settings, runs=tmp_path / "whole", quiet=True)
    save = Run.save

    def save_and_interrupt(self: Run, update: int, *content: Any) -> None:
        save(self, update, *content)
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "save", save_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        regard.train(settings, runs=tmp_path / "cut", quiet=True)
    monkeypatch.undo()
    again = regard.resume(tmp_path / "cut" / "small", quiet=True)
    assert again.read(MODEL) == whole.read(MODEL)


def test_a_classifier_can_start_from_the_encoder_of_a_translation(tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.tsv", *(f"{example.source}\t{example.target}" for example in moods(1, 80).train))
    words = ["task=translate", "metric=exact_match", "tokens.target=word", "model.decoder.dim=10"]
    first = regard.train(small(f"data.train={pairs}", *words), runs=tmp_path, quiet=True)
    settings = small(f"data.train={pairs}", f"train.start_from={first.path}", "train.learning_rate=0")
    second = regard.train(settings, runs=tmp_path, quiet=True)
    encoders = [
        {name: tensor for name, tensor in regard.load(run).model.state_dict().items() if name.startswith("encoder.")}
        for run in (first, second)
    ]
    assert encoders[0].keys() == encoders[1].keys()
    assert all(torch.equal(tensor, encoders[1][name]) for name, tensor in encoders[0].items())


def test_case_is_ignored_if_the_recipe_says_so(tmp_path: Path) -> None:
    cased, lowered = (
        regard.load(regard.train(small(f"tokens.lower={lower}"), runs=tmp_path, quiet=True))
        for lower in ("false", "true")
    )
    upper = NOT_GREAT.upper()
    assert cased.predict([upper])[0].score != cased.predict([NOT_GREAT])[0].score
    assert lowered.predict([upper])[0].score == lowered.predict([NOT_GREAT])[0].score
    torch.testing.assert_close(*(vectors(lowered, [text]) for text in (upper, NOT_GREAT)))


def test_f1_has_a_signature(predictor: Predictor) -> None:
    scored = predictor.score(moods(1, 1).test[:50], metric="f1")
    assert scored.measured.signature == "f1|n:50|average:macro|labels:2"


# Metrics of labels

labels = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcd")), min_size=1, max_size=12)


@given(labels)
def test_accuracy_is_the_share_of_right_labels(pairs: list[tuple[str, str]]) -> None:
    outputs, references = zip(*pairs, strict=True)
    assert METRICS["accuracy"](outputs, references).value == sum(a == b for a, b in pairs) / len(pairs)


@given(labels)
def test_f1_is_the_mean_over_the_labels(pairs: list[tuple[str, str]]) -> None:
    """Computed from precision and recall by their definitions."""
    outputs, references = zip(*pairs, strict=True)
    values = []
    for label in set(outputs) | set(references):
        right = sum(output == reference == label for output, reference in pairs)
        precision, recall = right / max(1, outputs.count(label)), right / max(1, references.count(label))
        values.append(2 * precision * recall / (precision + recall) if right else 0.0)
    assert METRICS["f1"](outputs, references).value == pytest.approx(sum(values) / len(values))


def test_f1_weighs_a_rare_label_as_much_as_a_frequent_one() -> None:
    assert METRICS["f1"](["a"] * 10, ["a"] * 9 + ["b"]).value == pytest.approx((18 / 19 + 0) / 2)


@pytest.mark.parametrize("name", ["accuracy", "f1"])
def test_a_missing_output_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="zip"):
        METRICS[name](["a"], ["a", "b"])
