"""The live hypotheses of a search, and its first decoder step; shared by beam search and sampling."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decoders import AnyDecoder
from regard.errors import RecipeError
from regard.search.scorers import Followed
from regard.types import BEGIN, END, PAD, BatchFirst, Hypothesis, Memory, Prepared, State, Step

FORBIDDEN_TOKENS = (PAD, BEGIN)  # tokens that no output may contain


@dataclass(frozen=True)
class Beams(BatchFirst):
    """The live hypotheses, `width` rows per sentence; `select` reorders tokens, scores, maps and state together."""

    tokens: Int[Tensor, "rows length"]
    scores: Float[Tensor, " rows"]  # log-probabilities
    maps: Float[Tensor, "rows steps source"] | None
    state: State
    scored: Followed | None = None  # the state of a `Scorer`

    def follow(self, step: Step) -> "Beams":
        """The hypotheses after a decoder step: with the step's state, and its attention appended to the maps."""
        maps = step.attention
        if self.maps is not None and maps is not None:
            maps = torch.cat([self.maps, maps], dim=1)
        return replace(self, maps=maps, state=step.state)

    def extend(self, words: Int[Tensor, " rows"]) -> "Beams":
        """The hypotheses with one more word each."""
        return replace(self, tokens=torch.cat([self.tokens, words.unsqueeze(1)], dim=1))

    def complete(self, row: int, word: int, score: float) -> Hypothesis:
        """A live hypothesis as an output: its last word is END, or it is cut after that word."""
        finished = word == END
        tokens = self.tokens[row, 1:].tolist() + ([] if finished else [word])
        return Hypothesis(tokens, score, None if self.maps is None else self.maps[row].clone(), finished)


def check_limits(limits: Sequence[int], memory: Memory, prefix: Tensor | None) -> None:
    """Raise RecipeError unless every sentence has a limit with room for its prefix and one more token."""
    least = 1 if prefix is None else 1 + prefix.shape[1]
    if len(limits) != len(memory.mask) or min(limits, default=0) < least:
        sentences = len(memory.mask)
        raise RecipeError(f"every one of {sentences} sentences needs a limit of {least} tokens or more, not {limits}")


def begin(
    decoder: AnyDecoder, prepared: Prepared, memory: Memory, prefix: Int[Tensor, "batch prefix"] | None, width: int
) -> tuple[Beams, Float[Tensor, "rows vocabulary"]]:
    """Run the decoder over BEGIN and the prefix in one step; returns `width` rows per sentence and their next logits.

    Rows 2 to `width` of a sentence start with a score of -inf, otherwise they would all be copies of the first.
    """
    tokens = torch.full((len(memory.mask), 1), BEGIN, device=memory.mask.device)
    if prefix is not None:
        tokens = torch.cat([tokens, prefix], dim=1)
    step = decoder.step(tokens, decoder.start(prepared), prepared)
    precision = torch.promote_types(step.logits.dtype, torch.float32)
    log_probs = torch.log_softmax(step.logits[:, :-1].to(precision), dim=-1)
    prefix_scores = log_probs.gather(-1, tokens[:, 1:].unsqueeze(-1)).sum((1, 2))
    scores = prefix_scores.unsqueeze(1).repeat(1, width)
    scores[:, 1:] = float("-inf")
    beams = Beams(tokens, prefix_scores, step.attention, step.state).repeat(width)
    return replace(beams, scores=scores.flatten()), step.logits[:, -1].repeat_interleave(width, dim=0)
