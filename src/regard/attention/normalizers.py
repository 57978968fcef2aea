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
    return torch.softmax(scores.masked_fill(~mask, lowest), dim=-1).masked_fill(~mask, 0.0)


class Entry(NamedTuple):
    """A normaliser and what the laws may assume of it."""

    function: Normalizer
    sums_to_one: bool
    differentiable: bool


NORMALIZERS = {
    "softmax": Entry(softmax, sums_to_one=True, differentiable=True),
}
