"""Residual sum, dropout and layer normalisation, one kernel for forward and one for backward.

The dropout mask is not stored: backward draws it again from the same seeds.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 2  # of one program at a time
PROGRAMS = 1056  # of backward, eight for each multiprocessor of a large GPU: each sums the gradients of its rows


@triton.jit
def _hash(bits):
    """Hash of 32 bits, a bijection; every output bit depends on every input bit (C. Wellons, lowbias32)."""
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= bits >> 15
    bits *= 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def _mask(seeds, row, column, DIM: tl.constexpr, threshold):
    """The dropout mask of these rows, a function of seeds and position only: True for numbers that are kept."""
    offset = (row[:, None] * DIM + column[None, :]).to(tl.uint32)
    first, second = tl.load(seeds).to(tl.uint32), tl.load(seeds + 1).to(tl.uint32)
    return _hash(_hash(offset ^ first) + second) >= threshold


@triton.jit
def _forward(
    states, change, weight, bias, seeds, total, normed, means, scales, rows, threshold, keep_scale, epsilon,
    DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS_HELD: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """One program computes ROWS_HELD rows: sum, normalised row, mean and 1 / deviation."""
    row = tl.program_id(0) * ROWS_HELD + tl.arange(0, ROWS_HELD)
    column = tl.arange(0, WIDTH)
    real = (row[:, None] < rows) & (column[None, :] < DIM)
    offset = row[:, None].to(tl.int64) * DIM + column[None, :]
    update = tl.load(change + offset, mask=real, other=0.0).to(tl.float32)
    if DROPS:
        update = tl.where(_mask(seeds, row, column, DIM, threshold), update * keep_scale, 0.0)
    value = tl.load(states + offset, mask=real, other=0.0).to(tl.float32) + update
    tl.store(total + offset, value, mask=real)
    mean = tl.sum(value, 1) / DIM
    centred = tl.where(real, value - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / DIM + epsilon)
    tl.store(means + row, mean, mask=row < rows)
    tl.store(scales + row, scale, mask=row < rows)
    factor = tl.load(weight + column, mask=column < DIM, other=0.0)
    shift = tl.load(bias + column, mask=column < DIM, other=0.0)
    result = centred * scale[:, None] * factor[None, :] + shift[None, :]
    tl.store(normed + offset, result.to(normed.dtype.element_ty), mask=real)


@triton.jit
def _backward(
    total_grad, normed_grad, total, weight, seeds, means, scales, states_grad, change_grad, partial_grads,
    rows, steps, threshold, keep_scale,
    DIM: tl.constexpr, WIDTH: tl.constexpr, ROWS_HELD: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    """One program computes the gradients of ROWS_HELD rows at each step, and sums those of weight and bias."""
    column = tl.arange(0, WIDTH)
    inside = column < DIM
    factor = tl.load(weight + column, mask=inside, other=0.0)
    weight_grad = tl.zeros([ROWS_HELD, WIDTH], tl.float32)
    bias_grad = tl.zeros([ROWS_HELD, WIDTH], tl.float32)
    for step in range(steps):
        row = (step * tl.num_programs(0) + tl.program_id(0)) * ROWS_HELD + tl.arange(0, ROWS_HELD)
        real = (row[:, None] < rows) & inside[None, :]
        offset = row[:, None].to(tl.int64) * DIM + column[None, :]
        mean = tl.load(means + row, mask=row < rows, other=0.0)
        scale = tl.load(scales + row, mask=row < rows, other=0.0)
        value = tl.load(total + offset, mask=real, other=0.0).to(tl.float32)
        gradient = tl.load(normed_grad + offset, mask=real, other=0.0).to(tl.float32)
        unit = tl.where(real, (value - mean[:, None]) * scale[:, None], 0.0)
        weight_grad += gradient * unit
        bias_grad += gradient
        inner = gradient * factor[None, :]
        mean_product, mean_inner = tl.sum(inner * unit, 1) / DIM, tl.sum(inner, 1) / DIM
        grad = (inner - unit * mean_product[:, None] - mean_inner[:, None]) * scale[:, None]
        grad += tl.load(total_grad + offset, mask=real, other=0.0).to(tl.float32)
        tl.store(states_grad + offset, grad.to(states_grad.dtype.element_ty), mask=real)
        if DROPS:
            grad = tl.where(_mask(seeds, row, column, DIM, threshold), grad * keep_scale, 0.0)
        tl.store(change_grad + offset, grad.to(change_grad.dtype.element_ty), mask=real)
    partial = partial_grads + tl.program_id(0) * 2 * DIM + column
    tl.store(partial, tl.sum(weight_grad, 0), mask=inside)
    tl.store(partial + DIM, tl.sum(bias_grad, 0), mask=inside)


def _warps(dim: int) -> int:
    """How many warps a program has, for rows of this width."""
    return 2 if dim <= 1024 else 8


def _threshold_and_scale(probability: float) -> tuple[int, float]:
    """The threshold below which 32 random bits drop a number, and the scale of the numbers that are kept."""
    threshold = min(round(probability * 2**32), 2**32 - 1)
    return threshold, 2**32 / (2**32 - threshold)


@torch.library.custom_op("regard::add_norm", mutates_args=())
def add_norm(
    states: Tensor,
    update: Tensor,
    weight: Tensor,
    bias: Tensor,
    seeds: Tensor,
    probability: float,
    epsilon: float,
    half: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum of states and dropout(update), its normalised rows (in bfloat16 if `half`), their means and scales."""
    dim, rows = states.shape[-1], states.numel() // states.shape[-1]
    total, normed = torch.empty_like(states), torch.empty_like(states, dtype=torch.bfloat16 if half else states.dtype)
    means, scales = states.new_empty(rows, dtype=torch.float32), states.new_empty(rows, dtype=torch.float32)
    threshold, keep_scale = _threshold_and_scale(probability)
    _forward[(triton.cdiv(rows, ROWS),)](
        states, update, weight, bias, seeds, total, normed, means, scales, rows, threshold, keep_scale, epsilon,
        DIM=dim, WIDTH=triton.next_power_of_2(dim), ROWS_HELD=ROWS, DROPS=probability > 0, num_warps=_warps(dim),
    )  # fmt: skip
    return total, normed, means, scales


