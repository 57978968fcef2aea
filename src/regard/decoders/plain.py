"""One more token with plain tensors: the fast twins `plain_transformer` and `plain_recurrent` of `kernels/choose.py`.

In a search a step is small, and most of its time would go to modules calling modules. Here the same sums are written
out a second time. The definitions are `DecoderLayer.forward`, for layers whose heads weigh by a softmax over dot
products, and `RecurrentDecoder.look`, for a softmax over any scores; nothing here runs unless the table says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from regard.attention.core import Attended
from regard.attention.heads import MultiHead, Seen, SelfAttention
from regard.attention.masks import Causal
from regard.attention.positions import Positions
from regard.attention.scopes import Scope
from regard.kernels.choose import is_observed, takes
from regard.kernels.linear import of_one
from regard.layers.recurrence import Gates


class Affine(NamedTuple):
    """W x + b."""

    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None

    @staticmethod
    def of(module: nn.Linear) -> "Affine":
        """Those of a layer."""
        return Affine(module.weight, module.bias)


def unseen(mask: Bool[Tensor, "batch source"], dtype: torch.dtype) -> Float[Tensor, "batch 1 source"] | None:
    """The mask as it is added to scores: nothing where a source may be seen, and None where all may."""
    if bool(mask.all()):
        return None
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf).unsqueeze(1)


def laid_out(memory: Seen) -> Seen:
    """The same numbers, the keys by columns: products of many sources' beams with them are four times as fast so."""
    if not takes("keys_by_columns", len(memory.keys)):
        return memory
    return Seen(memory.keys.transpose(-1, -2).contiguous().transpose(-1, -2), memory.values.contiguous())


