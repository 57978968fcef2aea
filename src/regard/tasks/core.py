"""The interface of tasks, as the training loop and the predictor use it, and functions that tasks share.

A new task is one file with one subclass of `Task` and one line in `TASKS`; no other code depends on its name.
"""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import recipe as recipes
from regard.attention.norms import Norms, record_norms
from regard.attention.record import Recording, record
from regard.attention.scopes import Scope
from regard.console import counted
from regard.data import batching, files, media, records, store
from regard.data.batching import Lengths, Mixture, length_array
from regard.data.corpora import CORPORA
from regard.data.files import LIMITS, Loaded
from regard.data.needs import check_found
from regard.data.paths import expanded
from regard.data.records import DEV, NOTHING_GIVEN, PAIRS, Fields, Given
from regard.data.shards import Shards, read_shards, sample
from regard.data.store import Indices, Mapped, Texts, row_lengths, take
from regard.data.tokenizers import Tokenizer
from regard.data.treebank import rejoin
from regard.device import only_shapes
from regard.errors import DataError, RecipeError, TooLargeError, pick, plural, quantity
from regard.kernels import cross_entropy as kernels
from regard.maps import TEXT, AttentionMaps, LayerMaps, Layout, SourceView
from regard.metrics import CLOSEST, METRICS, MULTI_REFERENCE, Measured, Outcome, companions
from regard.models import CROSS, DECODER_SELF, POOLING, sites
from regard.models.letters import Spelled
from regard.recipe import Limits, Recipe, Search, Train
from regard.sources import Text
from regard.storage import Run
from regard.types import (
    BEGIN,
    END,
    PAD,
    SPECIALS,
    UNKNOWN,
    Capturable,
    Example,
    Padded,
    Prediction,
    Vocabulary,
)

if TYPE_CHECKING:
    from regard.tasks.rewards import Rewards

SOURCE_SECTIONS = {"picture", "speech"}  # sections of a recipe for one kind of source alone
OF_PAIRS = (  # keys that only tasks with a source and a target text use
    *("data.pictures", "data.normalize", "data.weights", "data.temperature", "data.store_from"),
)
ATTENTION_TERMS = (
    *("train.sampling", "train.coverage", "train.doubly_stochastic", "train.guided", "train.entropy"),
    "train.ctc",
)
REWARD = ("train.reward", "train.reward_after", "train.reward_samples", "train.reward_rate")
# Keys that a task without a decoder ignores.
NO_DECODER = (*OF_PAIRS, "source", "tokens.shared", "model.decoder", *ATTENTION_TERMS, *REWARD)
NOT_CAPTURED = ("train.capture", "train.compile")  # keys that a task ignores whose batches are not `Capturable`
DECODER_ROWS = ("decoder.embedding.weight", "decoder.out.weight", "decoder.out.bias")  # tensors with a row per token
MOST_UNKNOWN = 0.05  # share of unknown dev tokens above which the vocabulary of train.start_from does not suit
READ_TOKENS = 16_000  # tokens of a batch for predictions, if there is no search
LONGEST = 5000  # tokens of an input at most, unless data.max_length is higher: the memory of maps grows as the square


class Examples(NamedTuple):
    """The examples of a run, and notes about them to print before training."""

    train: Sequence[Example]
    dev: Sequence[Example]
    test: Sequence[Example]
    notes: list[str]

    def digest(self) -> bytes:
        """JSON with the number and the SHA-256 of the training and dev examples: shows if the data of a run changed."""
        digests = {}
        for name, examples in (("train", self.train), ("dev", self.dev)):
            digest = examples.digest() if isinstance(examples, Shards) else _digest(examples)
            digests[name] = {"examples": len(examples), "sha256": digest}
        return json.dumps(digests, indent=1).encode()

    def without_texts(self) -> "Examples":
        """The examples, those for training without their texts: after encoding, only their origins are needed."""
        return self._replace(train=store.without_texts(self.train))


def _digest(examples: Sequence[Example]) -> str:
    """The SHA-256 of the source and the target of all examples."""
    sha256 = hashlib.sha256()
    for texts in counted(store.texts(examples), "computing a checksum of the data"):
        sha256.update(json.dumps(texts).encode())
    return sha256.hexdigest()


AnyEncoded = TypeVar("AnyEncoded", bound="Encoded")  # not Self: the type checker of the tests refuses it


