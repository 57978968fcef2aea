"""Norms of the vectors that attention weights scale, recorded beside the weights: ||f(x)|| of Kobayashi et al. 2020.

The context of a head is sum_j a_j f(x_j), with f(x) = W_o W_v x. A large weight on a short vector moves it little.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.heads import MultiHead, SelfAttention
from regard.attention.scopes import Scope
from regard.kernels.choose import Observer

Norms = dict[str, Float[Tensor, "batch *heads key"]]  # by the name of the module, as in a `Recording`


@contextmanager
def record_norms(model: nn.Module, *, layers: Sequence[str]) -> Iterator[Norms]:
    """Record ||f(x)|| for every key that the attentions named in `layers` attend to, without changing any result.

    It is that of the last call, for models that run over whole outputs: then each call has the same keys.
    """
    norms: Norms = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, Scope) and name in layers:
            outer = model.get_submodule(name.rpartition(".")[0])
            handles.append(module.register_forward_hook(_norm_hook(norms, name, outer), with_kwargs=True))
    try:
        yield norms
    finally:
        for handle in handles:
            handle.remove()


def _norm_hook(norms: Norms, name: str, outer: nn.Module) -> Observer:
    """A forward hook that stores the norms of a scope's transformed values."""

    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        with torch.no_grad():
            norms[name] = transformed_norms(inputs[2], outer)

    return Observer(hook)


def transformed_norms(values: Float[Tensor, "*batch key part"], outer: nn.Module) -> Float[Tensor, "*batch key"]:
    """||W_o v|| of every value, with the columns of W_o that belong to its head; ||v|| if there is no W_o.

    By the Gram matrix of these columns, ||W v||^2 = v . (W^T W) v: no vector of the model's width is stored.
    """
    if not isinstance(outer, MultiHead | SelfAttention):
        return values.norm(dim=-1)
    weight = outer.out.weight.to(values.dtype).unflatten(1, (outer.heads, -1))  # out heads part
    gram = torch.einsum("ohp,ohq->hpq", weight, weight)
    squares = ((values @ gram) * values).sum(-1)
    return squares.clamp(min=0.0).sqrt()
