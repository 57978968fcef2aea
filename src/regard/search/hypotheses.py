"""What every search keeps of its live hypotheses, and how it begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decoders import Decoder
from regard.errors import RecipeError
from regard.types import BEGIN, PAD, BatchFirst, Memory, Ready, State, Step

NEVER = (PAD, BEGIN)  # tokens that no output holds


@dataclass(frozen=True)
class Beams(BatchFirst):
    """The live hypotheses, `width` rows to a sentence: select rows, and state and map follow their tokens."""

    tokens: Int[Tensor, "rows length"]
    scores: Float[Tensor, " rows"]  # log-probabilities
    maps: Float[Tensor, "rows steps source"] | None
    state: State

    def follow(self, step: Step) -> "Beams":
        """The same hypotheses after the decoder read their last token: its state, and one more row of map."""
        maps = step.attention
        if self.maps is not None and maps is not None:
            maps = torch.cat([self.maps, maps], dim=1)
        return Beams(self.tokens, self.scores, maps, step.state)


def check_limits(limits: Sequence[int], memory: Memory, prefix: Tensor | None) -> None:
    """Every sentence has room for at least one token of its own."""
    least = 1 if prefix is None else 1 + prefix.shape[1]
    if len(limits) != len(memory.mask) or min(limits, default=0) < least:
        sentences = len(memory.mask)
        raise RecipeError(f"every one of {sentences} sentences needs a limit of {least} tokens or more, not {limits}")


def begin(
    decoder: Decoder[Any, Any], ready: Ready, memory: Memory, prefix: Int[Tensor, "batch prefix"] | None, width: int
) -> tuple[Beams, Float[Tensor, "rows vocabulary"]]:
    """`width` rows to a sentence after BEGIN and the prefix, read in one step, and what they predict next.

    All but the first row of a sentence count for nothing yet, or they would be equal.
    """
    tokens = torch.full((len(memory.mask), 1), BEGIN, device=memory.mask.device)
    if prefix is not None:
        tokens = torch.cat([tokens, prefix], dim=1)
    step = decoder.step(tokens, decoder.start(ready), ready)
    precision = torch.promote_types(step.logits.dtype, torch.float32)
    words = torch.log_softmax(step.logits[:, :-1].to(precision), dim=-1)
    given = words.gather(-1, tokens[:, 1:].unsqueeze(-1)).sum((1, 2))
    scores = given.unsqueeze(1).repeat(1, width)
    scores[:, 1:] = float("-inf")
    rows = Beams(tokens, given, step.attention, step.state).repeat(width)
    logits = step.logits[:, -1].repeat_interleave(width, dim=0)
    return Beams(rows.tokens, scores.flatten(), rows.maps, rows.state), logits