@dataclass(frozen=True)
class Encoded(ABC):
    """Encoded examples: each field is a sequence with one entry per example."""

    examples: Sequence[Example]

    @abstractmethod
    def lengths(self) -> Lengths:
        """The positions that each example takes as (source, target), with one for BEGIN or END on each side."""

    def widest(self) -> list[int]:
        """The indices of a few examples that have, together, the width of the whole data on each side."""
        return length_array(self.lengths()).argmax(0).tolist()

    def only(self: AnyEncoded, indices: Indices) -> AnyEncoded:
        """The data of the examples at these indices."""
        return replace(self, **{field.name: take(getattr(self, field.name), indices) for field in fields(self)})

    def without_texts(self: AnyEncoded) -> AnyEncoded:
        """The encoded examples, without their texts."""
        return replace(self, examples=store.without_texts(self.examples))


@dataclass(frozen=True)
class Pairs(Encoded):
    """Encoded pairs: encoded sources, and targets as token ids without BEGIN and END."""

    sources: Sequence[Any]
    targets: Sequence[list[int]]
    sizes: Indices  # positions that each source takes in a batch

    def lengths(self) -> Lengths:
        """The positions that each example takes as (source, target)."""
        return np.stack([np.asarray(self.sizes, np.int32), row_lengths(self.targets) + 1], axis=1)


OwnBatch = TypeVar("OwnBatch", bound="Batched")


@runtime_checkable
class Batched(Protocol):
    """A batch of any task: a frozen `BatchFirst` dataclass that knows the example of each row."""

    @property
    def examples(self) -> Int[Tensor, " batch"]:
        """The index of each row's example in the data."""

    def select(self: OwnBatch, index: Int[Tensor, " rows"]) -> OwnBatch:
        """The batch of the rows at these indices."""

    def to(self: OwnBatch, device: torch.device) -> OwnBatch:
        """The batch on another device."""


AnyBatched = TypeVar("AnyBatched", bound=Batched)


class Collated(NamedTuple):
    """All examples of the data as tensors, for tasks with `Capturable` batches; each distinct source is there once."""

    batch: Capturable
    numbers: Int[Tensor, " examples"]  # the row of `batch.source` that is the source of each example


class DevLoss(NamedTuple):
    """The loss of a batch, and the attention weights if the model has them."""

    loss: Float[Tensor, ""]  # summed over `Task.tokens`
    attention: Float[Tensor, "batch tokens source"] | None = None  # only for a `Batch`; one row per target token
    mask: Bool[Tensor, "batch source"] | None = None  # of the source positions that the attention is over
    layout: Layout = TEXT  # of these positions; those of a text end with END


class Scored(NamedTuple):
    """The score of a run on examples, in total and for each group of them."""

    metric: str
    measured: Measured
    groups: dict[str, float]
    others: Mapping[str, Measured] = MappingProxyType({})  # by metric: other scores that come from the same computation
    answers: Sequence[Prediction] = ()  # if the score is computed from predictions: one for each of `asked`
    asked: Sequence[Example] = ()  # the examples whose sources were predicted from
    outcomes: Sequence[Outcome] = ()  # of each example or text, in the order of the examples


Item = TypeVar("Item")
ModelKind = TypeVar("ModelKind", bound=nn.Module)
DataKind = TypeVar("DataKind", bound=Encoded)
BatchKind = TypeVar("BatchKind", bound=Batched)


