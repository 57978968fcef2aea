"""The CTC loss: the log-probability of a sequence of tokens, summed over all its alignments with longer inputs.

torch's own function reads lengths on the host, so that a CUDA graph cannot hold it. There, and if algorithms must be
deterministic, the recursion runs in both directions of time at once, and gives the gradient too: a tenth of the
operations that autograd would run through the recursion.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard.kernels.choose import takes, without_autocast

IMPOSSIBLE = -1e30  # log-probability of what cannot be; finite, so that its gradient is finite too


def ctc_loss(
    log_probs: Float[Tensor, "batch time vocabulary"],
    times: Int[Tensor, " batch"],
    targets: Int[Tensor, "batch longest"],
    tokens: Int[Tensor, " batch"],
    blank: int,
) -> Float[Tensor, " batch"]:
    """`plain`, by torch's own function if it applies."""
    if takes("ctc", log_probs):
        by_time = log_probs.transpose(0, 1)
        return functional.ctc_loss(by_time, targets, times, tokens, blank, reduction="none", zero_infinity=True)
    if takes("ctc_both_ways", log_probs):
        losses: Tensor = _BothWays.apply(log_probs, times, targets, tokens, blank)  # type: ignore[no-untyped-call]
        return losses
    return plain(log_probs, times, targets, tokens, blank)


def plain(
    log_probs: Float[Tensor, "batch time vocabulary"],
    times: Int[Tensor, " batch"],
    targets: Int[Tensor, "batch longest"],
    tokens: Int[Tensor, " batch"],
    blank: int,
) -> Float[Tensor, " batch"]:
    """Graves et al. 2006, eq. 6:  -log alpha_T,  a_t(s) = (a_t-1(s) + a_t-1(s-1) + a_t-1(s-2)) p_t(l_s).

    l is the target with a blank around each of its tokens. A blank may be skipped between two different tokens. Row by
    row, `times` and `tokens` are the lengths without padding. A target that is too long for its input has loss 0.
    """
    labels = _Labels.of(targets, blank)
    emitted = log_probs.gather(-1, labels.tokens.unsqueeze(1).expand(-1, log_probs.shape[1], -1))
    before = log_probs.new_full((len(targets), 2), IMPOSSIBLE)  # two columns in front, for s - 1 and s - 2
    start = torch.zeros_like(before[:, :1])  # before the first position; the first token may skip the first blank
    scores = torch.cat([before[:, :1], start, torch.full_like(emitted[:, 0], IMPOSSIBLE)], dim=1)
    for time in range(log_probs.shape[1]):
        stay, step = scores[:, 2:], scores[:, 1:-1]
        skip = scores[:, :-2].masked_fill(~labels.may_skip, IMPOSSIBLE)
        reached = torch.logaddexp(torch.logaddexp(stay, step), skip) + emitted[:, time]
        scores = torch.cat([before, torch.where((time < times).unsqueeze(1), reached, stay)], dim=1)
    ends = torch.stack([2 * tokens + 1, 2 * tokens + 2], dim=1)  # at the last token, and at the blank after it
    losses = -scores.gather(1, ends).logsumexp(1)
    return losses.masked_fill(losses > -IMPOSSIBLE / 2, 0.0)


class _Labels(NamedTuple):
    """Targets with a blank before, between and after their tokens."""

    tokens: Int[Tensor, "batch labels"]
    may_skip: Bool[Tensor, "batch labels"]  # whether the blank before it may be skipped

    @staticmethod
    def of(targets: Int[Tensor, "batch longest"], blank: int) -> "_Labels":
        """The labels of targets; those after the end of a shorter target are arbitrary."""
        tokens = torch.full_like(targets, blank).repeat(1, 2)
        tokens[:, 1::2] = targets
        return _Labels.around(functional.pad(tokens, (0, 1), value=blank), blank)

    @staticmethod
    def around(tokens: Int[Tensor, "batch labels"], blank: int) -> "_Labels":
        """Labels that have their blanks already."""
        earlier = functional.pad(tokens, (2, 0), value=blank)[:, :-2]
        return _Labels(tokens, (tokens != blank) & (tokens != earlier))


