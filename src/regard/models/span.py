"""Span models: an encoder that predicts the first and the last token of an answer in a text."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import recipe as recipes
from regard.encoders import Encoder
from regard.kernels.dropout import dropout
from regard.models import core
from regard.types import UNKNOWN, Padded


class Pointed(NamedTuple):
    """The log-probability of every token to be the first or the last of the answer; -inf outside of the context."""

    first: Float[Tensor, "batch length"]
    last: Float[Tensor, "batch length"]


class SpanModel(nn.Module):
    """Devlin et al. 2019, 4.2: encodes question END context END, and predicts where the answer is in the context.

    P(first = i) is the softmax over the context of s . state_i, and P(last = i) the softmax of e . state_i. Vectors may
    be added to the word embeddings: with `segments`, one for the question and one for the context; with `overlap`, one
    for tokens of the context that also occur in the question, and one for all others (Chen et al. 2017, 3.2).
    """

    def __init__(self, encoder: Encoder, *, segments: bool, overlap: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.words.embedding_dim
        self.segments = _two_vectors(width) if segments else None
        self.overlap = _two_vectors(width) if overlap else None
        self.out = nn.Linear(encoder.dim, 2)
        self.dropout = dropout

    def forward(self, source: Padded, context: Bool[Tensor, "batch length"]) -> Pointed:
        """The log-probabilities of the answer's first and last token; `context` is True at tokens of the context."""
        words = self.encoder.words(source.ids)
        if self.segments is not None:
            words = words + self.segments(context.long())
        if self.overlap is not None:
            words = words + self.overlap(asked_for(source.ids, context).long())
        states = self.encoder.read(words, source.mask).states
        logits = self.out(dropout(states, self.dropout, self.training)).float()
        log_probs = logits.masked_fill(~context.unsqueeze(-1), -torch.inf).log_softmax(1)
        return Pointed(log_probs[..., 0], log_probs[..., 1])


def asked_for(ids: Int[Tensor, "batch length"], context: Bool[Tensor, "batch length"]) -> Bool[Tensor, "batch length"]:
    """True at tokens of the context that also occur in the question; unknown tokens never count as equal."""
    same = ids.unsqueeze(2) == ids.masked_fill(context, UNKNOWN).unsqueeze(1)  # batch, token, token of the question
    return same.any(2) & context & (ids != UNKNOWN)


def _two_vectors(width: int) -> nn.Embedding:
    """Embeddings of False and True, initialised to about unit length."""
    table = nn.Embedding(2, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table


def build(recipe: recipes.Model, vectors: recipes.Answer, *, size: int) -> SpanModel:
    """Build the span model of a recipe for a vocabulary of `size` tokens."""
    encoder = core.text_encoder(recipe, size)
    return SpanModel(encoder, segments=vectors.segments, overlap=vectors.overlap, dropout=recipe.encoder.dropout)
