"""Normalisers: functions that turn scores into attention weights; weights are zero where the mask is False."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention.masks import BoolMask

Pairs = Float[Tensor, "*batch query key"]  # a number for every pair of query and key: scores, or weights
Normalizer = Callable[[Tensor, Tensor | None], Tensor]


def softmax(scores: Pairs, mask: BoolMask | None) -> Pairs:
    """Positive weights that sum to one:  weight_j = exp(score_j) / sum_k exp(score_k)."""
    if mask is None:
        return torch.softmax(scores, dim=-1)
    # The lowest finite number instead of -inf: with -inf a row in which every key is masked would become NaN.
    lowest = torch.finfo(scores.dtype).min
    return _zero_masked(torch.softmax(scores.masked_fill(~mask, lowest), dim=-1), mask)


def sparsemax(scores: Pairs, mask: BoolMask | None) -> Pairs:
    """Martins and Astudillo 2016: the probability distribution nearest to the scores; most weights are exactly zero.

    weight_j = max(0, score_j - tau), with tau such that the weights sum to one.
    """
    shifted = _shift_and_clamp(scores, mask)
    ordered, ranks = _sort_descending(shifted)
    support = _support(shifted, ordered, 1 + ranks * ordered > ordered.cumsum(-1))
    support_size = support.sum(-1, keepdim=True).clamp(min=1)
    threshold = ((shifted * support).sum(-1, keepdim=True) - 1) / support_size
    return _zero_masked((shifted - threshold).clamp(min=0.0), mask)


def entmax15(scores: Pairs, mask: BoolMask | None) -> Pairs:
    """Peters et al. 2019, 1.5-entmax: between softmax and sparsemax, smooth and with exact zeros.

    weight_j = max(0, score_j / 2 - tau)^2, with tau such that the weights sum to one.
    """
    shifted = _shift_and_clamp(scores / 2, mask)
    ordered, ranks = _sort_descending(shifted)
    mean = ordered.cumsum(-1) / ranks
    spread = ordered.square().cumsum(-1) - ranks * mean.square()
    support = _support(shifted, ordered, ordered >= mean - ((1 - spread).clamp(min=0.0) / ranks).sqrt())
    support_size = support.sum(-1, keepdim=True).clamp(min=1)
    mean_inside = (shifted * support).sum(-1, keepdim=True) / support_size
    spread = ((shifted - mean_inside) * support).square().sum(-1, keepdim=True)
    threshold = mean_inside - ((1 - spread).clamp(min=torch.finfo(shifted.dtype).tiny) / support_size).sqrt()
    return _zero_masked((shifted - threshold).clamp(min=0.0).square(), mask)


def sigmoid(scores: Pairs, mask: BoolMask | None) -> Pairs:
    """Each weight depends on its own score only:  weight_j = 1 / (1 + exp(-score_j)); they need not sum to one."""
    return _zero_masked(torch.sigmoid(scores), mask)


def _shift_and_clamp(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores minus their row's maximum, clamped at -1: sparsemax and entmax give no weight to lower scores."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return (scores - scores.amax(-1, keepdim=True)).clamp(min=-1.0)


@torch.no_grad()
def _sort_descending(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each row from the highest score to the lowest; also return the ranks 1, 2, ..., n."""
    ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    return scores.sort(-1, descending=True).values, ranks


@torch.no_grad()
def _support(scores: Tensor, ordered: Tensor, in_support: Tensor) -> Tensor:
    """Mask of the keys that get weight: scores not below the last of the `ordered` scores that is in the support."""
    last = (in_support.sum(-1, keepdim=True) - 1).clamp(min=0)
    return scores >= ordered.gather(-1, last)


def _zero_masked(weights: Tensor, mask: Tensor | None) -> Tensor:
    """Set the weights of masked keys to zero."""
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def hard(scores: Pairs, mask: BoolMask | None) -> Pairs:
    """Xu et al. 2015, 4.1: all weight on the key with the highest score; in training `sample` samples the key instead.

    weight_j = [j = argmax_k score_k]
    """
    visible = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return _zero_masked(_one_hot(visible.argmax(-1, keepdim=True), scores), mask)


def sample(scores: Pairs, mask: BoolMask | None) -> tuple[Pairs, Float[Tensor, "*batch query"]]:
    """Sample one key per query from the softmax of the scores: one-hot weights, and the log-probability of the sample.

    A query for which every key is masked gets zero weights and the log-probability 0.
    """
    probabilities = softmax(scores, mask)
    nonzero = probabilities.detach().clamp(min=torch.finfo(scores.dtype).tiny)  # multinomial refuses rows of zeros
    index = torch.multinomial(nonzero.flatten(0, -2), 1).view(*scores.shape[:-1], 1)
    prob = probabilities.gather(-1, index).squeeze(-1)
    visible = prob > 0
    log_prob = torch.where(visible, prob.where(visible, torch.ones_like(prob)).log(), torch.zeros_like(prob))
    return _one_hot(index, scores).masked_fill(~visible.unsqueeze(-1), 0.0), log_prob


def _one_hot(indices: Tensor, scores: Tensor) -> Tensor:
    """Weights of shape `scores`: 1 at the given key of each row, 0 elsewhere."""
    return torch.zeros_like(scores).scatter(-1, indices, 1.0)


class Entry(NamedTuple):
    """A normaliser and the properties that callers and tests may rely on."""

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
