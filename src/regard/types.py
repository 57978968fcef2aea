"""Data types that several folders share: examples, batches, memory, decoder steps, hypotheses, predictions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import RecipeError, shown
from regard.maps import TEXT, AttentionMap, AttentionMaps, Layout
from regard.specials import BEGIN as BEGIN
from regard.specials import END as END
from regard.specials import PAD as PAD
from regard.specials import SPECIALS as SPECIALS
from regard.specials import UNKNOWN as UNKNOWN


@dataclass(frozen=True)
class Example:
    """One pair of source and target, for training or scoring."""

    source: str
    target: str
    group: str = ""  # scores are also computed for each group, such as a language or a length
    origin: str = ""  # file and line, for messages: `pairs.tsv:7`
    links: tuple[tuple[int, int], ...] = ()  # gold alignment, if known: (source character, target character)


class Vocabulary(NamedTuple):
    """The vocabulary of a tensor with a row for each token, such as an embedding."""

    noun: str  # the word for its entries in messages: tokens, labels, tags, letters
    entries: tuple[Hashable, ...]  # one for each row


Rows = TypeVar("Rows", bound="BatchFirst")
OwnCapturable = TypeVar("OwnCapturable", bound="Capturable")


class BatchFirst:
    """Base of frozen dataclasses in which the first axis of every tensor, also of nested ones, is the batch."""

    def select(self: Rows, index: Int[Tensor, " rows"]) -> Rows:
        """The rows that `index` names, in that order; a row may be named several times or not at all."""
        return self.map_tensors(lambda tensor: tensor.index_select(0, index))

    def repeat(self: Rows, times: int) -> Rows:
        """Every row repeated `times` times, copies of a row next to each other."""
        return self.map_tensors(lambda tensor: tensor.repeat_interleave(times, dim=0))

    def to(self: Rows, device: torch.device) -> Rows:
        """The same data on another device."""
        return self.map_tensors(lambda tensor: tensor.to(device))

    def map_tensors(self: Rows, change: Callable[[Tensor], Tensor]) -> Rows:
        """A copy in which a function was applied to every tensor."""
        return type(self)(**{name: _apply(value, change) for name, value in vars(self).items()})


def _apply(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to the tensors of a field; other values stay."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, BatchFirst):
        return value.map_tensors(change)
    if isinstance(value, tuple):
        return tuple(_apply(item, change) for item in value)
    return value


@dataclass(frozen=True)
class Padded(BatchFirst):
    """Rows of token ids, padded to one length; `mask` is True where a token is real."""

    ids: Int[Tensor, "batch length"]
    mask: Bool[Tensor, "batch length"]

    def crop(self: Rows, width: int) -> Rows:
        """The first `width` positions of every row."""
        return self.map_tensors(lambda tensor: tensor[:, :width])


class Capturable(BatchFirst, ABC):
    """Base of batches that a CUDA graph can take from a table of all examples on the GPU.

    In the table, `source` has each distinct source once, and all other tensors have a row for each example. No method
    reads a tensor on the host. The loss of a task must be the same at any width, and 0 for the empty example.
    """

    source: Any  # a `SourceBatch`
    examples: Int[Tensor, " batch"]  # index of each row's example in the data, for messages

    @abstractmethod
    def crop(self: OwnCapturable, source_width: int, target_width: int) -> OwnCapturable:
        """The batch in these widths, which are in the unit of `Encoded.lengths`."""

    @abstractmethod
    def count_predictions(self) -> Int[Tensor, ""]:
        """The number of tokens, tags or labels that are predicted; an empty example has none."""

    def take(self: OwnCapturable, index: Int[Tensor, " rows"], numbers: Int[Tensor, " examples"]) -> OwnCapturable:
        """The examples at `index`; `numbers` has the row of `source` for each example."""
        others = {name: value for name, value in vars(self).items() if name != "source"}
        rows = {name: _apply(value, lambda tensor: tensor.index_select(0, index)) for name, value in others.items()}
        return type(self)(**{"source": self.source.select(numbers.index_select(0, index)), **rows})

    def with_empty_example(self: OwnCapturable) -> OwnCapturable:
        """Appends an example that fills up short batches: one source position is visible, and nothing is predicted.

        Its other numbers are zero: PAD for ids, False for masks.
        """
        batch = self.map_tensors(lambda tensor: torch.cat([tensor, torch.zeros_like(tensor[:1])]))
        batch.source.mask[-1, :1] = True
        return batch


@dataclass(frozen=True)
class Batch(Capturable):
    """The examples of one update; target rows begin with BEGIN and end with END."""

    source: Any  # what a `Source` collates: of text, a `Padded` whose rows end with END
    target: Padded
    examples: Int[Tensor, " batch"]  # index of each row's example in the data, for messages
    links: Float[Tensor, "batch tokens source"] | None = None  # gold alignment, 1 for linked tokens

    def crop(self, source_width: int, target_width: int) -> "Batch":
        """The batch in these widths; target rows have one position more, for BEGIN."""
        links = None if self.links is None else self.links[:, :target_width, :source_width]
        return Batch(self.source.crop(source_width), self.target.crop(target_width + 1), self.examples, links)

    def count_predictions(self) -> Int[Tensor, ""]:
        """The number of target tokens, with END."""
        return self.target.mask[:, 1:].sum()


@dataclass(frozen=True)
class Recurrent(BatchFirst):
    """The state of a stack of recurrent layers; `cell` is None unless the unit has one (LSTM)."""

    hidden: Float[Tensor, "batch layers dim"]
    cell: Float[Tensor, "batch layers inner"] | None


@dataclass(frozen=True)
class Memory(BatchFirst):
    """The output of an encoder, which a decoder attends to; the same type for every kind of source."""

    states: Float[Tensor, "batch source dim"]
    mask: Bool[Tensor, "batch source"]  # True = may be attended
    summary: Recurrent  # the encoder's final state, for decoders that start from it
    layout: Layout  # the kind of the source positions: tokens, for a text
    ids: Int[Tensor, "batch source"] | None = None  # the source's tokens, for decoders that copy them

    @staticmethod
    def none(batch: int, device: torch.device, dtype: torch.dtype = torch.float32) -> "Memory":
        """A memory without source positions and with a zero summary, for language models."""
        zeros = torch.zeros(batch, 1, 1, device=device, dtype=dtype)
        mask = torch.ones(batch, 0, dtype=torch.bool, device=device)
        return Memory(zeros[:, :0], mask, Recurrent(zeros, None), TEXT)


class State(BatchFirst):
    """The state of a decoder between steps, which search reorders; each decoder has its own subclass."""


class Prepared(BatchFirst):
    """What a decoder computes from the memory once per source, such as projected keys; shared by all beams."""


@dataclass(frozen=True)
class Step:
    """The result of a decoder step over n tokens: n rows of logits, the next state, n rows of attention weights."""

    logits: Float[Tensor, "rows tokens vocabulary"]
    state: State
    attention: Float[Tensor, "rows tokens source"] | None
    log_prob: Float[Tensor, "rows tokens"] | None = None  # of positions drawn by hard attention; only in training
    memory: Memory | None = None  # what the weights are over, if a whole model ran


class Hypothesis(NamedTuple):
    """One output of a search; `map` has a row for every token, END included."""

    tokens: list[int]  # without BEGIN and END
    score: float  # log-probability; of a beam search, with its penalties
    map: Float[Tensor, "tokens source"] | None
    finished: bool  # False if it was cut at the length limit


@dataclass(frozen=True)
class Prediction:
    """The output of a trained model for one input, with its attention map."""

    source: str
    text: str
    score: float  # log-probability of the output; of a beam search, with its penalties
    tokens: tuple[str, ...]
    map: AttentionMap | None  # None if the model has no attention
    alternatives: tuple["Prediction", ...] = ()  # the next best outputs, if `n_best` is above 1
    source_tokens: tuple[str, ...] = ()  # if there is no map: tokens of the source, for tasks that give them
    maps: AttentionMaps | None = None  # of all sites, layers and heads, if `all_maps` was given
    token_scores: tuple[float, ...] = ()  # of forced decoding: the log-probability of each token, and of END
    finished: bool = True  # False if search.max_ratio and search.max_extra allowed no more tokens
    cuts: tuple[float, ...] = ()  # seconds at which a recording was cut into parts, since it is too long for the model
    problem: str = ""  # why the output is empty and its score means nothing: "more than 5,000 tokens"
    trust: str = ""  # how far its map may be trusted, if `regard measure` has measured the run; each map has a sentence

    def to_dict(self, *, maps: bool = True) -> dict[str, Any]:
        """A dictionary for JSON; the rows of `attention` are `tokens`, its columns `source_tokens`.

        If the source is not text, `layout` says what the columns are, such as the cells of a picture. Without `maps`,
        which are most of its size, these three keys are left out, unless the task gives `source_tokens` of its own.
        """
        content: dict[str, Any] = {
            "source": str(self.source),  # a label, if a picture or recording was given in Python
            "tokens": list(self.tokens),
            "text": self.text,
            "score": self.score,
        }
        if self.token_scores:
            content["token_scores"] = list(self.token_scores)
        if not self.finished:
            content["finished"] = False
        if self.cuts:
            content["cuts"] = list(self.cuts)
        if self.problem:
            content["error"] = self.problem
        if maps:
            content["source_tokens"] = list(self.map.columns if self.map else self.source_tokens)
            content["attention"] = self.map.weights.tolist() if self.map else []
        elif self.source_tokens:
            content["source_tokens"] = list(self.source_tokens)
        if maps and self.map and self.map.trust:
            content["trust"] = self.map.trust
        if maps and self.map and self.map.layout != TEXT:
            content["layout"] = {"kind": type(self.map.layout).__name__.lower()} | asdict(self.map.layout)
        if self.alternatives:
            content["alternatives"] = [alternative.to_dict(maps=maps) for alternative in self.alternatives]
        return content

    @property
    def title(self) -> str:
        """The title of its pictures: source and output."""
        return f"{self.source} → {self.text}"

    def save(self, path: str | Path, *, pieces: bool = False, scale: str | None = None) -> Path:
        """Write the map to a file, as `AttentionMap.save`; returns the path.

        To .html all `maps` are written, if there are any, and the maps of the `alternatives`.
        """
        has_rivals = any(own.map is not None for own in self.alternatives)
        if Path(path).suffix.lower() == ".html" and has_rivals and (self.map is not None or self.maps is not None):
            from regard.show.maps import save_prediction  # imported here, because `show` imports this module

            return save_prediction(self, path, scale=scale)
        if self.maps is not None and (self.map is None or Path(path).suffix.lower() == ".html"):
            return self.maps.save(path, self.title, scale=scale)
        if self.map is not None:
            return self.map.save(path, self.title, pieces=pieces, scale=scale)
        raise RecipeError(f"{shown(self.source)} has no map to save: it is blank, or the model has no attention")

    def __repr__(self) -> str:
        parts = [f"{shown(self.source)} → {shown(self.text)}", self.problem or f"score {self.score:.4g}"]
        parts += [f"map {len(self.map.rows)} × {len(self.map.columns)}"] if self.map is not None else []
        parts += [f"{len(self.maps)} maps"] if self.maps is not None else []
        parts += [f"{len(self.alternatives)} alternatives"] if self.alternatives else []
        return f"Prediction({', '.join(parts)})"

    def _repr_html_(self) -> str | None:
        """The interactive page that a notebook shows for this object."""
        if any(own.map is not None for own in self.alternatives):
            from regard.show.html import framed

            return framed(self)
        shown_maps = self.maps or self.map
        return shown_maps._repr_html_(self.title) if shown_maps else None

    def _repr_svg_(self) -> str | None:
        """The picture that a notebook shows for this object if it shows no HTML."""
        return self.map._repr_svg_() if self.map else None
