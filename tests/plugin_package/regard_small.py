"""A score, a normaliser, a scope, an encoder, a task and a source, each as small as can be."""

from torch import Tensor, nn

from regard.attention import Score
from regard.attention.masks import Causal, Mask, materialize
from regard.attention.normalizers import Entry
from regard.attention.scopes import Focus, Scope
from regard.data import files
from regard.encoders import Encoder
from regard.maps import TEXT, Layout
from regard.recipe import Limits, Model
from regard.sources import Front, Text
from regard.tasks import Transduce
from regard.types import Example, Memory, Recurrent


class Manhattan(Score):
    """The distance along all axes:  e = -sum_i |query_i - key_i|."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)

    def project(self, states: Tensor) -> Tensor:
        return states

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return -(query.unsqueeze(-2) - keys.unsqueeze(-3)).abs().sum(-1)


def squared(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Every key by the square of its score:  weight_j = score_j^2 / sum_k score_k^2."""
    squares = scores.square() if mask is None else scores.square().masked_fill(~mask, 0.0)
    return squares / squares.sum(-1, keepdim=True).clamp(min=1e-9)


SQUARED = Entry(squared, sums_to_one=True, differentiable=True)


class Before(Scope):
    """Query t sees the keys up to t."""

    def focus(self, query: Tensor, keys: Tensor, mask: Mask, start: int) -> Focus:
        before, allowed = Causal(start).materialize(query, keys), materialize(mask, query, keys)
        return Focus(before if allowed is None else before & allowed, self.normalize)


class Tokenwise(Encoder):
    """One linear layer for every token by itself; the summary is the mean."""

    layers = 1
    cell_dim = None

    def __init__(self, front: Front, dim: int) -> None:
        super().__init__()
        self.embedding = front
        self.linear = nn.Linear(front.width, dim)
        self.dim = dim

    @classmethod
    def from_recipe(cls, recipe: Model, front: Front) -> "Tokenwise":
        return cls(front, recipe.encoder.dim)

    def read(self, vectors: Tensor, mask: Tensor, layout: Layout = TEXT) -> Memory:
        states = self.linear(vectors).masked_fill(~mask.unsqueeze(-1), 0.0)
        mean = states.sum(1, keepdim=True) / mask.sum(-1).clamp(min=1)[:, None, None]
        return Memory(states, mask, Recurrent(mean, None), layout)


class Capitals(Transduce):
    """The lines of a text, to be written in capitals."""

    @staticmethod
    def read(names: tuple[str, ...], limits: Limits = files.LIMITS) -> files.Loaded:
        lines = files.texts(names, limits)
        return lines._replace(examples=[Example(line.source, line.source.upper()) for line in lines.examples])


class Backwards(Text):
    """A text whose tokens are read from the last to the first."""

    def encode(self, source: str) -> list[int]:
        return super().encode(source)[::-1]
