"""A look by additive attention in a loop that learns on a GPU: one kernel forward, one back, nothing kept for pairs."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels import gpu
from regard.kernels.linear import Account, opened

if gpu.AVAILABLE:
    from regard.kernels.gpu import additive as kernels

MOST = 256  # keys that one program looks at


def look(
    query: Float[Tensor, "batch 1 1 dim"],
    keys: Float[Tensor, "batch 1 key dim"],
    values: Float[Tensor, "batch 1 key width"],
    out: Float[Tensor, "1 dim"],
    mask: Bool[Tensor, "*mask"] | None,
) -> tuple[Float[Tensor, "batch 1 1 width"], Float[Tensor, "batch 1 1 key"]]:
    """Context and weights of softmax(out . tanh(query + keys)), with `attend` as its definition."""
    book = opened()
    assert book is not None
    batch, _, length, _ = keys.shape
    seen = torch.ones_like(keys[:, 0, :, 0], dtype=torch.bool) if mask is None else mask[:, 0, 0].expand(batch, length)
    account = book.account(keys, out, Looks)
    assert isinstance(account, Looks)
    context, weights = _Look.apply(  # type: ignore[no-untyped-call]
        query, account.owner, book.account(values).owner, account, book.account(values), seen.contiguous()
    )
    return context, weights


def fits(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> bool:
    """Whether it can be done so: one query to a row, in single precision, on a GPU, in a loop that learns."""
    if not gpu.AVAILABLE or opened() is None or not query.ndim == keys.ndim == values.ndim == 4:
        return False
    single = all(each.is_cuda and each.dtype == torch.float32 for each in (query, keys, values))
    rows = query.shape[1] == query.shape[2] == keys.shape[1] == 1 and values.shape[:3] == keys.shape[:3]
    over_keys = mask is None or mask.shape[1] == mask.shape[2] == 1
    whole = keys.is_contiguous() and values.is_contiguous() and keys.shape[2] <= MOST
    return single and rows and over_keys and whole and keys.requires_grad and values.requires_grad


class Looks(Account):
    """The gradients of keys and of `out`, summed up look by look."""

    def __init__(self, shared: Tensor, bias: Tensor | None) -> None:
        super().__init__(shared, bias)
        self.sums: tuple[Tensor, Tensor] | None = None
        self.summed: set[int] = set()

    def add_to(self, step: int) -> tuple[Float[Tensor, "batch 1 key dim"], Float[Tensor, "batch dim"]]:
        """The sums so far, which this step's are added to; a step that runs again begins anew."""
        if self.sums is None or step in self.summed:
            self.sums = torch.zeros_like(self.shared), self.shared.new_zeros(len(self.shared), self.shared.shape[-1])
            self.summed.clear()
        self.summed.add(step)
        return self.sums

    def settle(self) -> tuple[Tensor | None, Tensor | None]:
        """Both, which are crossed out."""
        if self.sums is None:
            return None, None
        (of_keys, of_out), self.sums = self.sums, None
        self.summed.clear()
        return of_keys, of_out.sum(0, keepdim=True)


class _Look(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, values: Tensor, looks: Looks, mixed: Account, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.looks, ctx.mixed, ctx.step, ctx.mixes = looks, mixed, looks.next(), mixed.next()
        asked = query.flatten(0, 2).contiguous()
        assert looks.bias is not None
        context, weights = kernels.forward(asked, looks.shared, mixed.shared[:, 0], looks.bias, mask)
        ctx.save_for_backward(asked, weights)
        return context[:, None, None], weights[:, None, None]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None, None, None, None, None]:
        (asked, weights), (given, of_weights) = ctx.saved_tensors, gradients
        shared = ctx.mixed.shared
        given = shared.new_zeros(len(shared), 1, 1, shared.shape[-1]) if given is None else given.contiguous()
        ctx.mixed.entries[ctx.mixes] = weights[:, None, None], given
        of_weights = None if of_weights is None else of_weights.contiguous()
        looks = ctx.looks
        of_query = kernels.backward(
            given, of_weights, asked, looks.shared, shared[:, 0], looks.bias, weights, *looks.add_to(ctx.step)
        )
        return of_query[:, None, None], None, None, None, None, None
