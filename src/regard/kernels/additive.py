"""Additive attention that learns, and keeps nothing for pairs of query and key: they are made again on the way back.

In a loop, whose steps look at the same keys, their gradient is summed up in one place.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels import gpu
from regard.kernels.cpu import additive as on_cpu
from regard.kernels.linear import Account, opened


def look(
    query: Float[Tensor, "batch 1 query dim"],
    keys: Float[Tensor, "batch 1 key dim"],
    values: Float[Tensor, "batch 1 key width"],
    out: Float[Tensor, "1 dim"],
    mask: Bool[Tensor, "batch 1 1 key"] | None,
) -> tuple[Float[Tensor, "batch 1 query width"], Float[Tensor, "batch 1 query key"]]:
    """Context and weights of softmax(out . tanh(query + keys)), with `attend` as its definition."""
    batch, _, length, _ = keys.shape
    seen = torch.ones_like(keys[:, 0, :, 0], dtype=torch.bool) if mask is None else mask[:, 0, 0].expand(batch, length)
    book = opened()
    if book is None:
        context, weights = _Look.apply(query, keys, values, out, seen.contiguous())  # type: ignore[no-untyped-call]
        return context, weights
    looks, mixed = book.account(keys, out, Looks), book.account(values)
    context, weights = _Step.apply(query, looks.owner, mixed.owner, looks, mixed, seen.contiguous())  # type: ignore[no-untyped-call]
    return context, weights


def _forward(*given: Tensor) -> tuple[Tensor, Tensor]:
    return gpu.additive.forward(*given) if given[0].is_cuda else on_cpu.forward(*given)


def _backward(gradients: tuple[Tensor | None, ...], looked: tuple[Tensor, ...], sums: tuple[Tensor, ...]) -> Tensor:
    """The gradient of the queries; that of the weights is there only where a loss knows them."""
    context, of_weights = (None if each is None else each[:, 0].contiguous() for each in gradients)
    if context is None:
        query, _, values, *_ = looked
        context = values.new_zeros(*query.shape[:2], values.shape[-1])
    way = gpu.additive if context.is_cuda else on_cpu
    return way.backward(context, of_weights, *looked, *sums)


class _Look(torch.autograd.Function):
    """From all queries at once."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, values: Tensor, out: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        looked = query[:, 0].contiguous(), keys[:, 0], values[:, 0], out
        context, weights = _forward(*looked, mask)
        ctx.save_for_backward(*looked, weights)
        return context.unsqueeze(1), weights.unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor, None]:
        _, keys, _, _, weights = looked = ctx.saved_tensors
        of_keys, of_out = torch.zeros_like(keys), torch.zeros_like(keys[:, 0])
        of_query = _backward(gradients, looked, (of_keys, of_out))
        of_values = None if gradients[0] is None else weights.unsqueeze(1).transpose(2, 3) @ gradients[0]
        return of_query.unsqueeze(1), of_keys.unsqueeze(1), of_values, of_out.sum(0, keepdim=True), None


class Looks(Account):
    """The gradients of keys and of `out`, summed up look by look."""

    def __init__(self, shared: Tensor, bias: Tensor | None) -> None:
        super().__init__(shared, bias)
        self.sums: tuple[Tensor, Tensor] | None = None
        self.summed: set[int] = set()

    def add_to(self, step: int) -> tuple[Float[Tensor, "batch key dim"], Float[Tensor, "batch dim"]]:
        """The sums so far, which this step's are added to; a step that runs again begins anew."""
        if self.sums is None or step in self.summed:
            self.sums = torch.zeros_like(self.shared[:, 0]), torch.zeros_like(self.shared[:, 0, 0])
            self.summed.clear()
        self.summed.add(step)
        return self.sums

    def settle(self) -> tuple[Tensor | None, Tensor | None]:
        """Both, which are crossed out."""
        if self.sums is None:
            return None, None
        (of_keys, of_out), self.sums = self.sums, None
        self.summed.clear()
        return of_keys.unsqueeze(1), of_out.sum(0, keepdim=True)


class _Step(torch.autograd.Function):
    """From the queries of one step of a loop."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, values: Tensor, looks: Looks, mixed: Account, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.looks, ctx.mixed, ctx.steps = looks, mixed, (looks.next(), mixed.next())
        asked = query[:, 0].contiguous()
        context, weights = _forward(asked, *_shared(looks, mixed), mask)
        ctx.save_for_backward(asked, weights)
        return context.unsqueeze(1), weights.unsqueeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None, None, None, None, None]:
        (asked, weights), (step, mixes) = ctx.saved_tensors, ctx.steps
        if gradients[0] is not None:
            ctx.mixed.entries[mixes] = weights.unsqueeze(1), gradients[0]
        looked = asked, *_shared(ctx.looks, ctx.mixed), weights
        return _backward(gradients, looked, ctx.looks.add_to(step)).unsqueeze(1), None, None, None, None, None


def _shared(looks: Looks, mixed: Account) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and `out`."""
    assert looks.bias is not None
    return looks.shared[:, 0], mixed.shared[:, 0], looks.bias
