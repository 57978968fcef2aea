"""Extractive question answering: positions of answers, the loss, the search for the best span, and predictions."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_tensors

import regard
from commands import printed
from regard import Predictor, Run, storage
from regard import recipe as recipes
from regard.data.corpora import facts
from regard.data.tokenizers import TOKENIZERS, Tokenizer
from regard.errors import DataError, RecipeError, StoppedError
from regard.metrics import answer_f1
from regard.models.span import Pointed, asked_for
from regard.recipe import Recipe
from regard.tasks import Answer
from regard.tasks.answer import Span, arrange, best_spans
from regard.training import loop, resume, train
from regard.training.stopping import Stopper
from regard.types import END, UNKNOWN, Example
from wordpieces import build

WALL_CLOCK = {"tokens_per_second", "seconds", "train_seconds"}
STORY = "Miran sang in Tobaburg on Friday . Kelon danced in Zifoford on Monday ."


def tiny(*overrides: str) -> Recipe:
    data = ["name=tiny", "task=answer", "data.corpus=facts", "data.size=60", "tokens.source=word", "tokens.size=40"]
    encoder = ["model.encoder.kind=transformer", "model.attention.score=scaled_dot", "model.attention.heads=2"]
    settings = ["train.updates=4", "train.validate=2", "train.batch_tokens=400", "train.device=cpu"]
    return recipes.parse("", "tiny", [*data, *encoder, "model.encoder.dim=8", *settings, *overrides])


def a_task(*overrides: str) -> Answer:
    return Answer.learn(tiny(*overrides), facts(seed=1, size=200).train)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the embedded recipe, without a shortened training: the tests check what the recipe promises."""
    return train(recipes.load("facts", ["train.device=cpu"]), runs=tmp_path_factory.mktemp("runs"), quiet=True)


@pytest.fixture(scope="module")
def predictor(run: Run) -> Predictor:
    return regard.load(run)


def build_tokenizer(name: str) -> Tokenizer:
    texts = [part for example in facts(seed=1, size=200).train for part in example.source.split("\t")]
    return build(name, texts, 120)


# Positions of answers


@pytest.mark.parametrize("name", TOKENIZERS)
def test_offsets_of_tokens_are_in_order_and_cover_all_but_spaces(name: str) -> None:
    tokenizer = build_tokenizer(name)
    for text in ("", " ", STORY, "  two  spaces ", "日本 Tobaburg\u3000x", "a▁b", "\0\0 Kelon", "Mira\tsang\n"):
        spans = tokenizer.offsets(text)
        assert len(spans) == len(tokenizer.encode(text))
        assert all(0 <= begin <= end <= len(text) for begin, end in spans)
        assert all(left[1] <= right[0] for left, right in pairwise(spans))
        covered = "".join(text[begin:end] for begin, end in spans)
        keeps_spaces = name not in ("word", "hugging_face")
        assert covered.split() == text.split() if keeps_spaces else covered == "".join(text.split())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_an_answer_comes_back_as_it_stands_in_the_context(name: str) -> None:
    task = Answer(tiny(f"tokens.source={name}"), build_tokenizer(name))
    for example in facts(seed=1, size=1).dev[:60]:
        data = task.encode([example])
        span = data.spans[0]
        log_probs = torch.full((2, len(data.contexts[0])), -30.0)
        log_probs[0, span.first] = log_probs[1, span.last] = 0.0
        prediction = task.prediction(example.source, data.contexts[0], Pointed(*log_probs), 30, 1)
        assert prediction.text == example.target
        assert prediction.score == 0.0


def test_the_first_occurrence_is_taken_and_tokens_are_taken_whole() -> None:
    task = a_task()
    assert task.find("on Friday and on Friday", Example("", "Friday")) == Span(1, 1)
    assert task.find("on Friday and on Friday", Example("", "Friday and")) == Span(1, 2)
    assert task.find("on Friday, no", Example("", " Friday ")) == Span(1, 1)
    assert task.find("on Friday, no", Example("", "n Fri")) == Span(0, 1)


