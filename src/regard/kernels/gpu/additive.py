"""One step of additive attention: a program looks from one query at all keys of its row; no sum of a pair is kept."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 128  # numbers of a vector that a program holds at once
WARPS = 8  # of a program


@triton.jit
def _tile(base, batch, key, at, length, width):
    """Numbers `at` of all vectors of a row, zeros past the last of either."""
    real = (key < length)[:, None] & (at < width)[None, :]
    place = base + (batch.to(tl.int64) * length + key[:, None]) * width + at[None, :]
    return place, real


@triton.jit
def _mixed(query, keys, batch, key, at, length, dim):
    """The tanh of query + key."""
    place, real = _tile(keys, batch, key, at, length, dim)
    asked = tl.load(query + batch * dim + at, mask=at < dim, other=0.0)
    return 2 * tl.sigmoid(2 * (asked[None, :] + tl.load(place, mask=real, other=0.0))) - 1


@triton.jit
def _forward(query, keys, values, out, mask, context, weights, length, dim, width,
             KEYS: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    batch, key = tl.program_id(0), tl.arange(0, KEYS)
    seen = tl.load(mask + batch * length + key, mask=key < length, other=0) != 0
    scores = tl.zeros([KEYS], tl.float32)
    for start in range(0, dim, TILE):
        at = start + tl.arange(0, TILE)
        weigh = tl.load(out + at, mask=at < dim, other=0.0)
        scores += tl.sum(_mixed(query, keys, batch, key, at, length, dim) * weigh[None, :], 1)
    scores = tl.where(seen, scores, -1e38)
    powers = tl.where(seen, tl.exp(scores - tl.max(scores, 0)), 0.0)
    found = powers / tl.maximum(tl.sum(powers, 0), 1e-30)
    tl.store(weights + batch * length + key, found, mask=key < length)
    for start in range(0, width, TILE):
        at = start + tl.arange(0, TILE)
        place, real = _tile(values, batch, key, at, length, width)
        value = tl.load(place, mask=real, other=0.0)
        tl.store(context + batch * width + at, tl.sum(found[:, None] * value, 0), mask=at < width)


@triton.jit
def _backward(given, of_weights, query, keys, values, out, weights, of_query, of_keys, of_out, length, dim, width,
              KEYS: tl.constexpr, TILE: tl.constexpr, WEIGHED: tl.constexpr):  # fmt: skip
    batch, key = tl.program_id(0), tl.arange(0, KEYS)
    found = tl.load(weights + batch * length + key, mask=key < length, other=0.0)
    earned = tl.zeros([KEYS], tl.float32)
    if WEIGHED:
        earned += tl.load(of_weights + batch * length + key, mask=key < length, other=0.0)
    for start in range(0, width, TILE):
        at = start + tl.arange(0, TILE)
        place, real = _tile(values, batch, key, at, length, width)
        value = tl.load(place, mask=real, other=0.0)
        earned += tl.sum(value * tl.load(given + batch * width + at, mask=at < width, other=0.0)[None, :], 1)
    of_score = found * (earned - tl.sum(found * earned, 0))
    for start in range(0, dim, TILE):
        at = start + tl.arange(0, TILE)
        inside = at < dim
        mixed = _mixed(query, keys, batch, key, at, length, dim)
        total = of_out + batch * dim + at
        more = tl.sum(of_score[:, None] * mixed, 0)
        tl.store(total, tl.load(total, mask=inside, other=0.0) + more, mask=inside)
        weigh = tl.load(out + at, mask=inside, other=0.0)
        slope = of_score[:, None] * weigh[None, :] * (1 - mixed * mixed)
        tl.store(of_query + batch * dim + at, tl.sum(slope, 0), mask=inside)
        place, real = _tile(of_keys, batch, key, at, length, dim)
        tl.store(place, tl.load(place, mask=real, other=0.0) + slope, mask=real)


def forward(query: Tensor, keys: Tensor, values: Tensor, out: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Contexts (batch, width) and weights (batch, key), from queries (batch, dim) and what lies in rows."""
    batch, length, width = values.shape
    context, weights = query.new_empty(batch, width), query.new_empty(batch, length)
    _forward[(batch,)](query, keys, values, out, mask, context, weights, length, query.shape[1], width,
                       KEYS=triton.next_power_of_2(length), TILE=TILE, num_warps=WARPS)  # fmt: skip
    return context, weights


def backward(
    given: Tensor,
    of_weights: Tensor | None,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    weights: Tensor,
    of_keys: Tensor,
    of_out: Tensor,
) -> Tensor:
    """The gradient of the queries; those of the keys, and of `out` for each row, are added to what is there."""
    (batch, length, width), of_query = values.shape, torch.empty_like(query)
    _backward[(batch,)](given, weights if of_weights is None else of_weights, query, keys, values, out, weights,
                        of_query, of_keys, of_out, length, query.shape[1], width,
                        KEYS=triton.next_power_of_2(length), TILE=TILE, WEIGHED=of_weights is not None,
                        num_warps=WARPS)  # fmt: skip
    return of_query
