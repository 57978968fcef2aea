"""Several looks at once: any scope and score, in subspaces of their own."""

from collections.abc import Callable
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.core import Attended, Attention, Past
from regard.errors import RecipeError


class MultiHead(nn.Module):
    """Vaswani et al. 2017, 3.2.2: project, attend in every head with one score of the head's width, join.

    context = W_o [head_1; ...; head_h],  head_i = attention(W_q query, W_k states, W_v states) in subspace i
    """

    uses_past: ClassVar[bool] = False

    def __init__(self, make: Callable[[int], Attention], *, query_dim: int, key_dim: int, dim: int, heads: int) -> None:
        super().__init__()
        if dim % heads:
            raise RecipeError(f"{heads} heads share a width of {dim} evenly only if {heads} divides it")
        self.heads = heads
        self.attention = make(dim // heads)
        self.query = nn.Linear(query_dim, dim)
        self.key = nn.Linear(key_dim, dim)
        self.value = nn.Linear(key_dim, dim)
        self.out = nn.Linear(dim, key_dim)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch heads key part"]:
        """The keys of every head."""
        return self.attention.project(self._split(self.key(states)))

    def content(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch heads key part"]:
        """The values of every head."""
        return self.attention.content(self._split(self.value(states)))

    def forward(
        self,
        query: Float[Tensor, "*batch query query_dim"],
        keys: Float[Tensor, "*keys heads key part"],
        values: Float[Tensor, "*keys heads key part2"],
        *,
        mask: Bool[Tensor, "*mask"] | None,
        start: int = 0,
        past: Past | None = None,
    ) -> Attended:
        """Look with all heads; the weights are their mean, `record` has each head's own."""
        asked = self._split(self.query(query))
        seen = None if mask is None else mask.unsqueeze(-3)
        attended = self.attention(asked, keys, values, mask=seen, start=start)
        context = self.out(attended.context.transpose(-2, -3).flatten(-2))
        return Attended(context, None if attended.weights is None else attended.weights.mean(-3))

    def _split(self, wide: Float[Tensor, "*batch length dim"]) -> Float[Tensor, "*batch heads length part"]:
        return wide.unflatten(-1, (self.heads, -1)).transpose(-2, -3)
