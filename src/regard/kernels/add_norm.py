"""The residual connection between two sub-layers of a Transformer: add the update with dropout, then normalise."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.kernels import gpu
from regard.kernels.choose import takes
from regard.kernels.dropout import add_dropped

States = Float[Tensor, "*batch dim"]


def add_norm(
    states: States,
    update: States | None,
    norm: nn.LayerNorm | nn.RMSNorm,
    probability: float,
    training: bool,
    *,
    is_residual: bool = False,
) -> tuple[States, States]:
    """The sum of states and dropout(update), and norm(sum), as `plain`; in training on a GPU both are one kernel.

    `probability` is that of dropout. Under bfloat16 autocast the kernel writes norm(sum) in bfloat16 at once, unless
    `is_residual` is true: then norm(sum) is the residual stream of the next layers and stays in float32.
    """
    if update is None or not takes("add_norm", states, update, norm):
        return plain(states, update, norm, probability, training)
    in_bfloat16 = (
        not is_residual and torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    )
    seeds = torch.randint(1 << 31, (2,), device=states.device)
    probability = probability if training else 0.0
    added, normed, _, _ = gpu.add_norm.add_norm(
        states.contiguous(), update.contiguous(), norm.weight, norm.bias, seeds, probability, norm.eps, in_bfloat16
    )
    return added, normed


def plain(
    states: States, update: States | None, norm: nn.Module, probability: float, training: bool
) -> tuple[States, States]:
    """The definition; if there is no update yet (`update` is None), the sum is the states themselves."""
    added = states if update is None else add_dropped(states, update, probability, training)
    return added, norm(added)
