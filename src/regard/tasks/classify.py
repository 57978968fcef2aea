"""Text classification, with any encoder."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.console import counted
from regard.data import batching, files, store
from regard.data.batching import Lengths
from regard.data.files import Loaded
from regard.data.records import NOTHING_GIVEN, Fields, Given
from regard.data.store import IntegerRows, Texts, joined, row_lengths
from regard.data.tokenizers import Tokenizer
from regard.errors import CorruptError, DataError, RecipeError, shown
from regard.maps import AttentionMap
from regard.models import ENCODER_SELF, POOLING, classifier
from regard.models.classifier import Classifier
from regard.recipe import Recipe, Search
from regard.sources import Text
from regard.storage import Run
from regard.storage.runs import parse_json
from regard.tasks import core
from regard.tasks.core import Axes, Encoded, Examples, Scored, TextTask
from regard.types import BEGIN, Capturable, Example, Padded, Prediction, Vocabulary

LABELS = "labels.json"
NO_LABEL = -1  # the index of no label
LISTED = 8  # labels that a message lists at most


@dataclass(frozen=True)
class Labelled(Encoded):
    """Encoded examples: token ids without BEGIN and END, and the indices of the labels."""

    sources: Sequence[list[int]]
    labels: Sequence[int]

    def lengths(self) -> Lengths:
        """The positions that each example takes as (source, target); a label counts as one."""
        sizes = row_lengths(self.sources) + 1
        return np.stack([sizes, np.ones_like(sizes)], axis=1)


@dataclass(frozen=True)
class LabelledBatch(Capturable):
    """A batch of sentences with their labels."""

    source: Padded
    labels: Int[Tensor, " batch"]  # NO_LABEL for a row that does not count
    examples: Int[Tensor, " batch"]  # index of each row's example in the data, for messages
    uncounted: int  # special tokens of a sentence that `Labelled.lengths` does not count

    def crop(self, source_width: int, target_width: int) -> "LabelledBatch":
        """The batch with sentences of this width; each has one label."""
        return replace(self, source=self.source.crop(source_width + self.uncounted))

    def count_predictions(self) -> Int[Tensor, ""]:
        """The number of labels."""
        return (self.labels != NO_LABEL).sum()

    def with_empty_example(self) -> "LabelledBatch":
        """Appends an example without a label."""
        batch = super().with_empty_example()
        batch.labels[-1] = NO_LABEL
        return batch


class Classify(TextTask[Classifier, Labelled, LabelledBatch]):
    """Text classification: text to one of the labels that are in the training data."""

    metrics = ("accuracy", "f1", "exact_match")
    noun = "sentence"
    columns = ("text", "label")
    mistakes = "classes"
    aligned = True
    ignores = (*core.NO_DECODER, "tokens.target", "model.tied", "search")

    def __init__(self, recipe: Recipe, source: Tokenizer, labels: tuple[str, ...]) -> None:
        super().__init__(recipe, source)
        self.labels = labels

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Refuse a recipe with unknown names or sizes that do not fit, before any data is read."""
        super().check(recipe)
        if recipe.classify.pooling == "attention" and recipe.model.attention.normalizer == "hard":
            raise RecipeError(
                "model.attention.normalizer = hard is learned with REINFORCE, which only recurrent decoders have: a "
                "classifier's classify.pooling = attention would never learn what to attend to; choose softmax, or "
                "sparsemax or entmax15 for weights that are zero, or another classify.pooling"
            )
        if recipe.classify.consistency and not _drops(recipe):
            raise RecipeError(
                "classify.consistency compares two readings of a text, and only dropout makes them differ: set "
                "model.encoder.dropout, for example to 0.1, or train.word_dropout"
            )

    @staticmethod
    def model(recipe: Recipe, size: int, classes: int = 2) -> Classifier:
        """Builds the model for a vocabulary of this size, with newly initialised weights."""
        return classifier.build(recipe.model, recipe.classify.pooling, size=size, classes=classes)

    @classmethod
    def line_reader(cls, recipe: Recipe) -> Callable[[tuple[str, ...]], Loaded]:
        """Returns the function that reads labelled sentences; it strips labels and skips headers if classify.header."""

        def read(names: tuple[str, ...]) -> Loaded:
            examples, dropped = files.pairs(names, recipe.data.limits, header=recipe.classify.header)
            return Loaded(store.with_texts(examples, lambda source, label: (source, label.strip())), dropped)

        return read

    @classmethod
    def from_fields(cls, recipe: Recipe, fields: Fields) -> Texts:
        """The text of a record, and its label without white space around it."""
        return fields[0], fields[1].strip()

    @classmethod
    def examples(cls, recipe: Recipe, given: Given = NOTHING_GIVEN) -> Examples:
        """Reads or generates all examples; refuses a single label, and dev or test labels not in training."""
        examples = super().examples(recipe, given)
        labels = set(store.targets(examples.train))
        if len(labels) == 1:
            label = shown(labels.pop())
            raise DataError(f"every training example has the label {label}; give at least two to tell apart")
        _check_labels(joined([examples.dev, examples.test]), labels)
        return examples

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None) -> "Classify":
        """Collects the labels; builds the tokenizer, or takes that of `origin`."""
        labels = tuple(sorted(set(store.targets(examples))))
        return cls(recipe, cls.tokenizer(recipe, examples, origin), labels)

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Classify":
        """Builds the task of a stored run."""
        return cls(recipe, Text.restore(recipe, read).tokenizer, _labels(read(LABELS)))

    def files(self) -> dict[str, bytes]:
        """The content of the files that a run must store besides the weights, by file name."""
        return super().files() | {LABELS: json.dumps(self.labels, ensure_ascii=False).encode()}

    def build(self) -> Classifier:
        """Builds the model with newly initialised weights."""
        return self.model(self.recipe, self.source.size, len(self.labels))

    def vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabulary of the embedding, and the labels of the output layer."""
        return super().vocabularies() | core.rows_of(Vocabulary("labels", self.labels), "out.weight", "out.bias")

    def encode(self, examples: Sequence[Example]) -> Labelled:
        """Encodes all examples as token ids and label indices."""
        _check_labels(examples, set(self.labels))
        numbers = {label: number for number, label in enumerate(self.labels)}
        sources = IntegerRows.of(map(self.ids, counted(store.sources(examples), "encoding")))
        return Labelled(examples, sources, [numbers[label] for label in store.targets(examples)])

    def ids(self, text: str) -> list[int]:
        """The token ids of a text, without BEGIN and END."""
        return self.source.encode(core.normalized(text, self.recipe))

    def describe(self, data: Labelled, dev: Labelled) -> Iterator[str]:
        """Reports the size of the vocabulary, the shares of the labels, and the accuracy of the most frequent one."""
        unknown = core.describe_unknown(core.unknown(dev.sources), self.recipe.train)
        yield f"a vocabulary of {self.source.size:,} tokens, {unknown}"
        counts = Counter(data.labels).most_common()
        shares = [f"{self.labels[label]} {count / len(data.labels):.1%}" for label, count in counts]
        frequent = counts[0][0]
        share = dev.labels.count(frequent) / len(dev.labels)
        always = f"always saying {shown(self.labels[frequent])} is right on {share:.1%}"
        yield f"{len(counts):,} labels: {_listed(shares)}; {always} of dev"

    def collate(self, data: Labelled, indices: Sequence[int]) -> LabelledBatch:
        """Makes the batch of the examples at these indices."""
        return LabelledBatch(
            source=self.padded([data.sources[index] for index in indices]),
            labels=torch.tensor([data.labels[index] for index in indices], dtype=torch.long),
            examples=torch.tensor(indices, dtype=torch.long),
            uncounted=len(self.framed([])) - 1,
        )

    def padded(self, rows: Sequence[Sequence[int]]) -> Padded:
        """Pads sentences to a batch, with END; BEGIN comes first if classify.pooling = cls, which uses its state."""
        return batching.pad([self.framed(row) for row in rows])

    def framed(self, ids: Sequence[int]) -> list[int]:
        """A sentence with its special tokens; BEGIN is there if classify.pooling = cls, or if the tokenizer adds it."""
        framed = self.source.framed(ids)
        return framed if self.recipe.classify.pooling != "cls" or framed[0] == BEGIN else [BEGIN, *framed]

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The labels of all positions of a padded sentence, those of special tokens included."""
        return tuple(self.source.piece(token) for token in self.framed(ids))

    def tokens(self, batch: LabelledBatch) -> int:
        """The number of sentences of a batch, since each has one label."""
        return int(batch.count_predictions())

    def loss(
        self, model: Classifier, batch: LabelledBatch, smoothing: float = 0.0, sampling: float = 0.0
    ) -> Float[Tensor, ""]:
        """The summed cross-entropy of the labels; in training with word dropout and classify.consistency."""
        dropped, weight = self.recipe.train.word_dropout, self.recipe.classify.consistency
        if not model.training:
            dropped = weight = 0.0
        read = batch.map_tensors(lambda rows: torch.cat([rows, rows])) if weight else batch
        logits = model(core.drop_words(read.source, dropped)).logits
        loss = core.cross_entropy(logits, read.labels, smoothing, ignore=NO_LABEL)
        if not weight:
            return loss
        divergences = divergence(*logits.chunk(2)).masked_fill(batch.labels == NO_LABEL, 0.0)
        return (loss + weight * divergences.sum()) / 2

    @torch.no_grad()
    def answer(
        self,
        model: Classifier,
        texts: Sequence[str],
        settings: Search,
        n_best: int = 1,
        seed: int = 0,
        *,
        all_maps: bool = False,
    ) -> list[Prediction]:
        """Predicts the most probable label of each text, with the next ones as alternatives.

        A blank or too long text gets a blank prediction.
        """
        model.eval()
        device = next(model.parameters()).device
        answers = [core.blank(text) for text in texts]
        for places, ids in core.input_batches(texts, self.ids, self.longest):
            with core.recording_sites(model, all_maps) as recording:
                logits, weights = model(self.padded(ids).to(device))
            ranked = logits.float().log_softmax(-1).sort(descending=True, stable=True)
            chosen = zip(ranked.values[:, :n_best].tolist(), ranked.indices[:, :n_best].tolist(), strict=True)
            for row, (place, (scores, numbers)) in enumerate(zip(places, chosen, strict=True)):
                own = None if weights is None else weights[row]
                scored = zip(scores, numbers, strict=True)
                predictions = [
                    self.prediction(texts[place], ids[row], self.labels[label], score, own) for score, label in scored
                ]
                answers[place] = core.with_alternatives(predictions)
                if all_maps:
                    pieces = self.pieces(ids[row])
                    axes = {POOLING: Axes((predictions[0].text,), pieces), ENCODER_SELF: Axes(pieces, pieces)}
                    answers[place] = replace(answers[place], maps=core.recorded_maps(model, recording, row, axes))
        return answers

    def measure(self, model: Classifier, examples: Sequence[Example], metric: str, settings: Search) -> Scored:
        """Computes a metric of the predicted labels, in total and by group; refuses unknown labels."""
        _check_labels(examples, set(self.labels))
        return super().measure(model, examples, metric, settings)

    def positions(self, text: str) -> tuple[str, ...]:
        """The tokens of a text, those of special tokens included."""
        return self.pieces(self.ids(text))

    def too_long(self, text: str) -> bool:
        """Whether a text is too long, so that its prediction is blank."""
        return len(self.ids(text)) > self.longest

    def prediction(
        self, text: str, ids: Sequence[int], label: str, score: float, weights: Float[Tensor, " source"] | None
    ) -> Prediction:
        """Makes the prediction of a label, with the attention weights of the pooling, which all labels share."""
        attention_map = None
        if weights is not None:
            columns = self.pieces(ids)
            attention_map = AttentionMap(weights[None, : len(columns)].cpu(), (label,), columns)
        return Prediction(text, label, score, (label,), attention_map)


