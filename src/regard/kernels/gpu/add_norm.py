"""Residual, dropout and layer normalisation in one pass each way; the mask of the dropout is drawn twice, not kept."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 2  # that a program holds at once
PROGRAMS = 1056  # of the way back, eight for each multiprocessor of a large GPU: each sums up its rows' gradients


@triton.jit
def _mix(bits):
    """A bijection of 32 bits in which every bit of the result depends on every bit given (C. Wellons, lowbias32)."""
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= bits >> 15
    bits *= 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def _kept(seeds, row, column, DIM: tl.constexpr, threshold):
    """Which numbers are kept: the same each time for the same seeds."""
    place = (row[:, None] * DIM + column[None, :]).to(tl.uint32)
    first, second = tl.load(seeds).to(tl.uint32), tl.load(seeds + 1).to(tl.uint32)
    return _mix(_mix(place ^ first) + second) >= threshold


@triton.jit
def _forward(
    states, change, weight, bias, seeds, after, normed, means, scales, rows, threshold, grown, epsilon,
    DIM: tl.constexpr, WIDTH: tl.constexpr, HELD: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * HELD + tl.arange(0, HELD)
    column = tl.arange(0, WIDTH)
    real = (row[:, None] < rows) & (column[None, :] < DIM)
    place = row[:, None].to(tl.int64) * DIM + column[None, :]
    more = tl.load(change + place, mask=real, other=0.0).to(tl.float32)
    if DROPS:
        more = tl.where(_kept(seeds, row, column, DIM, threshold), more * grown, 0.0)
    value = tl.load(states + place, mask=real, other=0.0).to(tl.float32) + more
    tl.store(after + place, value, mask=real)
    mean = tl.sum(value, 1) / DIM
    centred = tl.where(real, value - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / DIM + epsilon)
    tl.store(means + row, mean, mask=row < rows)
    tl.store(scales + row, scale, mask=row < rows)
    factor = tl.load(weight + column, mask=column < DIM, other=0.0)
    shift = tl.load(bias + column, mask=column < DIM, other=0.0)
    result = centred * scale[:, None] * factor[None, :] + shift[None, :]
    tl.store(normed + place, result.to(normed.dtype.element_ty), mask=real)


@triton.jit
def _backward(
    of_after, of_normed, after, weight, seeds, means, scales, of_states, of_change, of_weights,
    rows, rounds, threshold, grown,
    DIM: tl.constexpr, WIDTH: tl.constexpr, HELD: tl.constexpr, DROPS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, WIDTH)
    inside = column < DIM
    factor = tl.load(weight + column, mask=inside, other=0.0)
    of_weight = tl.zeros([HELD, WIDTH], tl.float32)
    of_bias = tl.zeros([HELD, WIDTH], tl.float32)
    for turn in range(rounds):
        row = (turn * tl.num_programs(0) + tl.program_id(0)) * HELD + tl.arange(0, HELD)
        real = (row[:, None] < rows) & inside[None, :]
        place = row[:, None].to(tl.int64) * DIM + column[None, :]
        mean = tl.load(means + row, mask=row < rows, other=0.0)
        scale = tl.load(scales + row, mask=row < rows, other=0.0)
        value = tl.load(after + place, mask=real, other=0.0).to(tl.float32)
        gradient = tl.load(of_normed + place, mask=real, other=0.0).to(tl.float32)
        unit = tl.where(real, (value - mean[:, None]) * scale[:, None], 0.0)
        of_weight += gradient * unit
        of_bias += gradient
        inner = gradient * factor[None, :]
        along, level = tl.sum(inner * unit, 1) / DIM, tl.sum(inner, 1) / DIM
        found = (inner - unit * along[:, None] - level[:, None]) * scale[:, None]
        found += tl.load(of_after + place, mask=real, other=0.0).to(tl.float32)
        tl.store(of_states + place, found.to(of_states.dtype.element_ty), mask=real)
        if DROPS:
            found = tl.where(_kept(seeds, row, column, DIM, threshold), found * grown, 0.0)
        tl.store(of_change + place, found.to(of_change.dtype.element_ty), mask=real)
    mine = of_weights + tl.program_id(0) * 2 * DIM + column
    tl.store(mine, tl.sum(of_weight, 0), mask=inside)
    tl.store(mine + DIM, tl.sum(of_bias, 0), mask=inside)


def _warps(dim: int) -> int:
    return 2 if dim <= 1024 else 8


def _choices(share: float) -> tuple[int, float]:
    """Below which of 2^32 numbers one drops, and what the others grow by."""
    threshold = min(round(share * 2**32), 2**32 - 1)
    return threshold, 2**32 / (2**32 - threshold)


@torch.library.custom_op("regard::add_norm", mutates_args=())
def add_norm(
    states: Tensor,
    change: Tensor,
    weight: Tensor,
    bias: Tensor,
    seeds: Tensor,
    share: float,
    epsilon: float,
    half: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum of states and dropout(change), its rows normalised (in bfloat16 if `half`), their means and scales."""
    dim, rows = states.shape[-1], states.numel() // states.shape[-1]
    after, normed = torch.empty_like(states), torch.empty_like(states, dtype=torch.bfloat16 if half else states.dtype)
    means, scales = states.new_empty(rows, dtype=torch.float32), states.new_empty(rows, dtype=torch.float32)
    threshold, grown = _choices(share)
    _forward[(triton.cdiv(rows, ROWS),)](
        states, change, weight, bias, seeds, after, normed, means, scales, rows, threshold, grown, epsilon,
        DIM=dim, WIDTH=triton.next_power_of_2(dim), HELD=ROWS, DROPS=share > 0, num_warps=_warps(dim),
    )  # fmt: skip
    return after, normed, means, scales


