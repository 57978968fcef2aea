"""Language models: a decoder without a source."""

from torch import nn

from regard import recipe as recipes
from regard.decoders import AnyDecoder
from regard.models import core
from regard.types import Batch, Memory, Step


class LanguageModel(nn.Module):
    """Predicts every token from the tokens before it."""

    def __init__(self, decoder: AnyDecoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, batch: Batch) -> Step:
        """Teacher forcing: the predictions after each token but the last."""
        tokens = batch.target.ids[:, :-1]
        return self.decoder(tokens, Memory.none(len(tokens), tokens.device, self.decoder.embedding.weight.dtype))


def build(recipe: recipes.Model, *, size: int) -> LanguageModel:
    """Build the language model of a recipe for a vocabulary of `size` tokens."""
    return LanguageModel(core.decoder(recipe, size, None))
