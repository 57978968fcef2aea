"""Scopes: which keys a query may see. Each is one class and one line in the table."""

from abc import abstractmethod
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention import fused as fused_kernels
from regard.attention.core import Attended, Past, Score, attend, weigh
from regard.attention.masks import Mask, drawn
from regard.attention.normalizers import Normalizer, softmax
from regard.errors import RegardError
from regard.kernels.choose import is_unchanged, takes, without_autocast
from regard.kernels.linear import Exact


class Focus(NamedTuple):
    """What a scope makes of a look."""

    mask: Mask
    normalize: Normalizer


class Scope(nn.Module):
    """An attention around one score; `window` is how far local scopes see to either side."""

    uses_past: ClassVar[bool] = False
    keeps_sum: ClassVar[bool] = True  # whether weights sum to one wherever the normaliser makes them

    def __init__(
        self,
        score: Score,
        normalize: Normalizer = softmax,
        *,
        query_dim: int,
        window: int | None = None,
        fused: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.score = score
        self.normalize = normalize
        self.window = window or 10
        self.fused = fused  # whether a fused path may run, which gives no weights; `weigh` gives them beside it
        self.dropout = dropout  # share of the weights that do not reach the context in training
        self.learns(query_dim)

    def learns(self, query_dim: int) -> None:
        """Make what the scope itself learns, besides its score: nothing, unless it says so."""

    def plain_scale(self) -> float | None:
        """The scale, where a look is but a softmax over dot products with the states themselves that may be fused."""
        plain = self.fused and self.normalize is softmax and self.score.keys_are_states
        return self.score.dot_scale if plain and is_unchanged(self, Global) else None

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key projected"]:
        """The keys of the states, as the score wants them."""
        return self.score.project(states)

    def content(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key key_dim"]:
        """The values of the states: the states themselves."""
        return states

    def forward(
        self,
        query: Float[Tensor, "*batch query query_dim"],
        keys: Float[Tensor, "*keys key projected"],
        values: Float[Tensor, "*keys key dim"],
        *,
        mask: Mask,
        bias: Float[Tensor, "*bias"] | None = None,
        start: int = 0,
        past: Past | None = None,
        cleared: bool = False,
    ) -> Attended:
        """Look where the scope lets the query look."""
        visible, normalize = self.focus(query, keys, mask, start)
        drop = self.dropout if self.training else 0.0
        if takes("fused_attention", query, self.score, normalize is softmax, self.fused and cleared, drop):
            scale = self.score.dot_scale
            assert scale is not None
            context = fused_kernels.dot(query, keys, values, scale=scale, mask=visible, bias=bias, drop=drop)
            return Attended(context, None)
        return attend(
            query,
            keys,
            values,
            score=self.score,
            mask=visible,
            bias=bias,
            normalize=normalize,
            cleared=cleared,
            drop=drop,
            draws=self.training,
        )

    def weigh(
        self,
        query: Float[Tensor, "*batch query query_dim"],
        keys: Float[Tensor, "*keys key projected"],
        *,
        mask: Mask,
        bias: Float[Tensor, "*bias"] | None = None,
        start: int = 0,
    ) -> Float[Tensor, "*batch query key"]:
        """The weights of a look whose context came from a fused path, computed beside it."""
        focus = self.focus(query, keys, mask, start)
        seen = drawn(focus.mask, query, keys)
        return weigh(query, keys, score=self.score, mask=seen, bias=bias, normalize=focus.normalize)

    @abstractmethod
    def focus(self, query: Tensor, keys: Tensor, mask: Mask, start: int) -> Focus:
        """Which keys each query may see, and how its scores become weights."""


class Global(Scope):
    """Bahdanau et al. 2015; Luong et al. 2015, 3.1: every query sees every key that the mask allows."""

    def focus(self, query: Tensor, keys: Tensor, mask: Mask, start: int) -> Focus:
        """Everywhere."""
        return Focus(mask, self.normalize)


class LocalM(Scope):
    """Luong et al. 2015, 3.2, local-m: query t sees the keys from t - window to t + window."""

    def focus(self, query: Tensor, keys: Tensor, mask: Mask, start: int) -> Focus:
        """Around the query's own position; past the source's end there is nothing to see."""
        centres = torch.arange(start, start + query.shape[-2], device=query.device).unsqueeze(-1)
        near = _within(self.window, centres, keys)
        near = near.view(*[1] * (query.ndim - 2), *near.shape)
        mask = drawn(mask, query, keys)
        return Focus(near if mask is None else near & mask, self.normalize)


class LocalP(Scope):
    """Luong et al. 2015, 3.2, local-p: the query predicts where to look, p = S sigmoid(v . tanh(W query)).

    It sees the keys s with |s - p| <= window, and the normalised weights are multiplied by
    exp(-(s - p)^2 / (2 (window / 2)^2)); as in the paper, they are not normalised again.
    """

    keeps_sum = False

    def learns(self, query_dim: int) -> None:
        """What predicts the place."""
        self.query = Exact(query_dim, query_dim, bias=False)
        self.out = Exact(query_dim, 1, bias=False)

    def focus(self, query: Tensor, keys: Tensor, mask: Mask, start: int) -> Focus:
        """Around where the query expects its answer."""
        mask = drawn(mask, query, keys)
        length = keys.shape[-2] if mask is None else mask.sum(-1, keepdim=True)
        with without_autocast(query):  # half precision cannot tell far places apart
            asked = query.to(torch.promote_types(query.dtype, torch.float32))
            centres = length * torch.sigmoid(self.out(torch.tanh(self.query(asked))))  # *batch query 1
        near = _within(self.window, centres, keys)
        places = torch.arange(keys.shape[-2], device=keys.device)
        bell = torch.exp(-(places - centres).square() / (2 * (self.window / 2) ** 2))
        return Focus(near if mask is None else near & mask, partial(_favoured, self.normalize, bell))


class Remembering(Global):
    """What scopes share that take account of `past`: every key is moved by what it was given before, then all is seen.

    key'_ij = key_j + U f_ij, where f_ij is what the looks before i gave to key j; nothing where there was none.
    """

    uses_past = True
    channels: ClassVar[int]

    def learns(self, query_dim: int) -> None:
        """What moves the keys."""
        projected = self.score.project(torch.zeros(1, self.score.key_dim)).shape[-1]
        self.move = nn.Linear(self.channels, projected, bias=False)

    def forward(
        self,
        query: Float[Tensor, "*batch query query_dim"],
        keys: Float[Tensor, "*keys key projected"],
        values: Float[Tensor, "*keys key dim"],
        *,
        mask: Mask,
        bias: Float[Tensor, "*bias"] | None = None,
        start: int = 0,
        past: Past | None = None,
        cleared: bool = False,
    ) -> Attended:
        """Each query has a past of its own, and so keys of its own."""
        if past is None:
            return super().forward(query, keys, values, mask=mask, bias=bias, start=start, cleared=cleared)
        if not self.score.keys_are_sums:
            raise RegardError(
                f"a scope with a past adds to the keys of {type(self.score).__name__}, but its linear layer was hooked "
                "or replaced and is called with query and key together; choose the score additive or the scope global"
            )
        moved = keys.unsqueeze(-3) + self.move(self.given(past).to(keys.dtype))
        own = drawn(mask, query, keys)
        context, weights, log_prob = super().forward(
            query.unsqueeze(-2),
            moved,
            values.unsqueeze(-3).expand(*moved.shape[:-1], -1),
            mask=None if own is None else own.unsqueeze(-2),
            bias=None if bias is None else bias.unsqueeze(-2),
            start=start,
            cleared=cleared,
        )
        rows = None if weights is None else weights.squeeze(-2)
        return Attended(context.squeeze(-2), rows, None if log_prob is None else log_prob.squeeze(-1))

    @abstractmethod
    def given(self, past: Past) -> Float[Tensor, "*batch query key channels"]:
        """What the looks before gave to every key."""


class Coverage(Remembering):
    """Tu et al. 2016; See et al. 2017, 2.3: f_ij is the sum of all that key j was given before, c_ij = sum_(t<i) a_tj.

    With the score `additive`:  e_ij = v . tanh(W s_i + V h_j + w c_ij + b).
    """

    channels = 1

    def given(self, past: Past) -> Float[Tensor, "*batch query key 1"]:
        """The running sum."""
        return past.total.unsqueeze(-1)


class LocationAware(Remembering):
    """Chorowski et al. 2015, 2.1: f_i = F * a_(i-1), filters over the look before, `window` keys to either side.

    With the score `additive`:  e_ij = v . tanh(W s_i + V h_j + U f_ij + b).
    """

    channels = 10  # filters, as in the paper

    def learns(self, query_dim: int) -> None:
        """What moves the keys, and the filters before it."""
        super().learns(query_dim)
        self.filters = nn.Conv1d(1, self.channels, 2 * self.window + 1, padding=self.window, bias=False)

    def given(self, past: Past) -> Float[Tensor, "*batch query key channels"]:
        """What the filters find around every key."""
        rows = past.last.flatten(0, -2).unsqueeze(1)  # as so many texts of one channel
        found = self.filters(rows.to(self.filters.weight.dtype)).transpose(1, 2)
        return found.unflatten(0, past.last.shape[:-1])


def _favoured(normalize: Normalizer, bell: Tensor, scores: Tensor, mask: Tensor | None) -> Tensor:
    """Normalised weights under a bell."""
    return normalize(scores, mask) * bell


def _within(window: int, centres: Tensor, keys: Tensor) -> Bool[Tensor, "*batch query key"]:
    """True for the keys at most `window` away from each query's centre."""
    return (torch.arange(keys.shape[-2], device=keys.device) - centres).abs() <= window


SCOPES: dict[str, type[Scope]] = {
    "global": Global,
    "local_m": LocalM,
    "local_p": LocalP,
    "coverage": Coverage,
    "location_aware": LocationAware,
}
