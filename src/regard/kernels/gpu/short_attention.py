"""Dot-product attention over few keys: one program holds all queries and keys of a head, and stores no weights."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 2  # of a program


@triton.jit
def _weights(query, keys, mask, batch, mask_batch, mask_key, queries, length, scale,
             Q: tl.constexpr, K: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    """softmax(scale query . keys) of a head; zeros in the row of a query that may see no key."""
    key = tl.arange(0, K)
    visible = (key < length)[None, :]
    if MASKED:
        visible &= (tl.load(mask + batch * mask_batch + key * mask_key, mask=key < length, other=0) != 0)[None, :]
    if CAUSAL:
        visible &= key[None, :] <= tl.arange(0, Q)[:, None] + (length - queries)
    scores = tl.where(visible, tl.dot(query, tl.trans(keys), input_precision="ieee") * scale, -1e38)
    exponentials = tl.where(visible, tl.exp(scores - tl.max(scores, 1)[:, None]), 0.0)
    return exponentials / tl.maximum(tl.sum(exponentials, 1), 1e-30)[:, None]


@triton.jit
def _tile(base, batch, head, batch_stride, head_stride, time_stride, length, T: tl.constexpr, WIDTH: tl.constexpr):
    """Addresses of the vectors of a head, and a mask of those that exist."""
    time = tl.arange(0, T)
    start = batch.to(tl.int64) * batch_stride + head * head_stride
    return base + start + time[:, None] * time_stride + tl.arange(0, WIDTH)[None, :], time[:, None] < length


@triton.jit
def _read(base, batch, head, batch_stride, head_stride, time_stride, length, T: tl.constexpr, WIDTH: tl.constexpr):
    """The vectors of a head, with zeros after the last."""
    address, exists = _tile(base, batch, head, batch_stride, head_stride, time_stride, length, T, WIDTH)
    return tl.load(address, mask=exists, other=0.0)


@triton.jit
def _forward(
    query, keys, values, mask, context,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, cb, ch, ct, mask_batch, mask_key,
    heads, queries, length, scale,
    Q: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program computes the context of one head; qb, qh, qt and so on are strides of batch, head and time."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    vectors = _read(query, batch, head, qb, qh, qt, queries, Q, WIDTH)
    key = _read(keys, batch, head, kb, kh, kt, length, K, WIDTH)
    value = _read(values, batch, head, vb, vh, vt, length, K, WIDTH)
    weights = _weights(vectors, key, mask, batch, mask_batch, mask_key, queries, length, scale, Q, K, MASKED, CAUSAL)
    result = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    address, is_query = _tile(context, batch, head, cb, ch, ct, queries, Q, WIDTH)
    tl.store(address, result.to(context.dtype.element_ty), mask=is_query)


@triton.jit
def _backward(
    gradient, query, keys, values, mask, query_grad, keys_grad, values_grad,
    gb, gh, gt, qb, qh, qt, kb, kh, kt, vb, vh, vt, xb, xh, xt, yb, yh, yt, mask_batch, mask_key,
    heads, queries, length, scale,
    Q: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """One program computes the weights of one head again, and the gradients of its queries, keys and values."""
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    vectors = _read(query, batch, head, qb, qh, qt, queries, Q, WIDTH)
    key = _read(keys, batch, head, kb, kh, kt, length, K, WIDTH)
    value = _read(values, batch, head, vb, vh, vt, length, K, WIDTH)
    context_grad = _read(gradient, batch, head, gb, gh, gt, queries, Q, WIDTH)
    weights = _weights(vectors, key, mask, batch, mask_batch, mask_key, queries, length, scale, Q, K, MASKED, CAUSAL)
    rounded = weights.to(value.dtype)
    value_grad = tl.dot(tl.trans(rounded), context_grad.to(value.dtype), input_precision="ieee")
    address, is_key = _tile(values_grad, batch, head, yb, yh, yt, length, K, WIDTH)
    tl.store(address, value_grad.to(values_grad.dtype.element_ty), mask=is_key)
    weights_grad = tl.dot(context_grad.to(value.dtype), tl.trans(value), input_precision="ieee")
    scores_grad = weights * (weights_grad - tl.sum(weights * weights_grad, 1)[:, None]) * scale
    rounded = scores_grad.to(key.dtype)
    address, is_query = _tile(query_grad, batch, head, xb, xh, xt, queries, Q, WIDTH)
    tl.store(address, tl.dot(rounded, key, input_precision="ieee").to(query_grad.dtype.element_ty), mask=is_query)
    address, is_key = _tile(keys_grad, batch, head, yb, yh, yt, length, K, WIDTH)
    key_grad = tl.dot(tl.trans(rounded), vectors, input_precision="ieee")
    tl.store(address, key_grad.to(keys_grad.dtype.element_ty), mask=is_key)


def _tile_sizes(query: Tensor, keys: Tensor) -> dict[str, int]:
    """Sizes of a program's tiles: powers of two that hold all queries and all keys, and the width of a head."""
    power = triton.next_power_of_2
    return {"Q": max(16, power(query.shape[2])), "K": max(16, power(keys.shape[2])), "WIDTH": query.shape[3]}


def _strides(tensor: Tensor) -> tuple[int, int, int]:
    """The strides of batch, head and time; the last axis is contiguous."""
    return tensor.stride(0), tensor.stride(1), tensor.stride(2)


