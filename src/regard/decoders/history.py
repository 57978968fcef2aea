"""Decoders of series: each step reads a vector of numbers, and may attend to the steps before it.

They have no memory of a source and no vocabulary: a series is its own source. `forward` reads many steps at once, as in
training, or one at a time, as in a forecast; both give the same states.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.heads import KeyValues
from regard.attention.masks import causal
from regard.decoders.transformer import DecoderLayer
from regard.kernels.dropout import dropout
from regard.kernels.linear import Linear
from regard.layers.recurrence import Cell, Recurrence
from regard.layers.transformer import Shape, Stream, Top, start_weights
from regard.types import Recurrent, State

Vectors = Float[Tensor, "rows steps width"]
Visible = Bool[Tensor, "rows steps"]


@dataclass(frozen=True)
class HistoryState(State):
    """The state after some steps: of the recurrent layers, and the keys and values of every attention."""

    recurrent: Recurrent | None
    layers: tuple[KeyValues, ...]
    visible: Visible  # which of the steps so far may be attended: those that read an observed value


class History(ABC, nn.Module):
    """Base class of decoders of series; `dim` is the width of a state."""

    dim: int

    @abstractmethod
    def start(self, rows: int) -> HistoryState:
        """The state before the first step."""

    @abstractmethod
    def forward(
        self, vectors: Vectors, visible: Visible, state: HistoryState
    ) -> tuple[Float[Tensor, "rows steps dim"], HistoryState]:
        """Read n >= 1 more steps: a state for each of them, and the state after the last.

        `visible` is False for steps that no step may attend to, for example because their value is missing.
        """


class RecurrentHistory(History):
    """Salinas et al. 2020, DeepAR: recurrent layers over the steps of a series; optionally with attention to them.

    With attention, in Luong's order (Luong et al. 2015, 3): the state h_t attends to h_1 ... h_t, and the output is
    tanh(W [context; h_t]). Any score, scope and positions of a Transformer's self-attention may be used.
    """

    def __init__(
        self, cell: Cell, *, width: int, dim: int, layers: int, dropout: float, attention: Shape | None = None
    ) -> None:
        super().__init__()
        self.dim, self.dropout, self.shape = dim, dropout, attention
        self.recurrence = Recurrence(cell, input_dim=width, dim=dim, layers=layers, dropout=dropout)
        self.attention = None if attention is None else attention.self_attention()
        self.positions = None if attention is None else attention.placed(causal=True)
        self.combine = None if attention is None else Linear(2 * dim, dim, bias=False)

    def start(self, rows: int) -> HistoryState:
        """Zero states, and an empty cache if there is an attention."""
        recurrence, weight = self.recurrence, self.recurrence.rnn.all_weights[0][0]
        hidden = weight.new_zeros(rows, recurrence.layers, self.dim)
        recurrent = Recurrent(hidden, hidden if recurrence.cell_dim else None)
        caches = () if self.shape is None else (_empty(self.shape, weight, rows),)
        return HistoryState(recurrent, caches, _no_steps(weight, rows))

    def forward(
        self, vectors: Vectors, visible: Visible, state: HistoryState
    ) -> tuple[Float[Tensor, "rows steps dim"], HistoryState]:
        """Run the recurrent layers over all steps in one call, then the attention."""
        assert state.recurrent is not None
        outputs, recurrent = self.recurrence(dropout(vectors, self.dropout, self.training), state.recurrent)
        seen = torch.cat([state.visible, visible], dim=1)
        outputs = dropout(outputs, self.dropout, self.training)
        if self.attention is None or self.positions is None or self.combine is None:
            return outputs, HistoryState(recurrent, (), seen)
        start, steps = state.visible.shape[1], outputs.shape[1]
        context, cache = self.attention(
            self.positions.embed(outputs, start),
            mask=_mask(seen, steps, start),
            bias=self.positions.bias(steps, start + steps, start),
            positions=self.positions,
            start=start,
            before=state.layers[0] if start else None,
        )
        combined = torch.tanh(self.combine(torch.cat([context, outputs], dim=-1)))
        return combined, HistoryState(recurrent, (cache,), seen)


class TransformerHistory(History):
    """Vaswani et al. 2017: every step attends to itself and the steps before it, in every layer.

    The vectors of the steps take the place of embedded tokens; a linear layer brings them to the width of the stack.
    """

    def __init__(self, shape: Shape, *, width: int) -> None:
        super().__init__()
        self.dim, self.shape = shape.dim, shape
        self.enter = Linear(width, shape.dim)
        self.stack = nn.ModuleList(DecoderLayer(shape, None) for _ in range(shape.layers))
        self.top = Top(shape)
        start_weights(self, shape)
        self.positions = shape.placed(causal=True)

    def start(self, rows: int) -> HistoryState:
        """Empty caches."""
        weight = self.enter.weight
        return HistoryState(None, tuple(_empty(self.shape, weight, rows) for _ in self.stack), _no_steps(weight, rows))

    def forward(
        self, vectors: Vectors, visible: Visible, state: HistoryState
    ) -> tuple[Float[Tensor, "rows steps dim"], HistoryState]:
        """Run all layers over all steps at once."""
        start, steps = state.visible.shape[1], vectors.shape[1]
        seen = torch.cat([state.visible, visible], dim=1)
        inputs = self.positions.embed(self.enter(vectors), start)
        stream = Stream(dropout(inputs, self.shape.dropout, self.training))
        bias, mask = self.positions.bias(steps, start + steps, start), _mask(seen, steps, start)
        caches = []
        for layer, before in zip(self.stack, state.layers, strict=True):
            stream, cache, _ = cast(DecoderLayer, layer)(stream, before, None, seen, bias, self.positions, mask)
            caches.append(cache)
        return self.top(stream), HistoryState(None, tuple(caches), seen)


def _empty(shape: Shape, weight: Tensor, rows: int) -> KeyValues:
    """A cache without steps."""
    site = shape.attention
    empty = weight.new_empty(rows, site.groups or site.heads, 0, shape.dim // site.heads)
    return KeyValues(empty, empty)


def _no_steps(weight: Tensor, rows: int) -> Visible:
    return torch.ones(rows, 0, dtype=torch.bool, device=weight.device)


def _mask(seen: Bool[Tensor, "rows all"], steps: int, start: int) -> Bool[Tensor, "rows 1 steps all"]:
    """The mask of the last steps: each sees the visible steps up to its own."""
    return causal(steps, start + steps, start, seen.device).unsqueeze(0) & seen[:, None, None]
