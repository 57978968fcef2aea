"""The copy mechanism: an output layer that may copy a source token instead of predicting a word."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Pointer(nn.Module):
    """Gu et al. 2016; See et al. 2017, 2.2: with probability g it generates a word, otherwise it copies a source token.

    p(w) = g softmax(logits)_w + (1 - g) sum over keys j with token w of a_j,
    where a are the attention weights, g = sigmoid(v . [context; read; word] + b), and `read` is the vector from which
    words are predicted.
    """

    def __init__(self, *, context_dim: int, dim: int, word_dim: int) -> None:
        super().__init__()
        self.writes = nn.Linear(context_dim + dim + word_dim, 1)

    def forward(
        self,
        logits: Float[Tensor, "rows tokens vocabulary"],
        parts: list[Float[Tensor, "rows tokens _"]],
        weights: Float[Tensor, "rows tokens source"],
        ids: Int[Tensor, "batch source"],
    ) -> Float[Tensor, "rows tokens vocabulary"]:
        """The log-probability of every word, generated or copied.

        `parts` are context, `read` and word embedding; beams of one source share its token `ids`.
        """
        gate = self.writes(torch.cat(parts, dim=-1)).to(torch.promote_types(logits.dtype, torch.float32))
        words = logits.to(gate.dtype).log_softmax(-1) + nn.functional.logsigmoid(gate)
        columns = ids.repeat_interleave(len(weights) // len(ids), dim=0).unsqueeze(1).expand_as(weights)
        copied = torch.zeros_like(words).scatter_add(-1, columns, weights.to(words.dtype))
        # A word that stands nowhere in the source has copy probability 0, whose logarithm would be -inf.
        tiny = torch.finfo(words.dtype).tiny
        return torch.logaddexp(words, copied.clamp(min=tiny).log() + nn.functional.logsigmoid(-gate))