class Task(ABC, Generic[ModelKind, DataKind, BatchKind]):
    """Base class of tasks: reads and encodes examples, builds the model, computes loss, predictions and scores."""

    metrics: ClassVar[tuple[str, ...]]  # the names in METRICS that fit its predictions
    noun: ClassVar[str] = "pair"  # the word for one example in messages
    columns: ClassVar[tuple[str, ...]] = ("source", "target")  # of a file with named columns; the last is the target
    shows: ClassVar[bool] = True  # whether its predictions have attention maps
    mistakes: ClassVar[str] = "edits"  # how answers are wrong: in edits, classes or tags; texts: there are no answers
    ignores: ClassVar[tuple[str, ...]] = ()  # keys and sections of a recipe that it does not use, which are refused

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    # before training

    @classmethod
    @abstractmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe with unknown names or sizes that do not fit, before any data is read."""

    @classmethod
    def check_keys(cls, recipe: Recipe) -> None:
        """Refuse keys that are set but that this task ignores."""
        for key in recipes.changed(recipe):
            section = key.partition(".")[0]
            if section in recipes.TASK_SECTIONS and section != recipe.task:
                raise RecipeError(f"{key} is a key of task = {section}, not of {recipe.task}; leave it out")
            if section in SOURCE_SECTIONS and section != recipe.source:
                raise RecipeError(f"{key} is a key of source = {section}, not of {recipe.source}; leave it out")
            if not cls.uses(key):
                raise RecipeError(f"task = {recipe.task} does not use {key}; leave it out")

    @classmethod
    def uses(cls, key: str) -> bool:
        """Whether this task uses a key of a recipe: neither the key nor a section around it is ignored."""
        return not any(key == ignored or key.startswith(ignored + ".") for ignored in cls.ignores)

    @classmethod
    def check_columns(cls, recipe: Recipe) -> None:
        """Refuse data.columns without files that have named columns, such files without it, and too many or too few."""
        data = recipe.data
        names = expanded((*data.train, *data.dev, *data.test))
        tables = [name for name in names if records.has_columns(name)]
        roles = " and ".join(cls.columns)
        if data.columns and not tables:
            records.check_tables(names, data.columns, "data.columns", data.limits)
        if data.columns and len(data.columns) != len(cls.columns):
            named = records.list_names(data.columns)
            raise RecipeError(f"data.columns names the columns of {roles}, {len(cls.columns)} in all, not {named}")
        for name in tables:
            if not data.columns and records.ending(name) and not cls.has_own_format(recipe, name):
                there = records.list_names(records.column_names(name, data.limits))
                chosen = ",".join(cls.columns).upper()
                how = f"data.columns={chosen} (of a run: --columns {chosen})"
                raise RecipeError(f"{name} has the columns {there}; name those of {roles} with {how}")

    @classmethod
    def check_metric(cls, name: str) -> None:
        """Refuse a metric that does not exist or does not fit this task."""
        pick(METRICS, name, "metric")
        if name not in cls.metrics:
            raise RecipeError(f"the metric {name!r} does not fit this task; choose from {', '.join(cls.metrics)}")

    @staticmethod
    def read(names: tuple[str, ...], limits: Limits = LIMITS) -> Loaded:
        """Reads the examples of files that are named in a recipe or on the command line."""
        return files.pairs(names, limits)

    @classmethod
    def line_reader(cls, recipe: Recipe) -> Callable[[tuple[str, ...]], Loaded]:
        """Returns the function that reads lines as the recipe says: `read`, unless a task has several formats."""
        return partial(cls.read, limits=recipe.data.limits)

    @classmethod
    def from_fields(cls, recipe: Recipe, fields: Fields) -> Texts:
        """The source and the target of a record with the task's `columns`."""
        return records.source_of(fields[:-1]), fields[-1]

    @classmethod
    def has_own_format(cls, recipe: Recipe, name: str) -> bool:
        """Whether `line_reader` reads a file that looks like a table, so that it needs no data.columns."""
        return False

    @classmethod
    def reader(cls, recipe: Recipe, given: Given = NOTHING_GIVEN) -> Callable[[tuple[str, ...]], Loaded]:
        """Returns the function that reads files as the recipe says: by `data.columns` if they have named columns.

        It reads what is `given` in Python, too.
        """
        read_lines, columns = cls.line_reader(recipe), recipe.data.columns

        def read(names: tuple[str, ...]) -> Loaded:
            named = expanded(names)
            tables = [name for name in named if columns and records.is_table(name, columns, recipe.data.limits)]
            if not tables and not any(name in (PAIRS, DEV) for name in names):
                return read_lines(names)
            parts = [
                records.given(given[name], columns, cls.columns, name)
                if name in given
                else records.read(name, columns, recipe.data.limits)
                for name in named
            ]
            return records.examples(parts, partial(cls.from_fields, recipe), cls.noun)

        return read

    @classmethod
    def are_stored(cls, recipe: Recipe) -> bool:
        """Whether the training data are so large that they are read block by block, to a store of token ids."""
        return False

    @classmethod
    def examples(cls, recipe: Recipe, given: Given = NOTHING_GIVEN) -> Examples:
        """Reads or generates all examples; if there is no dev set, one is split off the training set."""
        data, read = recipe.data, cls.reader(recipe, given)
        names = [name for name in (*data.train, *data.dev, *data.test) if name not in (*given, PAIRS, DEV)]
        check_found(recipe, names)
        test = read(data.test).examples if data.test else []
        dev, lacking = read(data.dev) if data.dev else Loaded([], 0)
        notes = describe_dropped(data.dev, lacking, cls.noun, " with an empty side")
        if not data.train:
            if not data.corpus:
                raise RecipeError("nothing to learn from: give data.train=FILE.tsv or data.corpus=NAME")
            splits = pick(CORPORA, data.corpus, "corpus")(recipe.train.seed, data.size)
            return Examples(splits.train, dev or splits.dev, test or splits.test, notes)
        train, dropped = (
            read_shards(data, dev) if PAIRS not in data.train and cls.are_stored(recipe) else read(data.train)
        )
        notes = [*describe_dropped(data.train, dropped, cls.noun, " with an empty side"), *notes]
        if dev:
            if len(cls.columns) > 1 and (shared := count_shared(train, dev)):
                nouns = plural(cls.noun)
                both = f"{shared:,} of {len(dev):,} dev {nouns} are in train, too"
                notes.append(f"{both}; their scores say little about other {nouns}")
            return Examples(train, dev, test, notes)
        part = train.split if isinstance(train, Shards) else files.split(train, data.split_seed)
        notes.append(f"no data.dev given: {quantity(len(part.dev), cls.noun)} split off for it")
        return Examples(part.train, part.dev, test, notes)

    @classmethod
    @abstractmethod
    def learn(
        cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None
    ) -> "Task[ModelKind, DataKind, BatchKind]":
        """Builds the task with tokenizers from the training examples, or with those of the run `origin`."""

    @classmethod
    @abstractmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Task[ModelKind, DataKind, BatchKind]":
        """Builds the task of a stored run; `read` returns the content of one of its `files` by name."""

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """The content of the files that a run must store besides the weights, by file name."""

    @abstractmethod
    def build(self) -> ModelKind:
        """Builds the model with newly initialised weights."""

    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabulary of each tensor of the model that has a row for each token, by the tensor's name."""
        return {}

    # from examples to the loss

    @abstractmethod
    def encode(self, examples: Sequence[Example]) -> DataKind:
        """Encodes all examples."""

    def within_length(self, data: DataKind) -> DataKind:
        """The examples that are short enough for training; DataError if there are none."""
        longest = self.longest_trained
        lengths = length_array(data.lengths()).max(1)
        kept = np.flatnonzero(lengths <= longest + 1)
        if not len(kept):
            raise DataError(
                f"every {self.noun} is longer than {longest} tokens; raise data.max_length, or model.longest"
            )
        return data if len(kept) == len(lengths) else data.only(kept)

    def mixture(self, data: DataKind) -> Mixture | None:
        """What draws the examples of an epoch; None if it has each of them once."""
        return None

    @abstractmethod
    def describe(self, data: DataKind, dev: DataKind) -> Iterator[str]:
        """The lines about vocabularies and labels that are printed before training."""

    @abstractmethod
    def collate(self, data: DataKind, indices: Sequence[int]) -> BatchKind:
        """Makes the batch of the examples at these indices."""

    def collate_all(self, data: DataKind) -> Collated:
        """All examples of the data as tensors, padded to the longest; only if batches of this task are `Capturable`."""
        batch = self.collate(data, range(len(data.lengths())))
        assert isinstance(batch, Capturable)
        return Collated(batch, torch.arange(len(batch.examples)))

    @abstractmethod
    def tokens(self, batch: BatchKind) -> int:
        """The number of predictions in a batch (tokens, tags or labels), which the mean loss is divided by."""

    @abstractmethod
    def loss(
        self, model: ModelKind, batch: BatchKind, smoothing: float = 0.0, sampling: float = 0.0
    ) -> Float[Tensor, ""]:
        """The loss of a batch, summed over its `tokens`, with label smoothing and scheduled sampling."""

    def rewards(self, data: DataKind) -> "Rewards":
        """What draws and scores outputs for the sources of the training data, if there is train.reward."""
        raise NotImplementedError(f"the task {self.recipe.task} has no outputs to draw")

    def dev_loss(self, model: ModelKind, batch: BatchKind) -> DevLoss:
        """The loss of a dev batch, without smoothing and sampling, and the attention weights if there are any."""
        return DevLoss(self.loss(model, batch))

    # from texts to predictions

    @abstractmethod
    def answer(
        self,
        model: ModelKind,
        texts: Sequence[str],
        settings: Search,
        n_best: int = 1,
        seed: int = 0,
        *,
        all_maps: bool = False,
    ) -> list[Prediction]:
        """Predicts the best outputs for each text, with maps; a blank or too long text gets a blank prediction.

        With `all_maps`, the best prediction of each text also has the maps of all sites, layers and heads.
        """

    def measure(self, model: ModelKind, examples: Sequence[Example], metric: str, settings: Search) -> Scored:
        """Computes a metric of the predictions for the examples' sources against their targets, in total and by group.

        If the metric takes all targets of a source as references (`takes_all`), each different source is predicted
        once. The `companions` of the metric are computed too, since they need no further predictions.
        """
        self.check_metric(metric)
        several = self.takes_all(metric)
        sets = by_source(examples) if several else [[example] for example in examples]
        asked = [same_source[0] for same_source in sets]
        right = [[example.target for example in same] if several else same[0].target for same in sets]
        answers = self.answer(model, [example.source for example in asked], settings)
        outputs = [answer.text for answer in answers]
        grouped: dict[str, list[tuple[str, str | list[str]]]] = {}
        for output, example, references in zip(outputs, asked, right, strict=True):
            grouped.setdefault(example.group, []).append((output, references))
        groups = {group: METRICS[metric](*zip(*pairs, strict=True)).value for group, pairs in grouped.items() if group}
        others = {name: METRICS[name](outputs, right) for name in companions(metric)}
        total = METRICS[metric](outputs, right)
        outcomes = [
            Outcome(answer.source, tuple(example.target for example in same), answer.text, answer.score)
            for answer, same in zip(answers, sets, strict=True)
        ]
        return Scored(metric, total, groups, others, answers, asked, outcomes)

    def baselines(self, examples: Sequence[Example]) -> Mapping[str, Mapping[str, Measured]]:
        """The scores of simple rules on the same examples, by rule and metric; by default there are none."""
        return {}

    def takes_all(self, metric: str) -> bool:
        """Whether all targets of a source are references of one prediction: by the metric, or if sources are files.

        A picture has several captions, which are all right; a text that is there twice counts twice.
        """
        return metric in MULTI_REFERENCE or (self.reads_files and metric in CLOSEST)

    def part(self, examples: Sequence[Example], count: int) -> Sequence[Example]:
        """At most that many of the examples, to be scored in place of all.

        If the metric takes all targets of a source as references, all examples of at most that many sources.
        """
        if self.takes_all(self.recipe.metric):
            return [example for same_source in evenly(by_source(examples), count) for example in same_source]
        return evenly(examples, count)

    def characters(self, same_source: Sequence[Example]) -> int:
        """The characters of one prediction, by which validations bound their time: of source and longest target.

        The name of a file does not count.
        """
        longest = max(len(example.target) for example in same_source)
        return longest + (0 if self.reads_files else len(same_source[0].source))

    def probes(self, examples: Sequence[Example]) -> list[Example]:
        """For tasks whose metric is not one of outputs: inputs made from examples, with expected outputs, to show."""
        return list(examples)

    @property
    def reads_files(self) -> bool:
        """Whether an input is the name of a file, such as a recording, and not a text."""
        return False

    def locate(self, name: str, file: str) -> str:
        """The input that a line of a file names, which may be relative to the folder of that file."""
        return name

    def accept(self, value: object, name: str) -> str:
        """The input for a value given in Python: a text, unless the task reads files; `name` is for messages."""
        if isinstance(value, str):
            return value
        raise DataError(f"{name} is of the type {type(value).__name__}; give texts")

    @property
    def noun_of_input(self) -> str:
        """The word for one input in messages."""
        return "text"

    @property
    def longest_in_seconds(self) -> float:
        """The longest duration of a recording in training, data.max_length; only if the task reads recordings."""
        raise NotImplementedError(f"the task {self.recipe.task} reads no recordings")

    def is_medium(self, name: str) -> bool:
        """Whether a file has a format that inputs have, by its first bytes; only if the task `reads_files`."""
        raise NotImplementedError(f"the task {self.recipe.task} reads no files")

    def problem_of(self, source: str) -> str:
        """Why an input cannot be read, such as a damaged picture; empty if it can, as all texts can."""
        return ""

    def files_in(self, folder: str) -> media.Folder:
        """The files of a folder that can be inputs; only if the task `reads_files`."""
        raise NotImplementedError(f"the task {self.recipe.task} reads no files")

    @property
    def output_tokens(self) -> Tokenizer | None:
        """The tokenizer of outputs that are written token by token; None if the task has no such outputs."""
        return None

    @property
    def longest_trained(self) -> int:
        """The largest number of tokens of a side in training; with learned positions at most their number."""
        return int(min(self.recipe.data.max_length, position_limit(self.recipe)))

    @property
    def longest(self) -> float:
        """The largest number of tokens of an input; with learned positions at most as many as have one."""
        return min(max(LONGEST, self.recipe.data.max_length), position_limit(self.recipe))

    @abstractmethod
    def too_long(self, text: str) -> bool:
        """Whether a text is too long, so that its prediction is blank."""

    def unknown_parts(self, text: str) -> list[str]:
        """The parts of a text that are not in the vocabulary, in their order; none if the source is not text."""
        return []

    # for interventions

    aligned: ClassVar[bool] = False  # whether the tokens of two outputs for one input stand for each other one by one

    def positions(self, text: str) -> tuple[str, ...]:
        """The labels of all positions of an input that the model reads; RecipeError if it has none."""
        raise RecipeError(f"the positions of a source of task = {self.recipe.task} have no names; give numbers")

    def erasable(self, text: str) -> int:
        """The last position of an input that can be erased, counted from 1."""
        return len(self.positions(text))

    def axes(self, text: str, written: tuple[str, ...], site: str) -> "Axes":
        """The labels of both axes of the maps at a site, for an output of these tokens."""
        if site == DECODER_SELF:
            return Axes((*written, SPECIALS[END]), (SPECIALS[BEGIN], *written))
        labels = self.positions(text)
        rows = {CROSS: (*written, SPECIALS[END]), POOLING: written}
        return Axes(rows.get(site, labels), labels)


