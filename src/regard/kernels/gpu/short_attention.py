"""Attention over few keys: one program holds all queries and keys of a head, so that nothing is kept."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 2  # of a program


@triton.jit
def _weights(query, keys, mask, batch, mask_batch, mask_key, queries, length, scale,
             Q: tl.constexpr, K: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    """softmax(scale query . keys) of a head, zeros where nothing is in sight."""
    key = tl.arange(0, K)
    seen = (key < length)[None, :]
    if MASKED:
        seen &= (tl.load(mask + batch * mask_batch + key * mask_key, mask=key < length, other=0) != 0)[None, :]
    if CAUSAL:
        seen &= key[None, :] <= tl.arange(0, Q)[:, None] + (length - queries)
    scores = tl.where(seen, tl.dot(query, tl.trans(keys), input_precision="ieee") * scale, -1e38)
    powers = tl.where(seen, tl.exp(scores - tl.max(scores, 1)[:, None]), 0.0)
    return powers / tl.maximum(tl.sum(powers, 1), 1e-30)[:, None]


@triton.jit
def _tile(base, batch, head, batch_step, head_step, time_step, length, T: tl.constexpr, WIDTH: tl.constexpr):
    """Where the vectors of a head lie, and which of them are real."""
    time = tl.arange(0, T)
    place = batch.to(tl.int64) * batch_step + head * head_step
    return base + place + time[:, None] * time_step + tl.arange(0, WIDTH)[None, :], time[:, None] < length


@triton.jit
def _read(base, batch, head, batch_step, head_step, time_step, length, T: tl.constexpr, WIDTH: tl.constexpr):
    """The vectors of a head, zeros past the last."""
    at, real = _tile(base, batch, head, batch_step, head_step, time_step, length, T, WIDTH)
    return tl.load(at, mask=real, other=0.0)


@triton.jit
def _forward(
    query, keys, values, mask, context,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, cb, ch, ct, mask_batch, mask_key,
    heads, queries, length, scale,
    Q: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    asked = _read(query, batch, head, qb, qh, qt, queries, Q, WIDTH)
    key = _read(keys, batch, head, kb, kh, kt, length, K, WIDTH)
    value = _read(values, batch, head, vb, vh, vt, length, K, WIDTH)
    weights = _weights(asked, key, mask, batch, mask_batch, mask_key, queries, length, scale, Q, K, MASKED, CAUSAL)
    seen = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    at, real = _tile(context, batch, head, cb, ch, ct, queries, Q, WIDTH)
    tl.store(at, seen.to(context.dtype.element_ty), mask=real)


@triton.jit
def _backward(
    gradient, query, keys, values, mask, of_query, of_keys, of_values,
    gb, gh, gt, qb, qh, qt, kb, kh, kt, vb, vh, vt, ab, ah, at_, bb, bh, bt, mask_batch, mask_key,
    heads, queries, length, scale,
    Q: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    asked = _read(query, batch, head, qb, qh, qt, queries, Q, WIDTH)
    key = _read(keys, batch, head, kb, kh, kt, length, K, WIDTH)
    value = _read(values, batch, head, vb, vh, vt, length, K, WIDTH)
    given = _read(gradient, batch, head, gb, gh, gt, queries, Q, WIDTH)
    weights = _weights(asked, key, mask, batch, mask_batch, mask_key, queries, length, scale, Q, K, MASKED, CAUSAL)
    rounded = weights.to(value.dtype)
    of_value = tl.dot(tl.trans(rounded), given.to(value.dtype), input_precision="ieee")
    at, there = _tile(of_values, batch, head, bb, bh, bt, length, K, WIDTH)
    tl.store(at, of_value.to(of_values.dtype.element_ty), mask=there)
    of_weights = tl.dot(given.to(value.dtype), tl.trans(value), input_precision="ieee")
    of_scores = weights * (of_weights - tl.sum(weights * of_weights, 1)[:, None]) * scale
    rounded = of_scores.to(key.dtype)
    at, real = _tile(of_query, batch, head, ab, ah, at_, queries, Q, WIDTH)
    tl.store(at, tl.dot(rounded, key, input_precision="ieee").to(of_query.dtype.element_ty), mask=real)
    at, there = _tile(of_keys, batch, head, bb, bh, bt, length, K, WIDTH)
    tl.store(at, tl.dot(tl.trans(rounded), asked, input_precision="ieee").to(of_keys.dtype.element_ty), mask=there)


def _sides(query: Tensor, keys: Tensor) -> dict[str, int]:
    """Powers of two that hold all queries, and all keys."""
    power = triton.next_power_of_2
    return {"Q": max(16, power(query.shape[2])), "K": max(16, power(keys.shape[2])), "WIDTH": query.shape[3]}


def _steps(tensor: Tensor) -> tuple[int, int, int]:
    """From one (batch, head, time) to the next; the last axis is dense."""
    return tensor.stride(0), tensor.stride(1), tensor.stride(2)


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _apart(tensor: Tensor) -> Tensor:
    """Room for the same, with the heads of one time side by side: so they are joined without a copy."""
    batch, heads, time, width = tensor.shape
    return tensor.new_empty(batch, time, heads, width).transpose(1, 2)


def _hidden(mask: Tensor | None) -> tuple[Tensor | None, int, int]:
    return (None, 0, 0) if mask is None else (mask.view(torch.uint8), mask.stride(0), mask.stride(1))


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, scale: float, context: Tensor
) -> None:
    """Fill the context."""
    hidden, mask_batch, mask_key = _hidden(mask)
    batch, heads, queries, _ = query.shape
    _forward[(batch * heads,)](
        query, keys, values, query if hidden is None else hidden, context,
        *_steps(query), *_steps(keys), *_steps(values), *_steps(context), mask_batch, mask_key,
        heads, queries, keys.shape[2], scale,
        **_sides(query, keys), MASKED=hidden is not None, CAUSAL=causal, num_warps=WARPS,
    )  # fmt: skip


def _learn(
    gradient: Tensor, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, scale: float,
    of_query: Tensor, of_keys: Tensor, of_values: Tensor,
) -> None:  # fmt: skip
    """Fill the gradients; those of keys and values lie alike."""
    hidden, mask_batch, mask_key = _hidden(mask)
    batch, heads, queries, _ = query.shape
    _backward[(batch * heads,)](
        gradient, query, keys, values, query if hidden is None else hidden, of_query, of_keys, of_values,
        *_steps(gradient), *_steps(query), *_steps(keys), *_steps(values), *_steps(of_query), *_steps(of_keys),
        mask_batch, mask_key, heads, queries, keys.shape[2], scale,
        **_sides(query, keys), MASKED=hidden is not None, CAUSAL=causal, num_warps=WARPS,
    )  # fmt: skip


@torch.library.custom_op("regard::short_attention", mutates_args=())
def short_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """softmax(scale query . keys) values, each (batch, heads, time, width); `mask` (batch, key) hides keys."""
    query, keys, values = _dense(query), _dense(keys), _dense(values)
    context = _apart(query)
    _attend(query, keys, values, mask, causal, scale, context)
    return context


@short_attention.register_fake
def _(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    return _apart(query)


@torch.library.custom_op("regard::short_attention_backward", mutates_args=())
def short_attention_backward(
    gradient: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, keys and values."""
    gradient, query, keys, values = _dense(gradient), _dense(query), _dense(keys), _dense(values)
    found = _apart(query), _apart(keys), _apart(keys)
    _learn(gradient, query, keys, values, mask, causal, scale, *found)
    return found


