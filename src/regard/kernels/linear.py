"""Linear layers and weighted sums whose gradients are computed faster than by autograd alone.

On the CPU, MKL computes a wide product faster than a high one, so the gradient of a weight may be computed transposed.
And if all steps of a loop multiply by the same matrix, autograd computes a gradient of it at every step and sums them,
which costs more than the step itself. Within `one_gradient` every step records its input rows X_t and the gradients G_t
of its outputs; after the last step the sum of G_t' X_t is one product.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.kernels.choose import takes

HALVES = (torch.float16, torch.bfloat16)


class Linear(nn.Linear):
    """torch's linear layer; only its gradient is computed another way."""

    def forward(self, states: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """W x + b."""
        return linear(states, self.weight, self.bias)


class UncastLinear(nn.Linear):
    """A linear layer in the precision of its input: scores stay in float32 in a model of half precision."""

    def forward(self, states: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """W x + b."""
        return uncast_linear(states, self.weight, self.bias)


def uncast_linear(
    states: Float[Tensor, "*batch in"], weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None = None
) -> Float[Tensor, "*batch out"]:
    """`functional.linear`, but weights of half precision are cast to the precision of more precise states."""
    if weight.dtype in HALVES and states.dtype not in HALVES:
        weight, bias = weight.to(states.dtype), None if bias is None else bias.to(states.dtype)
    return functional.linear(states, weight, bias)


def linear(
    states: Float[Tensor, "*batch in"], weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
) -> Float[Tensor, "*batch out"]:
    """`uncast_linear(states, weight, bias)`, by the fastest path that applies."""
    if takes("one_row", states, weight):
        return linear_one_row(states.flatten(), weight, bias).view(*states.shape[:-1], -1)
    deferred = current_deferred()
    if deferred is not None and takes("summed_linear", states, weight):
        return deferred.shared(weight, bias).step(states)
    if takes("linear_gradient", states, weight):
        flat: Tensor = _Linear.apply(states.flatten(0, -2), weight, bias)  # type: ignore[no-untyped-call]
        return flat if states.ndim == 2 else flat.view(*states.shape[:-1], -1)
    return uncast_linear(states, weight, bias)


def linear_one_row(
    row: Float[Tensor, " in"], weight: Float[Tensor, "out in"], bias: Tensor | None
) -> Float[Tensor, " out"]:
    """`functional.linear` of a single row, as a matrix-vector product, which is faster."""
    return torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)


def weighted_sum(
    weights: Float[Tensor, "*batch query key"], values: Float[Tensor, "*keys key dim"]
) -> Float[Tensor, "*batch query dim"]:
    """The weighted sum of the values for each query: weights @ values."""
    deferred = current_deferred()
    if deferred is not None and takes("summed_mix", weights, values):
        return deferred.shared(values).step(weights)
    return weights @ values


@contextmanager
def one_gradient() -> Iterator[None]:
    """In the block, a tensor that `linear` or `weighted_sum` gets at every step has its gradient by one product."""
    if torch.compiler.is_compiling():  # it cannot trace a context variable
        yield
        return
    deferred = DeferredGradients() if takes("one_gradient") else None
    before = _current.set(deferred)
    try:
        yield
    finally:
        _current.reset(before)
        if deferred is not None:
            deferred.close()


class _Linear(torch.autograd.Function):
    """`functional.linear` of (rows, in), whose gradients `_weight_gradient` and `_bias_gradient` compute."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        ctx.has_bias = bias is not None
        return functional.linear(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        (gradient,), (states, weight) = gradients, ctx.saved_tensors
        return (
            gradient @ weight if ctx.needs_input_grad[0] else None,
            _weight_gradient(states, gradient),
            _bias_gradient(gradient) if ctx.has_bias else None,
        )


def _weight_gradient(states: Float[Tensor, "rows in"], gradient: Float[Tensor, "rows out"]) -> Float[Tensor, "out in"]:
    """The product gradient' states; on the CPU it is computed as (states' gradient)' if that is faster."""
    in_dim, out_dim = states.shape[1], gradient.shape[1]
    transposed = in_dim < out_dim <= 8 * in_dim  # a wide product is faster, unless the transpose costs more
    return (states.t() @ gradient).t() if transposed and not states.is_cuda else gradient.t() @ states