AnyTask = Task[Any, Any, Any]


class TextTask(Task[ModelKind, DataKind, BatchKind]):
    """Base class of tasks with one tokenizer, `source`."""

    def __init__(self, recipe: Recipe, source: Tokenizer) -> None:
        super().__init__(recipe)
        self.source = source

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe with unknown names or sizes that do not fit, before any data is read."""
        Text.check(recipe)
        with only_shapes():  # fails if sizes do not fit
            cls.model(recipe, len(SPECIALS))

    @staticmethod
    @abstractmethod
    def model(recipe: Recipe, size: int) -> ModelKind:
        """Builds the model for a vocabulary of this size, with newly initialised weights."""

    @classmethod
    def texts(cls, recipe: Recipe, example: Example) -> Sequence[str]:
        """The texts of an example, as the tokenizer reads them: its source, or the same number of others."""
        return [normalized(example.source, recipe)]

    @classmethod
    def tokenizer(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None) -> Tokenizer:
        """Builds the tokenizer from the training texts, or takes that of the run `origin`."""
        examples = sampled(examples, recipe.tokens.sample)
        count = len(cls.texts(recipe, examples[0])) if examples else 0
        places = np.arange(count * len(examples))
        texts = Mapped(places, lambda place: cls.texts(recipe, examples[place // count])[place % count])
        return Text.fit(recipe, texts, origin).tokenizer

    @classmethod
    def learn(
        cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None
    ) -> "TextTask[ModelKind, DataKind, BatchKind]":
        """Builds the task; its tokenizer is built from the training texts, or taken from the run `origin`."""
        return cls(recipe, cls.tokenizer(recipe, examples, origin))

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "TextTask[ModelKind, DataKind, BatchKind]":
        """Builds the task of a stored run."""
        return cls(recipe, Text.restore(recipe, read).tokenizer)

    def files(self) -> dict[str, bytes]:
        """The content of the files that a run must store besides the weights, by file name."""
        return Text(self.source).files()

    def build(self) -> ModelKind:
        """Builds the model with newly initialised weights."""
        return self.model(self.recipe, self.source.size)

    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabulary of the encoder's embedding."""
        return rows_of(tokens_of(self.source), "encoder.embedding.weight")

    def unknown_parts(self, text: str) -> list[str]:
        """The parts of a text that are not in the vocabulary, in their order."""
        return unknown_parts(self.source, normalized(text, self.recipe))


