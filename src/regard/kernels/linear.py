"""Products whose gradients are computed the way that is faster.

MKL does a product faster wide than high. And where all steps of a loop multiply with the same matrix, autograd would
make a gradient of it at every step and sum them up, which costs more than the step: within `one_gradient` every step
keeps its rows X_t and the gradients G_t of what it made of them, and after the last the sum of G_t' X_t is one product.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.kernels.choose import takes

HALVES = (torch.float16, torch.bfloat16)


class Linear(nn.Linear):
    """torch's own, but for its gradient."""

    def forward(self, states: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """W x + b."""
        return linear(states, self.weight, self.bias)


class Exact(nn.Linear):
    """A linear layer in the precision of its input: scores stay in float32 in a model of half precision."""

    def forward(self, states: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """W x + b."""
        return exact(states, self.weight, self.bias)


def exact(
    states: Float[Tensor, "*batch in"], weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None = None
) -> Float[Tensor, "*batch out"]:
    """As `functional.linear`; states more precise than weights of half precision keep their precision."""
    if weight.dtype in HALVES and states.dtype not in HALVES:
        weight, bias = weight.to(states.dtype), None if bias is None else bias.to(states.dtype)
    return functional.linear(states, weight, bias)


def linear(
    states: Float[Tensor, "*batch in"], weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None
) -> Float[Tensor, "*batch out"]:
    """As `functional.linear`."""
    if takes("one_row", states, weight):
        return of_one(states.flatten(), weight, bias).view(*states.shape[:-1], -1)
    book = opened()
    if book is not None and takes("summed_linear", states, weight):
        return book.account(weight, bias).step(states)
    if takes("linear_gradient", states, weight):
        flat: Tensor = _Linear.apply(states.flatten(0, -2), weight, bias)  # type: ignore[no-untyped-call]
        return flat if states.ndim == 2 else flat.view(*states.shape[:-1], -1)
    return exact(states, weight, bias)


def of_one(row: Float[Tensor, " in"], weight: Float[Tensor, "out in"], bias: Tensor | None) -> Float[Tensor, " out"]:
    """As `functional.linear` for one row, without an axis for rows: a product of another kind, and quicker."""
    return torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)


def mix(
    weights: Float[Tensor, "*batch query key"], values: Float[Tensor, "*keys key dim"]
) -> Float[Tensor, "*batch query dim"]:
    """For each query the sum of the values as they weigh: weights @ values."""
    book = opened()
    if book is not None and takes("summed_mix", weights, values):
        return book.account(values).step(weights)
    return weights @ values


@contextmanager
def one_gradient() -> Iterator[None]:
    """In the block, whatever `linear` and `mix` are given at every step gets its gradient by one product."""
    if torch.compiler.is_compiling():  # which cannot trace a context variable
        yield
        return
    book = Book() if takes("one_gradient") else None
    before = _open.set(book)
    try:
        yield
    finally:
        _open.reset(before)
        if book is not None:
            book.close()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        ctx.biased = bias is not None
        return functional.linear(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        (gradient,), (states, weight) = gradients, ctx.saved_tensors
        return (
            gradient @ weight if ctx.needs_input_grad[0] else None,
            _of_weight(states, gradient),
            _of_bias(gradient) if ctx.biased else None,
        )


def _of_weight(states: Float[Tensor, "rows in"], gradient: Float[Tensor, "rows out"]) -> Float[Tensor, "out in"]:
    within, out = states.shape[1], gradient.shape[1]
    turned = within < out <= 8 * within  # a product is better wide than high, unless turning it takes longer
    return (states.t() @ gradient).t() if turned and not states.is_cuda else gradient.t() @ states


def _of_bias(gradient: Float[Tensor, "rows out"]) -> Float[Tensor, " out"]:
    return gradient.sum(0) if gradient.is_cuda else (gradient.new_ones(1, len(gradient)) @ gradient).squeeze(0)


Kept = TypeVar("Kept", bound="Account")


def opened() -> "Book | None":
    """The book of the loop that runs, where there is one; a compiler sees none."""
    return None if torch.compiler.is_compiling() else _open.get()


class Book:
    """An account for each tensor that the steps share."""

    def __init__(self) -> None:
        self.accounts: dict[tuple[int, int], Account] = {}

    @overload
    def account(self, shared: Tensor, bias: Tensor | None = None) -> "Account": ...

    @overload
    def account(self, shared: Tensor, bias: Tensor | None, kind: type[Kept]) -> Kept: ...

    def account(self, shared: Tensor, bias: Tensor | None = None, kind: Any = None) -> Any:
        """That of these very tensors; what is done with them may need another kind."""
        name = id(shared), id(bias)
        if name not in self.accounts:
            self.accounts[name] = (kind or Account)(shared, bias)
        return self.accounts[name]

    def close(self) -> None:
        """Let go of what only steps to come would need: held in a circle, it would outlive the loop."""
        for account in self.accounts.values():
            del account.origin, account.owner


class Account:
    """What the steps multiplied with a matrix W (x W' + b), or with a matrix V for each of a batch (x V)."""

    def __init__(self, shared: Tensor, bias: Tensor | None) -> None:
        self.origin = shared, bias  # held, so that no other tensor gets their ids
        self.shared, self.bias = shared.detach(), None if bias is None else bias.detach()
        self.is_matrix = shared.ndim == 2
        self.steps = 0
        self.entries: dict[int, tuple[Tensor, Tensor]] = {}  # by step: one that runs again is not counted twice
        self.owner: Tensor = _Owner.apply(shared, bias, self)  # type: ignore[no-untyped-call]

    def next(self) -> int:
        """The number of one more step."""
        self.steps += 1
        return self.steps

    def step(self, rows: Tensor) -> Tensor:
        """The product of one step."""
        result: Tensor = _Step.apply(rows, self.owner, self, self.next())  # type: ignore[no-untyped-call]
        return result

    def forward(self, rows: Tensor) -> Tensor:
        """The product itself."""
        return functional.linear(rows, self.shared, self.bias) if self.is_matrix else rows @ self.shared

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient of a step's rows."""
        return gradient @ (self.shared if self.is_matrix else self.shared.transpose(-1, -2))

    def settle(self) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of what is shared and of the bias, from all entries, which are crossed out."""
        if not self.entries:
            return None, None
        rows, gradients = (torch.cat(each, dim=-2) for each in zip(*self.entries.values(), strict=True))
        self.entries.clear()
        if not self.is_matrix:
            return rows.transpose(-1, -2) @ gradients, None
        rows, gradients = rows.flatten(0, -2), gradients.flatten(0, -2)
        return _of_weight(rows, gradients), None if self.bias is None else _of_bias(gradients)


class _Owner(torch.autograd.Function):
    """Stands between the tensor and every step, so that its turn comes after all of theirs."""

    @staticmethod
    def forward(ctx: Any, shared: Tensor, bias: Tensor | None, account: Account) -> Tensor:
        ctx.account = account
        ctx.set_materialize_grads(False)
        return shared.new_empty(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        return *ctx.account.settle(), None


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, owner: Tensor, account: Account, step: int) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.account, ctx.step = account, step
        return account.forward(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        ctx.account.entries[ctx.step] = ctx.saved_tensors[0], gradients[0]
        return ctx.account.backward(gradients[0]) if ctx.needs_input_grad[0] else None, None, None, None


_open: ContextVar[Book | None] = ContextVar("the book that is open", default=None)
