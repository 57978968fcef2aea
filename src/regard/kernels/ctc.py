"""The CTC loss: the log-probability of a sequence of tokens, summed over all its alignments with longer inputs."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.kernels.choose import takes

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
    labels = torch.full_like(targets, blank).repeat(1, 2)
    labels[:, 1::2] = targets
    labels = functional.pad(labels, (0, 1), value=blank)
    earlier = functional.pad(labels, (2, 0), value=blank)[:, :-2]
    may_skip = (labels != blank) & (labels != earlier)
    emitted = log_probs.gather(-1, labels.unsqueeze(1).expand(-1, log_probs.shape[1], -1))
    before = log_probs.new_full((len(labels), 2), IMPOSSIBLE)  # two columns in front, for s - 1 and s - 2
    start = torch.zeros_like(before[:, :1])  # before the first position; the first token may skip the first blank
    scores = torch.cat([before[:, :1], start, torch.full_like(emitted[:, 0], IMPOSSIBLE)], dim=1)
    for time in range(log_probs.shape[1]):
        stay, step = scores[:, 2:], scores[:, 1:-1]
        skip = scores[:, :-2].masked_fill(~may_skip, IMPOSSIBLE)
        reached = torch.logaddexp(torch.logaddexp(stay, step), skip) + emitted[:, time]
        scores = torch.cat([before, torch.where((time < times).unsqueeze(1), reached, stay)], dim=1)
    ends = torch.stack([2 * tokens + 1, 2 * tokens + 2], dim=1)  # at the last token, and at the blank after it
    losses = -scores.gather(1, ends).logsumexp(1)
    return losses.masked_fill(losses > -IMPOSSIBLE / 2, 0.0)