@add_norm.register_fake
def _(states: Tensor, change: Tensor, weight: Tensor, bias: Tensor, seeds: Tensor, share: float, epsilon: float,
      half: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rows = states.numel() // states.shape[-1]
    normed = torch.empty_like(states, dtype=torch.bfloat16 if half else states.dtype)
    one = states.new_empty(rows, dtype=torch.float32)
    return torch.empty_like(states), normed, one, torch.empty_like(one)


@torch.library.custom_op("regard::add_norm_backward", mutates_args=())
def add_norm_backward(
    of_after: Tensor,
    of_normed: Tensor,
    after: Tensor,
    weight: Tensor,
    seeds: Tensor,
    means: Tensor,
    scales: Tensor,
    share: float,
    change_type: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of states, of change, and, on top of each other, of weight and bias."""
    dim, rows = after.shape[-1], means.numel()
    of_states, of_change = torch.empty_like(after), torch.empty_like(after, dtype=change_type)
    blocks = triton.cdiv(rows, ROWS)
    programs = min(PROGRAMS, blocks)
    of_weights = after.new_empty(programs, 2, dim, dtype=torch.float32)
    threshold, grown = _choices(share)
    _backward[(programs,)](
        of_after, of_normed, after, weight, seeds, means, scales, of_states, of_change, of_weights,
        rows, triton.cdiv(blocks, programs), threshold, grown,
        DIM=dim, WIDTH=triton.next_power_of_2(dim), HELD=ROWS, DROPS=share > 0, num_warps=_warps(dim),
    )  # fmt: skip
    return of_states, of_change, of_weights.sum(0)


@add_norm_backward.register_fake
def _(of_after: Tensor, of_normed: Tensor, after: Tensor, weight: Tensor, seeds: Tensor, means: Tensor, scales: Tensor,
      share: float, change_type: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    both = after.new_empty(2, after.shape[-1], dtype=torch.float32)
    return torch.empty_like(after), torch.empty_like(after, dtype=change_type), both


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, change, weight, _, seeds, ctx.share, _, _ = inputs
    after, _, means, scales = output
    ctx.change_type = change.dtype
    ctx.save_for_backward(after, weight, seeds, means, scales)


def _back(ctx: Any, of_after: Tensor, of_normed: Tensor, _: Any, __: Any) -> tuple[Tensor | None, ...]:
    after, weight, seeds, means, scales = ctx.saved_tensors
    of_states, of_change, both = add_norm_backward(
        of_after.contiguous(), of_normed.contiguous(), after, weight, seeds, means, scales, ctx.share, ctx.change_type
    )
    return of_states, of_change, both[0].to(weight.dtype), both[1].to(weight.dtype), None, None, None, None


add_norm.register_autograd(_back, setup_context=_keep)
