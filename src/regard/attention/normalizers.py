"""Normalisers: scores to weights, zero where the mask is False."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Normalizer = Callable[[Tensor, Tensor | None], Tensor]


def softmax(
    scores: Float[Tensor, "*batch query key"], mask: Bool[Tensor, "*mask"] | None
) -> Float[Tensor, "*batch query key"]:
    """Positive weights that sum to one:  weight_j = exp(score_j) / sum_k exp(score_k)."""
    if mask is None:
        return torch.softmax(scores, dim=-1)
    # The lowest finite number and not -inf: a row without any key would turn to NaN on the way.
    lowest = torch.finfo(scores.dtype).min
    return _hide(torch.softmax(scores.masked_fill(~mask, lowest), dim=-1), mask)


def sparsemax(
    scores: Float[Tensor, "*batch query key"], mask: Bool[Tensor, "*mask"] | None
) -> Float[Tensor, "*batch query key"]:
    """Martins and Astudillo 2016: the nearest point of the simplex; most weights are exactly zero.

    weight_j = max(0, score_j - tau), with tau such that the weights sum to one.
    """
    near = _near_the_top(scores, mask)
    falling, counts = _falling(near)
    support = _support(near, falling, 1 + counts * falling > falling.cumsum(-1))
    size = support.sum(-1, keepdim=True).clamp(min=1)
    threshold = ((near * support).sum(-1, keepdim=True) - 1) / size
    return _hide((near - threshold).clamp(min=0.0), mask)


def entmax15(
    scores: Float[Tensor, "*batch query key"], mask: Bool[Tensor, "*mask"] | None
) -> Float[Tensor, "*batch query key"]:
    """Peters et al. 2019, 1.5-entmax: between softmax and sparsemax, smooth and with exact zeros.

    weight_j = max(0, score_j / 2 - tau)^2, with tau such that the weights sum to one.
    """
    near = _near_the_top(scores / 2, mask)
    falling, counts = _falling(near)
    mean = falling.cumsum(-1) / counts
    spread = falling.square().cumsum(-1) - counts * mean.square()
    support = _support(near, falling, falling >= mean - ((1 - spread).clamp(min=0.0) / counts).sqrt())
    size = support.sum(-1, keepdim=True).clamp(min=1)
    middle = (near * support).sum(-1, keepdim=True) / size
    spread = ((near - middle) * support).square().sum(-1, keepdim=True)
    threshold = middle - ((1 - spread).clamp(min=torch.finfo(near.dtype).tiny) / size).sqrt()
    return _hide((near - threshold).clamp(min=0.0).square(), mask)


def sigmoid(
    scores: Float[Tensor, "*batch query key"], mask: Bool[Tensor, "*mask"] | None
) -> Float[Tensor, "*batch query key"]:
    """Every key for itself:  weight_j = 1 / (1 + exp(-score_j)); the weights need not sum to one."""
    return _hide(torch.sigmoid(scores), mask)


def _near_the_top(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores below their row's highest, cut off at -1: further down neither gives any weight."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return (scores - scores.amax(-1, keepdim=True)).clamp(min=-1.0)


@torch.no_grad()
def _falling(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The scores of each row from high to low, and their places counted from 1."""
    counts = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    return scores.sort(-1, descending=True).values, counts


@torch.no_grad()
def _support(scores: Tensor, falling: Tensor, inside: Tensor) -> Tensor:
    """True for the keys that get weight: those not below the last that stands inside."""
    last = (inside.sum(-1, keepdim=True) - 1).clamp(min=0)
    return scores >= falling.gather(-1, last)


def _hide(weights: Tensor, mask: Tensor | None) -> Tensor:
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def hard(
    scores: Float[Tensor, "*batch query key"], mask: Bool[Tensor, "*mask"] | None
) -> Float[Tensor, "*batch query key"]:
    """Xu et al. 2015, 4.1: all weight on one key, the best; in training it is drawn by softmax, and `draw` tells how.

    weight_j = [j = argmax_k score_k]
    """
    visible = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return _hide(_one_hot(visible.argmax(-1, keepdim=True), scores), mask)


def draw(
    scores: Float[Tensor, "*batch query key"], mask: Bool[Tensor, "*mask"] | None
) -> tuple[Float[Tensor, "*batch query key"], Float[Tensor, "*batch query"]]:
    """All weight on one key, drawn by the softmax of the scores, and the log-probability of that draw.

    A query that may see nothing draws nothing, for certain.
    """
    chances = softmax(scores, mask)
    somewhere = chances.detach().clamp(min=torch.finfo(scores.dtype).tiny)  # rows without any key too
    drawn = torch.multinomial(somewhere.flatten(0, -2), 1).view(*scores.shape[:-1], 1)
    chance = chances.gather(-1, drawn).squeeze(-1)
    seen = chance > 0
    log_prob = torch.where(seen, chance.where(seen, torch.ones_like(chance)).log(), torch.zeros_like(chance))
    return _one_hot(drawn, scores).masked_fill(~seen.unsqueeze(-1), 0.0), log_prob


def _one_hot(places: Tensor, scores: Tensor) -> Tensor:
    return torch.zeros_like(scores).scatter(-1, places, 1.0)


class Entry(NamedTuple):
    """A normaliser and what the laws may assume of it."""

    function: Normalizer
    sums_to_one: bool
    differentiable: bool


NORMALIZERS = {
    "softmax": Entry(softmax, sums_to_one=True, differentiable=True),
    "sparsemax": Entry(sparsemax, sums_to_one=True, differentiable=True),
    "entmax15": Entry(entmax15, sums_to_one=True, differentiable=True),
    "sigmoid": Entry(sigmoid, sums_to_one=False, differentiable=True),
    "hard": Entry(hard, sums_to_one=True, differentiable=False),
}
