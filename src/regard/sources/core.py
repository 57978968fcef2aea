"""The seam between kinds of input and the rest: what tasks and models ask of a source.

A new kind of source is one file with a subclass of `Source` and its `Front`, and one line in `SOURCES`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.maps import Layout
from regard.recipe import Model, Recipe
from regard.storage import Run

AnyBatch = TypeVar("AnyBatch", bound="SourceBatch")


@runtime_checkable
class SourceBatch(Protocol):
    """The sources of a batch, padded to one width: a frozen `BatchFirst` dataclass of tensors."""

    @property
    def mask(self) -> Bool[Tensor, "batch source"]:
        """True at real positions, False at padding."""

    def crop(self: AnyBatch, width: int) -> AnyBatch:
        """The first `width` positions of every row."""

    def select(self: AnyBatch, index: Int[Tensor, " rows"]) -> AnyBatch:
        """The rows that `index` names."""

    def each(self: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
        """The batch with every tensor changed by a function."""

    def to(self: AnyBatch, device: torch.device) -> AnyBatch:
        """The batch on another device."""


class Vectors(NamedTuple):
    """A source as an encoder reads it: a vector for every position."""

    vectors: Float[Tensor, "batch source width"]
    mask: Bool[Tensor, "batch source"]
    layout: Layout  # what a position is


class Front(ABC, nn.Module):
    """The first part of a model: turns a source batch into vectors, before any encoder."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The width of its vectors."""

    @abstractmethod
    def embed(self, source: Any) -> Vectors:
        """A vector for every position of the batch that `Source.collate` made."""


Item = TypeVar("Item")  # one source as numbers


class Source(ABC, Generic[Item]):
    """One kind of input. `Example.source` is always a string: a text, or the name of a picture or a recording."""

    @staticmethod
    @abstractmethod
    def check(recipe: Recipe) -> None:
        """Refuse a recipe that names what is not there, before any data is read."""

    @classmethod
    @abstractmethod
    def fit(cls, recipe: Recipe, sources: Sequence[str], origin: Run | None = None) -> "Source[Item]":
        """Learn what it needs from the training sources, or take it from the run that training starts from."""

    @classmethod
    @abstractmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Source[Item]":
        """The source of a stored run; `read` returns the content of what `files` named."""

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """What a run must store besides the weights, by file name."""

    @abstractmethod
    def encode(self, source: str) -> Item:
        """One source as numbers."""

    @abstractmethod
    def size(self, item: Item) -> int:
        """The positions it fills in a batch: what the budget of a batch counts."""

    @abstractmethod
    def collate(self, items: Sequence[Item]) -> Any:
        """The `SourceBatch` of these items."""

    @abstractmethod
    def labels(self, item: Item) -> tuple[str, ...]:
        """A label for each position: the columns of an attention map."""

    @abstractmethod
    def layout(self, item: Item) -> Layout:
        """What those positions are, for whoever draws the map."""

    @abstractmethod
    def front(self, model: Model) -> Front:
        """The part of a model that reads its batches, with fresh weights."""

    def describe(self, items: Sequence[Item]) -> str:
        """What is to be said of it before training, given the encoded dev sources; may be empty."""
        return ""


AnySource = Source[Any]
