"""The seam between tasks and the rest: all that the loop and the predictor ask of a task, and what tasks share.

A new task is one file with one subclass of `Task` and one line in `TASKS`; nothing else knows it by name.
"""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.data import batching, files
from regard.data.corpora import CORPORA
from regard.data.files import Loaded
from regard.errors import DataError, RecipeError, pick
from regard.kernels import cross_entropy as kernels
from regard.metrics import CLOSEST, METRICS, Measured
from regard.recipe import Model, Recipe, Search
from regard.storage import Run
from regard.types import PAD, UNKNOWN, Example, Prediction

LONGEST = 5000  # tokens of a text that is answered, or data.max_length where that is more: maps grow with the square


class Examples(NamedTuple):
    """The examples of a run, and what is to be said about them."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]
    notes: list[str]

    def digest(self) -> bytes:
        """As JSON: how many examples are learned from and judged by, and a SHA-256 of them all."""
        told = {}
        for name, examples in (("train", self.train), ("dev", self.dev)):
            found = hashlib.sha256()
            for each in examples:
                found.update(json.dumps([each.source, each.target]).encode())
            told[name] = {"examples": len(examples), "sha256": found.hexdigest()}
        return json.dumps(told, indent=1).encode()


AnyEncoded = TypeVar("AnyEncoded", bound="Encoded")  # not Self: the check of types in tests refuses it


@dataclass(frozen=True)
class Encoded(ABC):
    """Examples as numbers: each field is a list with one entry for every example."""

    examples: list[Example]

    @abstractmethod
    def lengths(self) -> list[tuple[int, int]]:
        """The room each example takes on either side, one mark (BEGIN or END) counted with each."""

    def only(self: AnyEncoded, indices: Sequence[int]) -> AnyEncoded:
        """Those of these examples."""
        rows = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: [row[index] for index in indices] for name, row in rows.items()})


@dataclass(frozen=True)
class Pairs(Encoded):
    """Examples as numbers on both sides: encoded sources, and targets as ids without BEGIN and END."""

    sources: list[Any]
    targets: list[list[int]]
    sizes: list[int]  # of the sources, in positions of a batch

    def lengths(self) -> list[tuple[int, int]]:
        """The room each example takes on either side."""
        return [(size, len(target) + 1) for size, target in zip(self.sizes, self.targets, strict=True)]


OwnBatch = TypeVar("OwnBatch", bound="Batched")


@runtime_checkable
class Batched(Protocol):
    """A batch of any task: a frozen `BatchFirst` dataclass that says where its rows stand in the data."""

    @property
    def examples(self) -> Int[Tensor, " batch"]:
        """The number of each row's example."""

    def select(self: OwnBatch, index: Int[Tensor, " rows"]) -> OwnBatch:
        """The rows that `index` names."""

    def to(self: OwnBatch, device: torch.device) -> OwnBatch:
        """The same on another device."""


AnyBatched = TypeVar("AnyBatched", bound=Batched)


class Judged(NamedTuple):
    """What a batch costs, and where the model looked."""

    loss: Float[Tensor, ""]  # summed over `Task.tokens`
    attention: Float[Tensor, "batch tokens source"] | None  # only of a `Batch`, a row for every target token


class Scored(NamedTuple):
    """A run's score on examples, and on each group of them."""

    metric: str
    measured: Measured
    groups: dict[str, float]
    others: Mapping[str, Measured] = MappingProxyType({})  # by metric: what the same work says besides
    answers: Sequence[Prediction] = ()  # if the task answers texts: one for each of `asked`
    asked: Sequence[Example] = ()


ModelKind = TypeVar("ModelKind", bound=nn.Module)
DataKind = TypeVar("DataKind", bound=Encoded)
BatchKind = TypeVar("BatchKind", bound=Batched)


