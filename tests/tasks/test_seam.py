"""The interface of tasks: a new task trains, resumes, predicts and is scored once it is added to the table TASKS."""

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import regard
from regard import recipe as recipes
from regard import storage
from regard.data import batching
from regard.data.tokenizers import TOKENIZERS, Tokenizer, Word
from regard.errors import DataError, RecipeError, StoppedError, pick
from regard.metrics import METRICS, Measured
from regard.recipe import Recipe, Search
from regard.sources import text as text_source
from regard.sources.text import SOURCE, build_tokenizer
from regard.storage import Run
from regard.tasks import TASKS, Scored, Task, Transduce, core
from regard.training.engine.eager import halves
from regard.training.stopping import Stopper
from regard.types import BEGIN, END, PAD, UNKNOWN, BatchFirst, Example, Padded, Prediction

LABELS = ("even", "odd")  # whether the number of "x" is even or odd: a bag of letters can learn it


@dataclass(frozen=True)
class Labelled(core.Encoded):
    """Texts with the index of their label."""

    texts: list[list[int]]
    labels: list[int]

    def lengths(self) -> list[tuple[int, int]]:
        return [(len(text) + 1, 1) for text in self.texts]


@dataclass(frozen=True)
class LabelledBatch(BatchFirst):
    text: Padded
    labels: Tensor
    examples: Tensor