def test_a_row_is_question_end_context_end() -> None:
    source, context = arrange([[7, 8], [9]], [[4, 5, 6], [5]])
    assert source.ids.tolist() == [[7, 8, END, 4, 5, 6, END], [9, END, 5, END, 0, 0, 0]]
    assert context.tolist() == [[False] * 3 + [True] * 3 + [False], [False] * 2 + [True] + [False] * 4]


def test_spans_point_into_the_row() -> None:
    task = a_task()
    data = task.encode(
        [
            Example(f"Who was in Zifoford on Monday ?\t{STORY}", "Kelon"),
            Example("Who was in Tobaburg on Friday ?\tMiran sang", "Miran"),
        ]
    )
    batch = task.collate(data, [0, 1])
    assert batch.spans.tolist() == [[8 + 7, 8 + 7], [8, 8]]
    assert batch.context.gather(1, batch.spans).all()
    assert task.tokens(batch) == 4


def test_context_words_that_occur_in_the_question_get_a_vector_of_their_own() -> None:
    ids = torch.tensor([[7, 8, UNKNOWN, END, 8, 5, UNKNOWN, 7, END], [9, END, 9, 9, END, 0, 0, 0, 0]])
    context = torch.zeros(2, 9, dtype=torch.bool)
    context[0, 4:8] = context[1, 2:4] = True
    assert asked_for(ids, context).nonzero().tolist() == [[0, 4], [0, 7], [1, 2], [1, 3]]
    task = a_task("answer.overlap=true")
    model = task.build().eval()
    batch = task.collate(task.encode(facts(seed=1, size=5).train), range(5))
    before = model(batch.source, batch.context).first
    model.overlap.weight.data[1] += 1.0
    assert not torch.equal(model(batch.source, batch.context).first, before)


# The loss, and the best span


@pytest.mark.parametrize("segments", ["true", "false"])
@pytest.mark.parametrize("encoder", ["transformer", "recurrent"])
def test_the_loss_is_the_cross_entropy_over_the_context(encoder: str, segments: str) -> None:
    task = a_task(f"model.encoder.kind={encoder}", f"answer.segments={segments}")
    model = task.build().eval()
    assert any(name.startswith("segments") for name, _ in model.named_parameters()) == (segments == "true")
    batch = task.collate(task.encode(facts(seed=1, size=5).train), range(5))
    pointed = model(batch.source, batch.context)
    expected = 0.0
    for row in range(5):
        for log_probs, position in zip(pointed, batch.spans[row], strict=True):
            context_log_probs = log_probs[row, batch.context[row]]
            assert context_log_probs.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
            assert (log_probs[row, ~batch.context[row]] == -torch.inf).all()
            expected -= log_probs[row, position].item()
    assert task.loss(model, batch).item() == pytest.approx(expected, rel=1e-5)
    smoothed = task.loss(model, batch, smoothing=0.1)
    assert torch.isfinite(smoothed)
    smoothed.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("longest", [1, 3, 7, 50])
def test_the_best_span_is_the_best_of_all_spans(longest: int) -> None:
    first, last = torch.randn(2, 11).log_softmax(-1)
    spans = [Span(i, j) for i in range(11) for j in range(i, min(11, i + longest))]
    expected = sorted(spans, key=lambda span: -(first[span.first] + last[span.last]).item())
    best = best_spans(Pointed(first, last), longest, 5)
    assert [span for _, span in best] == expected[:5]
    assert [score for score, _ in best] == pytest.approx(
        [(first[span.first] + last[span.last]).item() for span in expected[:5]]
    )
    assert len(best_spans(Pointed(first, last), longest, 1000)) == len(spans)


def test_f1_equals_that_of_squad() -> None:
    outputs = ["the Cat, sat!", "a dog", "nothing", "", "the", "one two two"]
    references = ["cat sat down", "dog", "all", "x", "a", "two two two"]
    scores = [2 * 2 / 5, 1.0, 0.0, 0.0, 1.0, 2 * 2 / 6]
    assert answer_f1(outputs, references).value == pytest.approx(sum(scores) / 6)
    assert answer_f1(["x"], ["x"]).signature == "answer_f1|n:1|normalised:squad"


