"""What stands between two sub-layers of a Transformer: the sum with what was said, and its normalised rows."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.kernels import gpu
from regard.kernels.choose import takes
from regard.kernels.dropout import add_dropped


def add_norm(
    states: Float[Tensor, "*batch dim"],
    change: Float[Tensor, "*batch dim"] | None,
    norm: nn.LayerNorm,
    share: float,
    training: bool,
    *,
    flows: bool = False,
) -> tuple[Float[Tensor, "*batch dim"], Float[Tensor, "*batch dim"]]:
    """The sum of states and dropout(change), and norm(sum), as `plain`; while a GPU learns, in one pass.

    Where products are in half precision the norm is made in it at once, unless it `flows` on as states itself.
    """
    if change is None or not takes("add_norm", states, change, norm):
        return plain(states, change, norm, share, training)
    half = not flows and torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    seeds = torch.randint(1 << 31, (2,), device=states.device)
    dropped = share if training else 0.0
    added, normed, _, _ = gpu.add_norm.add_norm(
        states.contiguous(), change.contiguous(), norm.weight, norm.bias, seeds, dropped, norm.eps, half
    )
    return added, normed


def plain(
    states: Float[Tensor, "*batch dim"],
    change: Float[Tensor, "*batch dim"] | None,
    norm: nn.LayerNorm,
    share: float,
    training: bool,
) -> tuple[Float[Tensor, "*batch dim"], Float[Tensor, "*batch dim"]]:
    """The definition; where nothing was said yet, the states themselves."""
    added = states if change is None else add_dropped(states, change, share, training)
    return added, norm(added)