class Task(ABC, Generic[ModelKind, DataKind, BatchKind]):
    """What an example is, what is lost on it, and what an answer looks like."""

    metrics: ClassVar[tuple[str, ...]]  # the names in METRICS that say something of its answers
    noun: ClassVar[str] = "pair"  # what one example is called in messages
    shows: ClassVar[bool] = True  # whether its answers have maps to look at

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    # before anything is trained

    @staticmethod
    @abstractmethod
    def check(recipe: Recipe) -> None:
        """Refuse a recipe that names what is not there, before any data is read."""

    @classmethod
    def check_metric(cls, name: str) -> None:
        """Refuse a metric that there is not, or that says nothing of this task's answers."""
        pick(METRICS, name, "metric")
        if name not in cls.metrics:
            raise RecipeError(f"the metric {name!r} does not fit this task; choose from {', '.join(cls.metrics)}")

    @staticmethod
    def read(names: tuple[str, ...]) -> Loaded:
        """The examples of files that a recipe or the command line names."""
        return files.pairs(names)

    @classmethod
    def reader(cls, recipe: Recipe) -> Callable[[tuple[str, ...]], Loaded]:
        """What reads such files as the recipe says: `read`, where there is but one way."""
        if recipe.data.format != "pairs":
            raise RecipeError(f"data.format = {recipe.data.format!r} is for the task 'tag'; leave it out")
        return cls.read

    @classmethod
    def examples(cls, recipe: Recipe) -> Examples:
        """Read or generate all examples; where there is no dev set, one is split off."""
        data, notes, read = recipe.data, [], cls.reader(recipe)
        test = read(data.test).examples if data.test else []
        dev = read(data.dev).examples if data.dev else []
        if not data.train:
            if not data.corpus:
                raise RecipeError("nothing to learn from: give data.train=FILE.tsv or data.corpus=NAME")
            splits = pick(CORPORA, data.corpus, "corpus")(recipe.train.seed, data.size)
            notes.append(f"corpus {data.corpus}, generated")
            return Examples(splits.train, dev or splits.dev, test or splits.test, notes)
        train, dropped = read(data.train)
        blank = f", {dropped:,} {cls.noun}s with an empty side dropped" if dropped else ""
        notes.append(" and ".join(data.train) + blank)
        if dev:
            return Examples(train, dev, test, notes)
        part = files.split(train, recipe.train.seed)
        notes.append(f"no data.dev given: {len(part.dev):,} {cls.noun}s split off for it")
        return Examples(part.train, part.dev, test, notes)

    @classmethod
    @abstractmethod
    def learn(
        cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None
    ) -> "Task[ModelKind, DataKind, BatchKind]":
        """The task with tokenizers built on the training examples, or taken from the run it starts from."""

    @classmethod
    @abstractmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Task[ModelKind, DataKind, BatchKind]":
        """The task of a stored run; `read` gives what `files` had."""

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """What a run must keep besides the weights."""

    @abstractmethod
    def build(self) -> ModelKind:
        """A model with fresh weights."""

    # from examples to what is lost on them

    @abstractmethod
    def encode(self, examples: Sequence[Example]) -> DataKind:
        """All examples as numbers."""

    def within_length(self, data: DataKind) -> DataKind:
        """The examples that are short enough to learn from."""
        longest = min(self.recipe.data.max_length, places(self.recipe.model) - 1)
        kept = [index for index, room in enumerate(data.lengths()) if max(room) <= longest + 1]
        if not kept:
            raise DataError(
                f"every {self.noun} is longer than {longest} tokens; raise data.max_length, or model.longest"
            )
        return data.only(kept)

    @abstractmethod
    def told(self, data: DataKind, dev: DataKind) -> Iterator[str]:
        """What is to be said of tokens and labels before training."""

    @abstractmethod
    def collate(self, data: DataKind, indices: Sequence[int]) -> BatchKind:
        """The batch of these examples."""

    @abstractmethod
    def tokens(self, batch: BatchKind) -> int:
        """How many things are predicted in a batch: what the mean loss is over."""

    @abstractmethod
    def loss(
        self, model: ModelKind, batch: BatchKind, smoothing: float = 0.0, sampling: float = 0.0
    ) -> Float[Tensor, ""]:
        """What is lost on a batch, summed over its `tokens`; labels smoothed, own guesses fed, by these shares."""

    def judge(self, model: ModelKind, batch: BatchKind) -> Judged:
        """The same on dev, plain, and the attention where there is one."""
        return Judged(self.loss(model, batch), None)

    # from texts to answers

    @abstractmethod
    def answer(
        self, model: ModelKind, texts: Sequence[str], settings: Search, n_best: int = 1, seed: int = 0
    ) -> list[Prediction]:
        """The best answers to each text, with their maps; a blank text, or one too long, gets a blank answer."""

    def measure(self, model: ModelKind, examples: Sequence[Example], metric: str, settings: Search) -> Scored:
        """How well the answers to the examples' sources match their targets, in all and by group.

        A metric of `CLOSEST` asks for every source once and takes all its targets as right; then the others of them
        are told besides, for they cost nothing more.
        """
        self.check_metric(metric)
        several = metric in CLOSEST
        questions = by_source(examples) if several else [[example] for example in examples]
        asked = [same[0] for same in questions]
        right = [[each.target for each in same] if several else same[0].target for same in questions]
        answers = self.answer(model, [each.source for each in asked], settings)
        outputs = [answer.text for answer in answers]
        grouped: dict[str, list[tuple[str, str | list[str]]]] = {}
        for output, example, references in zip(outputs, asked, right, strict=True):
            grouped.setdefault(example.group, []).append((output, references))
        groups = {group: METRICS[metric](*zip(*pairs, strict=True)).value for group, pairs in grouped.items() if group}
        others = {name: METRICS[name](outputs, right) for name in CLOSEST if several and name != metric}
        total = METRICS[metric](outputs, right)
        return Scored(metric, total, groups, others, answers, asked)

    @property
    def longest(self) -> float:
        """The tokens of a text that is still answered: no more than there are positions, one of them for END."""
        return min(max(LONGEST, self.recipe.data.max_length), places(self.recipe.model) - 1)

    @abstractmethod
    def too_long(self, text: str) -> bool:
        """Whether a text is answered with nothing because of its length."""