# Training and predictions


def test_the_recipe_answers_about_names_it_never_met(predictor: Predictor) -> None:
    scored = predictor.score(facts(seed=1, size=1).test)
    assert scored.measured.value > 0.95, scored
    assert set(scored.groups) == {"who", "where", "when"}
    assert predictor.score(facts(seed=1, size=1).test, metric="answer_f1").measured.value >= scored.measured.value


def test_answers_are_characters_of_the_context(predictor: Predictor) -> None:
    questions = [
        f"Who was in Zifoford on Monday ?\t{STORY}",
        f"Where was Miran on Friday ?\t{STORY}",
        f"When was Kelon in Zifoford ?\t{STORY}",
    ]
    predictions = predictor.predict(questions)
    assert [prediction.text for prediction in predictions] == ["Kelon", "Tobaburg", "Monday"]
    for prediction in predictions:
        assert prediction.source in questions
        assert prediction.score <= 0
        assert prediction.map is not None
        assert prediction.map.rows == ("first", "last")
        torch.testing.assert_close(prediction.map.weights.sum(-1), torch.ones(2))


def test_alternatives_come_best_first(predictor: Predictor) -> None:
    [best] = predictor.predict([f"Who was in Zifoford on Monday ?\t{STORY}"], n_best=4)
    scores = [best.score, *(other.score for other in best.alternatives)]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    assert all(other.text in STORY for other in best.alternatives)


def test_no_answer_is_longer_than_the_recipe_says() -> None:
    task = a_task()
    settings = recipes.override(tiny(), "search.max_answer=2").search
    [best] = task.answer(task.build(), [f"Who was in Zifoford on Monday ?\t{STORY}"], settings, n_best=200)
    assert max(len(prediction.tokens) for prediction in (best, *best.alternatives)) == 2


def test_blank_texts_and_blank_contexts_get_blank_answers(predictor: Predictor) -> None:
    predictions = predictor.predict(
        [" ", f"Who was in Zifoford on Monday ?\t{STORY}", "Who was in Zifoford on Monday ?\t "]
    )
    assert [prediction.text for prediction in predictions] == ["", "Kelon", ""]


def test_other_texts_of_a_batch_change_nothing(predictor: Predictor) -> None:
    texts = [
        f"Who was in Zifoford on Monday ?\t{STORY}",
        "Who was in Ribustad ?\tOn Monday Zara sang in Ribustad .",
        f"Who was in Tobaburg on Friday ?\t{STORY * 2}",
    ]
    for text, among in zip(texts, predictor.predict(texts), strict=True):
        [alone] = predictor.predict([text])
        assert alone.text == among.text
        assert alone.score == pytest.approx(among.score, abs=1e-5)


# Files, error messages and the command line


