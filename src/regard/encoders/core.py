"""The one verb of every encoder."""

from abc import ABC, abstractmethod
from typing import Protocol, cast, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.maps import TEXT, Layout
from regard.sources import Front, SourceBatch, TokenEmbedding
from regard.types import Memory


@runtime_checkable
class Layered(Protocol):
    """The shape of a reader's summary, or of a writer's state: all that the one must know of the other."""

    @property
    def dim(self) -> int:
        """The width of a state."""

    @property
    def layers(self) -> int:
        """How many states there are, on top of each other."""

    @property
    def cell_dim(self) -> int | None:
        """The width of a cell; None where there is none."""


class Encoder(ABC, nn.Module):
    """Reads a source and leaves a memory to be looked at."""

    embedding: Front
    dim: int
    layers: int
    cell_dim: int | None

    @property
    def words(self) -> TokenEmbedding:
        """The embedding of an encoder that reads text."""
        return cast(TokenEmbedding, self.embedding)

    def forward(self, source: SourceBatch) -> Memory:
        """Embed the source and read it."""
        return self.read(*self.embedding.embed(source))

    @abstractmethod
    def read(
        self, vectors: Float[Tensor, "batch source word"], mask: Bool[Tensor, "batch source"], layout: Layout = TEXT
    ) -> Memory:
        """Read a vector for every source position: those of `embedding`, or others in their place."""
