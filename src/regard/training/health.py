"""Attention statistics, reported at every validation: they show early if attention stays flat."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.training.processes import ALONE, Processes

FLAT = 0.9  # attention is called flat if its entropy is above this share of the highest possible entropy
WORDS = ((0.25, "sharp"), (0.5, "focused"), (FLAT, "spread out"), (float("inf"), "flat"))  # by entropy


class Health(NamedTuple):
    """Statistics of the attention, averaged over all target tokens."""

    attention_entropy: float  # as a share of the highest possible; 1: uniform weights
    attention_on_end: float | None  # the weight on the source's END; None if sources have none, such as recordings
    attention_near_end: float | None  # the weight on the last token before END

    def flat(self) -> bool:
        """Whether the attention is close to uniform."""
        return self._printed_entropy() > FLAT

    def values(self) -> dict[str, float]:
        """The statistics that there are, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def describe(self) -> str:
        """The statistics as a sentence for the report of a validation; docs/training.md explains the words."""
        kind = next(word for most, word in WORDS if self._printed_entropy() <= most)
        described = f"attention is {kind} (entropy {self._printed_entropy():.2f} of 1)"
        if self.attention_on_end is None:
            return described
        return f"{described}, {self.attention_on_end:.0%} on the end mark, {self.attention_near_end:.0%} just before it"

    def _printed_entropy(self) -> float:
        """The entropy as it is printed: equal numbers have equal words."""
        return round(self.attention_entropy, 2)


Map = tuple[Float[Tensor, "_batch _tokens _source"], Bool[Tensor, "_batch _source"], Bool[Tensor, "_batch _tokens"]]


def health(maps: Sequence[Map], *, ends: bool = True, processes: Processes = ALONE) -> Health | None:
    """Computes the statistics of attention maps, each with the masks of its source and target; None without maps.

    `ends` says whether the last position of a source is END. Several processes have different maps.
    """
    sums = torch.zeros(4, dtype=torch.float64)
    for attention, source, target in maps:
        lengths = source.sum(-1)
        shares = attention / attention.sum(-1, keepdim=True).clamp(min=torch.finfo(attention.dtype).tiny)
        entropy = torch.special.entr(shares).sum(-1) / lengths.clamp(min=2).log().unsqueeze(-1)
        sentences = torch.arange(len(lengths), device=lengths.device)
        end = attention[sentences, :, lengths - 1]
        before = attention[sentences, :, (lengths - 2).clamp(min=0)]
        values = torch.stack([entropy, end, before, torch.ones_like(end)])
        sums += (values * target).sum((1, 2)).double().cpu()
    sums = processes.sum(sums)
    if not sums[3]:
        return None
    entropy, end, before = (sums[:3] / sums[3]).tolist()
    return Health(entropy, end, before) if ends else Health(entropy, None, None)