def tokens_of(tokenizer: Tokenizer, noun: str = "tokens") -> Vocabulary:
    """The vocabulary of a tokenizer; no token equals a special one, even if its text is the same."""
    pieces = (tokenizer.piece(token) for token in range(len(SPECIALS), tokenizer.size))
    return Vocabulary(noun, (*((special,) for special in SPECIALS), *pieces))


def rows_of(vocabulary: Vocabulary, *names: str) -> dict[str, Vocabulary]:
    """A vocabulary as that of the tensors with these names."""
    return dict.fromkeys(names, vocabulary)


def count_shared(train: Sequence[Example], examples: Sequence[Example]) -> int:
    """How many of the examples are among those for training, with the same source and target."""
    if isinstance(train, Shards):
        return train.count_shared(examples)
    counts = Counter((example.source, example.target) for example in examples)
    found = {texts for texts in counted(store.texts(train), "comparing with train") if texts in counts}
    return sum(counts[texts] for texts in found)


def describe_dropped(names: Sequence[str], dropped: int, noun: str, why: str = "") -> list[str]:
    """The note about examples of these files that are dropped; none if none are. `noun` is the word for one."""
    return [f"{' and '.join(names)}: {quantity(dropped, noun)}{why} dropped"] if dropped else []


def sampled(examples: Sequence[Example], most: int) -> Sequence[Example]:
    """The examples that vocabularies are built from: all, or `most` of them, drawn at random."""
    if isinstance(examples, Shards):
        return examples.sample(most)
    return take(examples, sample(len(examples), most)) if most and len(examples) > most else examples