def write(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_files_have_three_columns(tmp_path: Path) -> None:
    good = write(tmp_path / "good.tsv", f"Who was in Zifoford on Monday ?\t{STORY}\tKelon", "", f"\t{STORY}\tMiran")
    examples, dropped = Answer.read((good,))
    assert [(example.source, example.target, example.origin) for example in examples] == [
        (f"Who was in Zifoford on Monday ?\t{STORY}", "Kelon", f"{good}:1")
    ]
    assert dropped == 2
    bad = write(
        tmp_path / "bad.tsv", f"Who was in Zifoford on Monday ?\t{STORY}\tKelon", "Who was in Zifoford on Monday ?"
    )
    message = f"{bad}:2: one field, expected three: question<TAB>context<TAB>answer"
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        Answer.read((bad,))


def test_an_answer_that_is_not_in_its_context_is_refused(tmp_path: Path) -> None:
    lines = [f"Who was in Zifoford on Monday ?\t{STORY}\tKelon"] * 20
    data = write(tmp_path / "data.tsv", *lines, f"Who was in Tobaburg on Friday ?\t{STORY}\tmiran")
    message = f"{data}:21: the answer 'miran' is not in its context; it must be a part of it, letter by letter"
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        train(tiny(f"data.train={data}", f"data.dev={data}"), runs=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


def test_a_question_without_context_is_refused(predictor: Predictor) -> None:
    message = (
        "a question comes with its context, as question<TAB>context; this does not: 'Who was in Zifoford on Monday ?'"
    )
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        predictor.predict(["Who was in Zifoford on Monday ?"])


def test_a_metric_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not fit this task; choose from exact_match, answer_f1"):
        train(tiny("metric=perplexity"), runs=tmp_path, quiet=True)


def test_training_warns_if_answers_are_longer_than_max_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "data.tsv", *[f"What happened ?\t{STORY}\t{STORY}"] * 20)
    train(tiny(f"data.train={data}", f"data.dev={data}", "search.max_answer=3"), runs=tmp_path)
    warning = "answers of up to 14 tokens, but predictions have at most 3: raise search.max_answer"
    assert warning in capsys.readouterr().err


def test_predict_score_and_train_on_the_command_line(run: Run, tmp_path: Path) -> None:
    question = f"Who was in Zifoford on Monday ?\t{STORY}\n"
    assert printed(tmp_path, "predict", str(run.path), "-q", stdin=question) == "Kelon\n"
    prediction = json.loads(
        printed(tmp_path, "predict", str(run.path), "--text", question.strip(), "--n-best", "2", "--json", "-q")
    )
    assert [prediction["text"], len(prediction["alternatives"])] == ["Kelon", 1]
    data = write(tmp_path / "data.tsv", *[f"Who was in Zifoford on Monday ?\t{STORY}\tKelon"] * 20)
    assert printed(tmp_path, "score", str(run.path), data).startswith("exact_match 1.0000")
    options = [f"data.train={data}", f"data.dev={data}", "train.updates=1", "train.device=cpu"]
    assert printed(tmp_path, "train", "facts", *options, "-q") == "runs/facts\n"


# Resuming and fine-tuning


class Counting(Stopper):
    """Raises at its `last`-th check."""

    last = checks = 0

    def check(self) -> None:
        Counting.checks += 1
        if Counting.checks == Counting.last:
            raise StoppedError(15)


def outcome(run: Run) -> tuple[bytes, list[dict[str, object]]]:
    """The stored weights, and the metrics without times."""
    metrics = [{key: value for key, value in entry.items() if key not in WALL_CLOCK} for entry in run.metrics()]
    return run.read(storage.MODEL), metrics


@pytest.mark.parametrize("check", [2, 4])
def test_a_stopped_and_resumed_run_ends_with_the_same_bits(
    check: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny("model.encoder.dropout=0.1", "train.threads=1")
    expected = outcome(train(recipe, runs=tmp_path / "whole", quiet=True))
    with monkeypatch.context() as patch:
        patch.setattr(Counting, "last", check)
        patch.setattr(Counting, "checks", 0)
        patch.setattr(loop, "Stopper", Counting)
        with pytest.raises(StoppedError):
            train(recipe, runs=tmp_path, quiet=True)
    assert outcome(resume(tmp_path / "tiny", quiet=True)) == expected


def test_training_can_start_from_the_encoder_of_a_masked_language_model(tmp_path: Path) -> None:
    shared = ["data.corpus=facts", "tokens.source=word", "train.updates=1", "train.validate=1"]
    origin = train(tiny("task=masked_lm", "metric=perplexity", *shared), runs=tmp_path, quiet=True)
    start = [f"train.start_from={origin.path}", "train.learning_rate=0", "train.updates=1", "train.validate=1"]
    run = train(tiny(*start), runs=tmp_path, quiet=True)
    old, new = (load_tensors(stored.read(storage.MODEL)) for stored in (origin, run))
    encoder = {name for name in new if name.startswith("encoder.")}
    assert encoder == {name for name in old if name.startswith("encoder.")}
    assert all(torch.equal(old[name], new[name]) for name in encoder)
