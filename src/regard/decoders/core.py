"""The four verbs of every decoder; search and training know no others."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from jaxtyping import Int
from torch import Tensor, nn

from regard.sources import TokenEmbedding
from regard.types import Memory, Ready, State, Step

ReadyKind = TypeVar("ReadyKind", bound=Ready)
StateKind = TypeVar("StateKind", bound=State)


class Decoder(ABC, nn.Module, Generic[ReadyKind, StateKind]):
    """Predicts the next token from those before it and from what it sees of the memory."""

    embedding: TokenEmbedding
    copies: bool = False  # whether it needs the source's tokens, to point at them

    @abstractmethod
    def prepare(self, memory: Memory) -> ReadyKind:
        """What depends on the source alone, done once: projected keys, the start."""

    @abstractmethod
    def start(self, ready: ReadyKind) -> StateKind:
        """The state before the first token; one row for each source."""

    @abstractmethod
    def step(self, tokens: Int[Tensor, "rows tokens"], state: StateKind, ready: ReadyKind) -> Step:
        """Read n >= 1 more tokens. Rows may be several (beams) to a source, side by side."""

    def forward(self, tokens: Int[Tensor, "batch tokens"], memory: Memory) -> Step:
        """Teacher forcing: one step over all tokens."""
        ready = self.prepare(memory)
        return self.step(tokens, self.start(ready), ready)


AnyDecoder = Decoder[Any, Any]
