"""Attention, defined once: score, bias, mask, normalise, weighted sum."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention import masks
from regard.attention.masks import Mask
from regard.attention.normalizers import Normalizer, draw, hard, softmax
from regard.kernels.choose import takes, without_autocast
from regard.kernels.dropout import dropout
from regard.kernels.linear import mix
from regard.types import BatchFirst

ScoreFunction = Callable[[Tensor, Tensor], Tensor]


class Attended(NamedTuple):
    """What came of looking: the context and the weights that made it."""

    context: Float[Tensor, "*batch query dim"]
    weights: Float[Tensor, "*batch query key"] | None  # None only where a fused path ran and nobody asked
    log_prob: Float[Tensor, "*batch query"] | None = None  # only where the weights were drawn at random


@dataclass(frozen=True)
class Past(BatchFirst):
    """Where a decoder has looked so far, for attentions that take account of it."""

    last: Float[Tensor, "*batch query key"]  # the weights of the look before
    total: Float[Tensor, "*batch query key"]  # the sum of those of all looks before

    def then(self, weights: Float[Tensor, "*batch query key"]) -> "Past":
        """After one more look."""
        return Past(weights, self.total + weights)


class Score(ABC, nn.Module):
    """How well each key answers each query.

    Every score is made with `query_dim`, `key_dim` and `dim` (the inner width, where it has one).
    """

    keys_are_states: ClassVar[bool] = False  # where `project` changes nothing

    @abstractmethod
    def __init__(self, *, query_dim: int, key_dim: int, dim: int | None) -> None:
        super().__init__()
        self.key_dim = key_dim

    @property
    def dot_scale(self) -> float | None:
        """The number, if the score is query . key times a number: a fused path may then compute it, unseen by hooks."""
        return None

    @property
    def keys_are_sums(self) -> bool:
        """Whether a key may be moved by adding to it, as scopes with a past do."""
        return True

    @property
    def has_kernel(self) -> bool:
        """Whether `look` computes what `attend` would: the score has a kernel, and was not hooked or replaced."""
        return False

    @abstractmethod
    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key projected"]:
        """The keys of the states: all the work that does not depend on the query, done once per source."""

    @abstractmethod
    def forward(
        self, query: Float[Tensor, "*batch query query_dim"], keys: Float[Tensor, "*keys key projected"]
    ) -> Float[Tensor, "*batch query key"]:
        """One number for each query and key; leading axes broadcast."""

    def look(
        self,
        query: Float[Tensor, "*batch query query_dim"],
        keys: Float[Tensor, "*keys key projected"],
        values: Float[Tensor, "*keys key dim"],
        mask: Bool[Tensor, "*mask"] | None,
    ) -> Attended:
        """The whole of `attend` with a softmax, by the score's own kernel; only if it `has_kernel`."""
        raise NotImplementedError


@runtime_checkable
class Attention(Protocol):
    """A scope: which keys a query may see, around a score and a normaliser."""

    uses_past: ClassVar[bool]

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key projected"]:
        """What queries are compared with."""

    def content(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch key dim"]:
        """What a look hands over."""

    def __call__(
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
        """Look: `start` is the target index of the first query; `past` is given only to those that use it, row by row.

        `cleared` says that what the mask hides is finite already, as where a decoder emptied it once for all steps.
        """


def attend(
    query: Float[Tensor, "*batch query query_dim"],
    keys: Float[Tensor, "*keys key projected"],
    values: Float[Tensor, "*keys key dim"],
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
    axis for each of (*batch, query, key). What no query may see is emptied before it is scored, so that junk
    there reaches neither the result nor a gradient; `cleared` says that this was done before. A query that may
    see nothing gets a zero context. In training a share of the weights may be dropped on their way to the context,
    and where they are `hard` the one key is drawn: then the log-probability of the draw goes with the result.
    """
    mask = masks.drawn(mask, query, keys)
    if mask is not None:
        masks.check(mask, query, keys)
    if mask is not None and not cleared:
        seen = mask.any(dim=-2).unsqueeze(-1)
        keys, values = keys.masked_fill(~seen, 0.0), values.masked_fill(~seen, 0.0)
    if isinstance(score, Score) and takes(
        "additive_attention", score, normalize is softmax, query, keys, values, mask, bias, drop
    ):
        return score.look(query, keys, values, mask)
    log_prob = None
    if draws and normalize is hard:
        weights, log_prob = draw(_scored(query, keys, score, bias), mask)
    else:
        weights = weigh(query, keys, score=score, mask=mask, bias=bias, normalize=normalize)
    with without_autocast(query):
        context = mix(dropout(weights, drop, training=True).to(values.dtype), values)
    return Attended(context, weights, log_prob)


def weigh(
    query: Float[Tensor, "*batch query query_dim"],
    keys: Float[Tensor, "*keys key projected"],
    *,
    score: ScoreFunction,
    mask: Bool[Tensor, "*mask"] | None,
    bias: Float[Tensor, "*bias"] | None,
    normalize: Normalizer,
) -> Float[Tensor, "*batch query key"]:
    """The weights alone, from keys without junk."""
    with without_autocast(query):
        return normalize(_scored(query, keys, score, bias), mask)


def _scored(query: Tensor, keys: Tensor, score: ScoreFunction, bias: Tensor | None) -> Tensor:
    """Scores and bias, computed in single precision at least."""
    precision = torch.promote_types(query.dtype, torch.float32)
    with without_autocast(query):
        scores = score(query.to(precision), keys.to(precision))
    return scores if bias is None else scores + bias
