"""Scores: how well a key answers a query. Each is one class and one line in the table."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.core import Score
from regard.errors import RecipeError


def _equal_widths(name: str, query_dim: int, key_dim: int) -> None:
    if query_dim != key_dim:
        raise RecipeError(
            f"the score {name!r} needs queries and keys of one width, but has {query_dim} and {key_dim}; "
            "give encoder and decoder the same dim, or choose 'general' or 'additive'"
        )


class Dot(Score):
    """Luong et al. 2015, eq. 8:  e = query . key."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        _equal_widths("dot", query_dim, key_dim)

    def project(self, states: Float[Tensor, "*batch key dim"]) -> Float[Tensor, "*batch key dim"]:
        """The states themselves."""
        return states

    def forward(
        self, query: Float[Tensor, "*batch query dim"], keys: Float[Tensor, "*keys key dim"]
    ) -> Float[Tensor, "*batch query key"]:
        """The dot product of each query with each key."""
        return query @ keys.transpose(-1, -2)


class ScaledDot(Score):
    """Vaswani et al. 2017, eq. 1:  e = query . key / sqrt(dim)."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        _equal_widths("scaled_dot", query_dim, key_dim)
        self.scale = 1.0 / math.sqrt(key_dim)

    def project(self, states: Float[Tensor, "*batch key dim"]) -> Float[Tensor, "*batch key dim"]:
        """The states themselves."""
        return states

    def forward(
        self, query: Float[Tensor, "*batch query dim"], keys: Float[Tensor, "*keys key dim"]
    ) -> Float[Tensor, "*batch query key"]:
        """The dot product, scaled so that its variance does not grow with the width."""
        return query * self.scale @ keys.transpose(-1, -2)


class General(Score):
    """Luong et al. 2015, eq. 8:  e = query . (W key)."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        self.key = nn.Linear(key_dim, query_dim, bias=False)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key query_dim"]:
        """The states, turned into the queries' space."""
        return self.key(states)

    def forward(
        self, query: Float[Tensor, "*batch query dim"], keys: Float[Tensor, "*keys key dim"]
    ) -> Float[Tensor, "*batch query key"]:
        """The dot product with the projected keys."""
        return query @ keys.transpose(-1, -2)


class Additive(Score):
    """Bahdanau et al. 2015, A.1.2:  e = v . tanh(W query + U key + b)."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        inner = dim or key_dim
        self.query = nn.Linear(query_dim, inner, bias=False)
        self.key = nn.Linear(key_dim, inner)
        self.out = nn.Linear(inner, 1, bias=False)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key inner"]:
        """The part U key + b of the inner sum."""
        return self.key(states)

    def forward(
        self, query: Float[Tensor, "*batch query query_dim"], keys: Float[Tensor, "*keys key inner"]
    ) -> Float[Tensor, "*batch query key"]:
        """One hidden layer over every pair of query and key."""
        mixed = self.query(query).unsqueeze(-2) + keys.unsqueeze(-3)  # batch query key inner
        return self.out(torch.tanh(mixed)).squeeze(-1)


SCORES: dict[str, type[Score]] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "general": General,
    "additive": Additive,
}