def _bias_gradient(gradient: Float[Tensor, "rows out"]) -> Float[Tensor, " out"]:
    """The sum over rows, on the CPU as a product with ones, which is faster."""
    return gradient.sum(0) if gradient.is_cuda else (gradient.new_ones(1, len(gradient)) @ gradient).squeeze(0)


def current_deferred() -> "DeferredGradients | None":
    """The deferred gradients of the innermost `one_gradient` block; None outside of one and under torch.compile."""
    return None if torch.compiler.is_compiling() else _current.get()


class DeferredGradients:
    """The tensors that all steps of a loop share, each as a `SharedWeight` that computes its gradient at the end."""

    def __init__(self) -> None:
        self.weights: dict[tuple[int, int], SharedWeight] = {}

    def shared(
        self, tensor: Tensor, bias: Tensor | None = None, kind: "type[SharedWeight] | None" = None
    ) -> "SharedWeight":
        """The shared weight of these two tensor objects, created at their first use; `kind` may name a subclass."""
        key = id(tensor), id(bias)
        if key not in self.weights:
            self.weights[key] = (kind or SharedWeight)(tensor, bias)
        return self.weights[key]

    def close(self) -> None:
        """Release what only further steps need: this avoids a reference cycle that would keep tensors alive."""
        for weight in self.weights.values():
            del weight.originals, weight.proxy


class SharedWeight:
    """A tensor that all steps multiply by: a matrix W (x W' + b), or a matrix V for each row of a batch (x V).

    Every step records its rows and the gradients of its result; `accumulate` computes the gradient of the tensor.
    """

    def __init__(self, tensor: Tensor, bias: Tensor | None) -> None:
        self.originals = tensor, bias  # kept alive, so that no other tensor gets their ids
        self.tensor, self.bias = tensor.detach(), None if bias is None else bias.detach()
        self.is_matrix = tensor.ndim == 2
        self.steps = 0
        self.recorded: dict[int, tuple[Tensor, Tensor]] = {}  # by step: a second backward pass overwrites the first
        self.proxy: Tensor = _Proxy.apply(tensor, bias, self)  # type: ignore[no-untyped-call]

    def next_step(self) -> int:
        """Count one more step and return its number."""
        self.steps += 1
        return self.steps

    def step(self, rows: Tensor) -> Tensor:
        """The product of one step, recorded in its backward pass."""
        result: Tensor = _Step.apply(rows, self.proxy, self, self.next_step())  # type: ignore[no-untyped-call]
        return result

    def accumulate(self) -> tuple[Tensor | None, Tensor | None]:
        """Sum the recorded steps' gradients, of the tensor and of the bias, and clear the record."""
        if not self.recorded:
            return None, None
        rows, gradients = (torch.cat(parts, dim=-2) for parts in zip(*self.recorded.values(), strict=True))
        self.recorded.clear()
        if not self.is_matrix:
            return rows.transpose(-1, -2) @ gradients, None
        rows, gradients = rows.flatten(0, -2), gradients.flatten(0, -2)
        return _weight_gradient(rows, gradients), None if self.bias is None else _bias_gradient(gradients)


class _Proxy(torch.autograd.Function):
    """An empty scalar between a shared tensor and all its steps: its backward runs after the backward of all steps."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, bias: Tensor | None, weight: SharedWeight) -> Tensor:
        ctx.weight = weight
        ctx.set_materialize_grads(False)
        return tensor.new_empty(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        return *ctx.weight.accumulate(), None


class _Step(torch.autograd.Function):
    """The product of one step; its backward records rows and gradient instead of a gradient of the shared weight."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, proxy: Tensor, weight: SharedWeight, step: int) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.weight, ctx.step = weight, step
        return functional.linear(rows, weight.tensor, weight.bias) if weight.is_matrix else rows @ weight.tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        weight, gradient = ctx.weight, gradients[0]
        weight.recorded[ctx.step] = ctx.saved_tensors[0], gradient
        factor = weight.tensor if weight.is_matrix else weight.tensor.transpose(-1, -2)
        return gradient @ factor if ctx.needs_input_grad[0] else None, None, None, None


_current: ContextVar[DeferredGradients | None] = ContextVar("deferred gradients of the running loop", default=None)
