"""The nouns that cross folders: what is batched, remembered, stepped, found and looked at."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.maps import TEXT, AttentionMap, Layout

PAD, UNKNOWN, BEGIN, END = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")


@dataclass(frozen=True)
class Example:
    """One pair to learn from or to be scored on."""

    source: str
    target: str
    group: str = ""  # scores are also given by group: a language, a length
    origin: str = ""  # where it came from, for messages: `pairs.tsv:7`
    links: tuple[tuple[int, int], ...] = ()  # where known: source characters with the target characters they became


Rows = TypeVar("Rows", bound="BatchFirst")


class BatchFirst:
    """A frozen dataclass in which the first axis of every tensor, nested ones included, is the batch."""

    def select(self: Rows, index: Int[Tensor, " rows"]) -> Rows:
        """The rows that `index` names, in that order; a row may come twice or not at all."""
        return self.each(lambda tensor: tensor.index_select(0, index))

    def repeat(self: Rows, times: int) -> Rows:
        """Every row `times` times, the copies side by side."""
        return self.each(lambda tensor: tensor.repeat_interleave(times, dim=0))

    def to(self: Rows, device: torch.device) -> Rows:
        """The same on another device."""
        return self.each(lambda tensor: tensor.to(device))

    def each(self: Rows, change: Callable[[Tensor], Tensor]) -> Rows:
        """The same with every tensor changed by a function."""
        return type(self)(**{name: _each(value, change) for name, value in vars(self).items()})


def _each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, BatchFirst):
        return value.each(change)
    if isinstance(value, tuple):
        return tuple(_each(item, change) for item in value)
    return value


@dataclass(frozen=True)
class Padded(BatchFirst):
    """Rows of token ids, padded to one length; `mask` is True where a token is real."""

    ids: Int[Tensor, "batch length"]
    mask: Bool[Tensor, "batch length"]

    def crop(self, width: int) -> "Padded":
        """The first so many positions of every row."""
        return Padded(self.ids[:, :width], self.mask[:, :width])


@dataclass(frozen=True)
class Batch(BatchFirst):
    """What one update sees; target rows begin with BEGIN and end with END."""

    source: Any  # what a `Source` collates: of text, a `Padded` whose rows end with END
    target: Padded
    examples: Int[Tensor, " batch"]  # where each row stands in the data, for messages
    links: Float[Tensor, "batch tokens source"] | None = None  # 1 where a target token is known to come of a source's


@dataclass(frozen=True)
class Recurrent(BatchFirst):
    """The state of a recurrent stack; `cell` only where the unit has one (LSTM)."""

    hidden: Float[Tensor, "batch layers dim"]
    cell: Float[Tensor, "batch layers inner"] | None


@dataclass(frozen=True)
class Memory(BatchFirst):
    """What an encoder leaves to be looked at. Left of it tasks differ; right of it they are one."""

    states: Float[Tensor, "batch source dim"]
    mask: Bool[Tensor, "batch source"]  # True = may be attended
    summary: Recurrent  # the encoder's final state, for decoders that start from it
    layout: Layout  # what a source position is
    ids: Int[Tensor, "batch source"] | None = None  # the source's tokens, for decoders that copy them

    @staticmethod
    def none(batch: int, device: torch.device, dtype: torch.dtype = torch.float32) -> "Memory":
        """Nothing to look at, and a summary that says nothing: what a language model starts from."""
        nothing = torch.zeros(batch, 1, 1, device=device, dtype=dtype)
        mask = torch.ones(batch, 0, dtype=torch.bool, device=device)
        return Memory(nothing[:, :0], mask, Recurrent(nothing, None), TEXT)


class State(BatchFirst):
    """All that search reorders: a decoder's own frozen dataclass."""


class Ready(BatchFirst):
    """What a decoder derives from the memory once per source; shared by all beams, never reordered."""


@dataclass(frozen=True)
class Step:
    """What a decoder says after reading n tokens: n rows of logits, its next state, its map."""

    logits: Float[Tensor, "rows tokens vocabulary"]
    state: State
    attention: Float[Tensor, "rows tokens source"] | None
    log_prob: Float[Tensor, "rows tokens"] | None = None  # of looks that were drawn at random, in training alone


class Hypothesis(NamedTuple):
    """One finding of a search; `map` holds a row for every token, its END included."""

    tokens: list[int]  # without BEGIN and END
    score: float  # log-probability over the length penalty
    map: Float[Tensor, "tokens source"] | None
    finished: bool  # False where the length limit cut it


@dataclass(frozen=True)
class Prediction:
    """What a trained model answers to one input, with the map of how it looked at it."""

    source: str
    text: str
    score: float  # log-probability over the length penalty
    tokens: tuple[str, ...]
    map: AttentionMap | None  # None where the model does not look
    alternatives: tuple["Prediction", ...] = ()  # the next best, where asked for
    source_tokens: tuple[str, ...] = ()  # where a task tells them apart from a map's columns

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it: rows of `attention` are `tokens`, its columns `source_tokens`."""
        content: dict[str, Any] = {
            "source": self.source,
            "tokens": list(self.tokens),
            "text": self.text,
            "score": self.score,
            "source_tokens": list(self.map.columns if self.map else self.source_tokens),
            "attention": self.map.weights.tolist() if self.map else [],
        }
        if self.alternatives:
            content["alternatives"] = [alternative.to_dict() for alternative in self.alternatives]
        return content

    def _repr_svg_(self) -> str | None:
        """How a notebook shows it."""
        return self.map._repr_svg_() if self.map else None
