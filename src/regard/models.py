"""Models: an encoder and a decoder, put together as a recipe says."""

from torch import nn

from regard import recipe as recipes
from regard.attention import NORMALIZERS, SCOPES, SCORES, Attention
from regard.decoders import ORDERS, RecurrentDecoder
from regard.encoders import RecurrentEncoder
from regard.errors import RecipeError, pick
from regard.recurrence import CELLS, Recurrence
from regard.types import PAD, Batch, Step


class Seq2Seq(nn.Module):
    """Reads a source into a memory, writes the target from it."""

    def __init__(self, encoder: RecurrentEncoder, decoder: RecurrentDecoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, batch: Batch) -> Step:
        """Teacher forcing: what is predicted after each target token but the last."""
        return self.decoder(batch.target.ids[:, :-1], self.encoder(batch.source))


def build(recipe: recipes.Model, *, source_size: int, target_size: int) -> Seq2Seq:
    """The model of a recipe for vocabularies of these sizes."""
    encoder = _encoder(recipe, source_size)
    return Seq2Seq(encoder, _decoder(recipe, target_size, memory_dim=encoder.dim))


def _encoder(recipe: recipes.Model, size: int) -> RecurrentEncoder:
    settings = recipe.encoder
    if settings.bidirectional and settings.dim % 2:
        raise RecipeError(f"model.encoder.dim is split between two directions, so it is even, not {settings.dim}")
    recurrence = Recurrence(
        pick(CELLS, settings.cell, "cell"),
        input_dim=recipe.embedding,
        dim=settings.dim,
        layers=settings.layers,
        dropout=settings.dropout,
        bidirectional=settings.bidirectional,
    )
    embedding = nn.Embedding(size, recipe.embedding, padding_idx=PAD)
    return RecurrentEncoder(embedding, recurrence, dropout=settings.dropout)


def _decoder(recipe: recipes.Model, size: int, memory_dim: int) -> RecurrentDecoder:
    settings = recipe.decoder
    order = pick(ORDERS, settings.order, "order")
    return order(
        nn.Embedding(size, recipe.embedding, padding_idx=PAD),
        _attention(recipe.attention, query_dim=settings.dim, key_dim=memory_dim) if order.looks() else None,
        cell=pick(CELLS, settings.cell, "cell"),
        memory_dim=memory_dim,
        dim=settings.dim,
        layers=settings.layers,
        dropout=settings.dropout,
    )


def _attention(settings: recipes.Attention, *, query_dim: int, key_dim: int) -> Attention:
    score = pick(SCORES, settings.score, "score")(query_dim=query_dim, key_dim=key_dim, dim=settings.dim)
    normalizer = pick(NORMALIZERS, settings.normalizer, "normalizer")
    return pick(SCOPES, settings.scope, "scope")(score, normalizer.function)
