"""Scores: how well a key answers a query. Each is one class and one line in the table."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.core import Attended, Score
from regard.errors import RecipeError
from regard.kernels import additive
from regard.kernels.choose import is_unchanged, without_autocast
from regard.kernels.linear import Exact, Linear, exact


def _equal_widths(name: str, query_dim: int, key_dim: int) -> None:
    if query_dim != key_dim:
        raise RecipeError(
            f"the score {name!r} needs queries and keys of one width, but has {query_dim} and {key_dim}; "
            "give encoder and decoder the same dim, or choose 'general' or 'additive'"
        )


def _paired(
    query: Float[Tensor, "*batch query query_dim"], keys: Float[Tensor, "*keys key key_dim"]
) -> Float[Tensor, "*both query key whole"]:
    """[query; key] of every pair."""
    query, keys = query.unsqueeze(-2), keys.unsqueeze(-3)
    shape = torch.broadcast_shapes(query.shape[:-1], keys.shape[:-1])
    return torch.cat([query.expand(*shape, -1), keys.expand(*shape, -1)], dim=-1)


class Dot(Score):
    """Luong et al. 2015, 3.1:  e = query . key."""

    keys_are_states = True

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        _equal_widths("dot", query_dim, key_dim)

    @property
    def dot_scale(self) -> float | None:
        """One."""
        return 1.0 if is_unchanged(self, Dot) else None

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

    keys_are_states = True

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        _equal_widths("scaled_dot", query_dim, key_dim)
        self.scale = 1.0 / math.sqrt(key_dim)

    @property
    def dot_scale(self) -> float | None:
        """One over the root of the width."""
        return self.scale if is_unchanged(self, ScaledDot) else None

    def project(self, states: Float[Tensor, "*batch key dim"]) -> Float[Tensor, "*batch key dim"]:
        """The states themselves."""
        return states

    def forward(
        self, query: Float[Tensor, "*batch query dim"], keys: Float[Tensor, "*keys key dim"]
    ) -> Float[Tensor, "*batch query key"]:
        """The dot product, scaled so that its variance does not grow with the width."""
        return query * self.scale @ keys.transpose(-1, -2)


class General(Score):
    """Luong et al. 2015, 3.1:  e = query . (W key)."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        self.key = nn.Linear(key_dim, query_dim, bias=False)

    @property
    def dot_scale(self) -> float | None:
        """One."""
        return 1.0 if is_unchanged(self, General) else None

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
        self.query = Linear(query_dim, inner, bias=False)
        self.key = nn.Linear(key_dim, inner)
        self.out = Exact(inner, 1, bias=False)

    @property
    def has_kernel(self) -> bool:
        """Unless its own forward or that of `out` was hooked or replaced."""
        return is_unchanged(self, Additive) and is_unchanged(self.out, Exact)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key inner"]:
        """The part U key + b of the inner sum."""
        return self.key(states)

    def forward(
        self, query: Float[Tensor, "*batch query query_dim"], keys: Float[Tensor, "*keys key inner"]
    ) -> Float[Tensor, "*batch query key"]:
        """One hidden layer over every pair of query and key."""
        mixed = self.query(query).unsqueeze(-2) + keys.unsqueeze(-3)  # batch query key inner
        return self.out(mixed.tanh_()).squeeze(-1)

    def look(
        self,
        query: Float[Tensor, "*batch query query_dim"],
        keys: Float[Tensor, "*keys key inner"],
        values: Float[Tensor, "*keys key dim"],
        mask: Bool[Tensor, "*mask"] | None,
    ) -> Attended:
        """While it learns, without keeping anything for pairs of query and key."""
        with without_autocast(query):
            return Attended(*additive.look(self.query(query), keys, values, self.out.weight, mask))


class Multiplicative(Score):
    """Two projections and their dot product:  e = (W query) . (U key), a bilinear form of rank dim."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        inner = dim or key_dim
        self.query = Linear(query_dim, inner, bias=False)
        self.key = nn.Linear(key_dim, inner, bias=False)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key inner"]:
        """The part U key."""
        return self.key(states)

    def forward(
        self, query: Float[Tensor, "*batch query query_dim"], keys: Float[Tensor, "*keys key inner"]
    ) -> Float[Tensor, "*batch query key"]:
        """The dot product of both projections."""
        return self.query(query) @ keys.transpose(-1, -2)


class Concat(Score):
    """Luong et al. 2015, 3.1:  e = v . tanh(W [query; key])."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        inner = dim or key_dim
        self.query_dim = query_dim
        self.weight = Exact(query_dim + key_dim, inner, bias=False)
        self.out = Exact(inner, 1, bias=False)

    @property
    def keys_are_sums(self) -> bool:
        """Whether W may be taken in halves: if it was hooked or replaced, it is called with [query; key]."""
        return is_unchanged(self.weight, Exact)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key projected"]:
        """The keys' half of W: a product with a concatenation is the sum of two products."""
        return exact(states, self.weight.weight[:, self.query_dim :]) if self.keys_are_sums else states

    def forward(
        self, query: Float[Tensor, "*batch query query_dim"], keys: Float[Tensor, "*keys key projected"]
    ) -> Float[Tensor, "*batch query key"]:
        """One hidden layer over every pair."""
        if not self.keys_are_sums:
            return self.out(torch.tanh(self.weight(_paired(query, keys)))).squeeze(-1)
        asked = exact(query, self.weight.weight[:, : self.query_dim])
        return self.out(torch.tanh(asked.unsqueeze(-2) + keys.unsqueeze(-3))).squeeze(-1)


