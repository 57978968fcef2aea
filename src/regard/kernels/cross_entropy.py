"""Cross-entropy in few passes: what a softmax over many words costs, and its gradient.

On the CPU the log-probabilities of a whole batch are too many for its caches, and take as much memory as the logits.
Here the rows go through the caches a few at a time; kept are the logits, and one number for each row.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

CACHED = 1 << 17  # numbers that go through the caches at once


def cross_entropy(
    logits: Float[Tensor, "rows classes"], wanted: Int[Tensor, " rows"], smoothing: float, ignore: int
) -> Float[Tensor, ""]:
    """As `plain`, by the way that is faster."""
    if logits.device.type != "cpu" or not logits.requires_grad or not logits.numel():
        return plain(logits, wanted, smoothing, ignore)
    result: Tensor = _CrossEntropy.apply(logits, wanted, smoothing, ignore)  # type: ignore[no-untyped-call]
    return result


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
        sums, means = zip(*((rows.logsumexp(-1), _mean(rows, smoothing)) for rows in logits.split(few)), strict=True)
        total, said = torch.cat(sums), logits.gather(1, places).squeeze(1)
        ctx.save_for_backward(logits, places, total, real)
        ctx.few, ctx.smoothing = few, smoothing
        return torch.where(real, total - (1 - smoothing) * said - torch.cat(means), 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """By a logit:  p - (1 - smoothing) [it is wanted] - smoothing / classes."""
        logits, places, total, real = ctx.saved_tensors
        gradient, shift = gradients[0].item(), gradients[0] * (-ctx.smoothing / logits.shape[1])
        less = torch.full_like(total, -gradient * (1 - ctx.smoothing))
        found = torch.empty_like(logits)
        each = (found, logits, total.unsqueeze(1), places, less.unsqueeze(1))
        for out, rows, sums, place, most in zip(*(all_.split(ctx.few) for all_ in each), strict=True):
            torch.sub(rows, sums, out=out).exp_()
            torch.add(shift, out, alpha=gradient, out=out).scatter_add_(1, place, most)
        return found.index_fill_(0, (~real).nonzero().squeeze(1), 0.0), None, None, None


def _mean(rows: Tensor, smoothing: float) -> Tensor:
    return rows.mean(-1) * smoothing if smoothing else rows.new_zeros(len(rows))