def position_limit(recipe: Recipe) -> float:
    """The number of tokens that have a position besides the special ones: infinite, unless positions are learned."""
    model = recipe.model
    learned = model.positions == "learned" and "transformer" in (model.encoder.kind, model.decoder.kind)
    specials = 2 if recipe.tokens.source == "hugging_face" else 1  # END, and BEGIN if the tokenizer adds it
    return model.longest - specials if learned else math.inf


def lowered(text: str, recipe: Recipe) -> str:
    """The text, in lower case if tokens.lower is true."""
    return text.lower() if recipe.tokens.lower else text


def normalized(text: str, recipe: Recipe) -> str:
    """The text as the tokenizer reads it: rejoined if tokens.rejoin is true, in lower case if tokens.lower is true."""
    return lowered(rejoin(text) if recipe.tokens.rejoin else text, recipe)


def unknown_parts(tokenizer: Tokenizer, text: str) -> list[str]:
    """The parts of a text that are not in a vocabulary, in their order."""
    ids = tokenizer.encode(text)
    if UNKNOWN not in ids:
        return []
    places = zip(ids, tokenizer.offsets(text), strict=True)
    parts = [text[begin:end] for token, (begin, end) in places if token == UNKNOWN]
    return [part.strip() or part for part in parts]


def unknown(*tables: Sequence[Sequence[int]]) -> float:
    """The share of tokens that are not in the vocabulary, in all rows of these tables."""
    tokens = sum(len(row) for rows in tables for row in rows)
    return sum(row.count(UNKNOWN) for rows in tables for row in rows) / max(1, tokens)


