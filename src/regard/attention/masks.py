"""Masks: boolean tensors, True = the query may attend to the key, with an axis for each of (*batch, query, key)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True)
class Causal:
    """A causal mask given by its start index; fused paths use it without a tensor."""

    start: int = 0  # the position of the first query

    def hides_nothing(self, keys: int) -> bool:
        """Whether every query sees every key, for example the newest token of a decoder that steps."""
        return keys <= self.start + 1

    def materialize(self, query: Tensor, keys: Tensor) -> Bool[Tensor, "*ones queries keys"]:
        """Materialise the mask as a tensor, with an axis for each of (*batch, query, key)."""
        mask = causal(query.shape[-2], keys.shape[-2], self.start, query.device)
        return mask.view(*[1] * (query.ndim - 2), *mask.shape[-2:])


BoolMask = Bool[Tensor, "*mask"]
Mask = BoolMask | Causal | None


def materialize(mask: Mask, query: Tensor, keys: Tensor) -> Tensor | None:
    """Any mask as a tensor; None, which hides nothing, stays None."""
    return mask.materialize(query, keys) if isinstance(mask, Causal) else mask


def from_lengths(lengths: Int[Tensor, " batch"], longest: int) -> Bool[Tensor, "batch {longest}"]:
    """True for the first `lengths` positions of each row."""
    return torch.arange(longest, device=lengths.device) < lengths.unsqueeze(-1)


def over_keys(mask: Bool[Tensor, "*batch key"]) -> Bool[Tensor, "*batch 1 key"]:
    """Add the query axis to a padding mask, as `attend` needs it: every query sees the same keys."""
    return mask.unsqueeze(-2)


def causal(
    queries: int, keys: int, start: int = 0, device: torch.device | None = None
) -> Bool[Tensor, "1 {queries} {keys}"]:
    """Causal mask: each query sees the keys up to its own position; the first query is at position `start`."""
    positions = torch.arange(start, start + queries, device=device).unsqueeze(-1)
    return (torch.arange(keys, device=device) <= positions).unsqueeze(0)


def check(mask: Tensor, query: Tensor, keys: Tensor) -> None:
    """Raise an error if the mask is not boolean, or would broadcast to a wrong shape without an error."""
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask is boolean (True = may be attended), not {mask.dtype}")
    if mask.ndim != query.ndim:
        raise ValueError(
            f"a mask needs the {query.ndim} axes (*batch, query, key), but has shape {tuple(mask.shape)}; "
            "write mask.unsqueeze(-2) for a (batch, key) mask, mask.unsqueeze(0) for a (query, key) mask"
        )
    expected = (*torch.broadcast_shapes(query.shape[:-2], keys.shape[:-2]), query.shape[-2], keys.shape[-2])
    if any(size not in (1, expected_size) for size, expected_size in zip(mask.shape, expected, strict=True)):
        raise ValueError(f"a mask of shape {tuple(mask.shape)} does not broadcast to (*batch, query, key) = {expected}")