class LinearConcat(Score):
    """A linear layer over the concatenation:  e = w . [query; key]. Its query cancels in softmax.

    Found in teaching material in place of `concat`. Without a tanh, the query adds the same number to the
    score of every key, so every query sees the same weights: it is kept to show just that.
    """

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        self.query_dim = query_dim
        self.weight = Exact(query_dim + key_dim, 1, bias=False)

    @property
    def keys_are_sums(self) -> bool:
        """Whether w may be taken in halves: if it was hooked or replaced, it is called with [query; key]."""
        return is_unchanged(self.weight, Exact)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key projected"]:
        """The keys' share of the sum."""
        return exact(states, self.weight.weight[:, self.query_dim :]) if self.keys_are_sums else states

    def forward(
        self, query: Float[Tensor, "*batch query query_dim"], keys: Float[Tensor, "*keys key projected"]
    ) -> Float[Tensor, "*batch query key"]:
        """The query's share plus the key's."""
        if not self.keys_are_sums:
            return self.weight(_paired(query, keys)).squeeze(-1)
        return exact(query, self.weight.weight[:, : self.query_dim]) + keys.transpose(-1, -2)


class Cosine(Score):
    """Graves et al. 2014, eq. 5-6:  e = g query . key / (|query| |key|), with a learned g = exp(w), first 1."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        _equal_widths("cosine", query_dim, key_dim)
        self.weight = nn.Parameter(torch.zeros(()))

    def project(self, states: Float[Tensor, "*batch key dim"]) -> Float[Tensor, "*batch key dim"]:
        """The states, each of length one; float16 has no number small enough to keep one of length zero from NaN."""
        precision = torch.promote_types(states.dtype, torch.float32)
        return functional.normalize(states.to(precision), dim=-1).to(states.dtype)

    def forward(
        self, query: Float[Tensor, "*batch query dim"], keys: Float[Tensor, "*keys key dim"]
    ) -> Float[Tensor, "*batch query key"]:
        """The cosine of the angle between them, scaled."""
        return self.weight.exp() * functional.normalize(query, dim=-1) @ keys.transpose(-1, -2)


class Gaussian(Score):
    """Nadaraya 1964, Watson 1964:  e = -|query - key|^2 / (2 h^2); under softmax, kernel regression.

    The bandwidth h = (2 dim)^(1/4) exp(-w) is learned; w starts at 0, and then the scores of vectors of unit variance
    have unit variance, as `scaled_dot` has it.
    """

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        _equal_widths("gaussian", query_dim, key_dim)
        self.dim = key_dim
        self.weight = nn.Parameter(torch.zeros(()))

    @property
    def bandwidth(self) -> Float[Tensor, ""]:
        """How far a query looks: h."""
        return (2 * self.dim) ** 0.25 * (-self.weight).exp()

    def project(self, states: Float[Tensor, "*batch key dim"]) -> Float[Tensor, "*batch key dim"]:
        """The states themselves."""
        return states

    def forward(
        self, query: Float[Tensor, "*batch query dim"], keys: Float[Tensor, "*keys key dim"]
    ) -> Float[Tensor, "*batch query key"]:
        """The squared distance, multiplied out, so that no array of all differences is needed."""
        lengths = query.square().sum(-1, keepdim=True) + keys.square().sum(-1).unsqueeze(-2)
        return (query @ keys.transpose(-1, -2) - lengths / 2) / self.bandwidth.square()


class Location(Score):
    """Luong et al. 2015, eq. 8:  e_s = (W query)_s, a number for each place s of the source, whatever stands there.

    W has a row for each of the first `longest` places. A shorter source uses the top rows, and its weights are
    normalised over these; places beyond score minus infinity: as in the paper, they are never looked at.
    """

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None, longest: int = 1024) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        self.query_dim, self.longest = query_dim, longest
        self.query = Exact(query_dim, longest, bias=False)

    @property
    def keys_are_sums(self) -> bool:
        """Whether rows of W may be read as keys: if it was hooked or replaced, it is called with the query."""
        return is_unchanged(self.query, Exact)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key query_dim"]:
        """The rows of W, one for each place; zeros behind the last, or everywhere if W itself must be called."""
        *batch, count, _ = states.shape
        if not self.keys_are_sums:
            return states.new_zeros(*batch, count, self.query_dim)
        rows = functional.pad(self.query.weight, (0, 0, 0, count - self.longest))
        return rows.expand(*batch, -1, -1)

    def forward(
        self, query: Float[Tensor, "*batch query dim"], keys: Float[Tensor, "*keys key dim"]
    ) -> Float[Tensor, "*batch query key"]:
        """The dot product of each query with each row; the first key stands at place 0."""
        if self.keys_are_sums:
            known = query @ keys[..., : self.longest, :].transpose(-1, -2)
        else:
            known = self.query(query)[..., : keys.shape[-2]]
        return functional.pad(known, (0, keys.shape[-2] - known.shape[-1]), value=-torch.inf)


SCORES: dict[str, type[Score]] = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "general": General,
    "multiplicative": Multiplicative,
    "concat": Concat,
    "linear_concat": LinearConcat,
    "additive": Additive,
    "cosine": Cosine,
    "gaussian": Gaussian,
    "location": Location,
}
