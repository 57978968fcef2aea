"""Beam search over the verbs of any decoder; greedy is width 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.decoders import Decoder
from regard.errors import NotFiniteError, RecipeError
from regard.search import penalties
from regard.types import BEGIN, END, PAD, BatchFirst, Hypothesis, Memory, State

NEVER = (PAD, BEGIN)  # tokens that no output holds


@dataclass(frozen=True)
class Beams(BatchFirst):
    """The live hypotheses, `width` rows to a sentence: select rows, and state and map follow their tokens."""

    tokens: Int[Tensor, "rows length"]
    scores: Float[Tensor, " rows"]
    maps: Float[Tensor, "rows steps source"] | None
    state: State


class Candidate(NamedTuple):
    """A live hypothesis and one more word."""

    score: float
    row: int
    word: int


@torch.no_grad()
def beam(
    decoder: Decoder[Any, Any],
    memory: Memory,
    *,
    width: int,
    limits: Sequence[int],
    length_penalty: float = 0.0,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of every sentence, finished ones first, then by score; never none.

    `limits` are the most tokens of each sentence, END counted. A sentence is done when `width` of its
    hypotheses have ended, or when nothing alive can still enter its `n_best`. Batch-mates change nothing.
    """
    if not 1 <= n_best <= width:
        raise RecipeError(f"a beam of width {width} finds 1 to {width} hypotheses, not {n_best}")
    if len(limits) != len(memory.mask) or min(limits, default=0) < 1:
        raise RecipeError(f"every one of {len(memory.mask)} sentences needs a limit of 1 token or more, not {limits}")
    ready = decoder.prepare(memory)
    beams = _begin(decoder.start(ready).repeat(width), memory, width)
    alive = list(range(len(limits)))  # the sentence behind each group of rows
    ended: list[list[Hypothesis]] = [[] for _ in alive]
    for length in range(1, max(limits) + 1):
        step = decoder.step(beams.tokens[:, -1:], beams.state, ready)
        beams = Beams(beams.tokens, beams.scores, _append(beams.maps, step.attention), step.state)
        kept: list[int] = []
        living: list[Candidate] = []
        for group, candidates in enumerate(_candidates(beams.scores, step.logits[:, -1], width)):
            found, limit = ended[alive[group]], limits[alive[group]]
            penalty = penalties.length(length, length_penalty)
            going = [each for each in candidates if each.word != END][:width]
            ending = [each for each in candidates[:width] if each.word == END]
            found += [_end(beams, each, penalty) for each in ending if each.score > float("-inf")]
            found.sort(key=lambda hypothesis: -hypothesis.score)
            reachable = going[0].score / penalties.length(limit, length_penalty)
            if length == limit:
                cut = [_end(beams, each, penalty) for each in going if each.score > float("-inf")]
                found += cut[: n_best - len(found)] if len(found) < n_best else []
            elif len(found) < n_best or (len(found) < width and found[n_best - 1].score < reachable):
                kept.append(group)
                living += going
        if not kept:
            break
        beams = _advance(beams, living)
        if len(kept) < len(alive):
            alive = [alive[group] for group in kept]
            ready = ready.select(torch.tensor(kept, device=memory.mask.device))
    return [found[:n_best] for found in ended]


def _begin(state: State, memory: Memory, width: int) -> Beams:
    """Every beam of a sentence at BEGIN; all but the first count for nothing yet, or they would be equal."""
    batch, device = len(memory.mask), memory.mask.device
    scores = memory.states.new_full(
        (batch, width), float("-inf"), dtype=torch.promote_types(memory.states.dtype, torch.float32)
    )
    scores[:, 0] = 0.0
    tokens = torch.full((batch * width, 1), BEGIN, device=device)
    return Beams(tokens, scores.flatten(), None, state)


def _append(
    maps: Float[Tensor, "rows steps source"] | None, attention: Float[Tensor, "rows 1 source"] | None
) -> Float[Tensor, "rows grown source"] | None:
    if maps is None or attention is None:
        return attention
    return torch.cat([maps, attention], dim=1)


def _candidates(
    scores: Float[Tensor, " rows"], logits: Float[Tensor, "rows vocabulary"], width: int
) -> list[list[Candidate]]:
    """The 2 x width best ways to go on with each sentence: enough, since at most `width` of them end."""
    vocabulary = logits.shape[-1]
    words = torch.log_softmax(logits.to(scores.dtype), dim=-1)
    words = words.index_fill(-1, torch.tensor(NEVER, device=logits.device), float("-inf"))
    grown = (scores.unsqueeze(-1) + words).view(-1, width * vocabulary)
    best, index = grown.topk(2 * width, dim=-1)
    if bool(best[:, 0].isnan().any()):
        raise NotFiniteError("the model's predictions are not finite numbers; it cannot be searched")
    return [
        [
            Candidate(score, group * width + place // vocabulary, place % vocabulary)
            for score, place in zip(*both, strict=True)
        ]
        for group, both in enumerate(zip(best.tolist(), index.tolist(), strict=True))
    ]


def _end(beams: Beams, last: Candidate, penalty: float) -> Hypothesis:
    """A hypothesis that goes no further: it met END, or its limit."""
    finished = last.word == END
    tokens = beams.tokens[last.row, 1:].tolist() + ([] if finished else [last.word])
    seen = None if beams.maps is None else beams.maps[last.row].clone()
    return Hypothesis(tokens, last.score / penalty, seen, finished)


def _advance(beams: Beams, living: list[Candidate]) -> Beams:
    """The rows that live on, each with its new word."""
    device = beams.tokens.device
    chosen = beams.select(torch.tensor([each.row for each in living], device=device))
    words = torch.tensor([[each.word] for each in living], device=device)
    scores = torch.tensor([each.score for each in living], device=device, dtype=beams.scores.dtype)
    return Beams(torch.cat([chosen.tokens, words], dim=1), scores, chosen.maps, chosen.state)