class _BothWays(torch.autograd.Function):
    """Graves et al. 2006, eq. 14:  the gradient of log p_t(k) is minus the probability that position t emits k.

    That of label s at t is  a_t(s) b_t(s) / (p_t(l_s) P).  b is the recursion of a on the reversed target and input.
    """

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, times: Tensor, targets: Tensor, tokens: Tensor, blank: int) -> Tensor:
        labels = _Labels.of(targets, blank)
        emitted = log_probs.gather(-1, labels.tokens.unsqueeze(1).expand(-1, log_probs.shape[1], -1))
        last = 2 * tokens.unsqueeze(1)  # label of the last blank
        places = last - torch.arange(labels.tokens.shape[1], device=last.device)
        moments = times.unsqueeze(1) - 1 - torch.arange(log_probs.shape[1], device=last.device)
        turned = _Labels.around(labels.tokens.gather(1, places.clamp(min=0)), blank)
        both = torch.cat([emitted, _turned(emitted, places, moments)])
        forward, backward = _recur(both, torch.cat([labels.may_skip, turned.may_skip])).chunk(2)
        ends = forward.gather(1, (times - 1).clamp(min=0)[:, None, None].expand(-1, 1, forward.shape[2])).squeeze(1)
        ends = torch.cat([ends.gather(1, last), _where_token(ends, last)], dim=1)
        losses = -ends.logsumexp(1)
        possible = losses < -IMPOSSIBLE / 2
        shares = forward + _turned(backward, places, moments) - emitted + losses[:, None, None]
        real = (moments >= 0).unsqueeze(2) & (places >= 0).unsqueeze(1) & possible[:, None, None]
        shares = shares.masked_fill(~real, -float("inf")).exp()
        vocabulary = torch.arange(log_probs.shape[2], device=last.device)
        with without_autocast(log_probs):
            gradient = -shares @ (labels.tokens.unsqueeze(-1) == vocabulary).to(shares.dtype)
        ctx.save_for_backward(gradient)
        return losses.masked_fill(~possible, 0.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradients[0][:, None, None] * gradient, None, None, None, None


def _recur(emitted: Float[Tensor, "rows time labels"], may_skip: Bool[Tensor, "rows labels"]) -> Tensor:
    """The scores of all labels at all positions, as in `plain`; those at padding are arbitrary."""
    rows, time, labels = emitted.shape
    scores = emitted.new_full((time + 1, rows, labels + 2), IMPOSSIBLE)
    scores[0, :, 1] = 0.0
    forbidden = torch.zeros_like(emitted[:, 0]).masked_fill(~may_skip, IMPOSSIBLE)
    for position, (before, after) in enumerate(pairwise(scores)):
        reached = torch.logaddexp(torch.logaddexp(before[:, 2:], before[:, 1:-1]), before[:, :-2] + forbidden)
        torch.add(reached, emitted[:, position], out=after[:, 2:])
    return scores[1:, :, 2:].transpose(0, 1)


def _turned(values: Tensor, places: Tensor, moments: Tensor) -> Tensor:
    """Values by time and label, with both in reverse order within their lengths; arbitrary beyond them."""
    by_time = values.gather(1, moments.clamp(min=0).unsqueeze(2).expand(-1, -1, values.shape[2]))
    return by_time.gather(2, places.clamp(min=0).unsqueeze(1).expand(-1, values.shape[1], -1))


def _where_token(ends: Tensor, last: Tensor) -> Tensor:
    """The score of the last token, before the last blank; none if the target is empty."""
    return ends.gather(1, (last - 1).clamp(min=0)).masked_fill(last == 0, IMPOSSIBLE)
