"""Connectionist temporal classification (CTC): a layer that predicts the target from the encoder's memory alone."""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.kernels.ctc import ctc_loss
from regard.types import PAD, Memory, Padded

BLANK = PAD  # no target contains it


class CTC(nn.Module):
    """Graves et al. 2006: at each position of the memory a distribution over the target's tokens and blank."""

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, size)

    def forward(self, memory: Memory) -> Float[Tensor, "batch source vocabulary"]:
        """The log-probabilities of all tokens at each position; those at padding are arbitrary."""
        logits = self.out(memory.states)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)

    def loss(self, memory: Memory, target: Padded) -> Float[Tensor, ""]:
        """-log P of the targets without BEGIN and END, summed over the batch.

        Targets that need more positions than their source has add 0, and so do rows that are only padding.
        """
        tokens = (target.mask.sum(1) - 2).clamp(min=0)
        losses = ctc_loss(self(memory), memory.mask.sum(1), target.ids[:, 1:], tokens, BLANK)
        return losses.masked_fill(~target.mask[:, 0], 0.0).sum()


def least_positions(tokens: list[int]) -> int:
    """The fewest source positions for a target: one for each token, and one for the blank between two equal ones."""
    return len(tokens) + sum(first == second for first, second in pairwise(tokens))