def divergence(
    logits: Float[Tensor, "batch classes"], others: Float[Tensor, "batch classes"]
) -> Float[Tensor, " batch"]:
    """The mean of both Kullback-Leibler divergences between two predictions, in float32 or more."""
    precision = torch.promote_types(logits.dtype, torch.float32)
    one, other = (values.to(precision).log_softmax(-1) for values in (logits, others))
    return ((one.exp() - other.exp()) * (one - other)).sum(-1) / 2


def _drops(recipe: Recipe) -> bool:
    """Whether anything in the training of a classifier is dropped at random."""
    encoder, attention = recipe.model.encoder, recipe.model.attention
    rates = [recipe.train.word_dropout, encoder.dropout]
    if encoder.kind == "transformer":
        own = encoder.self_attention.dropout
        rates += [encoder.inner_dropout, attention.dropout if own is None else own]
    if recipe.classify.pooling == "attention":
        rates.append(attention.dropout)
    return any(rates)


def _check_labels(examples: Sequence[Example], known: set[str]) -> None:
    """Refuse examples whose label is not among the known ones."""
    for index, label in enumerate(store.targets(examples)):
        if label not in known:
            there = _listed([shown(name) for name in sorted(known)])
            where = examples[index].origin
            raise DataError(f"{where}: no training example has the label {shown(label)}; there are {there}")


def _listed(names: Sequence[str]) -> str:
    """The first `LISTED` names, and how many more there are."""
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _labels(content: bytes) -> tuple[str, ...]:
    """The labels of a stored run; CorruptError if the file is damaged."""
    stored = parse_json(content, list, f"the run's {LABELS}")
    if not stored or not all(isinstance(label, str) for label in stored):
        raise CorruptError(f"the run's {LABELS} is damaged: it is not a list of texts")
    return tuple(stored)
