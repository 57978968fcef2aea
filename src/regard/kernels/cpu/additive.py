"""Additive attention, a few rows at a time; no sum of a query and a key outlives its turn."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

CACHED = 1 << 18  # numbers that go through the caches at once


def forward(
    query: Float[Tensor, "batch query dim"],
    keys: Float[Tensor, "batch key dim"],
    values: Float[Tensor, "batch key width"],
    out: Float[Tensor, "1 dim"],
    mask: Bool[Tensor, "batch key"],
) -> tuple[Float[Tensor, "batch query width"], Float[Tensor, "batch query key"]]:
    """Contexts and weights."""
    scores = torch.cat([_mixed(query[few], keys[few]) @ out[0] for few in _turns(query, keys)])
    hidden = ~mask.unsqueeze(1)
    lowest = torch.finfo(scores.dtype).min  # and not -inf: a row without any key would turn to NaN
    weights = torch.softmax(scores.masked_fill_(hidden, lowest), dim=-1).masked_fill_(hidden, 0.0)
    return weights @ values, weights


def backward(
    given: Float[Tensor, "batch query width"],
    of_weights: Float[Tensor, "batch query key"] | None,
    query: Float[Tensor, "batch query dim"],
    keys: Float[Tensor, "batch key dim"],
    values: Float[Tensor, "batch key width"],
    out: Float[Tensor, "1 dim"],
    weights: Float[Tensor, "batch query key"],
    of_keys: Float[Tensor, "batch key dim"],
    of_out: Float[Tensor, "batch dim"],
) -> Float[Tensor, "batch query dim"]:
    """The gradient of the queries; those of keys, and of `out` row by row, are added to what is there."""
    earned = given @ values.transpose(1, 2)
    if of_weights is not None:
        earned += of_weights
    of_scores = weights * (earned - (weights * earned).sum(-1, keepdim=True))
    of_query = torch.empty_like(query)
    for few in _turns(query, keys):
        mixed, of_score = _mixed(query[few], keys[few]), of_scores[few]
        of_out[few] += (of_score.flatten(1).unsqueeze(1) @ mixed.flatten(1, 2)).squeeze(1)
        slope = torch.sub(out, mixed.square_().mul_(out), out=mixed)  # out (1 - tanh^2)
        torch.matmul(of_score.unsqueeze(-2), slope, out=of_query[few].unsqueeze(-2))
        of_keys[few] += slope.mul_(of_score.unsqueeze(-1)).sum(1)
    return of_query


def _mixed(
    query: Float[Tensor, "few query dim"], keys: Float[Tensor, "few key dim"]
) -> Float[Tensor, "few query key dim"]:
    """The tanh of every query and key."""
    return (query.unsqueeze(2) + keys.unsqueeze(1)).tanh_()


def _turns(query: Float[Tensor, "batch query dim"], keys: Float[Tensor, "batch key dim"]) -> Iterator[slice]:
    """Rows that are done together."""
    few = max(1, CACHED // max(1, query.shape[1] * keys[0].numel()))
    return (slice(start, start + few) for start in range(0, len(query), few))
