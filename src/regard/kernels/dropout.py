"""Dropout: some of the numbers are set to zero, the others are scaled up, so that the expected value stays.

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


def dropout(values: Tensor, probability: float, training: bool) -> Tensor:
    """Dropout (Srivastava et al. 2014); outside of training the values stay unchanged."""
    if not training or probability == 0.0:
        return values
    if takes("dropout", values, probability):
        result: Tensor = _Dropped.apply(values, draw_mask(values, probability))  # type: ignore[no-untyped-call]
        return result
    return functional.dropout(values, probability)


def add_dropped(states: Tensor, update: Tensor, probability: float, training: bool) -> Tensor:
    """The sum of states and dropout(update), in one pass if that is faster."""
    if training and probability and takes("add_dropped", states, update, probability):
        result: Tensor = _AddDropped.apply(states, update, draw_mask(update, probability))  # type: ignore[no-untyped-call]
        return result
    return states + dropout(update, probability, training)


def relu_dropped(values: Tensor, probability: float, training: bool) -> Tensor:
    """dropout(relu(values)); it changes `values` in place, so no other code may use them."""
    if training and probability and takes("relu_dropped", values, probability):
        result: Tensor = _ReluDropped.apply(values, draw_mask(values, probability))  # type: ignore[no-untyped-call]
        return result
    return dropout(functional.relu_(values), probability, training)


class DropoutMask(NamedTuple):
    """A dropout mask: which numbers are kept, and the scale these are multiplied by."""

    kept: Bool[Tensor, "*shape"]
    scale: float

    def factors(self) -> Float[Tensor, "*shape"]:
        """The factor of every number: 0 or the scale."""
        return self.kept.view(torch.uint8).to(torch.float32).mul_(self.scale)


def dropped_values(probability: float) -> int:
    """How many of the 65,536 values of sixteen bits drop a number: the probability, rounded to one in 65,536."""
    return round(probability * CHOICES)


def draw_mask(values: Float[Tensor, "*shape"], probability: float) -> DropoutMask:
    """Draw a dropout mask: a number is dropped if its sixteen random bits are below a threshold.

    The scale is computed from the rounded probability, with which numbers are drawn: the expected value stays exact.
    """
    count = values.numel()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    bits = np.random.PCG64DXSM(seed).random_raw(-(-count // 4)).view(np.int16)[:count]
    threshold = dropped_values(probability) - CHOICES // 2  # the sixteen bits are read as signed integers
    kept = torch.from_numpy(bits >= threshold).view(values.shape)  # NumPy compares them four times as fast as torch
    return DropoutMask(kept, CHOICES / (CHOICES - dropped_values(probability)))


class _Dropped(torch.autograd.Function):
    """dropout(values) with a mask that is already drawn."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: DropoutMask) -> Tensor:
        ctx.mask = mask
        return values * mask.factors()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.mask.factors(), None


class _AddDropped(torch.autograd.Function):
    """The sum of states and dropout(update), with a mask that is already drawn."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, update: Tensor, mask: DropoutMask) -> Tensor:
        ctx.mask = mask
        kept = mask.kept.view(torch.uint8).to(torch.float32)
        return torch.addcmul(states, update, kept, value=mask.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradients[0], gradients[0] * ctx.mask.factors(), None


class _ReluDropped(torch.autograd.Function):
    """dropout(relu(values)) in place; what passes both is positive, so backward needs only the result and no mask."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mask: DropoutMask) -> Tensor:
        ctx.mark_dirty(values)
        ctx.scale = mask.scale
        values.relu_().mul_(mask.factors())
        ctx.save_for_backward(values)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        passed: Tensor = torch.ops.aten.threshold_backward(gradients[0], ctx.saved_tensors[0], 0)
        return passed.mul_(ctx.scale), None
