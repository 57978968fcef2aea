"""Scopes: attentions that differ in which keys a query may see. A new one is a class and a table entry."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention import fused as fused_kernels
from regard.attention.core import Attended, Keys, Past, Query, Score, Values, attend, score_pairs
from regard.attention.masks import Mask, materialize
from regard.attention.normalizers import Normalizer, Pairs, softmax
from regard.errors import RecipeError, RegardError
from regard.kernels.choose import is_unchanged, takes, without_autocast
from regard.kernels.linear import UncastLinear


class Focus(NamedTuple):
    """The mask and the normaliser of one call, as a scope has changed them."""

    mask: Mask
    normalize: Normalizer


class Scope(nn.Module):
    """An attention with one score and one normaliser; `window` is how many keys local scopes see on either side."""

    uses_past: ClassVar[bool] = False
    keeps_sum: ClassVar[bool] = True  # whether weights sum to one if those of the normaliser do

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
        self.fused = fused  # whether a fused path may run, which computes no weights; `weigh` computes them
        self.dropout = dropout  # dropout rate of the weights in training
        self.make_parameters(query_dim)

    def make_parameters(self, query_dim: int) -> None:
        """Create the parameters of the scope itself, besides those of its score: none by default."""

    def plain_scale(self) -> float | None:
        """The scale, if this attention is a softmax over scaled dot products with the states and may be fused."""
        plain = self.fused and self.normalize is softmax and self.score.keys_are_states
        return self.score.dot_scale if plain and is_unchanged(self, Global) else None

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key projected"]:
        """Keys of the states, projected by the score."""
        return self.score.project(states)

    def content(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key key_dim"]:
        """Values of the states: the states themselves."""
        return states

    def forward(
        self,
        query: Query,
        keys: Keys,
        values: Values,
        *,
        mask: Mask,
        bias: Float[Tensor, "*bias"] | None = None,
        start: int = 0,
        past: Past | None = None,
        cleared: bool = False,
    ) -> Attended:
        """Attend to the keys that the scope allows, by a fused path if one may run."""
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
        query: Query,
        keys: Keys,
        *,
        mask: Mask,
        bias: Float[Tensor, "*bias"] | None = None,
        start: int = 0,
    ) -> Pairs:
        """The weights of a call whose context was computed by a fused path, which returns none."""
        weights = self.weigh_unhooked(query, keys, mask=mask, bias=bias, start=start)
        for hook in self._forward_hooks.values():
            if isinstance(hook, WeightHook):
                weights = hook.change(self.described(weights, query, keys, mask, start))
        return weights

    def weigh_unhooked(
        self, query: Query, keys: Keys, *, mask: Mask, bias: Float[Tensor, "*bias"] | None, start: int
    ) -> Pairs:
        """The weights by their definition, as they are before any `WeightHook`."""
        visible, normalize = self.focus(query, keys, mask, start)
        with without_autocast(query):
            return normalize(score_pairs(query, keys, self.score, bias), materialize(visible, query, keys))

    def described(self, weights: Pairs, query: Query, keys: Keys, mask: Mask, start: int) -> "Weights":
        """The weights of a call with what a `WeightHook` must know of it."""
        visible = materialize(self.focus(query, keys, mask, start).mask, query, keys)
        return Weights(weights, materialize(mask, query, keys), visible, start)

    @abstractmethod
    def focus(self, query: Tensor, keys: Tensor, mask: Mask, start: int) -> Focus:
        """The mask of the keys that each query may see, and the normaliser that turns scores into weights."""


class Weights(NamedTuple):
    """The weights of one call of a scope; masks have an axis for each of (*batch, query, key), or are None."""

    weights: Pairs
    allowed: Bool[Tensor, "*mask"] | None  # by the mask of the call: neither padding nor a later token
    visible: Bool[Tensor, "*mask"] | None  # also within the window of a local scope
    start: int  # the target index of the first query


class WeightHook:
    """A forward hook of a scope that replaces its weights, and with them its context: those of `intervene`.

    As for every hook that changes a result, no fast path is taken that calls no modules. A fused path may run: its
    weights are then computed here. Queries whose weights stay the same keep the bits of their context.
    """

    def __init__(self, change: Callable[[Weights], Pairs]) -> None:
        self.change = change

    def __call__(self, scope: Scope, inputs: tuple[Any, ...], named: dict[str, Any], result: Attended) -> Attended:
        """The result with changed weights; RecipeError if the scope is in training."""
        if scope.training:
            raise RecipeError("interventions are for predictions, not for training; call model.eval() before")
        query, keys, values = inputs
        mask, start = named["mask"], named.get("start", 0)
        before = result.weights
        if before is None:
            before = scope.weigh_unhooked(query, keys, mask=mask, bias=named.get("bias"), start=start)
        call = scope.described(before, query, keys, mask, start)
        after = self.change(call)
        if call.allowed is not None and not named.get("cleared", False):
            values = values.masked_fill(~call.allowed.any(-2).unsqueeze(-1), 0.0)
        with without_autocast(query):
            context = torch.matmul(after.to(values.dtype), values)
        changed = (after != before).any(-1, keepdim=True)
        return result._replace(context=torch.where(changed, context, result.context), weights=after)


class Global(Scope):
    """Bahdanau et al. 2015; Luong et al. 2015, 3.1: every query sees every key that the mask allows."""

    def focus(self, query: Tensor, keys: Tensor, mask: Mask, start: int) -> Focus:
        """The mask and the normaliser, unchanged."""
        return Focus(mask, self.normalize)


class LocalM(Scope):
    """Luong et al. 2015, 3.2, local-m: query t sees the keys from t - window to t + window."""

    def focus(self, query: Tensor, keys: Tensor, mask: Mask, start: int) -> Focus:
        """A window around the query's own position; behind the end of the source every key is masked."""
        centres = torch.arange(start, start + query.shape[-2], device=query.device).unsqueeze(-1)
        near = _within(self.window, centres, keys)
        near = near.view(*[1] * (query.ndim - 2), *near.shape)
        mask = materialize(mask, query, keys)
        return Focus(near if mask is None else near & mask, self.normalize)


