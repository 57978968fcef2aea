"""A head that may point at a source's token instead of choosing a word."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Pointer(nn.Module):
    """Gu et al. 2016; See et al. 2017, 2.2: with the chance g a word is written, else a token in sight is copied.

    p(w) = g softmax(logits)_w + (1 - g) sum over keys j with token w of a_j,
    g = sigmoid(v . [context; read; word] + b), where `read` is the vector that words are predicted from.
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
        """The log-probabilities of both ways together; beams of one source share its tokens."""
        given = self.writes(torch.cat(parts, dim=-1)).to(torch.promote_types(logits.dtype, torch.float32))
        words = logits.to(given.dtype).log_softmax(-1) + nn.functional.logsigmoid(given)
        places = ids.repeat_interleave(len(weights) // len(ids), dim=0).unsqueeze(1).expand_as(weights)
        copied = torch.zeros_like(words).scatter_add(-1, places, weights.to(words.dtype))
        tiny = torch.finfo(words.dtype).tiny
        return torch.logaddexp(words, copied.clamp(min=tiny).log() + nn.functional.logsigmoid(-given))
