"""Dot-product attention through PyTorch's fused kernels: the same context, no weights."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.attention.masks import Causal, Mask, drawn
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
    """softmax(scale query . keys + bias) values, with `attend` as its definition."""
    if query.ndim == 5 and keys.shape[1] == 1 and bias is None and _is_over_keys(mask):
        assert not isinstance(mask, Causal)
        return _shared(query, keys, values, scale, mask, drop)
    if isinstance(mask, Causal) and mask.hides_nothing(keys.shape[-2]):
        mask = None
    causal = isinstance(mask, Causal) and mask.start == 0 and query.shape[-2] == keys.shape[-2]
    if takes("short_attention", query, keys, values, mask, causal, bias, drop):
        return _short(query, keys, values, scale, mask)
    causal = causal and bias is None
    hidden = None if causal else drawn(mask, query, keys)
    if bias is not None:
        bias = bias.to(query.dtype)
        hidden = bias if hidden is None else torch.where(hidden, bias, float("-inf"))
    return functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=hidden, dropout_p=drop, is_causal=causal, scale=scale
    )


def _is_over_keys(mask: Mask) -> bool:
    """Whether all beams and all queries see the same keys."""
    return mask is None or (isinstance(mask, Tensor) and mask.shape[1] == mask.shape[-2] == 1)


def _shared(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None, drop: float) -> Tensor:
    """Beams (batch, beams, heads, ...) of one source, with a mask over keys alone, are so many more queries."""
    batch, beams, heads, queries, _ = query.shape
    asked = query.transpose(1, 2).reshape(batch, heads, beams * queries, -1)
    over_keys = None if mask is None else mask.squeeze(1)
    seen = dot(asked, keys.squeeze(1), values.squeeze(1), scale=scale, mask=over_keys, bias=None, drop=drop)
    return seen.unflatten(2, (beams, queries)).transpose(1, 2)


def packed(
    wide: Float[Tensor, "batch time wide"], heads: int, *, scale: float, mask: Mask
) -> Float[Tensor, "batch time dim"]:
    """`dot` of tokens with themselves, from all queries, keys and values side by side to contexts side by side."""
    seen: Tensor = gpu.short_attention.short_self_attention(
        wide.contiguous(), heads, _hidden(mask, len(wide)), isinstance(mask, Causal), scale
    )
    return seen


def _short(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Mask) -> Tensor:
    hidden, causal = _hidden(mask, len(query)), isinstance(mask, Causal)
    seen: Tensor = gpu.short_attention.short_attention(query, keys, values, hidden, causal, scale)
    return seen


def _hidden(mask: Mask, batch: int) -> Tensor | None:
    """The mask over keys (batch, key), where there is one."""
    return mask[:, 0, 0].expand(batch, -1) if isinstance(mask, Tensor) else None
