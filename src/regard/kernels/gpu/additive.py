"""Additive attention from a few queries to the keys of their row; no sum of a query and a key is ever kept."""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDE, NARROW = 512, 64  # numbers of a vector that a program holds at once: for one query, for all of a row
MANY_WARPS, FEW_WARPS = 16, 4


@triton.jit
def _tile(base, row, key, at, length, width):
    """Where numbers `at` of all vectors of a row lie, and which of them there are."""
    place = base + (row.to(tl.int64) * length + key[:, None]) * width + at[None, :]
    return place, (key < length)[:, None] & (at < width)[None, :]


@triton.jit
def _mixed(asked, keys):
    """The tanh of a query and every key."""
    return 2 * tl.sigmoid(2 * (asked[None, :] + keys)) - 1


@triton.jit
def _forward(query, keys, values, out, mask, context, weights, queries, length, dim, width,
             KEYS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """The context and the weights of one query."""
    asking, key = tl.program_id(0), tl.arange(0, KEYS)
    row = asking // queries
    seen = tl.load(mask + row * length + key, mask=key < length, other=0) != 0
    scores = tl.zeros([KEYS], tl.float32)
    for start in range(0, dim, DIM):
        at = start + tl.arange(0, DIM)
        place, real = _tile(keys, row, key, at, length, dim)
        asked = tl.load(query + asking * dim + at, mask=at < dim, other=0.0)
        mixed = _mixed(asked, tl.load(place, mask=real, other=0.0))
        scores += tl.sum(mixed * tl.load(out + at, mask=at < dim, other=0.0)[None, :], 1)
    scores = tl.where(seen, scores, -1e38)
    powers = tl.where(seen, tl.exp(scores - tl.max(scores, 0)), 0.0)
    found = powers / tl.maximum(tl.sum(powers, 0), 1e-30)
    tl.store(weights + asking * length + key, found, mask=key < length)
    for start in range(0, width, WIDTH):
        at = start + tl.arange(0, WIDTH)
        place, real = _tile(values, row, key, at, length, width)
        value = tl.load(place, mask=real, other=0.0)
        tl.store(context + asking * width + at, tl.sum(found[:, None] * value, 0), mask=at < width)


@triton.jit
def _of_scores(given, of_weights, values, weights, of_scores, queries, length, width,
               KEYS: tl.constexpr, WIDTH: tl.constexpr, WEIGHED: tl.constexpr):  # fmt: skip
    """The gradient of the scores of one query."""
    asking, key = tl.program_id(0), tl.arange(0, KEYS)
    row = asking // queries
    found = tl.load(weights + asking * length + key, mask=key < length, other=0.0)
    earned = tl.zeros([KEYS], tl.float32)
    if WEIGHED:
        earned += tl.load(of_weights + asking * length + key, mask=key < length, other=0.0)
    for start in range(0, width, WIDTH):
        at = start + tl.arange(0, WIDTH)
        place, real = _tile(values, row, key, at, length, width)
        gain = tl.load(given + asking * width + at, mask=at < width, other=0.0)
        earned += tl.sum(tl.load(place, mask=real, other=0.0) * gain[None, :], 1)
    tl.store(of_scores + asking * length + key, found * (earned - tl.sum(found * earned, 0)), mask=key < length)


@triton.jit
def _of_keys(of_scores, query, keys, out, of_query, of_keys, of_out, queries, length, dim,
             KEYS: tl.constexpr, DIM: tl.constexpr):  # fmt: skip
    """The gradients of a part of a row's keys and of all its queries; the former and that of `out` are added up."""
    row, key, at = tl.program_id(0), tl.arange(0, KEYS), tl.program_id(1) * DIM + tl.arange(0, DIM)
    inside = at < dim
    place, real = _tile(keys, row, key, at, length, dim)
    states = tl.load(place, mask=real, other=0.0)
    weigh = tl.load(out + at, mask=inside, other=0.0)
    into, _ = _tile(of_keys, row, key, at, length, dim)
    total = tl.load(into, mask=real, other=0.0)
    of_weigh = tl.load(of_out + row * dim + at, mask=inside, other=0.0)
    for each in range(queries):
        asking = row * queries + each
        of_score = tl.load(of_scores + asking * length + key, mask=key < length, other=0.0)
        asked = tl.load(query + asking * dim + at, mask=inside, other=0.0)
        mixed = _mixed(asked, states)
        of_weigh += tl.sum(of_score[:, None] * mixed, 0)
        slope = of_score[:, None] * weigh[None, :] * (1 - mixed * mixed)
        tl.store(of_query + asking * dim + at, tl.sum(slope, 0), mask=inside)
        total += slope
    tl.store(into, total, mask=real)
    tl.store(of_out + row * dim + at, of_weigh, mask=inside)


def forward(query: Tensor, keys: Tensor, values: Tensor, out: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Contexts and weights, as `cpu.additive` has them; all lie in rows without gaps."""
    (batch, queries, dim), (length, width) = query.shape, values.shape[1:]
    context, weights = query.new_empty(batch, queries, width), query.new_empty(batch, queries, length)
    _forward[(batch * queries,)](
        query, keys, values, out, mask, context, weights, queries, length, dim, width,
        KEYS=triton.next_power_of_2(length), DIM=_tiled(dim), WIDTH=_tiled(width), num_warps=MANY_WARPS,
    )  # fmt: skip
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
    """The gradient of the queries, and what is added to the others, likewise."""
    (batch, queries, dim), (length, width) = query.shape, values.shape[1:]
    of_scores, of_query, many = torch.empty_like(weights), torch.empty_like(query), triton.next_power_of_2(length)
    _of_scores[(batch * queries,)](
        given, weights if of_weights is None else of_weights, values, weights, of_scores, queries, length, width,
        KEYS=many, WIDTH=_tiled(width), WEIGHED=of_weights is not None, num_warps=MANY_WARPS,
    )  # fmt: skip
    _of_keys[(batch, triton.cdiv(dim, NARROW))](
        of_scores, query, keys, out, of_query, of_keys, of_out, queries, length, dim,
        KEYS=many, DIM=NARROW, num_warps=FEW_WARPS,
    )  # fmt: skip
    return of_query


def _tiled(width: int) -> int:
    size: int = triton.next_power_of_2(width)
    return min(WIDE, size)
