"""The few highest of many scores: on the CPU, torch's own topk takes longer than the softmax before it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.choose import takes

BLOCK = 64  # scores of a block, whose maximum is computed first


def topk(
    values: Float[Tensor, "rows classes"], count: int
) -> tuple[Float[Tensor, "rows {count}"], Int[Tensor, "rows {count}"]]:
    """Values and indices as of `values.topk(count)`, the highest first; the order of ties is unspecified."""
    blocks = values.shape[1] // BLOCK
    if takes("topk", values, blocks, count):
        return by_blocks(values, count, blocks)
    best = values.topk(count) if count > 1 else values.max(1, keepdim=True)  # for a single one, max is faster
    return best.values, best.indices


def by_blocks(
    values: Float[Tensor, "rows classes"], count: int, blocks: int
) -> tuple[Float[Tensor, "rows {count}"], Int[Tensor, "rows {count}"]]:
    """`topk` by blocks: the `count` highest scores lie in the `count` blocks with the highest maxima.

    Only these blocks are searched, and the last few scores, which do not fill a block.
    """
    rows, classes = values.shape
    blocked = values[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    best_blocks = blocked.amax(-1).topk(count).indices
    places = (best_blocks.unsqueeze(-1) * BLOCK + torch.arange(BLOCK)).flatten(1)
    places = torch.cat([places, torch.arange(blocks * BLOCK, classes).expand(rows, -1)], dim=1)
    best = values.gather(1, places).topk(count)
    return best.values, places.gather(1, best.indices)