class LocalP(Scope):
    """Luong et al. 2015, 3.2, local-p: the query predicts the centre of its window, p = S sigmoid(v . tanh(W query)).

    It sees the keys s with |s - p| <= window, and the normalised weights are multiplied by
    exp(-(s - p)^2 / (2 (window / 2)^2)); as in the paper, they are not normalised again.
    """

    keeps_sum = False

    def make_parameters(self, query_dim: int) -> None:
        """Create the layers that predict the centre."""
        self.query = UncastLinear(query_dim, query_dim, bias=False)
        self.out = UncastLinear(query_dim, 1, bias=False)

    def focus(self, query: Tensor, keys: Tensor, mask: Mask, start: int) -> Focus:
        """A window around the predicted centre, and a normaliser that multiplies the weights by a Gaussian."""
        mask = materialize(mask, query, keys)
        length = keys.shape[-2] if mask is None else mask.sum(-1, keepdim=True)
        with without_autocast(query):  # half precision cannot represent large positions exactly
            precise = query.to(torch.promote_types(query.dtype, torch.float32))
            centres = length * torch.sigmoid(self.out(torch.tanh(self.query(precise))))  # *batch query 1
        near = _within(self.window, centres, keys)
        positions = torch.arange(keys.shape[-2], device=keys.device)
        gaussian = torch.exp(-(positions - centres).square() / (2 * (self.window / 2) ** 2))
        visible = near if mask is None else near & mask
        return Focus(visible, lambda scores, mask: self.normalize(scores, mask) * gaussian)


