"""The interface of all encoders: `forward` for a source batch, `read` for vectors."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol, cast, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import RecipeError
from regard.maps import TEXT, Layout
from regard.recipe import Model
from regard.sources import Front, SourceBatch, TokenEmbedding
from regard.types import Memory


@runtime_checkable
class Layered(Protocol):
    """Number of layers and widths of a recurrent state: of an encoder's summary, or of a decoder's layers.

    A `Start` computes the decoder's first state from the summary, so it needs the sizes of both.
    """

    dim: int  # the width of a hidden state
    layers: int  # each has a state
    cell_dim: int | None  # the width of an LSTM's cell state; None for other units


class Encoder(ABC, nn.Module):
    """Base class of encoders: computes from a source the memory that decoders attend to.

    `dim`, `layers` and `cell_dim` are the sizes of the memory's summary (see `Layered`).
    """

    skips_holes: ClassVar[bool] = False  # whether masked positions may also stand before others, not only at the end
    embedding: Front
    dim: int
    layers: int
    cell_dim: int | None

    @classmethod
    def from_recipe(cls, recipe: Model, front: Front) -> "Encoder":
        """Build the encoder of a recipe's [model] for a source's front; `models.core.encoder` builds regard's own."""
        raise RecipeError(f"the encoder {cls.__name__} has no class method from_recipe(recipe, front) to build it")

    @property
    def words(self) -> TokenEmbedding:
        """The token embedding, for an encoder that reads text; other sources have none."""
        return cast(TokenEmbedding, self.embedding)

    def forward(self, source: SourceBatch) -> Memory:
        """Embed the source and encode its vectors."""
        return self.read(*self.embedding.embed(source))

    @abstractmethod
    def read(
        self, vectors: Float[Tensor, "batch source word"], mask: Bool[Tensor, "batch source"], layout: Layout = TEXT
    ) -> Memory:
        """Encode one vector per source position: those that `embedding` gives, or others in their place."""