@add_norm.register_fake
def _(states: Tensor, update: Tensor, weight: Tensor, bias: Tensor, seeds: Tensor, probability: float, epsilon: float,
      half: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rows = states.numel() // states.shape[-1]
    normed = torch.empty_like(states, dtype=torch.bfloat16 if half else states.dtype)
    means = states.new_empty(rows, dtype=torch.float32)
    return torch.empty_like(states), normed, means, torch.empty_like(means)


@torch.library.custom_op("regard::add_norm_backward", mutates_args=())
def add_norm_backward(
    total_grad: Tensor,
    normed_grad: Tensor,
    total: Tensor,
    weight: Tensor,
    seeds: Tensor,
    means: Tensor,
    scales: Tensor,
    probability: float,
    update_type: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of states, of update, and of weight and bias, these two stacked."""
    dim, rows = total.shape[-1], means.numel()
    states_grad, update_grad = torch.empty_like(total), torch.empty_like(total, dtype=update_type)
    blocks = triton.cdiv(rows, ROWS)
    programs = min(PROGRAMS, blocks)
    partial_grads = total.new_empty(programs, 2, dim, dtype=torch.float32)
    threshold, keep_scale = _threshold_and_scale(probability)
    _backward[(programs,)](
        total_grad, normed_grad, total, weight, seeds, means, scales, states_grad, update_grad, partial_grads,
        rows, triton.cdiv(blocks, programs), threshold, keep_scale,
        DIM=dim, WIDTH=triton.next_power_of_2(dim), ROWS_HELD=ROWS, DROPS=probability > 0, num_warps=_warps(dim),
    )  # fmt: skip
    return states_grad, update_grad, partial_grads.sum(0)


@add_norm_backward.register_fake
def _(total_grad: Tensor, normed_grad: Tensor, total: Tensor, weight: Tensor, seeds: Tensor, means: Tensor,
      scales: Tensor, probability: float, update_type: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    params_grad = total.new_empty(2, total.shape[-1], dtype=torch.float32)
    return torch.empty_like(total), torch.empty_like(total, dtype=update_type), params_grad


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save what backward needs."""
    _, update, weight, _, seeds, ctx.probability, _, _ = inputs
    total, _, means, scales = output
    ctx.dtype = update.dtype
    ctx.save_for_backward(total, weight, seeds, means, scales)


def _backpropagate(ctx: Any, total_grad: Tensor, normed_grad: Tensor, _: Any, __: Any) -> tuple[Tensor | None, ...]:
    _, weight, *_ = saved = ctx.saved_tensors
    states_grad, update_grad, params = add_norm_backward(
        total_grad.contiguous(), normed_grad.contiguous(), *saved, ctx.probability, ctx.dtype
    )
    return states_grad, update_grad, params[0].to(weight.dtype), params[1].to(weight.dtype), None, None, None, None


add_norm.register_autograd(_backpropagate, setup_context=_save)
