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

EMBEDDING_STD = 0.05  # the standard deviation of the initial token embeddings


class Classified(NamedTuple):
    """The output of a classifier for each sentence: logits, and the attention weights of its pooling."""

    logits: Float[Tensor, "batch classes"]
    weights: Float[Tensor, "batch source"] | None  # None if the pooling has no attention


class Classifier(nn.Module):
    """Encodes a sentence, pools its states into one vector, and computes the logits of the classes from it."""

    def __init__(self, encoder: Encoder, pooling: Pooling, classes: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling
        self.out = nn.Linear(encoder.dim, classes)
        self.dropout = dropout

    def forward(self, source: Padded) -> Classified:
        """The logits of the classes, and the weights of the pooling."""
        pooled = self.pooling(self.encoder(source))
        return Classified(self.out(dropout(pooled.vector, self.dropout, self.training)), pooled.weights)


def build(recipe: recipes.Model, pooling: str, *, size: int, classes: int) -> Classifier:
    """Build the classifier of a recipe for a vocabulary of `size` tokens."""
    encoder = core.text_encoder(recipe, size)
    _scale_embeddings(encoder.words)
    return Classifier(encoder, make_pooling(recipe, pooling, encoder.dim), classes, dropout=recipe.encoder.dropout)


def _scale_embeddings(words: nn.Embedding) -> None:
    """Scale the initial embeddings in place to the standard deviation `EMBEDDING_STD`.

    A rare word keeps about its initial vector, and a small vector has little effect.
    """
    with torch.no_grad():
        words.weight.mul_(EMBEDDING_STD / words.weight.std())


def make_pooling(recipe: recipes.Model, name: str, dim: int) -> Pooling:
    """Build a pooling of `POOLINGS` for the states of a recipe's encoder, of width `dim`."""
    kind = pick(POOLINGS, name, "pooling")
    recurrent = recipe.encoder.kind == "recurrent"
    if recurrent and name == "cls" and not recipe.encoder.bidirectional:
        raise RecipeError(
            "classify.pooling = cls reads the first state, but a recurrent encoder of one direction has read nothing "
            "there yet; choose last, or model.encoder.bidirectional = true"
        )
    # The query has no position in the sentence, so local scopes have no meaning here.
    settings = replace(recipe.attention, scope="global")

    def make(width: int) -> Attention:
        return core.attention(settings, query_dim=width, key_dim=width, longest=recipe.longest)

    return kind(dim=dim, directions=1 + (recurrent and recipe.encoder.bidirectional), make=make)