def _dense(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it, with a contiguous last axis."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _empty_by_time(tensor: Tensor) -> Tensor:
    """An empty tensor of the same shape, in which all heads of a time step are adjacent: joining them needs no copy."""
    batch, heads, time, width = tensor.shape
    return tensor.new_empty(batch, time, heads, width).transpose(1, 2)


def _bytes(mask: Tensor | None) -> tuple[Tensor | None, int, int]:
    """The mask as bytes, and its strides of batch and key."""
    return (None, 0, 0) if mask is None else (mask.view(torch.uint8), mask.stride(0), mask.stride(1))


def _run_forward(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, scale: float, context: Tensor
) -> None:
    """Launch the Triton kernel that computes the attention of all queries and writes it into `context`."""
    mask_bytes, mask_batch, mask_key = _bytes(mask)
    batch, heads, queries, _ = query.shape
    _forward[(batch * heads,)](
        query, keys, values, query if mask_bytes is None else mask_bytes, context,
        *_strides(query), *_strides(keys), *_strides(values), *_strides(context), mask_batch, mask_key,
        heads, queries, keys.shape[2], scale,
        **_tile_sizes(query, keys), MASKED=mask_bytes is not None, CAUSAL=causal, num_warps=WARPS,
    )  # fmt: skip


def _run_backward(
    gradient: Tensor, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, scale: float,
    query_grad: Tensor, keys_grad: Tensor, values_grad: Tensor,
) -> None:  # fmt: skip
    """Run the backward kernel, which writes the three gradients; those of keys and values have the same strides."""
    mask_bytes, mask_batch, mask_key = _bytes(mask)
    batch, heads, queries, _ = query.shape
    _backward[(batch * heads,)](
        gradient, query, keys, values, query if mask_bytes is None else mask_bytes, query_grad, keys_grad, values_grad,
        *_strides(gradient), *_strides(query), *_strides(keys), *_strides(values),
        *_strides(query_grad), *_strides(keys_grad), mask_batch, mask_key, heads, queries, keys.shape[2], scale,
        **_tile_sizes(query, keys), MASKED=mask_bytes is not None, CAUSAL=causal, num_warps=WARPS,
    )  # fmt: skip


@torch.library.custom_op("regard::short_attention", mutates_args=())
def short_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """softmax(scale query . keys) values, each (batch, heads, time, width); `mask` (batch, key) is True if visible."""
    query, keys, values = _dense(query), _dense(keys), _dense(values)
    context = _empty_by_time(query)
    _run_forward(query, keys, values, mask, causal, scale, context)
    return context


@short_attention.register_fake
def _(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    return _empty_by_time(query)


@torch.library.custom_op("regard::short_attention_backward", mutates_args=())
def short_attention_backward(
    gradient: Tensor, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, keys and values."""
    gradient, query, keys, values = _dense(gradient), _dense(query), _dense(keys), _dense(values)
    input_grads = _empty_by_time(query), _empty_by_time(keys), _empty_by_time(keys)
    _run_backward(gradient, query, keys, values, mask, causal, scale, *input_grads)
    return input_grads


@short_attention_backward.register_fake
def _(gradient: Tensor, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool,
      scale: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _empty_by_time(query), _empty_by_time(keys), _empty_by_time(keys)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save what backward needs."""
    query, keys, values, mask, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(query, keys, values, mask)


def _backpropagate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    query, keys, values, mask = ctx.saved_tensors
    input_grads = short_attention_backward(gradient, query, keys, values, mask, ctx.causal, ctx.scale)
    return *input_grads, None, None, None


short_attention.register_autograd(_backpropagate, setup_context=_save)


def _split(wide: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split a joint projection (batch, time, 3 x dim) into queries, keys and values (batch, heads, time, width)."""
    query, keys, values = wide.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return query, keys, values


@torch.library.custom_op("regard::short_self_attention", mutates_args=())
def short_self_attention(wide: Tensor, heads: int, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Self-attention from the joint projection `wide` (batch, time, 3 x dim) to contexts (batch, time, dim)."""
    batch, time, sides = wide.shape
    context = wide.new_empty(batch, time, sides // 3)
    _run_forward(*_split(wide, heads), mask, causal, scale, context.unflatten(2, (heads, -1)).transpose(1, 2))
    return context


@short_self_attention.register_fake
def _(wide: Tensor, heads: int, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    batch, time, sides = wide.shape
    return wide.new_empty(batch, time, sides // 3)


@torch.library.custom_op("regard::short_self_attention_backward", mutates_args=())
def short_self_attention_backward(
    gradient: Tensor, wide: Tensor, heads: int, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """The gradient of the joint projection of queries, keys and values."""
    wide_grad = torch.empty_like(wide)
    context_grad = gradient.unflatten(2, (heads, -1)).transpose(1, 2)
    _run_backward(context_grad, *_split(wide, heads), mask, causal, scale, *_split(wide_grad, heads))
    return wide_grad


@short_self_attention_backward.register_fake
def _(gradient: Tensor, wide: Tensor, heads: int, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    return torch.empty_like(wide)


def _save_wide(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save what backward needs."""
    wide, ctx.heads, mask, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(wide, mask)


def _backpropagate_wide(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    wide, mask = ctx.saved_tensors
    wide_grad = short_self_attention_backward(gradient.contiguous(), wide, ctx.heads, mask, ctx.causal, ctx.scale)
    return wide_grad, None, None, None, None


short_self_attention.register_autograd(_backpropagate_wide, setup_context=_save_wide)
