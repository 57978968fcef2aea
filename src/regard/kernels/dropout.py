"""Dropout: a share of the numbers is set to zero, the others are scaled up, so that the expected value stays.

On the CPU, torch draws a dropout mask number by number, which takes a fifth of an update of a Transformer. Here
sixteen random bits decide on each number, so one draw of 64 bits serves four numbers. The bits come from a fast
generator of NumPy, whose seed is drawn from torch's generator.
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
    """Dropout (Srivastava et al. 2014) with probability `share`; outside of training the values stay unchanged."""
    if not training or share == 0.0:
        return values
    if takes("dropout", values, share):
        result: Tensor = _Dropped.apply(values, draw(values, share))  # type: ignore[no-untyped-call]
        return result
    return functional.dropout(values, share)


def add_dropped(states: Tensor, change: Tensor, share: float, training: bool) -> Tensor:
    """The sum of states and dropout(change), in one pass if that is faster."""
    if training and share and takes("add_dropped", states, change, share):
        result: Tensor = _AddDropped.apply(states, change, draw(change, share))  # type: ignore[no-untyped-call]
        return result
    return states + dropout(change, share, training)


def relu_dropped(values: Tensor, share: float, training: bool) -> Tensor:
    """dropout(relu(values)); it changes `values` in place, so no other code may use them."""
    if training and share and takes("relu_dropped", values, share):
        result: Tensor = _ReluDropped.apply(values, draw(values, share))  # type: ignore[no-untyped-call]
        return result
    return dropout(functional.relu_(values), share, training)


class Drawn(NamedTuple):
    """A dropout mask: which numbers are kept, and the scale these are multiplied by."""

    kept: Bool[Tensor, "*shape"]
    scale: float

    def factors(self) -> Float[Tensor, "*shape"]:
        """The factor of every number: 0 or the scale."""
        return self.kept.view(torch.uint8).to(torch.float32).mul_(self.scale)


def dropped(share: float) -> int:
    """How many of the 65,536 values of sixteen bits drop a number: the share, rounded to one in 65,536."""
    return round(share * CHOICES)


def draw(values: Float[Tensor, "*shape"], share: float) -> Drawn:
    """Draw a dropout mask: a number is dropped if its sixteen random bits are below a threshold.

    The scale is computed from the rounded share, which is the probability of the draw: the expected value stays exact.
    """
    count = values.numel()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    bits = np.random.PCG64DXSM(seed).random_raw(-(-count // 4)).view(np.int16)[:count]
    threshold = dropped(share) - CHOICES // 2  # the sixteen bits are read as signed integers
    kept = torch.from_numpy(bits >= threshold).view(values.shape)  # NumPy compares them four times as fast as torch
    return Drawn(kept, CHOICES / (CHOICES - dropped(share)))


class _Dropped(torch.autograd.Function):
    """dropout(values) with a mask that is already drawn."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, drawn: Drawn) -> Tensor:
        ctx.drawn = drawn
        return values * drawn.factors()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.drawn.factors(), None


class _AddDropped(torch.autograd.Function):
    """The sum of states and dropout(change), with a mask that is already drawn."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, change: Tensor, drawn: Drawn) -> Tensor:
        ctx.drawn = drawn
        kept = drawn.kept.view(torch.uint8).to(torch.float32)
        return torch.addcmul(states, change, kept, value=drawn.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradients[0], gradients[0] * ctx.drawn.factors(), None


class _ReluDropped(torch.autograd.Function):
    """dropout(relu(values)) in place; what passes both is positive, so backward needs only the result and no mask."""

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
