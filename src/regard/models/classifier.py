"""Classifiers: one label for a whole sentence."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import recipe as recipes
from regard.attention.core import Attention
from regard.attention.pooling import POOLINGS, Pooling
from regard.encoders import Encoder
from regard.errors import RecipeError, pick
from regard.kernels.dropout import dropout
from regard.models import core
from regard.types import Padded

QUIET = 0.05  # the spread of the words' first vectors


class Classified(NamedTuple):
    """What a classifier says of each sentence, and where it looked."""

    logits: Float[Tensor, "batch classes"]
    weights: Float[Tensor, "batch source"] | None  # of a pooling that looks


class Classifier(nn.Module):
    """Reads a sentence, makes one vector of its states, and gives every class a number."""

    def __init__(self, encoder: Encoder, pooling: Pooling, classes: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.out = nn.Linear(encoder.dim, classes)
        self.dropout = dropout

    def forward(self, source: Padded) -> Classified:
        """The logits of the classes."""
        pooled = self.pooling(self.encoder(source))
        return Classified(self.out(dropout(pooled.vector, self.dropout, self.training)), pooled.weights)


def build(recipe: recipes.Model, *, size: int, classes: int) -> Classifier:
    """The classifier of a recipe for a vocabulary of that size."""
    encoder = core.text_encoder(recipe, size)
    _quiet_words(encoder.words)
    return Classifier(encoder, pooling(recipe, encoder.dim), classes, dropout=recipe.encoder.dropout)


def _quiet_words(words: nn.Embedding) -> None:
    """Let words begin small: one met once or twice keeps about the vector it began with, which should say little."""
    with torch.no_grad():
        words.weight.mul_(QUIET / words.weight.std())


def pooling(recipe: recipes.Model, dim: int) -> Pooling:
    """The pooling of a recipe for states of that width."""
    kind = pick(POOLINGS, recipe.pooling, "pooling")
    recurrent = recipe.encoder.kind == "recurrent"
    if recurrent and recipe.pooling == "cls" and not recipe.encoder.bidirectional:
        raise RecipeError(
            "model.pooling = cls reads the first state, but a recurrent encoder of one direction has read nothing "
            "there yet; choose last, or model.encoder.bidirectional = true"
        )
    # The query stands at no place of the sentence.
    everywhere = replace(recipe.attention, scope="global")

    def make(width: int) -> Attention:
        return core.attention(everywhere, query_dim=width, key_dim=width, longest=recipe.longest)

    return kind(dim=dim, directions=1 + (recurrent and recipe.encoder.bidirectional), make=make)
