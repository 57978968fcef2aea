"""Poolings: functions that turn the states of a sentence into one vector. A new one is a class and a table entry."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.core import Attention
from regard.attention.masks import over_keys
from regard.types import Memory

MakeAttention = Callable[[int], Attention]  # the attention for queries and states of that width


class Pooled(NamedTuple):
    """One vector for each sentence, and the attention weights behind it."""

    vector: Float[Tensor, "batch dim"]
    weights: Float[Tensor, "batch source"] | None  # only of attention pooling


class Pooling(ABC, nn.Module):
    """Pools the states that the mask allows into one vector; if every state is masked, the vector is zero.

    Every pooling is constructed with the width `dim` of a state, the number of `directions` of a recurrent encoder
    (their states are concatenated; 1 for other encoders) and `make`, which builds the attention if one is needed.
    """

    def __init__(self, *, dim: int, directions: int, make: MakeAttention) -> None:
        super().__init__()
        self.directions = directions

    def forward(self, memory: Memory) -> Pooled:
        """Pool the memory. Masked states are set to zero first: NaN there reaches neither result nor gradient."""
        visible = memory.mask.unsqueeze(-1)
        vector, weights = self.pool(memory.states.masked_fill(~visible, 0.0), memory.mask)
        return Pooled(vector.masked_fill(~visible.any(1), 0.0), weights)

    @abstractmethod
    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """Pool states; masked states are zero already."""


class Mean(Pooling):
    """The mean of all states:  1/n sum_i h_i."""

    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """The mean over the states that are not padding."""
        return Pooled(states.sum(1) / mask.sum(-1, keepdim=True).clamp(min=1), None)


class Max(Pooling):
    """Collobert and Weston 2008; Conneau et al. 2017: the maximum over all states, per dimension:  max_i h_i."""

    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """The maximum over the states that are not padding."""
        return Pooled(states.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1), None)


class Last(Pooling):
    """Sutskever et al. 2014: the state at the last word; of a backward direction, the state at the first word."""

    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """The final state of each direction, concatenated."""
        last = mask.shape[-1] - 1 - _first(mask.flip(-1))
        forward, *backward = states.chunk(self.directions, dim=-1)
        finals = [_at(forward, last), *(_at(half, _first(mask)) for half in backward)]
        return Pooled(torch.cat(finals, dim=-1), None)


class First(Pooling):
    """Devlin et al. 2019, [CLS]: the state of a special token before the first word, which attends to all others."""

    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """The first state that is not padding; the task has put the special token there."""
        return Pooled(_at(states, _first(mask)), None)


class Attentive(Pooling):
    """Yang et al. 2016, 2.2:  sum_i a_i h_i,  a = normalize(score(query, h_i)), with one learned query."""

    def __init__(self, *, dim: int, directions: int, make: MakeAttention) -> None:
        super().__init__(dim=dim, directions=directions, make=make)
        self.attention = make(dim)
        self.query = nn.Parameter(torch.empty(1, dim))
        nn.init.normal_(self.query, std=dim**-0.5)

    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """The context of the learned query over all states, and its weights."""
        query = self.query.expand(len(states), 1, -1)
        keys, values = self.attention.project(states), self.attention.content(states)
        attended = self.attention(query, keys, values, mask=over_keys(mask), cleared=True)
        assert attended.weights is not None  # None only on fused paths, which `make` does not enable
        return Pooled(attended.context.squeeze(1), attended.weights.squeeze(1))


def _first(mask: Bool[Tensor, "batch source"]) -> Int[Tensor, " batch"]:
    """The index of the first position that is not masked."""
    return mask.int().argmax(-1)


def _at(states: Float[Tensor, "batch source dim"], positions: Int[Tensor, " batch"]) -> Float[Tensor, "batch dim"]:
    """The state at the given position of each row."""
    return states[torch.arange(len(states), device=states.device), positions]


POOLINGS: dict[str, type[Pooling]] = {
    "mean": Mean,
    "max": Max,
    "last": Last,
    "cls": First,
    "attention": Attentive,
}
