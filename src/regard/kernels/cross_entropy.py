"""Cross-entropy over many classes, with label smoothing, in few passes over memory.

On the CPU the log-probabilities of a whole batch do not fit into the caches, and take as much memory as the logits.
Here the rows are processed in blocks that fit; stored for backward are the exponentials and one sum for each row.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.kernels.choose import takes

CACHED = 1 << 17  # numbers of one block: they fit into the caches


def cross_entropy(
    logits: Float[Tensor, "rows classes"], wanted: Int[Tensor, " rows"], smoothing: float, ignore: int
) -> Float[Tensor, ""]:
    """`plain`, by the fast path if it applies."""
    if takes("cross_entropy", logits):
        result: Tensor = _CrossEntropy.apply(logits, wanted, smoothing, ignore)  # type: ignore[no-untyped-call]
        return result
    return plain(logits, wanted, smoothing, ignore)


def plain(
    logits: Float[Tensor, "rows classes"], wanted: Int[Tensor, " rows"], smoothing: float, ignore: int
) -> Float[Tensor, ""]:
    """-sum of (1 - smoothing) log p(wanted) + smoothing mean log p, over all rows whose `wanted` is not `ignore`."""
    return functional.cross_entropy(logits, wanted, ignore_index=ignore, reduction="sum", label_smoothing=smoothing)


class _CrossEntropy(torch.autograd.Function):
    """With z the logits of a row:  loss = log sum exp z - (1 - smoothing) z_wanted - smoothing mean z."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, wanted: Tensor, smoothing: float, ignore: int) -> Tensor:
        counted = wanted != ignore
        places = wanted.masked_fill(~counted, 0).unsqueeze(1)
        block = max(1, CACHED // logits.shape[1])
        exponentials, sums, log_sums, means = torch.empty_like(logits), [], [], []
        for rows, out in zip(logits.split(block), exponentials.split(block), strict=True):
            highest = rows.amax(-1, keepdim=True)
            sums.append(torch.sub(rows, highest, out=out).exp_().sum(-1, keepdim=True))
            log_sums.append(highest.add_(sums[-1].log()))
            means.append(_smoothed_mean(rows, smoothing))
        ctx.save_for_backward(exponentials, places, torch.cat(sums), counted)
        ctx.block, ctx.smoothing = block, smoothing
        wanted_logits = logits.gather(1, places)
        losses = (torch.cat(log_sums) - (1 - smoothing) * wanted_logits).squeeze(1) - torch.cat(means)
        return torch.where(counted, losses, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """Gradient of a logit:  p - (1 - smoothing) [its class is wanted] - smoothing / classes."""
        exponentials, places, sums, counted = ctx.saved_tensors
        gradient, shift = gradients[0], gradients[0] * (-ctx.smoothing / exponentials.shape[1])
        wanted_grad = (gradient * (ctx.smoothing - 1)).expand(len(exponentials), 1)
        result = torch.empty_like(exponentials)
        blocked = (result, exponentials, gradient / sums, places, wanted_grad)
        for out, rows, scale, place, place_grad in zip(*(tensor.split(ctx.block) for tensor in blocked), strict=True):
            torch.mul(rows, scale, out=out).add_(shift).scatter_add_(1, place, place_grad)
        return result.index_fill_(0, (~counted).nonzero().squeeze(1), 0.0), None, None, None


def _smoothed_mean(rows: Tensor, smoothing: float) -> Tensor:
    """The mean of each row times smoothing; without smoothing zero, even where a logit is -inf."""
    return rows.mean(-1) * smoothing if smoothing else rows.new_zeros(len(rows))
