"""Dot-product attention by fused kernels: the same context as `attend`, without the weights."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.attention.masks import Causal, Mask, materialize
from regard.kernels import gpu
from regard.kernels.choose import takes


def dot(
    query: Float[Tensor, "*batch query dim"],
    keys: Float[Tensor, "*keys key dim"],
    values: Float[Tensor, "*keys key width"],
    *,
    scale: float,
    mask: Mask,
    bias: Float[Tensor, "*bias"] | None,
    drop: float = 0.0,
) -> Float[Tensor, "*batch query width"]:
    """Compute softmax(scale query . keys + bias) values; `attend` is the definition."""
    if query.ndim == 5 and keys.shape[1] == 1 and bias is None and _is_over_keys(mask):
        assert not isinstance(mask, Causal)
        return _merge_beams(query, keys, values, scale, mask, drop)
    if isinstance(mask, Causal) and mask.hides_nothing(keys.shape[-2]):
        mask = None
    causal = isinstance(mask, Causal) and mask.start == 0 and query.shape[-2] == keys.shape[-2]
    if takes("short_attention", query, keys, values, mask, causal, bias, drop):
        key_mask = _key_mask(mask, len(query))
        context: Tensor = gpu.short_attention.short_attention(query, keys, values, key_mask, causal, scale)
        return context
    causal = causal and bias is None
    attn_mask = None if causal else materialize(mask, query, keys)
    if bias is not None:
        bias = bias.to(query.dtype)
        attn_mask = bias if attn_mask is None else torch.where(attn_mask, bias, float("-inf"))
    return functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=attn_mask, dropout_p=drop, is_causal=causal, scale=scale
    )


def _is_over_keys(mask: Mask) -> bool:
    """Whether the mask is the same for all beams and all queries."""
    return mask is None or (isinstance(mask, Tensor) and mask.shape[1] == mask.shape[-2] == 1)


def _merge_beams(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None, drop: float) -> Tensor:
    """Attend with beams (batch, beams, heads, ...) that share the keys of a source, as further queries on one axis."""
    batch, beams, heads, queries, _ = query.shape
    merged = query.transpose(1, 2).reshape(batch, heads, beams * queries, -1)
    over_keys = None if mask is None else mask.squeeze(1)
    context = dot(merged, keys.squeeze(1), values.squeeze(1), scale=scale, mask=over_keys, bias=None, drop=drop)
    return context.unflatten(2, (beams, queries)).transpose(1, 2)


def packed(
    wide: Float[Tensor, "batch time wide"], heads: int, *, scale: float, mask: Mask
) -> Float[Tensor, "batch time dim"]:
    """Self-attention on queries, keys and values of all heads, concatenated; returns the concatenated contexts."""
    context: Tensor = gpu.short_attention.short_self_attention(
        wide.contiguous(), heads, _key_mask(mask, len(wide)), isinstance(mask, Causal), scale
    )
    return context


def _key_mask(mask: Mask, batch: int) -> Tensor | None:
    """The padding mask as (batch, key), as the GPU kernels take it; None if there is none."""
    return mask[:, 0, 0].expand(batch, -1) if isinstance(mask, Tensor) else None
