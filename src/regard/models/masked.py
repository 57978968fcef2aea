"""Masked language models: an encoder that predicts the tokens that were masked out of a text."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard import recipe as recipes
from regard.encoders import Encoder
from regard.models import core
from regard.types import PAD, Padded


class MaskedLM(nn.Module):
    """Devlin et al. 2019: encodes a text in which some tokens are masked, and predicts the tokens at chosen positions.

    The id of the mask token is the first after the vocabulary, and its vector is a parameter of this model, not of the
    encoder. So the encoder's parameters have the names and shapes of those of a classifier or tagger with the same
    tokens, which can start from them.
    """

    def __init__(self, encoder: Encoder, *, tied: bool, norm_eps: float = 1e-5) -> None:
        super().__init__()
        self.encoder = encoder
        self.mask_id, width = encoder.words.num_embeddings, encoder.words.embedding_dim
        self.mask = nn.Parameter(torch.empty(width).normal_(std=width**-0.5))
        self.inner = nn.Linear(encoder.dim, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.out = None if tied else nn.Linear(width, self.mask_id)
        self.bias = nn.Parameter(torch.zeros(self.mask_id)) if tied else None

    def forward(self, source: Padded, asked: Bool[Tensor, "batch length"]) -> Float[Tensor, "places vocabulary"]:
        """The logits of the vocabulary at each position where `asked` is True, row by row."""
        states = self.encoder.read(self.embed(source.ids), source.mask).states[asked]
        return self.predict(self.norm(functional.gelu(self.inner(states))))

    def embed(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length word"]:
        """The vectors of the tokens and of mask tokens."""
        masked = ids == self.mask_id
        words = self.encoder.words(ids.masked_fill(masked, PAD))
        return torch.where(masked.unsqueeze(-1), self.mask.to(words.dtype), words)

    def predict(self, states: Float[Tensor, "places word"]) -> Float[Tensor, "places vocabulary"]:
        """The logits of the vocabulary; if tied, the embedding matrix is the output matrix (Press and Wolf 2017)."""
        words = self.encoder.words.weight
        return functional.linear(states, words, self.bias) if self.out is None else self.out(states)


def build(recipe: recipes.Model, *, size: int) -> MaskedLM:
    """Build the masked language model of a recipe for a vocabulary of `size` tokens."""
    return MaskedLM(core.text_encoder(recipe, size), tied=recipe.tied, norm_eps=recipe.norm_eps)
