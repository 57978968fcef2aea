"""Multi-head attention and self-attention with any scope and score, and the cache of their keys and values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import fused
from regard.attention.core import Attended, Past
from regard.attention.masks import Mask
from regard.attention.positions import Positions
from regard.attention.scopes import Scope
from regard.errors import RecipeError
from regard.kernels.choose import takes
from regard.kernels.linear import Linear, linear
from regard.types import BatchFirst

Make = Callable[[int], Scope]  # builds the attention of heads of that width


class MultiHead(nn.Module):
    """Vaswani et al. 2017, 3.2.2: project, attend in every head with one score of the head's width, concatenate.

    context = W_o [head_1; ...; head_h],  head_i = attention(W_q query, W_k states, W_v states) in subspace i
    Ainslie et al. 2023: with fewer `groups` than heads, several heads share the keys and values of one group.
    """

    uses_past: ClassVar[bool] = False

    def __init__(
        self,
        make: Make,
        *,
        query_dim: int,
        key_dim: int,
        dim: int,
        heads: int,
        out_dim: int | None = None,
        groups: int | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.groups, width = shares(dim, heads, groups)
        self.attention = make(width)
        self.query = Linear(query_dim, dim)
        self.key = Linear(key_dim, self.groups * width)
        self.value = Linear(key_dim, self.groups * width)
        self.out = Linear(dim, out_dim or key_dim)

    def project(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch heads key part"]:
        """Keys of every head."""
        return self.keys(self.key(states))

    def content(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch heads key part"]:
        """Values of every head."""
        return self.values(self.value(states))

    def keys(self, wide: Float[Tensor, "*batch key wide"]) -> Float[Tensor, "*batch heads key part"]:
        """Keys of every head, from the concatenated keys of all groups."""
        return self.attention.project(spread(split(wide, self.groups), self.heads))

    def values(self, wide: Float[Tensor, "*batch key wide"]) -> Float[Tensor, "*batch heads key part"]:
        """Values of every head, from the concatenated values of all groups."""
        return self.attention.content(spread(split(wide, self.groups), self.heads))

    def forward(
        self,
        query: Float[Tensor, "*batch query query_dim"],
        keys: Float[Tensor, "*keys heads key part"],
        values: Float[Tensor, "*keys heads key part2"],
        *,
        mask: Mask,
        bias: Float[Tensor, "*bias"] | None = None,
        start: int = 0,
        past: Past | None = None,
        cleared: bool = False,
    ) -> Attended:
        """Attend with all heads. The weights are the mean over heads; `record` keeps those of each head."""
        queries = split(self.query(query), self.heads)
        visible = mask.unsqueeze(-3) if isinstance(mask, Tensor) else mask
        attended = self.attention(queries, keys, values, mask=visible, bias=bias, start=start, cleared=cleared)
        context = self.out(join(attended.context))
        return Attended(context, None if attended.weights is None else attended.weights.mean(-3))

    def weigh(
        self,
        query: Float[Tensor, "*batch query query_dim"],
        keys: Float[Tensor, "*keys heads key part"],
        *,
        mask: Mask,
        start: int = 0,
    ) -> Float[Tensor, "*batch query key"]:
        """The weights, as the mean over heads, of a call whose context was computed by a fused path."""
        queries = split(self.query(query), self.heads)
        visible = mask.unsqueeze(-3) if isinstance(mask, Tensor) else mask
        return self.attention.weigh(queries, keys, mask=visible, start=start).mean(-3)


def project_all(attentions: Sequence[MultiHead], states: Float[Tensor, "*batch key key_dim"]) -> "list[KeyValues]":
    """Keys and values of several attentions to the same states, such as the cross-attentions of all layers."""
    if takes("joint_projection", attentions, MultiHead, Linear):
        return project_jointly(attentions, states)
    return [KeyValues(attention.project(states), attention.content(states)) for attention in attentions]


def project_jointly(attentions: Sequence[MultiHead], states: Float[Tensor, "*batch key key_dim"]) -> "list[KeyValues]":
    """Compute `project_all` by one product with the concatenated weights of all attentions."""
    layers = [layer for attention in attentions for layer in (attention.key, attention.value)]
    weight, bias = torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])
    parts = linear(states, weight, bias).split([layer.out_features for layer in layers], dim=-1)
    triples = zip(attentions, parts[0::2], parts[1::2], strict=True)
    return [KeyValues(attention.keys(keys), attention.values(values)) for attention, keys, values in triples]


@dataclass(frozen=True)
class KeyValues(BatchFirst):
    """Keys and values of one layer's heads or groups, of a memory or of the tokens so far (the key-value cache)."""

    keys: Float[Tensor, "batch heads time projected"]
    values: Float[Tensor, "batch heads time part"]
    buffer: "CacheBuffer | None" = None  # the buffer that holds them, with spare space for later tokens

    def then(self, more: Float[Tensor, "batch heads 2 more part"]) -> "KeyValues":
        """A cache with `more` keys and values appended; this cache stays unchanged."""
        if not takes("cache_buffer"):
            keys, values = more.unbind(2)
            return KeyValues(torch.cat([self.keys, keys], dim=-2), torch.cat([self.values, values], dim=-2))
        start, count = self.keys.shape[-2], more.shape[-2]
        buffer = self.buffer
        if buffer is None or buffer.length != start or buffer.places.shape[-2] < start + count:
            buffer = CacheBuffer.of(self, start + count)
        buffer.places.narrow(-2, start, count).copy_(more)
        buffer.length = start + count
        return buffer.filled()

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> "KeyValues":
        """Apply a function to keys and values (for example, select beams); the result has its own `buffer`, or none."""
        buffer = self.buffer
        if buffer is None or buffer.length != self.keys.shape[-2]:
            return KeyValues(change(self.keys), change(self.values))
        return CacheBuffer(change(buffer.places), buffer.length).filled()


