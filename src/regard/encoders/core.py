"""The one verb of every encoder."""

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.types import Memory, Padded


@runtime_checkable
class Reader(Protocol):
    """What a decoder must know of whoever left the memory: the shape of its states and of its summary."""

    @property
    def dim(self) -> int:
        """The width of a state."""

    @property
    def layers(self) -> int:
        """The layers of the summary."""

    @property
    def cell_dim(self) -> int | None:
        """The width of the summary's cell; None where it has none."""


class Encoder(ABC, nn.Module):
    """Reads a source and leaves a memory to be looked at."""

    embedding: nn.Embedding
    dim: int
    layers: int
    cell_dim: int | None

    def forward(self, source: Padded) -> Memory:
        """Embed the source and read it."""
        return self.read(self.embedding(source.ids), source.mask)

    @abstractmethod
    def read(self, words: Float[Tensor, "batch source word"], mask: Bool[Tensor, "batch source"]) -> Memory:
        """Read vectors, one for every source position: those of `embedding`, or what else stands for words."""
