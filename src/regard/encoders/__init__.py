"""Batch.source -> Memory."""

from typing import Protocol

from regard.encoders.recurrent import RecurrentEncoder
from regard.types import Memory, Padded


class Encoder(Protocol):
    """Reads a source and leaves a memory to be looked at."""

    dim: int

    def __call__(self, source: Padded) -> Memory:
        """Read the source."""


__all__ = ["Encoder", "RecurrentEncoder"]
