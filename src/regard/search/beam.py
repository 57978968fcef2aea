"""Beam search over the verbs of any decoder; greedy is width 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoders import Decoder
from regard.errors import NotFiniteError, RecipeError
from regard.search import penalties
from regard.search.hypotheses import NEVER, Beams, begin, check_limits
from regard.types import END, Hypothesis, Memory


class Candidate(NamedTuple):
    """A live hypothesis and one more word."""

    score: float
    row: int
    word: int


@dataclass(frozen=True)
class Judge:
    """How ended hypotheses are compared: log P / length penalty + coverage penalty."""

    length_penalty: float
    coverage_penalty: float

    def score(
        self,
        log_probability: float,
        tokens: int,
        seen: Float[Tensor, "tokens source"] | None,
        real: Bool[Tensor, " source"],
    ) -> float:
        """The score of a hypothesis of so many tokens; `real` is True where the source is not padding."""
        score = log_probability / penalties.length(tokens, self.length_penalty)
        return score + penalties.coverage(seen, real, self.coverage_penalty) if self.coverage_penalty else score

    def reachable(self, log_probability: float, limit: int) -> float:
        """What no continuation of a hypothesis can exceed: log P only falls, and coverage never adds."""
        return log_probability / penalties.length(limit, self.length_penalty)


@torch.no_grad()
def beam(
    decoder: Decoder[Any, Any],
    memory: Memory,
    *,
    width: int,
    limits: Sequence[int],
    length_penalty: float = 0.0,
    coverage_penalty: float = 0.0,
    no_repeat: int = 0,
    prefix: Int[Tensor, "batch prefix"] | None = None,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of every sentence, finished ones first, then by score; never none.

    `limits` are the most tokens of each sentence, END counted. A sentence is done when `width` of its
    hypotheses have ended, or when nothing alive can still enter its `n_best`. Batch-mates change nothing.
    `no_repeat` forbids to write any n-gram of that length twice; every output begins with its `prefix`.
    """
    if not 1 <= n_best <= width:
        raise RecipeError(f"a beam of width {width} finds 1 to {width} hypotheses, not {n_best}")
    check_limits(limits, memory, prefix)
    judge = Judge(length_penalty, coverage_penalty)
    ready = decoder.prepare(memory)
    beams, logits = begin(decoder, ready, memory, prefix, width)
    alive = list(range(len(limits)))  # the sentence behind each group of rows
    ended: list[list[Hypothesis]] = [[] for _ in alive]
    for length in range(beams.tokens.shape[1], max(limits) + 1):
        kept: list[int] = []
        living: list[Candidate] = []
        for group, candidates in enumerate(_candidates(beams, logits, width, no_repeat)):
            found, limit, real = ended[alive[group]], limits[alive[group]], memory.mask[alive[group]]
            going = [each for each in candidates if each.word != END][:width]
            ending = [each for each in candidates[:width] if each.word == END]
            found += [_end(beams, each, judge, real) for each in ending if each.score > float("-inf")]
            found.sort(key=lambda hypothesis: -hypothesis.score)
            if length == limit:
                cut = [_end(beams, each, judge, real) for each in going if each.score > float("-inf")]
                cut.sort(key=lambda hypothesis: -hypothesis.score)  # coverage may have changed their order
                found += cut[: max(0, n_best - len(found))]
            elif len(found) < n_best or (
                len(found) < width and found[n_best - 1].score < judge.reachable(going[0].score, limit)
            ):
                kept.append(group)
                living += going
        if not kept:
            break
        if len(kept) < len(alive):
            alive = [alive[group] for group in kept]
            ready = ready.select(torch.tensor(kept, device=memory.mask.device))
        beams = _advance(beams, living)
        step = decoder.step(beams.tokens[:, -1:], beams.state, ready)
        beams, logits = beams.follow(step), step.logits[:, -1]
    return [found[:n_best] for found in ended]


def _candidates(
    beams: Beams, logits: Float[Tensor, "rows vocabulary"], width: int, no_repeat: int
) -> list[list[Candidate]]:
    """The 2 x width best ways to go on with each sentence: enough, since at most `width` of them end."""
    vocabulary = logits.shape[-1]
    words = torch.log_softmax(logits.to(beams.scores.dtype), dim=-1)
    words = words.index_fill(-1, torch.tensor(NEVER, device=logits.device), float("-inf"))
    words = penalties.forbid_repeats(words, beams.tokens[:, 1:], no_repeat)
    grown = (beams.scores.unsqueeze(-1) + words).view(-1, width * vocabulary)
    best, index = grown.topk(2 * width, dim=-1)
    if bool(best[:, 0].isnan().any()):
        raise NotFiniteError("the model's predictions are not finite numbers; it cannot be searched")

    def told(group: int, score: float, place: int) -> Candidate:
        return Candidate(score, group * width + place // vocabulary, place % vocabulary)

    rows = enumerate(zip(best.tolist(), index.tolist(), strict=True))
    return [[told(group, *each) for each in zip(*both, strict=True)] for group, both in rows]


def _end(beams: Beams, last: Candidate, judge: Judge, real: Bool[Tensor, " source"]) -> Hypothesis:
    """A hypothesis that goes no further: it met END, or its limit."""
    finished = last.word == END
    tokens = beams.tokens[last.row, 1:].tolist() + ([] if finished else [last.word])
    seen = None if beams.maps is None else beams.maps[last.row].clone()
    return Hypothesis(tokens, judge.score(last.score, len(tokens) + finished, seen, real), seen, finished)


def _advance(beams: Beams, living: list[Candidate]) -> Beams:
    """The rows that live on, each with its new word."""
    device = beams.tokens.device
    chosen = beams.select(torch.tensor([each.row for each in living], device=device))
    words = torch.tensor([[each.word] for each in living], device=device)
    scores = torch.tensor([each.score for each in living], device=device, dtype=beams.scores.dtype)
    return Beams(torch.cat([chosen.tokens, words], dim=1), scores, chosen.maps, chosen.state)
