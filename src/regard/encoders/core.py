"""The one verb of every encoder."""

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.errors import RecipeError
from regard.recipe import Model
from regard.types import Memory, Padded


@runtime_checkable
class Layered(Protocol):
    """The shape of a reader's summary, or of a writer's state: all that the one must know of the other."""

    @property
    def dim(self) -> int:
        """The width of a state."""

    @property
    def layers(self) -> int:
        """How many states there are, on top of each other."""

    @property
    def cell_dim(self) -> int | None:
        """The width of a cell; None where there is none."""


class Encoder(ABC, nn.Module):
    """Reads a source and leaves a memory to be looked at."""

    embedding: nn.Embedding
    dim: int
    layers: int
    cell_dim: int | None

    @classmethod
    def from_recipe(cls, recipe: Model, embedding: nn.Embedding) -> "Encoder":
        """The encoder of a recipe's [model] over an embedding; regard's own are built by `models.core.encoder`."""
        raise RecipeError(f"the encoder {cls.__name__} has no class method from_recipe(recipe, embedding) to build it")

    def forward(self, source: Padded) -> Memory:
        """Embed the source and read it."""
        return self.read(self.embedding(source.ids), source.mask)

    @abstractmethod
    def read(self, words: Float[Tensor, "batch source word"], mask: Bool[Tensor, "batch source"]) -> Memory:
        """Read vectors, one for every source position: those of `embedding`, or what else stands for words."""