class Bag(nn.Module):
    """The sum of the letters' embeddings, and a linear layer."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(size, dim)
        self.out = nn.Linear(dim, len(LABELS))

    def forward(self, text: Padded) -> Tensor:
        return self.out((self.letters(text.ids) * text.mask.unsqueeze(-1)).sum(1))


class Parity(Task[Bag, Labelled, LabelledBatch]):
    """Classifies a text as even or odd by its letters."""

    metrics = ("exact_match",)
    noun = "text"

    def __init__(self, recipe: Recipe, source: Tokenizer) -> None:
        super().__init__(recipe)
        self.source = source

    @staticmethod
    def check(recipe: Recipe) -> None:
        pick(TOKENIZERS, recipe.tokens.source, "tokenizer")

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None) -> "Parity":
        texts = [example.source for example in examples]
        return cls(recipe, build_tokenizer(recipe.tokens.source, texts, recipe.tokens.size, SOURCE, origin))

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Parity":
        return cls(recipe, TOKENIZERS[recipe.tokens.source].from_bytes(read(SOURCE)))

    def files(self) -> dict[str, bytes]:
        return {SOURCE: self.source.to_bytes()}

    def build(self) -> Bag:
        return Bag(self.source.size, self.recipe.model.embedding)

    def encode(self, examples: Sequence[Example]) -> Labelled:
        texts = [self.source.encode(example.source) for example in examples]
        return Labelled(list(examples), texts, [LABELS.index(example.target) for example in examples])

    def describe(self, data: Labelled, dev: Labelled) -> Iterator[str]:
        yield f"{len(LABELS)} labels, {core.unknown(dev.texts):.2%} of the dev tokens unknown"

    def collate(self, data: Labelled, indices: Sequence[int]) -> LabelledBatch:
        text = batching.pad([data.texts[index] for index in indices])
        return LabelledBatch(text, torch.tensor([data.labels[index] for index in indices]), torch.tensor(indices))

    def tokens(self, batch: LabelledBatch) -> int:
        return len(batch.labels)

    def loss(self, model: Bag, batch: LabelledBatch, smoothing: float = 0.0, sampling: float = 0.0) -> Tensor:
        return core.cross_entropy(model(batch.text), batch.labels, smoothing, ignore=-100)

    @torch.no_grad()
    def answer(
        self,
        model: Bag,
        texts: Sequence[str],
        settings: Search,
        n_best: int = 1,
        seed: int = 0,
        *,
        all_maps: bool = False,
    ) -> list[Prediction]:
        answers = [core.blank(text) for text in texts]
        for indices, ids in core.input_batches(texts, self.source.encode, self.longest, 50):
            best = model(batching.pad(ids)).log_softmax(-1).max(-1)
            for index, score, label in zip(indices, *map(Tensor.tolist, best), strict=True):
                answers[index] = replace(answers[index], text=LABELS[label], score=score)
        return answers

    def too_long(self, text: str) -> bool:
        return len(self.source.encode(text)) > self.longest


@pytest.fixture(autouse=True)
def add_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "parity", Parity)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    lines = [f"{'ab'[index % 2] * (index % 5 + 1)}{'x' * (index % 2)}\t{LABELS[index % 2]}\n" for index in range(60)]
    (tmp_path / "texts.tsv").write_text("".join(lines), encoding="utf-8")
    data = ["name=toy", "task=parity", f"data.train={tmp_path}/texts.tsv", "train.device=cpu"]
    sizes = ["model.embedding=5", "train.batch_tokens=60", "train.learning_rate=0.05"]
    return recipes.parse("", "toy", [*data, *sizes, "train.updates=30", "train.validate=10"])


def test_a_new_task_trains_predicts_and_is_scored(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = regard.train(recipe, runs=tmp_path / "runs")
    messages = capsys.readouterr().err
    for words in ("texts split off", "texts to learn from", "2 labels, 0.00% of the dev tokens unknown", "parameters"):
        assert words in messages
    assert "pairs" not in messages
    *entries, last = run.metrics()
    losses = [entry["dev_loss"] for entry in entries]
    assert losses == sorted(losses, reverse=True)
    assert "attention_entropy" not in entries[0]
    assert last["exact_match"] == 1.0
    predictor = regard.load(run)
    assert [prediction.text for prediction in predictor.predict(["aa", " ", "bbx"])] == ["even", "", "odd"]
    examples = [Example("aaa", "even", "easy"), Example("bx", "odd", "easy"), Example("bbx", "even", "hard")]
    scored = predictor.score(examples)
    assert scored[:2] == ("exact_match", Measured(2 / 3, scored.measured.signature))
    assert scored.groups == {"easy": 1.0, "hard": 0.0}
    assert [answer.text for answer in scored.answers] == ["even", "odd", "odd"]
    assert scored.asked == examples


def test_a_stopped_and_resumed_run_ends_with_the_same_bits(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = regard.train(recipe, runs=tmp_path / "whole", quiet=True)
    checks: list[int] = []

    def check(self: Stopper) -> None:
        checks.append(1)
        if len(checks) == 17:
            raise StoppedError(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Stopper, "check", check)
        with pytest.raises(StoppedError, match="updates are saved"):
            regard.train(recipe, runs=tmp_path / "runs", quiet=True)
    resumed = regard.resume(tmp_path / "runs" / "toy", quiet=True)
    assert resumed.read(storage.MODEL) == whole.read(storage.MODEL)


def test_a_metric_that_the_task_does_not_list_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="the metric 'bleu' does not fit this task; choose from exact_match"):
        regard.train(recipe, "metric=bleu", runs=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()
    predictor = regard.load(regard.train(recipe, "train.updates=1", runs=tmp_path, quiet=True))
    with pytest.raises(RecipeError, match="the metric 'chrf' does not fit this task"):
        predictor.score([Example("a", "even")], metric="chrf")


def test_a_task_may_have_a_metric_of_its_own(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise(total: float, count: int) -> Measured:
        return Measured(total / count, f"surprise|n:{count}")

    class WithSurprise(Parity):
        metrics = ("surprise",)

        def measure(self, model: Bag, examples: Sequence[Example], metric: str, settings: Search) -> Scored:
            self.check_metric(metric)
            data = self.encode(examples)
            total = self.loss(model, self.collate(data, range(len(examples)))).item()
            return Scored(metric, METRICS[metric](total, len(examples)), {})

    monkeypatch.setitem(TASKS, "parity", WithSurprise)
    monkeypatch.setitem(METRICS, "surprise", surprise)
    run = regard.train(recipe, "metric=surprise", runs=tmp_path, quiet=True)
    *entries, last = run.metrics()
    assert last["surprise"] == pytest.approx(min(entry["dev_loss"] for entry in entries), rel=1e-5)
    assert last["signature"] == "surprise|n:6"


def test_a_batch_of_any_task_is_split_in_two(recipe: Recipe) -> None:
    examples = Parity.examples(recipe).train
    task = Parity.learn(recipe, examples)
    batch = task.collate(task.encode(examples), [3, 1, 4])
    assert [half.examples.tolist() for half in halves(batch)] == [[3, 1], [4]]


def test_training_examples_over_max_length_are_dropped(recipe: Recipe) -> None:
    examples = [Example("abab", "even"), Example("x", "odd"), Example("aba", "even")]
    task = Parity.learn(recipes.override(recipe, "data.max_length=3"), examples)
    short = task.within_length(task.encode(examples))
    assert short == task.encode(examples[1:])
    with pytest.raises(DataError, match=r"every text is longer than 3 tokens; raise data.max_length"):
        task.within_length(task.encode(examples[:1]))


# Code that all tasks share


def test_input_batches_are_sorted_by_length_and_know_the_index_of_each_text() -> None:
    batches = list(
        core.input_batches(["abc", "", "a", "abcde", "  ", "b"], lambda text: [ord(letter) for letter in text], 4, 4)
    )
    assert [batch.indices for batch in batches] == [[2, 5], [0]]
    assert batches[1].items == [[97, 98, 99]]


def test_unknown_is_the_share_of_unknown_tokens() -> None:
    assert core.unknown([[UNKNOWN, 5], [6, 7, UNKNOWN], [8, 9, 10]]) == 2 / 8
    assert core.unknown([]) == 0.0


@pytest.mark.parametrize("ignore", [0, 2, -100])
@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_the_cross_entropy_is_a_sum_without_the_ignored_index(shape: tuple[int, ...], ignore: int) -> None:
    logits, wanted = torch.randn(*shape, 4), torch.randint(0, 4, shape)
    losses = -logits.log_softmax(-1).gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
    summed = core.cross_entropy(logits, wanted, 0.0, ignore)
    assert summed.item() == pytest.approx(losses[wanted != ignore].sum().item(), rel=1e-5)


@pytest.mark.parametrize(("name", "text"), [("clues", "the coat is ___ "), ("copy", "abc")])
def test_texts_longer_than_the_learned_positions_get_blank_answers_and_outputs_stay_within_them(
    name: str, text: str
) -> None:
    learned = ["model.positions=learned", "model.longest=12", "data.size=50"]
    stacks = [f"model.{side}.kind=transformer" for side in ("encoder", "decoder")]
    recipe = recipes.load(name, [*learned, *stacks, "search.max_extra=40"])
    examples = TASKS[recipe.task].examples(recipe).train
    task = TASKS[recipe.task].learn(recipe, examples)
    short, long = task.answer(task.build(), [text, text * 5], recipe.search)
    assert short.text
    assert len(short.tokens) <= 11
    assert not long.text
    assert task.too_long(text * 5)
    assert all(max(lengths) <= 12 for lengths in task.within_length(task.encode(examples)).lengths())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.coverage=1", "model.decoder.kind=transformer"], "train.coverage needs attention weights in training"),
        (["train.coverage=1", "model.decoder.order=none"], "train.coverage needs attention weights in training"),
        (["train.guided=1", "train.sampling=0.1"], "train.guided and train.sampling do not go together"),
        (["train.guided=1", "tokens.source=word"], "train.guided needs tokens.source = tokens.target = character"),
        (["model.attention.normalizer=hard", "train.sampling=0.1"], "hard attention and train.sampling do not"),
        (
            ["model.attention.normalizer=hard", "model.attention.scope=local_p"],
            "it needs one head, and no scope local_p",
        ),
        (["model.attention.normalizer=hard", "model.attention.heads=2"], "it needs one head, and no scope local_p"),
        (["model.attention.scope=coverage", "model.attention.heads=2"], "'coverage' keeps the weights of one head"),
        (
            ["model.attention.scope=coverage", "model.decoder.kind=transformer"],
            "'coverage' needs the weights of the steps before",
        ),
        (
            ["model.attention.normalizer=hard", "model.decoder.kind=transformer"],
            "hard attention is trained with REINFORCE",
        ),
    ],
)
def test_terms_of_the_loss_and_attention_that_do_not_fit_together_are_refused(
    overrides: list[str], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        Transduce.check(recipes.load("reverse", overrides))


@pytest.mark.parametrize("key", ["coverage", "doubly_stochastic", "guided"])
def test_a_term_of_the_loss_is_added_in_training_only(key: str) -> None:
    recipe = recipes.load("reverse", ["data.size=30", f"train.{key}=2"])
    examples = TASKS["translate"].examples(recipe).train
    with_term, without_term = (
        TASKS["translate"].learn(settings, examples)
        for settings in (recipe, recipes.override(recipe, f"train.{key}=0"))
    )
    model = with_term.build()
    losses = {
        (name, mode): task.loss(model.train(mode), task.collate(task.encode(examples), [0, 1, 2])).item()
        for name, task in (("with", with_term), ("without", without_term))
        for mode in (True, False)
    }
    assert losses["with", True] > losses["without", True] + 0.01
    assert losses["with", False] == losses["without", False]


def test_a_batch_has_begin_and_end_tokens_and_example_indices() -> None:
    sources, targets = [[5], [6, 7, 8], [9]], [[10, 11], [], [12]]
    task = Transduce.learn(recipes.load("reverse"), [Example("ab", "ba")])
    batch = task.collate(core.Pairs([], sources, targets, []), [2, 1])
    assert batch.source.ids.tolist() == [[9, END, PAD, PAD], [6, 7, 8, END]]
    assert batch.target.ids.tolist() == [[BEGIN, 12, END], [BEGIN, END, PAD]]
    assert batch.target.mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.examples.tolist() == [2, 1]
    assert sources == [[5], [6, 7, 8], [9]]
    assert targets == [[10, 11], [], [12]]


def test_links_of_a_batch_are_those_of_its_examples() -> None:
    recipe = recipes.load("reverse", ["data.size=30", "train.guided=1"])
    examples = TASKS["translate"].examples(recipe).train
    task = TASKS["translate"].learn(recipe, examples)
    batch = task.collate(task.encode(examples), [3, 5])
    for row, index in enumerate((3, 5)):
        links = {(int(source), int(target)) for target, source in batch.links[row].nonzero()}
        assert links == set(examples[index].links)


@pytest.mark.parametrize("changed", [None, "regard", "sentencepiece"])
def test_a_cached_tokenizer_is_built_again_only_for_another_version(changed, monkeypatch, tmp_path):
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    calls, build = [], Word.build
    monkeypatch.setattr(Word, "build", lambda *arguments: calls.append(arguments) or build(*arguments))
    build_tokenizer("word", ["a b", "c"], 100, SOURCE)
    if changed == "regard":
        monkeypatch.setattr(text_source, "__version__", "another")
    if changed == "sentencepiece":
        monkeypatch.setattr(text_source.metadata, "version", lambda name: "another")
    build_tokenizer("word", ["a b", "c"], 100, SOURCE)
    assert len(calls) == (2 if changed else 1)
