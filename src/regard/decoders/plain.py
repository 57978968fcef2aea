"""Decoder steps of one token without module calls: the fast paths `plain_transformer` and `plain_recurrent`.

A step of a search is small, so the overhead of modules that call modules would take most of its time. Here the same
computation is written a second time with plain tensors. The definitions are `DecoderLayer.forward`, for heads with a
softmax over dot products, and `RecurrentDecoder.attend_ungated`, for a softmax over any score. The table in
`kernels/choose.py` decides when this code runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from regard.attention.core import Attended
from regard.attention.heads import KeyValues, MultiHead, SelfAttention
from regard.attention.masks import Causal
from regard.attention.positions import Positions
from regard.attention.scopes import Scope
from regard.kernels.choose import is_observed, takes
from regard.kernels.linear import linear_one_row
from regard.layers.recurrence import Gates

# The weight and bias of a linear layer, in the order in which `linear` takes them.
Affine = tuple[Float[Tensor, "out in"], Float[Tensor, " out"] | None]
# The parameters of a layer normalisation (Ba et al. 2016), in the order in which `torch.layer_norm` takes them: shape,
# weight, bias, epsilon.
Norm = tuple[tuple[int, ...], Float[Tensor, " dim"] | None, Float[Tensor, " dim"] | None, float]
Heads = Float[Tensor, "batch heads beams part"]  # queries or contexts
Bias = Float[Tensor, "batch heads 1 key"] | None  # added to the scores


def affine(module: nn.Linear) -> Affine:
    """The parameters of a linear layer."""
    return module.weight, module.bias


def norm(module: nn.Module) -> Norm:
    """The parameters of a layer normalisation; a decoder with other norms takes no steps without modules."""
    assert isinstance(module, nn.LayerNorm)
    return module.normalized_shape, module.weight, module.bias, module.eps


def mask_bias(mask: Bool[Tensor, "batch source"], dtype: torch.dtype) -> Float[Tensor, "batch 1 source"] | None:
    """The mask as a bias to add to scores: 0 if a position may be attended, else -inf; None if all may be attended."""
    if bool(mask.all()):
        return None
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf).unsqueeze(1)


def keys_by_columns(memory: KeyValues) -> KeyValues:
    """The same keys and values, the keys stored by columns (transposed in memory) if there are many sources.

    Products of many sources' beams with such keys are four times as fast.
    """
    if not takes("keys_by_columns", len(memory.keys)):
        return memory
    return KeyValues(memory.keys.transpose(-1, -2).contiguous().transpose(-1, -2), memory.values.contiguous())


class SoftmaxAttention(NamedTuple):
    """The parameters of a multi-head softmax attention over dot products, and of the norm before or after it."""

    heads: int
    scale: float
    scope: Scope  # its module, called only for recording hooks
    project: Affine  # to queries; of a self-attention to queries, keys and values
    out: Affine
    norm: Norm

    @staticmethod
    def of(module: SelfAttention | MultiHead, layer_norm: nn.Module) -> "SoftmaxAttention":
        """The attention of a module, which must be a softmax over dot products, with keys for every head."""
        scale = module.attention.plain_scale()
        assert scale is not None
        project = affine(module.all if isinstance(module, SelfAttention) else module.query)
        return SoftmaxAttention(module.heads, scale, module.attention, project, affine(module.out), norm(layer_norm))

    def context_only(self, query: Heads, seen: KeyValues, bias: Bias, few: bool) -> Heads:
        """The context alone; if there are `few` queries, by torch's fused attention, which is then faster."""
        if not few:
            return self.context(query, seen, bias)[0]
        return scaled_dot_product_attention(query, seen.keys, seen.values, attn_mask=bias, scale=self.scale)

    def context(
        self, query: Heads, seen: KeyValues, bias: Bias
    ) -> tuple[Heads, Float[Tensor, "batch_heads beams key"]]:
        """The context of every query, and its attention weights."""
        beams, part = query.shape[2:]
        queries, keys, values = query.reshape(-1, beams, part), seen.keys.flatten(0, 1), seen.values.flatten(0, 1)
        if bias is None:
            scores = torch.baddbmm(query.new_empty(()), queries, keys.transpose(1, 2), beta=0, alpha=self.scale)
        else:
            scores = torch.baddbmm(bias.flatten(0, 1), queries, keys.transpose(1, 2), alpha=self.scale)
        weights = torch.softmax(scores, -1)
        return torch.bmm(weights, values).view(query.shape), weights


class Layer(NamedTuple):
    """The parameters of one decoder layer: self-attention, attention to the memory if there is one, feed-forward."""

    attention: SoftmaxAttention
    cross: SoftmaxAttention | None
    inner: Affine
    activation: Callable[[Tensor], Tensor]
    outer: Affine
    feed_norm: Norm  # of the feed-forward layer, before or after it