class Norm(NamedTuple):
    """Ba et al. 2016, layer normalisation."""

    shape: tuple[int, ...]
    weight: Float[Tensor, " dim"] | None
    bias: Float[Tensor, " dim"] | None
    epsilon: float

    @staticmethod
    def of(norm: nn.LayerNorm) -> "Norm":
        """That of a layer."""
        return Norm(norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class Look(NamedTuple):
    """One attention, and the scope that tells whoever records it."""

    heads: int
    scale: float
    scope: Scope

    @staticmethod
    def of(module: SelfAttention | MultiHead) -> "Look":
        """That of a module, which is a softmax over dot products with keys for every head."""
        scale = module.attention.plain_scale()
        assert scale is not None
        return Look(module.heads, scale, module.attention)

    def glance(
        self,
        query: Float[Tensor, "batch heads beams part"],
        seen: Seen,
        bias: Float[Tensor, "batch heads 1 key"] | None,
        few: bool,
    ) -> Float[Tensor, "batch heads beams part"]:
        """What the queries see, where nobody asks where: for few of them torch's own way is the faster."""
        if not few:
            return self.context(query, seen, bias)[0]
        return scaled_dot_product_attention(query, seen.keys, seen.values, attn_mask=bias, scale=self.scale)

    def context(
        self,
        query: Float[Tensor, "batch heads beams part"],
        seen: Seen,
        bias: Float[Tensor, "batch heads 1 key"] | None,
    ) -> tuple[Float[Tensor, "batch heads beams part"], Float[Tensor, "batch_heads beams key"]]:
        """What the queries see, and where."""
        beams, part = query.shape[2:]
        asked, keys, values = query.reshape(-1, beams, part), seen.keys.flatten(0, 1), seen.values.flatten(0, 1)
        if bias is None:
            scores = torch.baddbmm(query.new_empty(()), asked, keys.transpose(1, 2), beta=0, alpha=self.scale)
        else:
            scores = torch.baddbmm(bias.flatten(0, 1), asked, keys.transpose(1, 2), alpha=self.scale)
        weights = torch.softmax(scores, -1)
        return torch.bmm(weights, values).view(query.shape), weights


class Layer(NamedTuple):
    """The weights of one layer."""

    look: Look
    all: Affine
    out: Affine
    after: Norm
    cross: "Cross | None"
    inner: Affine
    activation: Callable[[Tensor], Tensor]
    outer: Affine
    last: Norm


class Cross(NamedTuple):
    """The weights of a look at the memory."""

    look: Look
    query: Affine
    out: Affine
    after: Norm


@dataclass(frozen=True)
class Plain:
    """The weights of all layers."""

    layers: tuple[Layer, ...]
    words: Affine  # a number for each word
    before: bool  # pre-norm

    def step(
        self,
        states: Float[Tensor, "rows dim"],
        before: tuple[Seen, ...],
        memory: tuple[Seen, ...],
        hidden: Float[Tensor, "batch heads 1 source"] | None,
        mask: Bool[Tensor, "batch source"],
        positions: Positions,
    ) -> tuple[Float[Tensor, "rows dim"], tuple[Seen, ...], Float[Tensor, "rows source"] | None]:
        """The states after all layers, what is kept of them, and where the top layer looked in the memory."""
        rows, start = states.shape[0], before[0].keys.shape[-2]
        states, product = (states[0], of_one) if takes("one_row_step", rows) else (states, linear)
        few, few_sources = takes("few_queries", rows), takes("few_queries", mask.shape[0])
        bias = positions.bias(1, start + 1, start)
        told = None if bias is None else bias.expand(rows, -1, -1, -1)
        kept: list[Seen] = []
        weights = None
        for layer, seen in zip(self.layers, before, strict=True):
            entered = self._enter(states, layer.after)
            parts = product(entered, *layer.all).view(rows, 3, layer.look.heads, 1, -1)
            query, more = parts.select(1, 0), parts.narrow(1, 1, 2).transpose(1, 2)
            if positions.turns:
                query, keys = positions.rotate(query, start), positions.rotate(more.select(2, 0), start)
                more = torch.stack([keys, more.select(2, 1)], dim=2)
            seen = seen.then(more)
            if is_observed(layer.look.scope):  # call it for its recording hooks; the result is not used
                layer.look.scope(
                    query, seen.keys, seen.values, mask=Causal(start), bias=bias, start=start, cleared=True
                )
            context = _rows(layer.look.glance(query, seen, told, few))
            states = self._leave(states, product(context, *layer.out), layer.after)
            if layer.cross is not None:
                look, at = layer.cross.look, memory[len(kept)]
                asked = product(self._enter(states, layer.cross.after), *layer.cross.query)
                beams = asked.view(mask.shape[0], -1, look.heads, at.keys.shape[-1])
                if is_observed(look.scope):
                    _show(look.scope, beams.unsqueeze(3), at.keys, at.values, mask[:, None, None, None], start)
                if len(kept) < len(self.layers) - 1:
                    context = look.glance(beams.transpose(1, 2), at, hidden, few_sources)
                else:
                    context, weights = look.context(beams.transpose(1, 2), at, hidden)
                states = self._leave(states, product(_rows(context), *layer.cross.out), layer.cross.after)
            inner = layer.activation(product(self._enter(states, layer.last), *layer.inner))
            states = self._leave(states, product(inner, *layer.outer), layer.last)
            kept.append(seen)
        seen_at = None if weights is None else weights.view(mask.shape[0], -1, *weights.shape[1:]).mean(1).flatten(0, 1)
        return states.view(rows, -1), tuple(kept), seen_at

    def _enter(self, states: Tensor, norm: Norm) -> Tensor:
        return torch.layer_norm(states, *norm) if self.before else states

    def _leave(self, states: Tensor, change: Tensor, norm: Norm) -> Tensor:
        changed = change.add_(states)
        return changed if self.before else torch.layer_norm(changed, *norm)


def _rows(context: Float[Tensor, "batch heads beams part"]) -> Float[Tensor, "*rows dim"]:
    """The heads of each query side by side; one query alone has no axis for rows."""
    batch, _, beams, _ = context.shape
    return context.flatten() if batch * beams == 1 else context.transpose(1, 2).reshape(batch * beams, -1)


def _show(scope: Scope, beams: Tensor, keys: Tensor, values: Tensor, mask: Tensor, start: int) -> None:
    """Look at a memory that beams share as modules do, for whoever looks on; the result is not used."""
    scope(beams, keys.unsqueeze(1), values.unsqueeze(1), mask=mask, start=start, cleared=True)


@dataclass(frozen=True)
class PlainLoop:
    """What one more token of a recurrent decoder needs."""

    gates: Gates
    scope: Scope | None  # None where the order never looks

    def look(
        self,
        query: Float[Tensor, "rows 1 dim"],
        keys: Float[Tensor, "batch source projected"],
        values: Float[Tensor, "batch source read"],
        mask: Bool[Tensor, "batch source"],
        hidden: Float[Tensor, "batch 1 source"] | None,
        start: int,
    ) -> Attended:
        """A softmax over the scores; beams of one source are queries side by side."""
        assert self.scope is not None
        rows, batch = len(query), len(keys)
        beams = query.view(batch, rows // batch, -1)
        if is_observed(self.scope):
            _show(self.scope, beams.unsqueeze(2), keys, values, mask[:, None, None], start)
        scores = self.scope.score(beams, keys)
        weights = torch.softmax(scores if hidden is None else scores + hidden, dim=-1)
        context = torch.bmm(weights, values)
        return Attended(context.view(rows, 1, -1), weights.view(rows, 1, -1))
