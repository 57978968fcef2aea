"""Additive attention for training, which stores nothing per pair of query and key: backward computes the pairs again.

In a loop whose steps attend to the same keys, the gradient of the keys is summed in one place.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels import gpu
from regard.kernels.cpu import additive as cpu_additive
from regard.kernels.linear import SharedWeight, current_deferred


def additive_attention(
    query: Float[Tensor, "batch 1 query dim"],
    keys: Float[Tensor, "batch 1 key dim"],
    values: Float[Tensor, "batch 1 key width"],
    out: Float[Tensor, "1 dim"],
    mask: Bool[Tensor, "batch 1 1 key"] | None,
) -> tuple[Float[Tensor, "batch 1 query width"], Float[Tensor, "batch 1 query key"]]:
    """Context and weights of softmax(out . tanh(query + keys)); `attend` is its definition."""
    batch, _, length, _ = keys.shape
    visible = keys.new_ones(batch, length, dtype=torch.bool) if mask is None else mask[:, 0, 0].expand(batch, length)
    deferred = current_deferred()
    if deferred is None:
        context, weights = _Attend.apply(query, keys, values, out, visible.contiguous())  # type: ignore[no-untyped-call]
        return context, weights
    shared_keys, shared_values = deferred.shared(keys, out, SharedKeys), deferred.shared(values)
    context, weights = _AttendStep.apply(  # type: ignore[no-untyped-call]
        query, shared_keys.proxy, shared_values.proxy, shared_keys, shared_values, visible.contiguous()
    )
    return context, weights


def _forward(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Context and weights, by the kernel of the device."""
    return gpu.additive.forward(*inputs) if inputs[0].is_cuda else cpu_additive.forward(*inputs)


def _backward(gradients: tuple[Tensor | None, ...], saved: tuple[Tensor, ...], sums: tuple[Tensor, ...]) -> Tensor:
    """The gradient of the queries; those of keys and `out` are added to `sums`.

    `gradients` are of context and weights; one that the loss does not depend on is None.
    """
    context_grad, weights_grad = (None if gradient is None else gradient[:, 0].contiguous() for gradient in gradients)
    if context_grad is None:
        query, _, values, *_ = saved
        context_grad = values.new_zeros(*query.shape[:2], values.shape[-1])
    kernel = gpu.additive if context_grad.is_cuda else cpu_additive
    return kernel.backward(context_grad, weights_grad, *saved, *sums)


class _Attend(torch.autograd.Function):
    """Additive attention of all queries at once."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, values: Tensor, out: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        inputs = query[:, 0].contiguous(), keys[:, 0], values[:, 0], out
        context, weights = _forward(*inputs, mask)
        ctx.save_for_backward(*inputs, weights)
        return context.unsqueeze(1), weights.unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor, None]:
        _, keys, _, _, weights = saved = ctx.saved_tensors
        keys_grad, out_grad = torch.zeros_like(keys), torch.zeros_like(keys[:, 0])
        query_grad = _backward(gradients, saved, (keys_grad, out_grad))
        values_grad = None if gradients[0] is None else weights.unsqueeze(1).transpose(2, 3) @ gradients[0]
        return query_grad.unsqueeze(1), keys_grad.unsqueeze(1), values_grad, out_grad.sum(0, keepdim=True), None


class SharedKeys(SharedWeight):
    """Keys, with `out` as their bias, that all steps attend to; the gradients of both are summed step by step."""

    def __init__(self, tensor: Tensor, bias: Tensor | None) -> None:
        super().__init__(tensor, bias)
        self.sums: tuple[Tensor, Tensor] | None = None
        self.summed: set[int] = set()

    def add_to(self, step: int) -> tuple[Float[Tensor, "batch key dim"], Float[Tensor, "batch dim"]]:
        """The sums to which this step adds its gradients; they start at zero again if the step is already in them.

        A step comes twice if a backward pass asked only for other gradients, and so never called `accumulate`.
        """
        if self.sums is None or step in self.summed:
            self.sums = torch.zeros_like(self.tensor[:, 0]), torch.zeros_like(self.tensor[:, 0, 0])
            self.summed.clear()
        self.summed.add(step)
        return self.sums

    def accumulate(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the summed gradients of keys and `out`, and clear the sums."""
        if self.sums is None:
            return None, None
        (keys_grad, out_grad), self.sums = self.sums, None
        self.summed.clear()
        return keys_grad.unsqueeze(1), out_grad.sum(0, keepdim=True)


class _AttendStep(torch.autograd.Function):
    """Additive attention of the queries of one step of a loop.

    The two unnamed arguments are the proxies of keys and values, through which autograd reaches `accumulate`.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, _: Tensor, __: Tensor, keys: SharedKeys, values: SharedWeight, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.keys, ctx.values, ctx.steps = keys, values, (keys.next_step(), values.next_step())
        queries = query[:, 0].contiguous()
        context, weights = _forward(queries, *_tensors(keys, values), mask)
        ctx.save_for_backward(queries, weights)
        return context.unsqueeze(1), weights.unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None, None, None, None, None]:
        (queries, weights), (keys_step, values_step) = ctx.saved_tensors, ctx.steps
        if gradients[0] is not None:
            ctx.values.recorded[values_step] = weights.unsqueeze(1), gradients[0]
        saved = queries, *_tensors(ctx.keys, ctx.values), weights
        return _backward(gradients, saved, ctx.keys.add_to(keys_step)).unsqueeze(1), None, None, None, None, None


def _tensors(keys: SharedKeys, values: SharedWeight) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and `out`, as the kernels take them."""
    assert keys.bias is not None
    return keys.tensor[:, 0], values.tensor[:, 0], keys.bias
