"""Dropout: a share of numbers is set to zero, the others grow, so that the mean stays.

Torch draws a mask on the CPU number by number, which takes a fifth of an update of a Transformer. Here sixteen bits
decide on each number: one draw of 64 bits for four of them, by a fast generator that torch's own gives its seed.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from regard.kernels.choose import DROPOUT_CHOICES as CHOICES
from regard.kernels.choose import takes


def dropout(values: Tensor, share: float, training: bool) -> Tensor:
    """Srivastava et al. 2014; outside of training nothing is dropped."""
    if not training or share == 0.0:
        return values
    if takes("dropout", values, share):
        result: Tensor = _Dropped.apply(values, draw(values, share))  # type: ignore[no-untyped-call]
        return result
    return functional.dropout(values, share)


def add_dropped(states: Tensor, change: Tensor, share: float, training: bool) -> Tensor:
    """The sum of states and dropout(change), in one pass where that pays."""
    if training and share and takes("add_dropped", states, change, share):
        result: Tensor = _AddDropped.apply(states, change, draw(change, share))  # type: ignore[no-untyped-call]
        return result
    return states + dropout(change, share, training)


def relu_dropped(values: Tensor, share: float, training: bool) -> Tensor:
    """The same of relu(values), which nobody else holds: they are changed in place."""
    if training and share and takes("relu_dropped", values, share):
        result: Tensor = _ReluDropped.apply(values, draw(values, share))  # type: ignore[no-untyped-call]
        return result
    return dropout(functional.relu_(values), share, training)


class Drawn(NamedTuple):
    """Which numbers are kept, and what these are multiplied with."""

    kept: Bool[Tensor, "*shape"]
    scale: float

    def factors(self) -> Float[Tensor, "*shape"]:
        """What every number is multiplied with: 0 or the scale."""
        return self.kept.view(torch.uint8).to(torch.float32).mul_(self.scale)


def dropped(share: float) -> int:
    """Of all choices of sixteen bits, those that drop a number: the share, rounded to one in 65,536."""
    return round(share * CHOICES)


def draw(values: Float[Tensor, "*shape"], share: float) -> Drawn:
    """A number is dropped where its sixteen bits are below the threshold.

    The scale is computed from the share that is so dropped, and not from the one asked for: the mean stays exact.
    """
    count = values.numel()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    lanes = np.random.PCG64DXSM(seed).random_raw(-(-count // 4)).view(np.int16)[:count]
    threshold = dropped(share) - CHOICES // 2  # sixteen bits with a sign
    kept = torch.from_numpy(lanes >= threshold).view(values.shape)  # numpy compares them four times as fast
    return Drawn(kept, CHOICES / (CHOICES - dropped(share)))


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, drawn: Drawn) -> Tensor:
        ctx.drawn = drawn
        return values * drawn.factors()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.drawn.factors(), None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, change: Tensor, drawn: Drawn) -> Tensor:
        ctx.drawn = drawn
        kept = drawn.kept.view(torch.uint8).to(torch.float32)
        return torch.addcmul(states, change, kept, value=drawn.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradients[0], gradients[0] * ctx.drawn.factors(), None


class _ReluDropped(torch.autograd.Function):
    """What passes both is positive, and so the result itself tells it: no mask is kept."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, drawn: Drawn) -> Tensor:
        ctx.mark_dirty(values)
        ctx.scale = drawn.scale
        values.relu_().mul_(drawn.factors())
        ctx.save_for_backward(values)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        passed: Tensor = torch.ops.aten.threshold_backward(gradients[0], ctx.saved_tensors[0], 0)
        return passed.mul_(ctx.scale), None
