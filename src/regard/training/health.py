"""Is the attention looking at anything? Said at every validation, so that one sees early that it does not form."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.types import Batch

FLAT = 0.9  # the share of the highest possible entropy from which on a map is called flat


class Health(NamedTuple):
    """How a model looks, on average over all target tokens."""

    attention_entropy: float  # as a share of the highest possible: 1 looks at everything alike
    attention_on_end: float  # the weight on the source's END
    attention_near_end: float  # the weight on the token just before it

    def flat(self) -> bool:
        """Whether it looks at everything alike."""
        return self.attention_entropy > FLAT

    def told(self) -> str:
        """In words."""
        end = f"{self.attention_on_end:.0%} on the end, {self.attention_near_end:.0%} just before it"
        return f"attention entropy {self.attention_entropy:.2f} of 1, {end}"


def health(seen: Sequence[tuple[Float[Tensor, "_batch _tokens _source"], Batch]]) -> Health | None:
    """The health of maps and the batches they belong to; None where nothing was looked at."""
    if not seen:
        return None
    sums = torch.zeros(4, dtype=torch.float64)
    for attention, batch in seen:
        rows = batch.target.mask[:, 1:]
        lengths = batch.source.mask.sum(-1)
        shares = attention / attention.sum(-1, keepdim=True).clamp(min=torch.finfo(attention.dtype).tiny)
        entropy = torch.special.entr(shares).sum(-1) / lengths.clamp(min=2).log().unsqueeze(-1)
        end = _column(attention, lengths - 1)
        before = _column(attention, (lengths - 2).clamp(min=0))
        values = torch.stack([entropy, end, before, torch.ones_like(end)])
        sums += (values * rows).sum((1, 2)).double().cpu()
    entropy, end, before = (sums[:3] / sums[3]).tolist()
    assert math.isfinite(entropy)
    return Health(entropy, end, before)


def _column(attention: Tensor, index: Tensor) -> Tensor:
    """The weight of every row on one source position of its sentence."""
    places = index.view(-1, 1, 1).expand(-1, attention.shape[1], 1)
    return attention.gather(-1, places).squeeze(-1)
