"""The definition of attention: score, add the bias, mask, normalise, weighted sum of the values."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import masks
from regard.attention.masks import BoolMask, Mask
from regard.attention.normalizers import Normalizer, Pairs, hard, sample, softmax
from regard.kernels.choose import takes, without_autocast
from regard.kernels.dropout import dropout
from regard.kernels.linear import weighted_sum
from regard.types import BatchFirst

Query = Float[Tensor, "*batch query query_dim"]
Keys = Float[Tensor, "*keys key projected"]
Values = Float[Tensor, "*keys key dim"]
ScoreFunction = Callable[[Tensor, Tensor], Tensor]


class Attended(NamedTuple):
    """The result of attention: the context, and the weights with which the values were summed."""

    context: Float[Tensor, "*batch query dim"]
    weights: Pairs | None  # None only if a fused path ran, which computes none
    log_prob: Float[Tensor, "*batch query"] | None = None  # of the sampled keys; only with `hard` in training


@dataclass(frozen=True)
class Past(BatchFirst):
    """The attention weights of a decoder's earlier steps, for attentions that use them."""

    last: Pairs  # the weights of the step before
    total: Pairs  # the sum of the weights of all steps before

    def then(self, weights: Pairs) -> "Past":
        """The past after one more step with these weights."""
        return Past(weights, self.total + weights)


class Score(ABC, nn.Module):
    """A score function: one number for each query and key, higher if they match better.

    Every score is constructed with `query_dim`, `key_dim` and `dim`, the width of its hidden layer if it has one.
    """

    keys_are_states: ClassVar[bool] = False  # True if `project` returns the states unchanged

    @abstractmethod
    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None) -> None:
        super().__init__()
        self.key_dim = key_dim

    @property
    def dot_scale(self) -> float | None:
        """The factor, if the score is query . key times a factor and has no hooks: then a fused path may compute it."""
        return None

    @property
    def keys_are_sums(self) -> bool:
        """Whether a scope may add a term to the projected keys, as `coverage` and `location_aware` do."""
        return True

    @property
    def has_kernel(self) -> bool:
        """Whether `attend_by_kernel` may replace `attend`: the score has a kernel, and was not hooked or replaced."""
        return False

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key projected"]:
        """Keys of the states: the part of the score that does not depend on the query, computed once per source.

        By default, keys are the states themselves.
        """
        return states

    @abstractmethod
    def forward(self, query: Query, keys: Keys) -> Pairs:
        """Score each query against each key; leading axes broadcast."""

    def attend_by_kernel(self, query: Query, keys: Keys, values: Values, mask: BoolMask | None) -> Attended:
        """Compute all of `attend`, with softmax, by the score's own kernel; call it only if `has_kernel` is True."""
        raise NotImplementedError


@runtime_checkable
class Attention(Protocol):
    """The interface of all attentions: project keys and values once per source, then attend to them."""

    uses_past: ClassVar[bool]

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key projected"]:
        """Keys of the states, with which queries are compared."""

    def content(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key dim"]:
        """Values of the states, of which the context is the weighted sum."""

    def __call__(
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
        """Attend to the keys. `start` is the target index of the first query.

        `past` holds earlier weights; it is passed only if `uses_past` is True, one step at a time. `cleared` is True if
        masked keys and values are finite already, for example because a decoder set them to zero once for all steps.
        """


def attend(
    query: Query,
    keys: Keys,
    values: Values,
    *,
    score: ScoreFunction,
    mask: Mask = None,
    bias: Float[Tensor, "*bias"] | None = None,
    normalize: Normalizer = softmax,
    cleared: bool = False,
    drop: float = 0.0,
    draws: bool = False,
) -> Attended:
    """The definition of attention: context = sum over keys of normalize(score(query, key) + bias) * value.

    `keys` come from `score.project(states)`. `mask` is boolean, True where a query may see a key, and has an
    axis for each of (*batch, query, key). Keys and values that no query may see are set to zero before the score, so
    that NaN or infinity there reaches neither the result nor a gradient; `cleared` says that this was done already. A
    query for which every key is masked gets a zero context. `drop` is the dropout rate of the weights; the returned
    weights are those before dropout. With `draws` and the normaliser `hard`, the key is sampled, and the result has the
    log-probability of the sample.
    """
    mask = masks.materialize(mask, query, keys)
    if mask is not None:
        masks.check(mask, query, keys)
    if mask is not None and not cleared:
        visible = mask.any(dim=-2).unsqueeze(-1)
        keys, values = keys.masked_fill(~visible, 0.0), values.masked_fill(~visible, 0.0)
    if isinstance(score, Score) and takes(
        "additive_attention", score, normalize is softmax, query, keys, values, mask, bias, drop
    ):
        return score.attend_by_kernel(query, keys, values, mask)
    log_prob = None
    with without_autocast(query):
        scores = score_pairs(query, keys, score, bias)
        if draws and normalize is hard:
            weights, log_prob = sample(scores, mask)
        else:
            weights = normalize(scores, mask)
        context = weighted_sum(dropout(weights, drop, training=True).to(values.dtype), values)
    return Attended(context, weights, log_prob)


def score_pairs(query: Query, keys: Keys, score: ScoreFunction, bias: Float[Tensor, "*bias"] | None) -> Pairs:
    """Scores plus bias, in float32 or float64; all keys must be finite, and autocast off."""
    precision = torch.promote_types(query.dtype, torch.float32)
    scores = score(query.to(precision), keys.to(precision))
    return scores if bias is None else scores + bias
