"""Poolings: the states of a sentence become one vector. Each is one class and one line in the table."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.core import Attention
from regard.attention.masks import over_keys
from regard.types import Memory

MakeAttention = Callable[[int], Attention]  # a look from a query of that width at states of that width


class Pooled(NamedTuple):
    """One vector for each sentence, and where it comes from."""

    vector: Float[Tensor, "batch dim"]
    weights: Float[Tensor, "batch source"] | None  # only where the states were looked at


class Pooling(ABC, nn.Module):
    """Makes one vector of all states that the mask allows; of none at all, zeros.

    Every pooling is made with the width `dim` of a state, the `directions` in which a recurrent encoder read (their
    states lie side by side; 1 for all others) and `make`, which gives the attention to those that look.
    """

    def __init__(self, *, dim: int, directions: int, make: MakeAttention) -> None:
        super().__init__()
        self.directions = directions

    def forward(self, memory: Memory) -> Pooled:
        """Junk behind the mask is emptied first, so that it reaches neither the vector nor a gradient."""
        seen = memory.mask.unsqueeze(-1)
        vector, weights = self.pool(memory.states.masked_fill(~seen, 0.0), memory.mask)
        return Pooled(vector.masked_fill(~seen.any(1), 0.0), weights)

    @abstractmethod
    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """The vector of states that are zero behind the mask."""


class Mean(Pooling):
    """The mean of all states:  1/n sum_i h_i."""

    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """Padding is not counted."""
        return Pooled(states.sum(1) / mask.sum(-1, keepdim=True).clamp(min=1), None)


class Max(Pooling):
    """Collobert and Weston 2008; Conneau et al. 2017: the largest of each number over all states,  max_i h_i."""

    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """Padding never wins."""
        return Pooled(states.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1), None)


class Last(Pooling):
    """Sutskever et al. 2014: the state after the last word; of a backward direction, that is the one at the first."""

    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """Where each direction has read everything."""
        last = mask.shape[-1] - 1 - _first(mask.flip(-1))
        onward, *backward = states.chunk(self.directions, dim=-1)
        ends = [_at(onward, last), *(_at(half, _first(mask)) for half in backward)]
        return Pooled(torch.cat(ends, dim=-1), None)


class First(Pooling):
    """Devlin et al. 2019, [CLS]: the state of a token that stands before the first word and sees all others."""

    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """The task puts that token there."""
        return Pooled(_at(states, _first(mask)), None)


class Attentive(Pooling):
    """Yang et al. 2016, 2.2:  sum_i a_i h_i,  a = normalize(score(query, h_i)), with one learned query for all."""

    def __init__(self, *, dim: int, directions: int, make: MakeAttention) -> None:
        super().__init__(dim=dim, directions=directions, make=make)
        self.attention = make(dim)
        self.query = nn.Parameter(torch.empty(1, dim))
        nn.init.normal_(self.query, std=dim**-0.5)

    def pool(self, states: Float[Tensor, "batch source dim"], mask: Bool[Tensor, "batch source"]) -> Pooled:
        """One look at all of them."""
        look = self.attention
        query = self.query.expand(len(states), 1, -1)
        attended = look(query, look.project(states), look.content(states), mask=over_keys(mask), cleared=True)
        assert attended.weights is not None  # fused paths run only where they are asked for
        return Pooled(attended.context.squeeze(1), attended.weights.squeeze(1))


def _first(mask: Bool[Tensor, "batch source"]) -> Int[Tensor, " batch"]:
    """The first place that may be seen."""
    return mask.int().argmax(-1)


def _at(states: Float[Tensor, "batch source dim"], places: Int[Tensor, " batch"]) -> Float[Tensor, "batch dim"]:
    """One state of each row."""
    return states[torch.arange(len(states), device=states.device), places]


POOLINGS: dict[str, type[Pooling]] = {
    "mean": Mean,
    "max": Max,
    "last": Last,
    "cls": First,
    "attention": Attentive,
}
