"""The interface between kinds of input (text, pictures, ...) and the tasks and models that use them.

A new kind of source is one file with a subclass of `Source` and its `Front`, and one line in `SOURCES`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.console import counted
from regard.errors import DataError
from regard.maps import Layout, SourceView
from regard.recipe import Model, Recipe
from regard.storage import Run

AnyBatch = TypeVar("AnyBatch", bound="SourceBatch")


@runtime_checkable
class SourceBatch(Protocol):
    """The sources of a batch, padded to the same length: a frozen `BatchFirst` dataclass of tensors."""

    @property
    def mask(self) -> Bool[Tensor, "batch source"]:
        """True at real positions, False at padding."""

    def crop(self: AnyBatch, width: int) -> AnyBatch:
        """The first `width` positions of every row."""

    def select(self: AnyBatch, index: Int[Tensor, " rows"]) -> AnyBatch:
        """The rows that `index` names."""

    def map_tensors(self: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
        """A copy in which a function was applied to every tensor."""

    def to(self: AnyBatch, device: torch.device) -> AnyBatch:
        """The batch on another device."""


class Vectors(NamedTuple):
    """The input of an encoder: a vector for every source position."""

    vectors: Float[Tensor, "batch source width"]
    mask: Bool[Tensor, "batch source"]
    layout: Layout  # the kind of the positions, such as tokens; it goes with every attention map over them


class Front(ABC, nn.Module):
    """The first part of a model: turns a source batch into vectors, before any encoder."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The width of the vectors."""

    @abstractmethod
    def embed(self, source: Any) -> Vectors:
        """A vector for every position that the encoder reads, from a batch of `Source.collate`.

        There may be fewer positions than in the batch, such as the cells of a picture; the mask is of the new ones.
        """


Item = TypeVar("Item")  # one encoded source, such as a list of token ids


class Span(NamedTuple):
    """A part of an item, and the position of the item that it begins at."""

    start: int
    item: Any


class Source(ABC, Generic[Item]):
    """Base class of kinds of input: encodes sources, and forms batches of them.

    `Example.source` is always a string: a text, or the name of a picture or a recording.
    """

    reads_files: ClassVar[bool] = False  # whether a source is the name of a file, such as a recording, and not a text
    is_sequence: ClassVar[bool] = True  # whether its positions are in an order that a target may follow, as CTC needs
    noun: ClassVar[str] = "text"  # the word for one source in messages
    descriptions: ClassVar[Mapping[str, str]] = {}  # corpora whose sources are descriptions, not files; one of each

    @staticmethod
    @abstractmethod
    def check(recipe: Recipe) -> None:
        """Raise RecipeError if the recipe names an unknown entry, before any data is read."""

    @classmethod
    @abstractmethod
    def fit(cls, recipe: Recipe, sources: Sequence[str], origin: Run | None = None) -> "Source[Item]":
        """Build a source from the training sources, for instance its vocabulary.

        If training starts from another run, `origin`, its files are used in place of new ones.
        """

    @classmethod
    @abstractmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Source[Item]":
        """Load the source of a stored run; `read` returns the content of a file by the name that `files` gave it."""

    @classmethod
    def locate(cls, source: str, file: str) -> str:
        """The source that a line of a data file names; the name of a picture is relative to the folder of that file."""
        return source

    @classmethod
    def recognises(cls, start: bytes) -> bool:
        """Whether a file that begins with these bytes can be a source; of folders, all such files are read."""
        return False

    def accept(self, value: object, name: str) -> str:
        """The source for an input given in Python that is no text, such as an array; `name` is for messages."""
        raise DataError(f"{name} is of the type {type(value).__name__}; give texts")

    @classmethod
    def variants(cls, recipe: Recipe, source: str) -> tuple[str, ...]:
        """The sources to train on in place of one: itself, and any copies that are varied (data augmentation).

        Their number is the same for every source.
        """
        return (source,)

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """The files that a run must store besides the weights: content by file name."""

    @abstractmethod
    def encode(self, source: str) -> Item:
        """Encode one source as numbers, such as token ids."""

    def encode_all(self, sources: Sequence[str]) -> Sequence[Item]:
        """Encode many sources; a subclass may return a sequence that needs less memory than a list."""
        return [self.encode(source) for source in sources]

    def encode_inputs(self, sources: Sequence[str]) -> Sequence[Item]:
        """Encode the inputs of predictions, which are not kept: a subclass may be faster for many than for each."""
        return [self.encode(source) for source in counted(sources, "encoding")]

    @abstractmethod
    def size(self, item: Item) -> int:
        """The number of positions of an item in a batch, with END if it has one; it limits the items of a batch."""

    def split(self, item: Item, longest: int) -> list[Span]:
        """The parts of an item that are answered one by one and joined, each of at most `longest` positions.

        There are several only if the item is longer than that, and can be cut: by default it is not.
        """
        return [Span(0, item)]

    def sizes(self, source: str, longest: int) -> list[int]:
        """The number of positions of each part of an input; a subclass may know it without encoding the input."""
        return [self.size(span.item) for span in self.split(self.encode(source), longest)]

    def time(self, position: int) -> float:
        """The time of a position in seconds, if the source is a recording; otherwise the position itself."""
        return float(position)

    @abstractmethod
    def collate(self, items: Sequence[Item]) -> Any:
        """Form the `SourceBatch` of these items."""

    @abstractmethod
    def labels(self, item: Item) -> tuple[str, ...]:
        """A label for each position that the encoder reads, for the columns of an attention map."""

    def view(self, source: str) -> SourceView | None:
        """What attention maps over a source are drawn on, read again from its file; None if they are matrices only."""
        return None

    @abstractmethod
    def front(self, model: Model) -> Front:
        """Build the first part of a model, which turns batches of this source into vectors; its weights are new."""

    def describe(self, items: Sequence[Item]) -> str:
        """A message to print before training, from the encoded dev sources; empty for none."""
        return ""


AnySource = Source[Any]