@dataclass
class CacheBuffer:
    """A buffer of keys and values with spare space. Filled positions are never overwritten: older caches share them."""

    places: Float[Tensor, "batch heads 2 places part"]
    length: int

    @staticmethod
    def of(cache: KeyValues, needed: int) -> "CacheBuffer":
        """Copy a cache into a new buffer, with space for a few more positions than needed."""
        batch, heads, start, part = cache.keys.shape
        places = cache.keys.new_empty(batch, heads, 2, needed + 7 + needed // 8, part)
        if start:
            torch.stack([cache.keys, cache.values], dim=2, out=places.narrow(-2, 0, start))
        return CacheBuffer(places, start)

    def filled(self) -> KeyValues:
        """The filled part of the buffer, as a cache."""
        keys, values = self.places.narrow(-2, 0, self.length).unbind(2)
        return KeyValues(keys, values, self)


class SelfAttention(nn.Module):
    """Vaswani et al. 2017, 3.2.3: queries, keys and values of every head all come from the same states.

    W_q, W_k and W_v are stacked in one matrix `all`, so that one product computes all three projections.
    """

    def __init__(self, make: Make, *, dim: int, heads: int, groups: int | None = None) -> None:
        super().__init__()
        self.heads, self.groups, self.width = shares(dim, heads, groups)
        self.attention = make(self.width)
        self.all = Linear(dim, (self.heads + 2 * self.groups) * self.width)
        self.out = Linear(dim, dim)

    def forward(
        self,
        states: Float[Tensor, "batch time dim"],
        *,
        mask: Mask,
        bias: Float[Tensor, "heads time all"] | None,
        positions: Positions,
        start: int = 0,
        before: KeyValues | None = None,
    ) -> tuple[Float[Tensor, "batch time dim"], KeyValues]:
        """Attend to these states and to the cache `before` them; returns the outputs and the extended cache."""
        counts = [self.heads, self.groups, self.groups]
        wide = self.all(states)
        query, keys, values = split(wide, sum(counts)).split(counts, dim=-3)
        if takes("packed_attention", self, wide, mask, bias, before, positions.rotates):
            scale = self.attention.plain_scale()
            assert scale is not None
            return self.out(fused.packed(wide, self.heads, scale=scale, mask=mask)), KeyValues(keys, values)
        query, keys = positions.rotate(query, start), positions.rotate(keys, start)
        cache = KeyValues(keys, values) if before is None else before.then(torch.stack([keys, values], dim=2))
        projected = self.attention.project(spread(cache.keys, self.heads))
        context, _, _ = self.attention(
            query, projected, spread(cache.values, self.heads), mask=mask, bias=bias, start=start, cleared=True
        )
        return self.out(join(context)), cache


def shares(dim: int, heads: int, groups: int | None) -> tuple[int, int, int]:
    """The numbers of heads and groups, and the width of a head; raises an error if they do not divide evenly."""
    if dim % heads:
        raise RecipeError(f"{heads} heads share a width of {dim} evenly only if {heads} divides it")
    groups = groups or heads
    if heads % groups:
        raise RecipeError(f"{heads} heads share {groups} groups of keys evenly only if {groups} divides {heads}")
    return heads, groups, dim // heads


def split(wide: Float[Tensor, "*batch length dim"], heads: int) -> Float[Tensor, "*batch heads length part"]:
    """Split the last axis into heads."""
    return wide.unflatten(-1, (heads, -1)).transpose(-2, -3)


def join(narrow: Float[Tensor, "*batch heads length part"]) -> Float[Tensor, "*batch length dim"]:
    """Concatenate the heads again: the inverse of `split`."""
    return narrow.transpose(-2, -3).flatten(-2)


def spread(
    grouped: Float[Tensor, "*batch groups length part"], heads: int
) -> Float[Tensor, "*batch heads length part"]:
    """Repeat the keys or values of each group for all heads that share it."""
    groups = grouped.shape[-3]
    return grouped if groups == heads else grouped.repeat_interleave(heads // groups, dim=-3)