@short_attention_backward.register_fake
def _(gradient: Tensor, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool,
      scale: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _apart(query), _apart(keys), _apart(keys)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    query, keys, values, mask, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(query, keys, values, mask)


def _back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    query, keys, values, mask = ctx.saved_tensors
    found = short_attention_backward(gradient, query, keys, values, mask, ctx.causal, ctx.scale)
    return *found, None, None, None


short_attention.register_autograd(_back, setup_context=_keep)


def _three(wide: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (batch, heads, time, width) that lie side by side."""
    query, keys, values = wide.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return query, keys, values


@torch.library.custom_op("regard::short_self_attention", mutates_args=())
def short_self_attention(wide: Tensor, heads: int, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """The same of tokens with themselves, from (batch, time, 3 x dim) to (batch, time, dim)."""
    batch, time, sides = wide.shape
    context = wide.new_empty(batch, time, sides // 3)
    _attend(*_three(wide, heads), mask, causal, scale, context.unflatten(2, (heads, -1)).transpose(1, 2))
    return context


@short_self_attention.register_fake
def _(wide: Tensor, heads: int, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    batch, time, sides = wide.shape
    return wide.new_empty(batch, time, sides // 3)


@torch.library.custom_op("regard::short_self_attention_backward", mutates_args=())
def short_self_attention_backward(
    gradient: Tensor, wide: Tensor, heads: int, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """The gradients of all three, side by side."""
    found = torch.empty_like(wide)
    given = gradient.unflatten(2, (heads, -1)).transpose(1, 2)
    _learn(given, *_three(wide, heads), mask, causal, scale, *_three(found, heads))
    return found


@short_self_attention_backward.register_fake
def _(gradient: Tensor, wide: Tensor, heads: int, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    return torch.empty_like(wide)


def _keep_wide(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    wide, ctx.heads, mask, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(wide, mask)


def _back_wide(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    wide, mask = ctx.saved_tensors
    found = short_self_attention_backward(gradient.contiguous(), wide, ctx.heads, mask, ctx.causal, ctx.scale)
    return found, None, None, None, None


short_self_attention.register_autograd(_back_wide, setup_context=_keep_wide)