def describe_unknown(share: float, settings: Train, noun: str = "tokens") -> str:
    """The words about the share of unknown dev tokens; with the vocabulary of another run, it may be too large."""
    words = f"{share:.2%} of the dev {noun} unknown"
    if settings.start_from and not settings.new_vocabulary and share > MOST_UNKNOWN:
        return f"{words} in the vocabulary of {settings.start_from}; train.new_vocabulary=true makes one from this data"
    return words


def cross_entropy(
    logits: Float[Tensor, "*rows classes"], wanted: Int[Tensor, "*rows"], smoothing: float, ignore: int = PAD
) -> Float[Tensor, ""]:
    """Cross-entropy in float32 or more, summed over all rows except those whose target is `ignore`."""
    precise = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    return kernels.cross_entropy(precise, wanted.flatten(), smoothing, ignore)


Words = TypeVar("Words", Padded, Spelled)


def drop_words(source: Words, share: float) -> Words:
    """Iyyer et al. 2015, word dropout: each word becomes UNKNOWN with this probability, independently."""
    if not share:
        return source
    drawn = torch.rand(source.ids.shape, device=source.ids.device) < share
    return replace(source, ids=source.ids.masked_fill(drawn & (source.ids >= len(SPECIALS)), UNKNOWN))


def with_last_attention(model: nn.Module, *inputs: Any) -> tuple[Tensor, Float[Tensor, "batch length length"] | None]:
    """The output of a model, and the self-attention of its last layer, averaged over heads; None if it has none."""
    last_layer = [name for name, module in model.named_modules() if isinstance(module, Scope)][-1:]
    if not last_layer:
        return model(*inputs), None
    with record(model, layers=last_layer) as recorded:
        output = model(*inputs)
    return output, next((weights.mean(1) for weights in recorded.weights.values()), None)


@contextmanager
def recording_sites(model: nn.Module, on: bool = True) -> Iterator[Recording]:
    """In the block, the weights of all attention sites of the model are recorded, or nothing if `on` is False."""
    names = list(sites(model))
    if not on or not names:
        yield Recording()
        return
    with record(model, layers=names) as recording:
        yield recording


