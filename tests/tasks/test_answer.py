"""Extractive question answering: where answers stand, what is lost, which span is best, and how it is told."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_tensors

import regard
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

SCRIPT = Path(sys.executable).with_name("regard")
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
    """The embedded recipe, whole: what it promises is what is tested."""
    return train(recipes.load("facts", ["train.device=cpu"]), runs=tmp_path_factory.mktemp("runs"), quiet=True)


@pytest.fixture(scope="module")
def predictor(run: Run) -> Predictor:
    return regard.load(run)


def built(name: str) -> Tokenizer:
    texts = [part for each in facts(seed=1, size=200).train for part in each.source.split("\t")]
    return TOKENIZERS[name].build(texts, 120)


# where answers stand


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_know_their_places(name: str) -> None:
    tokenizer = built(name)
    for text in ("", " ", STORY, "  two  spaces ", "日本 Tobaburg\u3000x", "a▁b", "\0\0 Kelon", "Mira\tsang\n"):
        places = tokenizer.offsets(text)
        assert len(places) == len(tokenizer.encode(text))
        assert all(0 <= begin <= end <= len(text) for begin, end in places)
        assert all(left[1] <= right[0] for left, right in pairwise(places))
        told = "".join(text[begin:end] for begin, end in places)
        assert told.split() == text.split() if name != "word" else told == "".join(text.split())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_an_answer_comes_back_as_it_stands_in_the_context(name: str) -> None:
    task = Answer(tiny(f"tokens.source={name}"), built(name))
    for example in facts(seed=1, size=1).dev[:60]:
        data = task.encode([example])
        span = data.spans[0]
        certain = torch.full((2, len(data.contexts[0])), -30.0)
        certain[0, span.first] = certain[1, span.last] = 0.0
        told = task.prediction(example.source, data.contexts[0], Pointed(*certain), 30, 1)
        assert told.text == example.target
        assert told.score == 0.0


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


def test_what_the_question_has_too_is_told_apart() -> None:
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


# what is lost, and what is best


@pytest.mark.parametrize("segments", ["true", "false"])
@pytest.mark.parametrize("encoder", ["transformer", "recurrent"])
def test_the_loss_is_the_cross_entropy_over_the_context(encoder: str, segments: str) -> None:
    task = a_task(f"model.encoder.kind={encoder}", f"answer.segments={segments}")
    model = task.build().eval()
    assert any(name.startswith("segments") for name, _ in model.named_parameters()) == (segments == "true")
    batch = task.collate(task.encode(facts(seed=1, size=5).train), range(5))
    pointed = model(batch.source, batch.context)
    lost = 0.0
    for row in range(5):
        for chances, place in zip(pointed, batch.spans[row], strict=True):
            of_context = chances[row, batch.context[row]]
            assert of_context.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
            assert (chances[row, ~batch.context[row]] == -torch.inf).all()
            lost -= chances[row, place].item()
    assert task.loss(model, batch).item() == pytest.approx(lost, rel=1e-5)
    smoothed = task.loss(model, batch, smoothing=0.1)
    assert torch.isfinite(smoothed)
    smoothed.backward()
    assert all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None)


@pytest.mark.parametrize("most", [1, 3, 7, 50])
def test_the_best_span_is_the_best_of_all_spans(most: int) -> None:
    first, last = torch.randn(2, 11).log_softmax(-1)
    spans = [Span(i, j) for i in range(11) for j in range(i, min(11, i + most))]
    expected = sorted(spans, key=lambda span: -(first[span.first] + last[span.last]).item())
    found = best_spans(Pointed(first, last), most, 5)
    assert [span for _, span in found] == expected[:5]
    assert [score for score, _ in found] == pytest.approx(
        [(first[span.first] + last[span.last]).item() for span in expected[:5]]
    )
    assert len(best_spans(Pointed(first, last), most, 1000)) == len(spans)


def test_f1_is_squads() -> None:
    outputs = ["the Cat, sat!", "a dog", "nothing", "", "the", "one two two"]
    references = ["cat sat down", "dog", "all", "x", "a", "two two two"]
    each = [2 * 2 / 5, 1.0, 0.0, 0.0, 1.0, 2 * 2 / 6]
    assert answer_f1(outputs, references).value == pytest.approx(sum(each) / 6)
    assert answer_f1(["x"], ["x"]).signature == "answer_f1|n:1|normalised:squad"


# learning and answering


def test_the_recipe_answers_about_names_it_never_met(predictor: Predictor) -> None:
    scored = predictor.score(facts(seed=1, size=1).test)
    assert scored.measured.value > 0.95, scored
    assert set(scored.groups) == {"who", "where", "when"}
    assert predictor.score(facts(seed=1, size=1).test, metric="answer_f1").measured.value >= scored.measured.value


def test_answers_are_characters_of_the_context(predictor: Predictor) -> None:
    asked = [
        f"Who was in Zifoford on Monday ?\t{STORY}",
        f"Where was Miran on Friday ?\t{STORY}",
        f"When was Kelon in Zifoford ?\t{STORY}",
    ]
    found = predictor.predict(asked)
    assert [each.text for each in found] == ["Kelon", "Tobaburg", "Monday"]
    for each in found:
        assert each.source in asked
        assert each.score <= 0
        assert each.map is not None
        assert each.map.rows == ("first", "last")
        torch.testing.assert_close(each.map.weights.sum(-1), torch.ones(2))


def test_alternatives_come_best_first(predictor: Predictor) -> None:
    [found] = predictor.predict([f"Who was in Zifoford on Monday ?\t{STORY}"], n_best=4)
    scores = [found.score, *(each.score for each in found.alternatives)]
    assert len(scores) == 4
    assert scores == sorted(scores, reverse=True)
    assert all(each.text in STORY for each in found.alternatives)


def test_no_answer_is_longer_than_the_recipe_says() -> None:
    task = a_task()
    settings = recipes.override(tiny(), "search.max_answer=2").search
    [found] = task.answer(task.build(), [f"Who was in Zifoford on Monday ?\t{STORY}"], settings, n_best=200)
    assert max(len(each.tokens) for each in (found, *found.alternatives)) == 2


def test_blank_texts_and_blank_contexts_get_blank_answers(predictor: Predictor) -> None:
    found = predictor.predict([" ", f"Who was in Zifoford on Monday ?\t{STORY}", "Who was in Zifoford on Monday ?\t "])
    assert [each.text for each in found] == ["", "Kelon", ""]


def test_batch_mates_change_nothing(predictor: Predictor) -> None:
    texts = [
        f"Who was in Zifoford on Monday ?\t{STORY}",
        "Who was in Ribustad ?\tOn Monday Zara sang in Ribustad .",
        f"Who was in Tobaburg on Friday ?\t{STORY * 2}",
    ]
    for text, among in zip(texts, predictor.predict(texts), strict=True):
        [alone] = predictor.predict([text])
        assert alone.text == among.text
        assert alone.score == pytest.approx(among.score, abs=1e-5)


# files, sentences and the command line


def write(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_files_have_three_columns(tmp_path: Path) -> None:
    good = write(tmp_path / "good.tsv", f"Who was in Zifoford on Monday ?\t{STORY}\tKelon", "", f"\t{STORY}\tMiran")
    examples, dropped = Answer.read((good,))
    assert [(each.source, each.target, each.origin) for each in examples] == [
        (f"Who was in Zifoford on Monday ?\t{STORY}", "Kelon", f"{good}:1")
    ]
    assert dropped == 2
    bad = write(
        tmp_path / "bad.tsv", f"Who was in Zifoford on Monday ?\t{STORY}\tKelon", "Who was in Zifoford on Monday ?"
    )
    sentence = f"{bad}:2: one field, expected three: question<TAB>context<TAB>answer"
    with pytest.raises(DataError, match=f"^{re.escape(sentence)}$"):
        Answer.read((bad,))


def test_an_answer_that_is_not_in_its_context_is_a_sentence(tmp_path: Path) -> None:
    lines = [f"Who was in Zifoford on Monday ?\t{STORY}\tKelon"] * 20
    data = write(tmp_path / "data.tsv", *lines, f"Who was in Tobaburg on Friday ?\t{STORY}\tmiran")
    sentence = f"{data}:21: the answer 'miran' does not stand in its context; it must be a part of it, letter by letter"
    with pytest.raises(DataError, match=f"^{re.escape(sentence)}$"):
        train(tiny(f"data.train={data}", f"data.dev={data}"), runs=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


def test_a_question_without_context_is_a_sentence(predictor: Predictor) -> None:
    sentence = (
        "a question comes with its context, as question<TAB>context; this does not: 'Who was in Zifoford on Monday ?'"
    )
    with pytest.raises(DataError, match=f"^{re.escape(sentence)}$"):
        predictor.predict(["Who was in Zifoford on Monday ?"])


def test_a_metric_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not fit this task; choose from exact_match, answer_f1"):
        train(tiny("metric=perplexity"), runs=tmp_path, quiet=True)


def test_training_tells_when_answers_are_too_long_to_be_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "data.tsv", *[f"What happened ?\t{STORY}\t{STORY}"] * 20)
    train(tiny(f"data.train={data}", f"data.dev={data}", "search.max_answer=3"), runs=tmp_path)
    said = "answers of up to 14 tokens, but predictions have at most 3: raise search.max_answer"
    assert said in capsys.readouterr().err


def test_the_command_line(run: Run, tmp_path: Path) -> None:
    def said(*arguments: str, stdin: str = "") -> str:
        command = [str(SCRIPT), *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, cwd=tmp_path).stdout

    asked = f"Who was in Zifoford on Monday ?\t{STORY}\n"
    assert said("predict", str(run.path), "-q", stdin=asked) == "Kelon\n"
    told = json.loads(said("predict", str(run.path), "--text", asked.strip(), "--n-best", "2", "--json", "-q"))
    assert [told["text"], len(told["alternatives"])] == ["Kelon", 1]
    data = write(tmp_path / "data.tsv", *[f"Who was in Zifoford on Monday ?\t{STORY}\tKelon"] * 20)
    assert said("score", str(run.path), data).startswith("exact_match 1.0000")
    options = [f"data.train={data}", f"data.dev={data}", "train.updates=1", "train.device=cpu"]
    assert said("train", "facts", *options, "-q") == "runs/facts\n"


# resuming and fine-tuning


class Counting(Stopper):
    """Raises at its `last`-th check."""

    last = seen = 0

    def check(self) -> None:
        Counting.seen += 1
        if Counting.seen == Counting.last:
            raise StoppedError(15)


def outcome(run: Run) -> tuple[bytes, list[dict[str, object]]]:
    told = [{key: value for key, value in entry.items() if key not in WALL_CLOCK} for entry in run.metrics()]
    return run.read(storage.MODEL), told


@pytest.mark.parametrize("check", [2, 4])
def test_stopped_and_resumed_it_ends_with_the_same_bits(
    check: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny("model.encoder.dropout=0.1", "train.threads=1")
    expected = outcome(train(recipe, runs=tmp_path / "whole", quiet=True))
    with monkeypatch.context() as patch:
        patch.setattr(Counting, "last", check)
        patch.setattr(Counting, "seen", 0)
        patch.setattr(loop, "Stopper", Counting)
        with pytest.raises(StoppedError):
            train(recipe, runs=tmp_path, quiet=True)
    assert outcome(resume(tmp_path / "tiny", quiet=True)) == expected


def test_it_begins_with_the_encoder_of_a_masked_language_model(tmp_path: Path) -> None:
    same = ["data.corpus=facts", "tokens.source=word", "train.updates=1", "train.validate=1"]
    origin = train(tiny("task=masked_lm", "metric=perplexity", *same), runs=tmp_path, quiet=True)
    start = [f"train.start_from={origin.path}", "train.learning_rate=0", "train.updates=1", "train.validate=1"]
    run = train(tiny(*start), runs=tmp_path, quiet=True)
    old, new = (load_tensors(each.read(storage.MODEL)) for each in (origin, run))
    encoder = {name for name in new if name.startswith("encoder.")}
    assert encoder == {name for name in old if name.startswith("encoder.")}
    assert all(torch.equal(old[name], new[name]) for name in encoder)
