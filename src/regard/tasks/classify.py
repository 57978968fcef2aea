"""Text to one of a few labels, on any encoder."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.data import batching, files
from regard.data.files import Loaded
from regard.data.tokenizers import TOKENIZERS, Tokenizer
from regard.errors import CorruptError, DataError, RecipeError, pick
from regard.maps import AttentionMap
from regard.models import classifier
from regard.models.classifier import Classifier
from regard.recipe import Recipe, Search
from regard.sources.text import SOURCE, build_tokenizer
from regard.storage import Run
from regard.tasks import core
from regard.tasks.core import Encoded, Examples, Scored, Task
from regard.types import BEGIN, END, SPECIALS, UNKNOWN, BatchFirst, Example, Padded, Prediction

LABELS = "labels.json"
READ_TOKENS = 16_000  # that are read at once
LISTED = 8  # labels that a message names


@dataclass(frozen=True)
class Labelled(Encoded):
    """Examples as ids, without BEGIN and END, and the numbers of their labels."""

    sources: list[list[int]]
    labels: list[int]

    def lengths(self) -> list[tuple[int, int]]:
        """The room each example takes; a label takes next to none."""
        return [(len(source) + 1, 1) for source in self.sources]


@dataclass(frozen=True)
class LabelledBatch(BatchFirst):
    """Sentences with their labels."""

    source: Padded
    labels: Int[Tensor, " batch"]
    examples: Int[Tensor, " batch"]  # where each row stands in the data, for messages


class Classify(Task[Classifier, Labelled, LabelledBatch]):
    """Text to one of a few labels, which the training data names."""

    metrics = ("accuracy", "f1", "exact_match")
    noun = "sentence"

    def __init__(self, recipe: Recipe, source: Tokenizer, labels: tuple[str, ...]) -> None:
        super().__init__(recipe)
        self.source = source
        self.labels = labels

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Refuse a recipe that names what is not there, before any data is read."""
        pick(TOKENIZERS, recipe.tokens.source, "tokenizer")
        if recipe.model.pooling == "attention" and recipe.model.attention.normalizer == "hard":
            raise RecipeError(
                "model.attention.normalizer = hard is learned with REINFORCE, which only recurrent decoders have: a "
                "classifier's model.pooling = attention would never learn where to look; choose softmax, or sparsemax "
                "or entmax15 for weights that are zero, or another model.pooling"
            )
        with torch.device("meta"):  # the model without its memory: sizes that do not fit show here
            classifier.build(recipe.model, size=len(SPECIALS), classes=2)

    @classmethod
    def reader(cls, recipe: Recipe) -> Callable[[tuple[str, ...]], Loaded]:
        """What reads sentences with their labels, space around which means nothing; headers as data.header says."""

        def read(names: tuple[str, ...]) -> Loaded:
            examples, dropped = files.pairs(names, header=recipe.data.header)
            return Loaded([replace(each, target=each.target.strip()) for each in examples], dropped)

        return read

    @classmethod
    def examples(cls, recipe: Recipe) -> Examples:
        """Read or generate all examples, and refuse labels that could not be learned."""
        examples = super().examples(recipe)
        labels = {each.target for each in examples.train}
        if len(labels) == 1:
            raise DataError(f"every training example has the label {labels.pop()!r}; give at least two to tell apart")
        _check_labels(examples.dev + examples.test, labels)
        return examples

    @classmethod
    def learn(cls, recipe: Recipe, examples: Sequence[Example], origin: Run | None = None) -> "Classify":
        """Collect the labels; build the tokenizer, unless the run one starts from has it."""
        texts = [_cased(each.source, recipe) for each in examples]
        source = build_tokenizer(recipe.tokens.source, texts, recipe.tokens.size, SOURCE, origin)
        return cls(recipe, source, tuple(sorted({each.target for each in examples})))

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Classify":
        """The task of a stored run."""
        source = pick(TOKENIZERS, recipe.tokens.source, "tokenizer").from_bytes(read(SOURCE))
        return cls(recipe, source, _labels(read(LABELS)))

    def files(self) -> dict[str, bytes]:
        """What a run must keep besides the weights."""
        return {SOURCE: self.source.to_bytes(), LABELS: json.dumps(self.labels, ensure_ascii=False).encode()}

    def build(self) -> Classifier:
        """A model with fresh weights."""
        return classifier.build(self.recipe.model, size=self.source.size, classes=len(self.labels))

    def encode(self, examples: Sequence[Example]) -> Labelled:
        """All examples as ids and numbers of labels."""
        _check_labels(examples, set(self.labels))
        numbers = {label: number for number, label in enumerate(self.labels)}
        sources = [self.ids(each.source) for each in examples]
        return Labelled(list(examples), sources, [numbers[each.target] for each in examples])

    def ids(self, text: str) -> list[int]:
        """The ids of a text, without BEGIN and END."""
        return self.source.encode(_cased(text, self.recipe))

    def told(self, data: Labelled, dev: Labelled) -> Iterator[str]:
        """The size of the vocabulary, the balance of the labels, and what is to be had without learning."""
        yield f"a vocabulary of {self.source.size:,} tokens, {core.unknown(dev.sources):.2%} of the dev tokens unknown"
        counts = Counter(data.labels).most_common()
        shares = [f"{self.labels[label]} {count / len(data.labels):.1%}" for label, count in counts]
        frequent = counts[0][0]
        always = (
            f"always saying {self.labels[frequent]!r} is right on {dev.labels.count(frequent) / len(dev.labels):.1%}"
        )
        yield f"{len(counts):,} labels: {_listed(shares)}; {always} of dev"

    def collate(self, data: Labelled, indices: Sequence[int]) -> LabelledBatch:
        """The batch of these examples."""
        return LabelledBatch(
            source=self.padded([data.sources[index] for index in indices]),
            labels=torch.tensor([data.labels[index] for index in indices], dtype=torch.long),
            examples=torch.tensor(indices, dtype=torch.long),
        )

    def padded(self, rows: Sequence[Sequence[int]]) -> Padded:
        """Sentences as the encoder reads them: with END, and BEGIN first where its state is what is taken of them."""
        return batching.pad([[*self._first(), *row, END] for row in rows])

    def _first(self) -> list[int]:
        return [BEGIN] if self.recipe.model.pooling == "cls" else []

    def tokens(self, batch: LabelledBatch) -> int:
        """The sentences of a batch: each has one label to be predicted."""
        return len(batch.labels)

    def loss(
        self, model: Classifier, batch: LabelledBatch, smoothing: float = 0.0, sampling: float = 0.0
    ) -> Float[Tensor, ""]:
        """The summed cross-entropy of the labels; in training some words are hidden first."""
        share = self.recipe.train.word_dropout if model.training else 0.0
        source = _hidden(batch.source, share) if share else batch.source
        return core.cross_entropy(model(source).logits, batch.labels, smoothing, ignore=-1)

    @torch.no_grad()
    def answer(
        self, model: Classifier, texts: Sequence[str], settings: Search, n_best: int = 1, seed: int = 0
    ) -> list[Prediction]:
        """The likeliest label of each text, the next ones as alternatives; a blank text gets a blank answer."""
        model.eval()
        device = next(model.parameters()).device
        answers = [core.blank(text) for text in texts]
        for places, ids in core.ask(texts, self.ids, self.longest, READ_TOKENS):
            logits, weights = model(self.padded(ids).to(device))
            ranked = logits.float().log_softmax(-1).sort(descending=True, stable=True)
            chosen = zip(ranked.values[:, :n_best].tolist(), ranked.indices[:, :n_best].tolist(), strict=True)
            for row, (place, (scores, numbers)) in enumerate(zip(places, chosen, strict=True)):
                seen = None if weights is None else weights[row]
                told = zip(scores, numbers, strict=True)
                best, *others = [
                    self.tell(texts[place], ids[row], self.labels[label], score, seen) for score, label in told
                ]
                answers[place] = replace(best, alternatives=tuple(others))
        return answers

    def measure(self, model: Classifier, examples: Sequence[Example], metric: str, settings: Search) -> Scored:
        """How many labels are right, in all and by group."""
        _check_labels(examples, set(self.labels))
        return super().measure(model, examples, metric, settings)

    def too_long(self, text: str) -> bool:
        """Whether a text is answered with nothing because of its length."""
        return len(self.ids(text)) > self.longest

    def tell(
        self, text: str, ids: Sequence[int], label: str, score: float, weights: Float[Tensor, " source"] | None
    ) -> Prediction:
        """A label with the map of the look that it came from: all labels of a text share one."""
        seen = None
        if weights is not None:
            columns = tuple(self.source.piece(token) for token in [*self._first(), *ids, END])
            seen = AttentionMap(weights[None, : len(columns)].cpu(), (label,), columns)
        return Prediction(text, label, score, (label,), seen)


def _cased(text: str, recipe: Recipe) -> str:
    return text.lower() if recipe.tokens.lower else text


def _hidden(source: Padded, share: float) -> Padded:
    """Iyyer et al. 2015, word dropout: that share of the words, each by itself, is unknown this time."""
    drawn = torch.rand(source.ids.shape, device=source.ids.device) < share
    return replace(source, ids=source.ids.masked_fill(drawn & (source.ids >= len(SPECIALS)), UNKNOWN))


def _check_labels(examples: Sequence[Example], known: set[str]) -> None:
    for each in examples:
        if each.target not in known:
            there = _listed([repr(label) for label in sorted(known)])
            raise DataError(f"{each.origin}: no training example has the label {each.target!r}; there are {there}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def _labels(content: bytes) -> tuple[str, ...]:
    try:
        stored = json.loads(content)
    except ValueError as error:
        raise CorruptError(f"the run's {LABELS} is damaged: {error}") from error
    if not isinstance(stored, list) or not stored or not all(isinstance(label, str) for label in stored):
        raise CorruptError(f"the run's {LABELS} is damaged: it is not a list of texts")
    return tuple(stored)