class Axes(NamedTuple):
    """The labels of both axes of a site's maps; the first row is that of the query with index `start`."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    layout: Layout = TEXT
    start: int = 0
    view: Callable[[], SourceView | None] | None = None  # of the columns, as in `AttentionMap`
    first: int = 0  # the key of the first column


@contextmanager
def recording_norms(model: nn.Module, on: bool = True) -> Iterator[Norms]:
    """In the block, the norms of what all attention sites attend to are recorded, or nothing if `on` is False."""
    with record_norms(model, layers=list(sites(model)) if on else []) as norms:
        yield norms


def recorded_maps(
    model: nn.Module, recording: Recording, row: int, axes: Mapping[str, Axes], norms: Norms | None = None
) -> AttentionMaps | None:
    """The maps of one row of a recorded batch, of all sites that have `axes`; None if the model has no attention.

    They are copies, so that they do not keep the whole batch in memory. The labels of positions that an encoder of
    another package reads may not fit its weights; they are then numbers. `norms` are those of the same batch.
    """
    layers = []
    for name, (site, layer) in sites(model).items():
        if name not in recording.calls or site not in axes:
            continue
        rows, columns, layout, start, view, first = axes[site]
        weights = recording.joined(name)[row]
        weights = weights.flatten(0, -3) if weights.ndim > 2 else weights.unsqueeze(0)  # heads, query, key
        if weights.shape[-2] >= start + len(rows) and weights.shape[-1] >= first + len(columns):
            weights = weights[:, start : start + len(rows), first : first + len(columns)]
        else:
            rows, columns = (tuple(map(str, range(1, count + 1))) for count in weights.shape[-2:])
        copied = weights.to("cpu", torch.float32, copy=True)
        lengths = _norms_of(norms[name][row], weights, first) if norms else None
        layers.append(LayerMaps(site, layer, copied, rows, columns, layout, view, norms=lengths))
    return AttentionMaps(tuple(layers)) if layers else None


def _norms_of(
    norms: Float[Tensor, "*heads key"], weights: Float[Tensor, "heads query key"], first: int
) -> Float[Tensor, "heads key"]:
    """A copy of the norms for each of these weights: of every head, from the key `first` on."""
    heads = norms.reshape(-1, norms.shape[-1])[:, first : first + weights.shape[-1]]
    return heads.expand(len(weights), -1).to("cpu", torch.float32, copy=True)


def evenly(items: Sequence[Item], count: int) -> Sequence[Item]:
    """At most `count` of the items, spread evenly over all of them."""
    if len(items) <= count:
        return items
    return take(items, [index * len(items) // count for index in range(count)])


def by_source(examples: Sequence[Example]) -> list[list[Example]]:
    """Groups examples of equal source (and group), in the order of the first example of each."""
    sets: dict[tuple[str, str], list[Example]] = {}
    for example in counted(examples, "joining examples of the same source"):
        sets.setdefault((example.source, example.group), []).append(example)
    return list(sets.values())


class InputBatch(NamedTuple):
    """A batch of inputs of similar size: the index of each among all inputs, and its encoded form."""

    indices: list[int]
    items: list[Any]


def with_end(ids: Sequence[int]) -> int:
    """The size of an encoded text in positions: its tokens, and END."""
    return len(ids) + 1


def input_batches(
    texts: Sequence[str],
    encode: Callable[[str], Any],
    longest: float,
    budget: int = READ_TOKENS,
    size: Callable[[Any], int] = with_end,
) -> Iterator[InputBatch]:
    """Encodes texts and yields batches of at most `budget` positions, without blank texts and those over `longest`."""
    encoded = {place: encode(text) for place, text in enumerate(counted(texts, "encoding")) if text.strip()}
    yield from item_batches(encoded, longest, budget, size)


def item_batches(
    encoded: Mapping[int, Any], longest: float, budget: int, size: Callable[[Any], int]
) -> Iterator[InputBatch]:
    """Yields batches of at most `budget` positions of encoded inputs, given by index, without those over `longest`."""
    sizes = {place: size(item) for place, item in encoded.items()}
    answered = [place for place, positions in sizes.items() if positions <= longest + 1]
    groups = batching.sorted_batches([(sizes[place], 0) for place in answered], budget)
    for group in counted(groups, "answering", size=1):
        places = [answered[index] for index in group]
        yield InputBatch(places, [encoded[place] for place in places])


def measure_each(keys: Iterable[str], measure: Callable[[str], Measured]) -> dict[str, Measured]:
    """What is measured for each key; keys are left out whose value is too large for a number (`TooLargeError`)."""
    measured = {}
    for key in keys:
        with suppress(TooLargeError):
            measured[key] = measure(key)
    return measured


def with_alternatives(predictions: Sequence[Prediction]) -> Prediction:
    """The first of the predictions for one input, with the others as its alternatives."""
    best, *others = predictions
    return replace(best, alternatives=tuple(others))


def blank(text: str) -> Prediction:
    """The empty prediction for a text that is blank or too long."""
    return Prediction(text, "", 0.0, (), None)
