"""Scores: functions that say how well a key matches a query. A new one is a class and a table entry."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.core import Attended, Keys, Query, Score, Values
from regard.attention.masks import BoolMask
from regard.attention.normalizers import Pairs
from regard.errors import RecipeError
from regard.kernels import additive
from regard.kernels.choose import is_unchanged, without_autocast
from regard.kernels.linear import Linear, UncastLinear, uncast_linear


def _check_equal_widths(name: str, query_dim: int, key_dim: int) -> None:
    """Raise an error unless queries and keys have the same width."""
    if query_dim != key_dim:
        raise RecipeError(
            f"the score {name!r} needs queries and keys of one width, but has {query_dim} and {key_dim}; "
            "give encoder and decoder the same dim, or choose 'general' or 'additive'"
        )


class Dot(Score):
    """Luong et al. 2015, 3.1:  e = query . key."""

    keys_are_states = True

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        _check_equal_widths("dot", query_dim, key_dim)

    @property
    def dot_scale(self) -> float | None:
        """1, unless the score was hooked or replaced."""
        return 1.0 if is_unchanged(self, Dot) else None

    def forward(self, query: Query, keys: Keys) -> Pairs:
        """The dot product of each query with each key."""
        return query @ keys.transpose(-1, -2)


class ScaledDot(Score):
    """Vaswani et al. 2017, eq. 1:  e = query . key / sqrt(dim)."""

    keys_are_states = True

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        _check_equal_widths("scaled_dot", query_dim, key_dim)
        self.scale = 1.0 / math.sqrt(key_dim)

    @property
    def dot_scale(self) -> float | None:
        """1 / sqrt(dim), unless the score was hooked or replaced."""
        return self.scale if is_unchanged(self, ScaledDot) else None

    def forward(self, query: Query, keys: Keys) -> Pairs:
        """The dot product, scaled so that its variance does not grow with the width."""
        return query * self.scale @ keys.transpose(-1, -2)


class General(Score):
    """Luong et al. 2015, 3.1:  e = query . (W key)."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        self.key = nn.Linear(key_dim, query_dim, bias=False)

    @property
    def dot_scale(self) -> float | None:
        """1, unless the score was hooked or replaced."""
        return 1.0 if is_unchanged(self, General) else None

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key query_dim"]:
        """W key: the states, projected to the width of the queries."""
        return self.key(states)

    def forward(self, query: Query, keys: Keys) -> Pairs:
        """The dot product with the projected keys."""
        return query @ keys.transpose(-1, -2)


class Additive(Score):
    """Bahdanau et al. 2015, A.1.2:  e = v . tanh(W query + U key + b)."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        inner = dim or key_dim
        self.query = Linear(query_dim, inner, bias=False)
        self.key = nn.Linear(key_dim, inner)
        self.out = UncastLinear(inner, 1, bias=False)

    @property
    def has_kernel(self) -> bool:
        """True unless the score or its layer `out` was hooked or replaced."""
        return is_unchanged(self, Additive) and is_unchanged(self.out, UncastLinear)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key inner"]:
        """U key + b, the part of the inner sum that does not depend on the query."""
        return self.key(states)

    def forward(self, query: Query, keys: Keys) -> Pairs:
        """One hidden layer over every pair of query and key."""
        mixed = self.query(query).unsqueeze(-2) + keys.unsqueeze(-3)  # batch query key inner
        return self.out(mixed.tanh_()).squeeze(-1)

    def attend_by_kernel(self, query: Query, keys: Keys, values: Values, mask: BoolMask | None) -> Attended:
        """Compute all of `attend` in training; no tensor (query, key, inner) is kept for the backward pass."""
        with without_autocast(query):
            return Attended(*additive.additive_attention(self.query(query), keys, values, self.out.weight, mask))


class Multiplicative(Score):
    """Two projections and their dot product:  e = (W query) . (U key), a bilinear form of rank dim."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        inner = dim or key_dim
        self.query = Linear(query_dim, inner, bias=False)
        self.key = nn.Linear(key_dim, inner, bias=False)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key inner"]:
        """U key: the projected states."""
        return self.key(states)

    def forward(self, query: Query, keys: Keys) -> Pairs:
        """The dot product of both projections."""
        return self.query(query) @ keys.transpose(-1, -2)


class Concatenation(Score):
    """Base of scores of the concatenation: W [query; key] is a sum of two products, of which the keys' is projected."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        self.query_dim = query_dim
        self.weight = UncastLinear(query_dim + key_dim, dim, bias=False)

    @property
    def keys_are_sums(self) -> bool:
        """Whether W may be split into halves: if it was hooked or replaced, it must be called with [query; key]."""
        return is_unchanged(self.weight, UncastLinear)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key projected"]:
        """The states times the keys' half of W."""
        return uncast_linear(states, self.weight.weight[:, self.query_dim :]) if self.keys_are_sums else states

    def mix(self, query: Query, keys: Keys) -> Float[Tensor, "*batch query key inner"]:
        """W [query; key] of every pair of query and key."""
        if self.keys_are_sums:
            return uncast_linear(query, self.weight.weight[:, : self.query_dim]).unsqueeze(-2) + keys.unsqueeze(-3)
        query, keys = query.unsqueeze(-2), keys.unsqueeze(-3)
        shape = torch.broadcast_shapes(query.shape[:-1], keys.shape[:-1])
        return self.weight(torch.cat([query.expand(*shape, -1), keys.expand(*shape, -1)], dim=-1))


