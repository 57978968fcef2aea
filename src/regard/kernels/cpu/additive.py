"""Additive attention on the CPU, by blocks of rows; tanh(query + key) is held only for the rows of one block."""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

CACHED = 1 << 18  # numbers of one block: they fit into the caches


def forward(
    query: Float[Tensor, "batch query dim"],
    keys: Float[Tensor, "batch key dim"],
    values: Float[Tensor, "batch key width"],
    out: Float[Tensor, "1 dim"],
    mask: Bool[Tensor, "batch key"],
) -> tuple[Float[Tensor, "batch query width"], Float[Tensor, "batch query key"]]:
    """Contexts and weights of softmax(out . tanh(query + keys))."""
    scores = torch.cat([_tanh(query[rows], keys[rows]) @ out[0] for rows in _blocks(query, keys)])
    hidden = ~mask.unsqueeze(1)
    lowest = torch.finfo(scores.dtype).min  # not -inf: a row without any visible key would become NaN
    weights = torch.softmax(scores.masked_fill_(hidden, lowest), dim=-1).masked_fill_(hidden, 0.0)
    return weights @ values, weights


def backward(
    context_grad: Float[Tensor, "batch query width"],
    weights_grad: Float[Tensor, "batch query key"] | None,
    query: Float[Tensor, "batch query dim"],
    keys: Float[Tensor, "batch key dim"],
    values: Float[Tensor, "batch key width"],
    out: Float[Tensor, "1 dim"],
    weights: Float[Tensor, "batch query key"],
    keys_grad: Float[Tensor, "batch key dim"],
    out_grad: Float[Tensor, "batch dim"],
) -> Float[Tensor, "batch query dim"]:
    """The gradient of the queries; those of the keys and, per row, of `out` are added in place to the last two."""
    total_grad = context_grad @ values.transpose(1, 2)  # of the weights: through the context, and directly
    if weights_grad is not None:
        total_grad += weights_grad
    scores_grad = weights * (total_grad - (weights * total_grad).sum(-1, keepdim=True))
    query_grad = torch.empty_like(query)
    for rows in _blocks(query, keys):
        tanh, score_grad = _tanh(query[rows], keys[rows]), scores_grad[rows]
        out_grad[rows] += (score_grad.flatten(1).unsqueeze(1) @ tanh.flatten(1, 2)).squeeze(1)
        slope = torch.sub(out, tanh.square_().mul_(out), out=tanh)  # out (1 - tanh^2)
        torch.matmul(score_grad.unsqueeze(-2), slope, out=query_grad[rows].unsqueeze(-2))
        keys_grad[rows] += slope.mul_(score_grad.unsqueeze(-1)).sum(1)
    return query_grad


def _tanh(
    query: Float[Tensor, "rows query dim"], keys: Float[Tensor, "rows key dim"]
) -> Float[Tensor, "rows query key dim"]:
    """tanh(query + key) for every pair of query and key."""
    return (query.unsqueeze(2) + keys.unsqueeze(1)).tanh_()


def _blocks(query: Float[Tensor, "batch query dim"], keys: Float[Tensor, "batch key dim"]) -> Iterator[slice]:
    """Slices of rows, each small enough for the caches."""
    size = max(1, CACHED // max(1, query.shape[1] * keys[0].numel()))
    return (slice(start, start + size) for start in range(0, len(query), size))
