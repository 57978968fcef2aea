"""The few best of many words: torch's own search on the CPU takes as long as the softmax before it, and longer."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 64  # words whose best is found first
LEAST = 1 << 16  # numbers for which it pays


def topk(
    values: Float[Tensor, "rows classes"], count: int
) -> tuple[Float[Tensor, "rows {count}"], Int[Tensor, "rows {count}"]]:
    """As `values.topk(count)`, the best first; which of equals come first is nobody's promise.

    The `count` best stand in the `count` blocks with the highest best: only these are searched, and the few last
    numbers that fill no block.
    """
    rows, classes = values.shape
    blocks = classes // BLOCK
    if values.device.type != "cpu" or values.numel() < LEAST or blocks <= 2 * count:
        best = values.topk(count) if count > 1 else values.max(1, keepdim=True)  # of one, the latter is quicker
        return best.values, best.indices
    blocked = values[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    near = blocked.amax(-1).topk(count).indices
    places = (near.unsqueeze(-1) * BLOCK + torch.arange(BLOCK)).flatten(1)
    places = torch.cat([places, torch.arange(blocks * BLOCK, classes).expand(rows, -1)], dim=1)
    best = values.gather(1, places).topk(count)
    return best.values, places.gather(1, best.indices)
