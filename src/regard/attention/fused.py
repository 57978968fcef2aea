"""Dot-product attention through PyTorch's fused kernels: the same context, no weights."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.attention.masks import Causal, Mask, drawn
from regard.attention.normalizers import softmax

SHORT = 64  # keys up to which a compiler's own fusion is faster than a kernel made for long rows


def dot(
    query: Float[Tensor, "*batch query dim"],
    keys: Float[Tensor, "*keys key dim"],
    values: Float[Tensor, "*keys key width"],
    *,
    scale: float,
    mask: Mask,
    bias: Float[Tensor, "*bias"] | None,
) -> Float[Tensor, "*batch query width"]:
    """softmax(scale query . keys + bias) values, with `attend` as its definition."""
    if query.ndim == 5 and keys.shape[1] == 1 and bias is None and _is_over_keys(mask):
        assert not isinstance(mask, Causal)
        return _shared(query, keys, values, scale, mask)
    if isinstance(mask, Causal) and mask.hides_nothing(keys.shape[-2]):
        mask = None
    causal = isinstance(mask, Causal) and mask.start == 0 and query.shape[-2] == keys.shape[-2] and bias is None
    if torch.compiler.is_compiling() and keys.shape[-2] <= SHORT:
        return _spelled_out(query, keys, values, scale, drawn(mask, query, keys), bias)
    hidden = None if causal else drawn(mask, query, keys)
    if bias is not None:
        bias = bias.to(query.dtype)
        hidden = bias if hidden is None else torch.where(hidden, bias, float("-inf"))
    return functional.scaled_dot_product_attention(query, keys, values, attn_mask=hidden, is_causal=causal, scale=scale)


def _is_over_keys(mask: Mask) -> bool:
    """Whether all beams and all queries see the same keys."""
    return mask is None or (isinstance(mask, Tensor) and mask.shape[1] == mask.shape[-2] == 1)


def _shared(query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Beams (batch, beams, heads, ...) of one source, with a mask over keys alone, are so many more queries."""
    batch, beams, heads, queries, _ = query.shape
    asked = query.transpose(1, 2).reshape(batch, heads, beams * queries, -1)
    seen = functional.scaled_dot_product_attention(
        asked, keys.squeeze(1), values.squeeze(1), attn_mask=None if mask is None else mask.squeeze(1), scale=scale
    )
    return seen.unflatten(2, (beams, queries)).transpose(1, 2)


def _spelled_out(
    query: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None, bias: Tensor | None
) -> Tensor:
    """The definition in as few operations as a compiler wants to see; the softmax is in single precision."""
    scores = ((query * scale) @ keys.transpose(-1, -2)).to(torch.promote_types(query.dtype, torch.float32))
    scores = scores if bias is None else scores + bias
    return softmax(scores, mask).to(values.dtype) @ values
