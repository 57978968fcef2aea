"""Taggers: predict a tag for every word from the word, its letters and the words around it."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import recipe as recipes
from regard.encoders import Encoder
from regard.errors import RecipeError, pick
from regard.models import core
from regard.models.letters import LETTERS, Letters, Spelled


class Tagger(nn.Module):
    """Ling et al. 2015; Lample et al. 2016: encodes words with their letters, then predicts a tag for each word.

    The vector of a word is its embedding plus a projection of the vector of its letters.
    """

    def __init__(self, encoder: Encoder, letters: Letters | None, *, tags: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.letters = letters
        self.spelling = None if letters is None else _spelling(letters.dim, encoder.words)
        self.tags = nn.Linear(encoder.dim, tags)

    def forward(self, source: Spelled) -> Float[Tensor, "batch length tags"]:
        """The logits of every tag for every word."""
        return self.tags(self.encoder.read(self.words(source), source.mask).states)

    def words(self, source: Spelled) -> Float[Tensor, "batch length word"]:
        """The vector of every word, before the encoder."""
        words = self.encoder.words(source.ids)
        if self.letters is None or self.spelling is None:
            return words
        return words + self.spelling(self.letters(source))


def _spelling(dim: int, words: nn.Embedding) -> nn.Linear:
    """A linear layer from letter vectors to the width of words, initialised on the scale of the word embeddings."""
    spelling = nn.Linear(dim, words.embedding_dim)
    with torch.no_grad():
        for parameter in spelling.parameters():
            parameter.mul_(words.weight.std())
    return spelling


def build(recipe: recipes.Model, settings: recipes.Letters, *, words: int, letters: int, tags: int) -> Tagger:
    """Build the tagger of a recipe for vocabularies of these numbers of words, letters and tags."""
    kind = pick(LETTERS, settings.kind, "reader of letters")
    if settings.dim % 2:
        raise RecipeError(f"tag.letters.dim is split in two halves, so it must be even, not {settings.dim}")
    letter_encoder = kind(letters, embedding=settings.embedding, dim=settings.dim) if settings.dim else None
    return Tagger(core.text_encoder(recipe, words), letter_encoder, tags=tags)