@dataclass(frozen=True)
class TransformerStep:
    """The parameters of all layers of a Transformer decoder, and a step of one token that uses them."""

    layers: tuple[Layer, ...]
    words: Affine  # computes the logits
    before: bool  # True for pre-norm, False for post-norm

    def step(
        self,
        states: Float[Tensor, "rows dim"],
        caches: tuple[KeyValues, ...],
        memory: tuple[KeyValues, ...],
        memory_bias: Float[Tensor, "batch heads 1 source"] | None,
        mask: Bool[Tensor, "batch source"],
        positions: Positions,
    ) -> tuple[Float[Tensor, "rows dim"], tuple[KeyValues, ...], Float[Tensor, "rows source"] | None]:
        """One step of one token per row.

        Takes the embedded tokens, the cached keys and values of each layer, the memory's keys and values, and the
        memory's mask both as a bias (`memory_bias`) and as booleans. Returns the states after the last layer, the
        extended caches, and the top layer's attention weights over the memory (the mean of its heads; None without a
        memory).
        """
        rows, start = states.shape[0], caches[0].keys.shape[-2]
        states, product = (states[0], linear_one_row) if takes("one_row_step", rows) else (states, linear)
        few, few_sources = takes("few_queries", rows), takes("few_queries", mask.shape[0])
        bias = positions.bias(1, start + 1, start)
        row_bias = None if bias is None else bias.expand(rows, -1, -1, -1)
        extended: list[KeyValues] = []
        weights = None
        for layer, cache in zip(self.layers, caches, strict=True):
            attention, cross = layer.attention, layer.cross
            parts = product(self._enter(states, attention.norm), *attention.project).view(
                rows, 3, attention.heads, 1, -1
            )
            query, new = parts.select(1, 0), parts.narrow(1, 1, 2).transpose(1, 2)
            if positions.rotates:
                query, keys = positions.rotate(query, start), positions.rotate(new.select(2, 0), start)
                new = torch.stack([keys, new.select(2, 1)], dim=2)
            cache = cache.then(new)
            if is_observed(attention.scope):  # call it for its recording hooks; the result is not used
                causal = Causal(start)
                attention.scope(query, cache.keys, cache.values, mask=causal, bias=bias, start=start, cleared=True)
            context = _rows(attention.context_only(query, cache, row_bias, few))
            states = self._leave(states, product(context, *attention.out), attention.norm)
            if cross is not None:
                source = memory[len(extended)]
                query = product(self._enter(states, cross.norm), *cross.project)
                beams = query.view(mask.shape[0], -1, cross.heads, source.keys.shape[-1])
                if is_observed(cross.scope):
                    visible = mask[:, None, None, None]
                    _call_hooks(cross.scope, beams.unsqueeze(3), source.keys, source.values, visible, start)
                if len(extended) < len(self.layers) - 1:  # only the top layer's weights are returned
                    context = cross.context_only(beams.transpose(1, 2), source, memory_bias, few_sources)
                else:
                    context, weights = cross.context(beams.transpose(1, 2), source, memory_bias)
                states = self._leave(states, product(_rows(context), *cross.out), cross.norm)
            inner = layer.activation(product(self._enter(states, layer.feed_norm), *layer.inner))
            states = self._leave(states, product(inner, *layer.outer), layer.feed_norm)
            extended.append(cache)
        if weights is not None:
            weights = weights.view(mask.shape[0], -1, *weights.shape[1:]).mean(1).flatten(0, 1)
        return states.view(rows, -1), tuple(extended), weights

    def _enter(self, states: Tensor, norm: Norm) -> Tensor:
        """The input of a sub-layer: normalised in pre-norm."""
        return torch.layer_norm(states, *norm) if self.before else states

    def _leave(self, states: Tensor, update: Tensor, norm: Norm) -> Tensor:
        """The residual stream plus the output of a sub-layer (added in place); normalised in post-norm."""
        total = update.add_(states)
        return total if self.before else torch.layer_norm(total, *norm)


def _rows(context: Heads) -> Float[Tensor, "*rows dim"]:
    """Concatenate the heads of each query; a single query gets no row axis, as `linear_one_row` needs it."""
    batch, _, beams, _ = context.shape
    return context.flatten() if batch * beams == 1 else context.transpose(1, 2).reshape(batch * beams, -1)


def _call_hooks(scope: Scope, beams: Tensor, keys: Tensor, values: Tensor, mask: Tensor, start: int) -> None:
    """Call the attention module over a memory shared by beams, only for its forward hooks; the result is not used."""
    scope(beams, keys.unsqueeze(1), values.unsqueeze(1), mask=mask, start=start, cleared=True)


@dataclass(frozen=True)
class RecurrentStep:
    """The parts that a recurrent decoder uses for a step of one token without module calls."""

    gates: Gates
    scope: Scope | None  # None if the order has no attention

    def attend(
        self,
        query: Float[Tensor, "rows 1 dim"],
        keys: Float[Tensor, "batch source projected"],
        values: Float[Tensor, "batch source read"],
        mask: Bool[Tensor, "batch source"],
        memory_bias: Float[Tensor, "batch 1 source"] | None,
        start: int,
    ) -> Attended:
        """Attend to the memory with a softmax over the scores; the beams of a source are several queries to it.

        `memory_bias` is the mask as a bias; `mask` and `start` are only for recording hooks.
        """
        assert self.scope is not None
        rows, batch = len(query), len(keys)
        beams = query.view(batch, rows // batch, -1)
        if is_observed(self.scope):
            _call_hooks(self.scope, beams.unsqueeze(2), keys, values, mask[:, None, None], start)
        scores = self.scope.score(beams, keys)
        weights = torch.softmax(scores if memory_bias is None else scores + memory_bias, dim=-1)
        context = torch.bmm(weights, values)
        return Attended(context.view(rows, 1, -1), weights.view(rows, 1, -1))
