"""Additive attention of a few queries per row; tanh(query + key) stays in registers and is never stored."""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDE, NARROW = 512, 64  # most numbers of a vector that a program holds at once: of one query, of all in a row
MANY_WARPS, FEW_WARPS = 16, 4


@triton.jit
def _tile(base, row, key, at, length, width):
    """Addresses of the numbers `at` of all vectors of a row, and a mask of those that exist."""
    address = base + (row.to(tl.int64) * length + key[:, None]) * width + at[None, :]
    return address, (key < length)[:, None] & (at < width)[None, :]


@triton.jit
def _tanh(vector, keys):
    """tanh(query + key) of one query and every key, since tanh(x) = 2 sigmoid(2x) - 1."""
    return 2 * tl.sigmoid(2 * (vector[None, :] + keys)) - 1


@triton.jit
def _forward(query, keys, values, out, mask, context, weights, queries, length, dim, width,
             KEYS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """One program computes the context and the weights of one query."""
    index, key = tl.program_id(0), tl.arange(0, KEYS)
    row = index // queries
    visible = tl.load(mask + row * length + key, mask=key < length, other=0) != 0
    scores = tl.zeros([KEYS], tl.float32)
    for start in range(0, dim, DIM):
        at = start + tl.arange(0, DIM)
        address, real = _tile(keys, row, key, at, length, dim)
        vector = tl.load(query + index * dim + at, mask=at < dim, other=0.0)
        tanh = _tanh(vector, tl.load(address, mask=real, other=0.0))
        scores += tl.sum(tanh * tl.load(out + at, mask=at < dim, other=0.0)[None, :], 1)
    scores = tl.where(visible, scores, -1e38)
    exponentials = tl.where(visible, tl.exp(scores - tl.max(scores, 0)), 0.0)
    weight = exponentials / tl.maximum(tl.sum(exponentials, 0), 1e-30)
    tl.store(weights + index * length + key, weight, mask=key < length)
    for start in range(0, width, WIDTH):
        at = start + tl.arange(0, WIDTH)
        address, real = _tile(values, row, key, at, length, width)
        value = tl.load(address, mask=real, other=0.0)
        tl.store(context + index * width + at, tl.sum(weight[:, None] * value, 0), mask=at < width)


@triton.jit
def _scores_kernel(context_grad, weights_grad, values, weights, scores_grad, queries, length, width,
                   KEYS: tl.constexpr, WIDTH: tl.constexpr, HAS_WEIGHTS_GRAD: tl.constexpr):  # fmt: skip
    """One program computes the gradient of the scores of one query."""
    index, key = tl.program_id(0), tl.arange(0, KEYS)
    row = index // queries
    weight = tl.load(weights + index * length + key, mask=key < length, other=0.0)
    total_grad = tl.zeros([KEYS], tl.float32)
    if HAS_WEIGHTS_GRAD:
        total_grad += tl.load(weights_grad + index * length + key, mask=key < length, other=0.0)
    for start in range(0, width, WIDTH):
        at = start + tl.arange(0, WIDTH)
        address, real = _tile(values, row, key, at, length, width)
        grad = tl.load(context_grad + index * width + at, mask=at < width, other=0.0)
        total_grad += tl.sum(tl.load(address, mask=real, other=0.0) * grad[None, :], 1)
    score_grad = weight * (total_grad - tl.sum(weight * total_grad, 0))
    tl.store(scores_grad + index * length + key, score_grad, mask=key < length)


@triton.jit
def _keys_kernel(scores_grad, query, keys, out, query_grad, keys_grad, out_grad, queries, length, dim,
                 KEYS: tl.constexpr, DIM: tl.constexpr):  # fmt: skip
    """One program computes gradients for DIM numbers of a row: of its queries; of keys and `out`, added in place."""
    row, key, at = tl.program_id(0), tl.arange(0, KEYS), tl.program_id(1) * DIM + tl.arange(0, DIM)
    inside = at < dim
    address, real = _tile(keys, row, key, at, length, dim)
    states = tl.load(address, mask=real, other=0.0)
    factor = tl.load(out + at, mask=inside, other=0.0)
    sums, _ = _tile(keys_grad, row, key, at, length, dim)
    total = tl.load(sums, mask=real, other=0.0)
    factor_grad = tl.load(out_grad + row * dim + at, mask=inside, other=0.0)
    for position in range(queries):
        index = row * queries + position
        score_grad = tl.load(scores_grad + index * length + key, mask=key < length, other=0.0)
        vector = tl.load(query + index * dim + at, mask=inside, other=0.0)
        tanh = _tanh(vector, states)
        factor_grad += tl.sum(score_grad[:, None] * tanh, 0)
        slope = score_grad[:, None] * factor[None, :] * (1 - tanh * tanh)
        tl.store(query_grad + index * dim + at, tl.sum(slope, 0), mask=inside)
        total += slope
    tl.store(sums, total, mask=real)
    tl.store(out_grad + row * dim + at, factor_grad, mask=inside)


def forward(query: Tensor, keys: Tensor, values: Tensor, out: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Contexts and weights, as in `cpu.additive`; all tensors are contiguous."""
    (batch, queries, dim), (length, width) = query.shape, values.shape[1:]
    context, weights = query.new_empty(batch, queries, width), query.new_empty(batch, queries, length)
    _forward[(batch * queries,)](
        query, keys, values, out, mask, context, weights, queries, length, dim, width,
        KEYS=triton.next_power_of_2(length), DIM=_tiled(dim), WIDTH=_tiled(width), num_warps=MANY_WARPS,
    )  # fmt: skip
    return context, weights


def backward(
    context_grad: Tensor,
    weights_grad: Tensor | None,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    weights: Tensor,
    keys_grad: Tensor,
    out_grad: Tensor,
) -> Tensor:
    """The gradient of the queries; those of keys and `out` are added in place, as in `cpu.additive`."""
    (batch, queries, dim), (length, width) = query.shape, values.shape[1:]
    scores_grad, query_grad, slots = torch.empty_like(weights), torch.empty_like(query), triton.next_power_of_2(length)
    _scores_kernel[(batch * queries,)](
        context_grad, weights if weights_grad is None else weights_grad, values, weights, scores_grad, queries,
        length, width, KEYS=slots, WIDTH=_tiled(width), HAS_WEIGHTS_GRAD=weights_grad is not None, num_warps=MANY_WARPS,
    )  # fmt: skip
    _keys_kernel[(batch, triton.cdiv(dim, NARROW))](
        scores_grad, query, keys, out, query_grad, keys_grad, out_grad, queries, length, dim,
        KEYS=slots, DIM=NARROW, num_warps=FEW_WARPS,
    )  # fmt: skip
    return query_grad


def _tiled(width: int) -> int:
    """How many numbers of a vector of this width a program holds at once."""
    size: int = triton.next_power_of_2(width)
    return min(WIDE, size)