class Concat(Concatenation):
    """Luong et al. 2015, 3.1:  e = v . tanh(W [query; key])."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        inner = dim or key_dim
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=inner)
        self.out = UncastLinear(inner, 1, bias=False)

    def forward(self, query: Query, keys: Keys) -> Pairs:
        """One hidden layer over the concatenation of every pair."""
        return self.out(torch.tanh(self.mix(query, keys))).squeeze(-1)


class LinearConcat(Concatenation):
    """A linear layer over the concatenation:  e = w . [query; key]. Its query cancels in softmax.

    Found in teaching material in place of `concat`. Without a tanh, the query adds the same number to the
    score of every key, so every query gets the same weights. It is here to show this effect.
    """

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=1)

    def forward(self, query: Query, keys: Keys) -> Pairs:
        """The query's part of the sum plus the key's part."""
        return self.mix(query, keys).squeeze(-1)


class Cosine(Score):
    """Graves et al. 2014, eq. 5-6:  e = g query . key / (|query| |key|), with a learned g = exp(w) that starts at 1."""

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        _check_equal_widths("cosine", query_dim, key_dim)
        self.weight = nn.Parameter(torch.zeros(()))

    def project(self, states: Float[Tensor, "*batch key dim"]) -> Float[Tensor, "*batch key dim"]:
        """The states, normalised to length one, in float32: in float16 the epsilon that avoids 0 / 0 underflows."""
        precision = torch.promote_types(states.dtype, torch.float32)
        return functional.normalize(states.to(precision), dim=-1).to(states.dtype)

    def forward(self, query: Query, keys: Keys) -> Pairs:
        """The cosine of the angle between query and key, times g."""
        return self.weight.exp() * functional.normalize(query, dim=-1) @ keys.transpose(-1, -2)


class Gaussian(Score):
    """Nadaraya 1964, Watson 1964:  e = -|query - key|^2 / (2 h^2); under softmax, kernel regression.

    The bandwidth h = (2 dim)^(1/4) exp(-w) is learned. w starts at 0, so that at first the scores of vectors of unit
    variance have unit variance, as with `scaled_dot`.
    """

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        _check_equal_widths("gaussian", query_dim, key_dim)
        self.dim = key_dim
        self.weight = nn.Parameter(torch.zeros(()))

    @property
    def bandwidth(self) -> Float[Tensor, ""]:
        """The bandwidth h: keys farther from the query than a few h get almost no weight."""
        return (2 * self.dim) ** 0.25 * (-self.weight).exp()

    def forward(self, query: Query, keys: Keys) -> Pairs:
        """The squared distance, multiplied out, so that no tensor of all differences is needed."""
        lengths = query.square().sum(-1, keepdim=True) + keys.square().sum(-1).unsqueeze(-2)
        return (query @ keys.transpose(-1, -2) - lengths / 2) / self.bandwidth.square()


class Location(Score):
    """Luong et al. 2015, eq. 8:  e_s = (W query)_s, a number for each position s of the source, whatever its state.

    W has a row for each of the first `longest` positions. A shorter source uses the top rows, and its weights are
    normalised over these. Positions behind the last row score minus infinity: as in the paper, they get no weight.
    """

    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None = None, longest: int = 1024) -> None:
        super().__init__(query_dim=query_dim, key_dim=key_dim, dim=dim)
        self.query_dim, self.longest = query_dim, longest
        self.query = UncastLinear(query_dim, longest, bias=False)

    @property
    def keys_are_sums(self) -> bool:
        """Whether rows of W may be used as keys: if W was hooked or replaced, it must be called with the query."""
        return is_unchanged(self.query, UncastLinear)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key query_dim"]:
        """The rows of W, one for each position; zeros behind the last row, or everywhere if W itself must be called."""
        *batch, count, _ = states.shape
        if not self.keys_are_sums:
            return states.new_zeros(*batch, count, self.query_dim)
        rows = functional.pad(self.query.weight, (0, 0, 0, count - self.longest))
        return rows.expand(*batch, -1, -1)

    def forward(self, query: Query, keys: Keys) -> Pairs:
        """The dot product of each query with each row of W; the first key is at position 0."""
        if self.keys_are_sums:
            scores = query @ keys[..., : self.longest, :].transpose(-1, -2)
        else:
            scores = self.query(query)[..., : keys.shape[-2]]
        return functional.pad(scores, (0, keys.shape[-2] - scores.shape[-1]), value=-torch.inf)


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
