"""Sequence-to-sequence models: an encoder and a decoder."""

from dataclasses import replace

from torch import nn

from regard import recipe as recipes
from regard.decoders import AnyDecoder
from regard.encoders import Encoder
from regard.errors import RecipeError
from regard.models import core
from regard.models.ctc import CTC
from regard.sources import Front, SourceBatch, TokenEmbedding, token_embedding
from regard.types import Batch, Memory, Padded, Step


class Seq2Seq(nn.Module):
    """Encodes a source into a memory, from which the decoder predicts the target, and maybe a CTC layer does too."""

    def __init__(self, encoder: Encoder, decoder: AnyDecoder, ctc: CTC | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.ctc = ctc

    def forward(self, batch: Batch) -> Step:
        """Teacher forcing: the predictions after each target token but the last."""
        memory = self.read(batch.source)
        step = self.decoder(batch.target.ids[:, :-1], memory)
        return Step(step.logits, step.state, step.attention, step.log_prob, memory)

    def read(self, source: SourceBatch) -> Memory:
        """Encode a source; the memory has its token ids if the decoder may copy them."""
        memory: Memory = self.encoder(source)
        if not self.decoder.copies:
            return memory
        assert isinstance(source, Padded)
        return replace(memory, ids=source.ids)


def build(recipe: recipes.Model, *, source_size: int, target_size: int, shared: bool = False) -> Seq2Seq:
    """Build a text-to-text model of a recipe for vocabularies of these sizes; `shared` if they are the same."""
    front = token_embedding(recipe, source_size, recipe.encoder.kind, recipe.encoder.dim)
    return assemble(recipe, front, target_size=target_size, shared=shared)


def assemble(
    recipe: recipes.Model, front: Front, *, target_size: int, shared: bool = False, ctc: bool = False
) -> Seq2Seq:
    """Build a model of a recipe from any source to text; with `ctc`, it has a CTC layer beside its decoder.

    If the vocabulary is `shared` and `model.tied` is set, encoder and decoder share one embedding matrix.
    """
    encoder = core.encoder(core.beside_decoder(recipe), front)
    decoder = core.decoder(recipe, target_size, encoder)
    if shared and recipe.tied and isinstance(front, TokenEmbedding):
        if front.weight.shape != decoder.embedding.weight.shape:
            raise RecipeError("model.tied with tokens.shared needs encoder and decoder of one width")
        encoder.embedding = decoder.embedding
    return Seq2Seq(encoder, decoder, CTC(encoder.dim, target_size) if ctc else None)
