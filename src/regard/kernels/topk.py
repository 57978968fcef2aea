"""The few best of many words: torch's own search on the CPU takes as long as the softmax before it, and longer."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.choose import takes

BLOCK = 64  # words whose best is found first


def topk(
    values: Float[Tensor, "rows classes"], count: int
) -> tuple[Float[Tensor, "rows {count}"], Int[Tensor, "rows {count}"]]:
    """As `values.topk(count)`, the best first; the order of ties is unspecified."""
    blocks = values.shape[1] // BLOCK
    if takes("topk", values, blocks, count):
        return by_blocks(values, count, blocks)
    best = values.topk(count) if count > 1 else values.max(1, keepdim=True)  # of one, the latter is quicker
    return best.values, best.indices


def by_blocks(
    values: Float[Tensor, "rows classes"], count: int, blocks: int
) -> tuple[Float[Tensor, "rows {count}"], Int[Tensor, "rows {count}"]]:
    """The same by blocks: the `count` best stand in the `count` blocks with the highest best.

    Only these blocks are searched, and the few last numbers that fill no block.
    """
    rows, classes = values.shape
    blocked = values[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    near = blocked.amax(-1).topk(count).indices
    places = (near.unsqueeze(-1) * BLOCK + torch.arange(BLOCK)).flatten(1)
    places = torch.cat([places, torch.arange(blocks * BLOCK, classes).expand(rows, -1)], dim=1)
    best = values.gather(1, places).topk(count)
    return best.values, places.gather(1, best.indices)
