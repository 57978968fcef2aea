"""Masked language models: an encoder that says what stood where something is hidden."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard import recipe as recipes
from regard.encoders import Encoder
from regard.models import core
from regard.types import PAD, Padded


class MaskedLM(nn.Module):
    """Devlin et al. 2019: reads a text with holes in both directions, and predicts what is asked for.

    MASK, the sign for a hole, is the first id after the vocabulary, and its vector stands beside those of the words:
    so the encoder is, name by name and shape by shape, that of a classifier or tagger with the same tokens.
    """

    def __init__(self, encoder: Encoder, *, tied: bool) -> None:
        super().__init__()
        self.encoder = encoder
        self.mask_id, width = encoder.words.num_embeddings, encoder.words.embedding_dim
        self.mask = nn.Parameter(torch.empty(width).normal_(std=width**-0.5))
        self.inner = nn.Linear(encoder.dim, width)
        self.norm = nn.LayerNorm(width)
        self.out = None if tied else nn.Linear(width, self.mask_id)
        self.bias = nn.Parameter(torch.zeros(self.mask_id)) if tied else None

    def forward(self, source: Padded, asked: Bool[Tensor, "batch length"]) -> Float[Tensor, "places vocabulary"]:
        """A number for every word of the vocabulary at each place that is asked for, row after row."""
        states = self.encoder.read(self.embed(source.ids), source.mask).states[asked]
        return self.predict(self.norm(functional.gelu(self.inner(states))))

    def embed(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length word"]:
        """The vectors of words and holes."""
        hole = ids == self.mask_id
        words = self.encoder.words(ids.masked_fill(hole, PAD))
        return torch.where(hole.unsqueeze(-1), self.mask.to(words.dtype), words)

    def predict(self, states: Float[Tensor, "places word"]) -> Float[Tensor, "places vocabulary"]:
        """A number for every word; where tied, with the matrix that embeds them (Press and Wolf 2017)."""
        words = self.encoder.words.weight
        return functional.linear(states, words, self.bias) if self.out is None else self.out(states)


def build(recipe: recipes.Model, *, size: int) -> MaskedLM:
    """The masked language model of a recipe for a vocabulary of that size."""
    return MaskedLM(core.text_encoder(recipe, size), tied=recipe.tied)
