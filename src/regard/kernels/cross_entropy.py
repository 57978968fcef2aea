"""Cross-entropy in few passes: what a softmax over many words costs, and its gradient.

On the CPU the log-probabilities of a whole batch are too many for its caches, and take as much memory as the logits.
Here the rows go through the caches a few at a time; kept are the exponentials, and one number for each row.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.kernels.choose import takes

CACHED = 1 << 17  # numbers that go through the caches at once


def cross_entropy(
    logits: Float[Tensor, "rows classes"], wanted: Int[Tensor, " rows"], smoothing: float, ignore: int
) -> Float[Tensor, ""]:
    """As `plain`, by the way that is faster."""
    if takes("cross_entropy", logits):
        result: Tensor = _CrossEntropy.apply(logits, wanted, smoothing, ignore)  # type: ignore[no-untyped-call]
        return result
    return plain(logits, wanted, smoothing, ignore)


def plain(
    logits: Float[Tensor, "rows classes"], wanted: Int[Tensor, " rows"], smoothing: float, ignore: int
) -> Float[Tensor, ""]:
    """-sum over rows, but those where `ignore` is wanted, of (1 - smoothing) log p(wanted) + smoothing mean log p."""
    return functional.cross_entropy(logits, wanted, ignore_index=ignore, reduction="sum", label_smoothing=smoothing)


class _CrossEntropy(torch.autograd.Function):
    """With z the logits of a row:  loss = log sum exp z - (1 - smoothing) z_wanted - smoothing mean z."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor, smoothing: float, ignore: int) -> Tensor:
        real = wanted != ignore
        places = wanted.masked_fill(~real, 0).unsqueeze(1)
        few = max(1, CACHED // logits.shape[1])
        found, sums, totals, means = torch.empty_like(logits), [], [], []
        for rows, out in zip(logits.split(few), found.split(few), strict=True):
            highest = rows.amax(-1, keepdim=True)
            sums.append(torch.sub(rows, highest, out=out).exp_().sum(-1, keepdim=True))
            totals.append(highest.add_(sums[-1].log()))
            means.append(_mean(rows, smoothing))
        ctx.save_for_backward(found, places, torch.cat(sums), real)
        ctx.few, ctx.smoothing = few, smoothing
        said = logits.gather(1, places)
        losses = (torch.cat(totals) - (1 - smoothing) * said).squeeze(1) - torch.cat(means)
        return torch.where(real, losses, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """By a logit:  p - (1 - smoothing) [it is wanted] - smoothing / classes."""
        found, places, sums, real = ctx.saved_tensors
        gradient, shift = gradients[0], gradients[0] * (-ctx.smoothing / found.shape[1])
        less = (gradient * (ctx.smoothing - 1)).expand(len(found), 1)
        result = torch.empty_like(found)
        each = (result, found, gradient / sums, places, less)
        for out, rows, scale, place, most in zip(*(all_.split(ctx.few) for all_ in each), strict=True):
            torch.mul(rows, scale, out=out).add_(shift).scatter_add_(1, place, most)
        return result.index_fill_(0, (~real).nonzero().squeeze(1), 0.0), None, None, None


def _mean(rows: Tensor, smoothing: float) -> Tensor:
    return rows.mean(-1) * smoothing if smoothing else rows.new_zeros(len(rows))
