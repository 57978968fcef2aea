"""The interface of all decoders: `prepare`, `start`, `step` and `forward`. Search calls no other methods."""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.kernels.columns import ColumnMajorCopy
from regard.kernels.linear import Linear, linear
from regard.sources import TokenEmbedding
from regard.types import Memory, Prepared, State, Step

PreparedKind = TypeVar("PreparedKind", bound=Prepared)
StateKind = TypeVar("StateKind", bound=State)
States = Float[Tensor, "rows tokens dim"]  # a vector for every token of every row


class Decoder(ABC, nn.Module, Generic[PreparedKind, StateKind]):
    """Base class of decoders: predicts the next token from the tokens before it and from the encoder's memory."""

    embedding: TokenEmbedding
    out: Linear | None  # computes the logits; None if the embedding matrix does (tied weights, Press and Wolf 2017)
    columns: ColumnMajorCopy | None = None  # of a tied embedding matrix, see `models.store_by_columns`
    copies: bool = False  # whether it may copy source tokens, so that `Memory.ids` must be set

    @abstractmethod
    def prepare(self, memory: Memory) -> PreparedKind:
        """Computes once per source all that depends on the source alone, such as projected keys and the first state."""

    @abstractmethod
    def start(self, prepared: PreparedKind) -> StateKind:
        """Returns the state before the first token, one row for each source."""

    @abstractmethod
    def step(self, tokens: Int[Tensor, "rows tokens"], state: StateKind, prepared: PreparedKind) -> Step:
        """Reads n >= 1 more tokens and predicts the token after each of them.

        A source may have several rows (beams); these are neighbours, and each source has equally many.
        """

    def forward(self, tokens: Int[Tensor, "batch tokens"], memory: Memory) -> Step:
        """Predict every next token of known targets at once, as in training (teacher forcing).

        The predictions at position t depend on the tokens up to t, not on the decoder's own predictions.
        """
        prepared = self.prepare(memory)
        return self.step(tokens, self.start(prepared), prepared)

    def predict(self, states: States) -> Float[Tensor, "rows tokens vocabulary"]:
        """The logits of every word of the vocabulary."""
        return linear(states, self.tied_weight(), None) if self.out is None else self.out(states)

    def tied_weight(self) -> Float[Tensor, "vocabulary dim"]:
        """The embedding matrix as output matrix; a copy stored by columns if there is one."""
        return self.embedding.weight if self.columns is None else self.columns.of(self.embedding.weight)


AnyDecoder = Decoder[Any, Any]