AnyTask = Task[Any, Any, Any]


def places(model: Model) -> float:
    """The tokens that a model can tell the positions of."""
    learned = model.positions == "learned" and "transformer" in (model.encoder.kind, model.decoder.kind)
    return model.longest if learned else math.inf


def unknown(rows: Sequence[Sequence[int]]) -> float:
    """The share of tokens that the vocabulary does not hold."""
    return sum(token == UNKNOWN for row in rows for token in row) / max(1, sum(map(len, rows)))


def cross_entropy(
    logits: Float[Tensor, "*rows classes"], wanted: Int[Tensor, "*rows"], smoothing: float, ignore: int = PAD
) -> Float[Tensor, ""]:
    """What the logits cost, summed over all rows but those where `ignore` is wanted."""
    precise = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    return kernels.cross_entropy(precise, wanted.flatten(), smoothing, ignore)


def by_source(examples: Sequence[Example]) -> list[list[Example]]:
    """The examples of equal source (and group) together, in the order in which their first stands."""
    found: dict[tuple[str, str], list[Example]] = {}
    for example in examples:
        found.setdefault((example.source, example.group), []).append(example)
    return list(found.values())


class Asked(NamedTuple):
    """Inputs of like size: where each stands among all, and its encoded form."""

    places: list[int]
    items: list[Any]


def with_end(ids: Sequence[int]) -> int:
    """The size of a text: its tokens, END included."""
    return len(ids) + 1


def ask(
    texts: Sequence[str],
    encode: Callable[[str], Any],
    longest: float,
    budget: int,
    size: Callable[[Any], int] = with_end,
) -> Iterator[Asked]:
    """The texts in batches of at most `budget` positions; blank ones, and those over `longest` tokens, are left out."""
    encoded = {place: encode(text) for place, text in enumerate(texts) if text.strip()}
    sizes = {place: size(item) for place, item in encoded.items()}
    answered = [place for place, positions in sizes.items() if positions <= longest + 1]
    for group in batching.in_order([(sizes[place], 0) for place in answered], budget):
        places = [answered[index] for index in group]
        yield Asked(places, [encoded[place] for place in places])


def blank(text: str) -> Prediction:
    """The answer to a text that is not answered."""
    return Prediction(text, "", 0.0, (), None)
