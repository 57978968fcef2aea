"""Several looks at once: any scope and score, in subspaces of their own."""

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

Make = Callable[[int], Scope]  # an attention for heads of that width


class MultiHead(nn.Module):
    """Vaswani et al. 2017, 3.2.2: project, attend in every head with one score of the head's width, join.

    context = W_o [head_1; ...; head_h],  head_i = attention(W_q query, W_k states, W_v states) in subspace i
    Ainslie et al. 2023: with fewer `groups` than heads, so many heads of keys and values are shared by the queries'.
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
        """The keys of every head."""
        return self.keys(self.key(states))

    def content(self, states: Float[Tensor, "*batch key key_dim"]) -> Float[Tensor, "*batch heads key part"]:
        """The values of every head."""
        return self.values(self.value(states))

    def keys(self, wide: Float[Tensor, "*batch key wide"]) -> Float[Tensor, "*batch heads key part"]:
        """The keys of every head, of all groups' keys side by side."""
        return self.attention.project(spread(split(wide, self.groups), self.heads))

    def values(self, wide: Float[Tensor, "*batch key wide"]) -> Float[Tensor, "*batch heads key part"]:
        """The values of every head, likewise."""
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
        """Look with all heads; the weights are their mean, `record` has each head's own."""
        asked = split(self.query(query), self.heads)
        seen = mask.unsqueeze(-3) if isinstance(mask, Tensor) else mask
        attended = self.attention(asked, keys, values, mask=seen, bias=bias, start=start, cleared=cleared)
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
        """The weights of a look whose context came from a fused path: the mean of all heads."""
        seen = mask.unsqueeze(-3) if isinstance(mask, Tensor) else mask
        return self.attention.weigh(split(self.query(query), self.heads), keys, mask=seen, start=start).mean(-3)


def project_all(looks: Sequence[MultiHead], states: Float[Tensor, "*batch key key_dim"]) -> "list[Seen]":
    """The keys and values of many looks at the same states."""
    if takes("joint_projection", looks, MultiHead, Linear):
        return project_jointly(looks, states)
    return [Seen(look.project(states), look.content(states)) for look in looks]


def project_jointly(looks: Sequence[MultiHead], states: Float[Tensor, "*batch key key_dim"]) -> "list[Seen]":
    """The same by one product with the weights of all looks, one below the other."""
    layers = [each for look in looks for each in (look.key, look.value)]
    weight, bias = torch.cat([each.weight for each in layers]), torch.cat([each.bias for each in layers])
    parts = linear(states, weight, bias).split([each.out_features for each in layers], dim=-1)
    pairs = zip(looks, parts[0::2], parts[1::2], strict=True)
    return [Seen(look.keys(keys), look.values(values)) for look, keys, values in pairs]


@dataclass(frozen=True)
class Seen(BatchFirst):
    """What one layer looks at, of the tokens so far or of a memory: the keys and values of its heads or groups."""

    keys: Float[Tensor, "batch heads time projected"]
    values: Float[Tensor, "batch heads time part"]
    room: "Room | None" = None  # where they lie with places to spare, for what comes after them

    def then(self, more: Float[Tensor, "batch heads 2 more part"]) -> "Seen":
        """This, and the keys and values that come after it; this stays as it is."""
        if not takes("cache_room"):
            keys, values = more.unbind(2)
            return Seen(torch.cat([self.keys, keys], dim=-2), torch.cat([self.values, values], dim=-2))
        start, count = self.keys.shape[-2], more.shape[-2]
        room = self.room
        if room is None or room.filled != start or room.places.shape[-2] < start + count:
            room = Room.of(self, start + count)
        room.places.narrow(-2, start, count).copy_(more)
        room.filled = start + count
        return room.seen()

    def each(self, change: Callable[[Tensor], Tensor]) -> "Seen":
        """The same with both changed by a function; what is new has room of its own."""
        room = self.room
        if room is None or room.filled != self.keys.shape[-2]:
            return Seen(change(self.keys), change(self.values))
        return Room(change(room.places), room.filled).seen()


@dataclass
class Room:
    """Keys and values with places to spare. What is filled is never written again: earlier states hold it too."""

    places: Float[Tensor, "batch heads 2 places part"]
    filled: int

    @staticmethod
    def of(seen: Seen, needed: int) -> "Room":
        """The same in a new place, with room for a few more than needed."""
        batch, heads, start, part = seen.keys.shape
        places = seen.keys.new_empty(batch, heads, 2, needed + 7 + needed // 8, part)
        if start:
            torch.stack([seen.keys, seen.values], dim=2, out=places.narrow(-2, 0, start))
        return Room(places, start)

    def seen(self) -> Seen:
        """What is filled."""
        keys, values = self.places.narrow(-2, 0, self.filled).unbind(2)
        return Seen(keys, values, self)


class SelfAttention(nn.Module):
    """Vaswani et al. 2017, 3.2.3: queries, keys and values of every head all come from the same states.

    W_q, W_k and W_v lie on top of each other in one matrix `all`, so that one product makes the three.
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
        before: Seen | None = None,
    ) -> tuple[Float[Tensor, "batch time dim"], Seen]:
        """Look at these states and at those `before` them; what is kept of both goes with the result."""
        shares = [self.heads, self.groups, self.groups]
        wide = self.all(states)
        query, keys, values = split(wide, sum(shares)).split(shares, dim=-3)
        if takes("packed_attention", self, wide, mask, bias, before, positions.turns):
            scale = self.attention.plain_scale()
            assert scale is not None
            return self.out(fused.packed(wide, self.heads, scale=scale, mask=mask)), Seen(keys, values)
        query, keys = positions.rotate(query, start), positions.rotate(keys, start)
        seen = Seen(keys, values) if before is None else before.then(torch.stack([keys, values], dim=2))
        projected = self.attention.project(spread(seen.keys, self.heads))
        context, _, _ = self.attention(
            query, projected, spread(seen.values, self.heads), mask=mask, bias=bias, start=start, cleared=True
        )
        return self.out(join(context)), seen


def shares(dim: int, heads: int, groups: int | None) -> tuple[int, int, int]:
    """Heads, groups and the width of each, if they come out even."""
    if dim % heads:
        raise RecipeError(f"{heads} heads share a width of {dim} evenly only if {heads} divides it")
    groups = groups or heads
    if heads % groups:
        raise RecipeError(f"{heads} heads share {groups} groups of keys evenly only if {groups} divides {heads}")
    return heads, groups, dim // heads


def split(wide: Float[Tensor, "*batch length dim"], heads: int) -> Float[Tensor, "*batch heads length part"]:
    """A wide vector as so many narrow ones."""
    return wide.unflatten(-1, (heads, -1)).transpose(-2, -3)


def join(narrow: Float[Tensor, "*batch heads length part"]) -> Float[Tensor, "*batch length dim"]:
    """The narrow vectors side by side again."""
    return narrow.transpose(-2, -3).flatten(-2)


def spread(
    grouped: Float[Tensor, "*batch groups length part"], heads: int
) -> Float[Tensor, "*batch heads length part"]:
    """A group's keys or values for each of the heads that share it."""
    groups = grouped.shape[-3]
    return grouped if groups == heads else grouped.repeat_interleave(heads // groups, dim=-3)