class Remembering(Global):
    """Base of scopes that use the weights of earlier steps: features of these weights are added to the keys.

    key'_ij = key_j + U f_ij, where f_ij are features of the weights that key j got before step i; without a past the
    keys stay as they are.
    """

    uses_past = True
    channels: ClassVar[int]

    def make_parameters(self, query_dim: int) -> None:
        """Create the projection U of the features."""
        projected = self.score.project(torch.zeros(1, self.score.key_dim)).shape[-1]
        self.move = nn.Linear(self.channels, projected, bias=False)

    def forward(
        self,
        query: Query,
        keys: Keys,
        values: Values,
        *,
        mask: Mask,
        bias: Float[Tensor, "*bias"] | None = None,
        start: int = 0,
        past: Past | None = None,
        cleared: bool = False,
    ) -> Attended:
        """Attend with keys of its own for each query, since each query has its own past."""
        if past is None:
            return super().forward(query, keys, values, mask=mask, bias=bias, start=start, cleared=cleared)
        if not self.score.keys_are_sums:
            raise RegardError(
                f"a scope with a past adds to the keys of {type(self.score).__name__}, but its linear layer was hooked "
                "or replaced and is called with query and key together; choose the score additive or the scope global"
            )
        shifted = keys.unsqueeze(-3) + self.move(self.given(past).to(keys.dtype))
        visible = materialize(mask, query, keys)
        context, weights, log_prob = super().forward(
            query.unsqueeze(-2),
            shifted,
            values.unsqueeze(-3).expand(*shifted.shape[:-1], -1),
            mask=None if visible is None else visible.unsqueeze(-2),
            bias=None if bias is None else bias.unsqueeze(-2),
            start=start,
            cleared=cleared,
        )
        rows = None if weights is None else weights.squeeze(-2)
        return Attended(context.squeeze(-2), rows, None if log_prob is None else log_prob.squeeze(-1))

    @abstractmethod
    def given(self, past: Past) -> Float[Tensor, "*batch query key channels"]:
        """The features f_ij of the weights that every key got before."""


class Coverage(Remembering):
    """Tu et al. 2016; See et al. 2017, 2.3: f_ij is the sum of key j's weights so far, c_ij = sum_(t<i) a_tj.

    With the score `additive`:  e_ij = v . tanh(W s_i + V h_j + w c_ij + b).
    """

    channels = 1

    def given(self, past: Past) -> Float[Tensor, "*batch query key 1"]:
        """The running sum of the weights."""
        return past.total.unsqueeze(-1)


class LocationAware(Remembering):
    """Chorowski et al. 2015, 2.1: f_i = F * a_(i-1), a convolution over the last weights, `window` keys to either side.

    With the score `additive`:  e_ij = v . tanh(W s_i + V h_j + U f_ij + b).
    """

    channels = 10  # filters, as in the paper

    def make_parameters(self, query_dim: int) -> None:
        """Create the projection U and the filters F."""
        super().make_parameters(query_dim)
        self.filters = nn.Conv1d(1, self.channels, 2 * self.window + 1, padding=self.window, bias=False)

    def given(self, past: Past) -> Float[Tensor, "*batch query key channels"]:
        """The filters' outputs at every key."""
        rows = past.last.flatten(0, -2).unsqueeze(1)  # a batch of sequences with one channel
        features = self.filters(rows.to(self.filters.weight.dtype)).transpose(1, 2)
        return features.unflatten(0, past.last.shape[:-1])


def _within(window: int, centres: Tensor, keys: Tensor) -> Bool[Tensor, "*batch query key"]:
    """Mask of the keys at most `window` positions away from each query's centre."""
    return (torch.arange(keys.shape[-2], device=keys.device) - centres).abs() <= window


SCOPES: dict[str, type[Scope]] = {
    "global": Global,
    "local_m": LocalM,
    "local_p": LocalP,
    "coverage": Coverage,
    "location_aware": LocationAware,
}
