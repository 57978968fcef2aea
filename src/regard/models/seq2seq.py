"""Sequence to sequence: an encoder and a decoder."""

from dataclasses import replace

from torch import nn

from regard import recipe as recipes
from regard.decoders import AnyDecoder
from regard.encoders import Encoder
from regard.errors import RecipeError
from regard.models import core
from regard.types import Batch, Memory, Padded, Step


class Seq2Seq(nn.Module):
    """Reads a source into a memory, writes the target from it."""

    def __init__(self, encoder: Encoder, decoder: AnyDecoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, batch: Batch) -> Step:
        """Teacher forcing: what is predicted after each target token but the last."""
        return self.decoder(batch.target.ids[:, :-1], self.read(batch.source))

    def read(self, source: Padded) -> Memory:
        """The memory of a source, with its tokens where the decoder copies them."""
        memory = self.encoder(source)
        return replace(memory, ids=source.ids) if self.decoder.copies else memory


def build(recipe: recipes.Model, *, source_size: int, target_size: int, shared: bool = False) -> Seq2Seq:
    """The model of a recipe for vocabularies of these sizes; `shared` where they are one vocabulary."""
    encoder = core.encoder(core.beside_decoder(recipe), source_size)
    decoder = core.decoder(recipe, target_size, encoder)
    if shared and recipe.tied:
        if encoder.embedding.weight.shape != decoder.embedding.weight.shape:
            raise RecipeError("model.tied with tokens.shared needs encoder and decoder of one width")
        encoder.embedding = decoder.embedding
    return Seq2Seq(encoder, decoder)
