"""The one verb of every encoder."""

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

from torch import nn

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

    @abstractmethod
    def forward(self, source: Padded) -> Memory:
        """Read the source."""
