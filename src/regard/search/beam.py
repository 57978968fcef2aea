"""Beam search over the verbs of any decoder; greedy is width 1."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoders import Decoder
from regard.errors import NotFiniteError, RecipeError
from regard.kernels.topk import topk
from regard.search import penalties
from regard.search.hypotheses import NEVER, Beams, begin, check_limits
from regard.types import END, Hypothesis, Memory


class Candidate(NamedTuple):
    """A live hypothesis and one more word."""

    score: float
    row: int
    word: int


class Grown(NamedTuple):
    """The ways to go on with each sentence, the best first."""

    scores: Float[Tensor, "groups ways"]
    rows: Int[Tensor, "groups ways"]  # the live hypotheses they go on with
    words: Int[Tensor, "groups ways"]

    def ends(self, width: int) -> bool:
        """Whether one of the best `width` of any sentence ends."""
        return END in self.words[:, :width].flatten().tolist()

    def told(self) -> Iterator[list[Candidate]]:
        """One by one, for each sentence."""
        for ways in zip(*(each.tolist() for each in self), strict=True):
            yield [Candidate(*way) for way in zip(*ways, strict=True)]


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
    findings = Findings(judge, width, n_best, limits, memory.mask, [[] for _ in limits])
    with torch.inference_mode():
        _search(decoder, memory, findings, no_repeat, prefix)
    return [[_own(each) for each in found[:n_best]] for found in findings.ended]


def _own(hypothesis: Hypothesis) -> Hypothesis:
    """The same with a map that may be learned from: torch refuses that of tensors made in its inference mode."""
    return hypothesis if hypothesis.map is None else hypothesis._replace(map=hypothesis.map.clone())


@dataclass(frozen=True)
class Findings:
    """What has ended so far, and what makes an end of a sentence."""

    judge: Judge
    width: int
    n_best: int
    limits: Sequence[int]
    mask: Bool[Tensor, "batch source"]
    ended: list[list[Hypothesis]]

    def are_open(self, sentences: Sequence[int], length: int) -> bool:
        """Whether all these go on if nothing ends."""
        return all(length < self.limits[each] and len(self.ended[each]) < self.n_best for each in sentences)

    def sift(self, sentence: int, candidates: list[Candidate], beams: Beams, length: int) -> list[Candidate]:
        """Keep what ends; the rest goes on, or nothing where the sentence is done."""
        found, limit, real = self.ended[sentence], self.limits[sentence], self.mask[sentence]
        going = [each for each in candidates if each.word != END][: self.width]
        ending = [each for each in candidates[: self.width] if each.word == END]
        found += [_end(beams, each, self.judge, real) for each in ending if each.score > float("-inf")]
        found.sort(key=lambda hypothesis: -hypothesis.score)
        if length == limit:
            cut = [_end(beams, each, self.judge, real) for each in going if each.score > float("-inf")]
            cut.sort(key=lambda hypothesis: -hypothesis.score)  # coverage may have changed their order
            found += cut[: max(0, self.n_best - len(found))]
            return []
        if len(found) < self.n_best:
            return going
        if len(found) >= self.width:
            return []
        hope = self.judge.reachable(going[0].score, limit)
        return going if found[self.n_best - 1].score < hope else []


def _search(
    decoder: Decoder[Any, Any], memory: Memory, findings: Findings, no_repeat: int, prefix: Tensor | None
) -> None:
    """Fill the findings."""
    width, device = findings.width, memory.mask.device
    ready = decoder.prepare(memory)
    beams, logits = begin(decoder, ready, memory, prefix, width)
    alive = list(range(len(findings.limits)))  # the sentence behind each group of rows
    for length in range(beams.tokens.shape[1], max(findings.limits) + 1):
        grown = _grow(beams, logits, width, no_repeat)
        if findings.are_open(alive, length) and not grown.ends(width):  # as most of the time
            beams = _advance(beams, Grown(*(each[:, :width] for each in grown)), moved=width > 1)
        else:
            groups = enumerate(grown.told())
            going = {group: findings.sift(alive[group], each, beams, length) for group, each in groups}
            kept = [group for group, candidates in going.items() if candidates]
            if not kept:
                break
            if len(kept) < len(alive):
                alive = [alive[group] for group in kept]
                ready = ready.select(torch.tensor(kept, device=device))
            living = [each for group in kept for each in going[group]]
            rows = [each.row for each in living]
            chosen = Grown(
                torch.tensor([[each.score for each in living]], device=device, dtype=beams.scores.dtype),
                torch.tensor([rows], device=device),
                torch.tensor([[each.word for each in living]], device=device),
            )
            beams = _advance(beams, chosen, moved=rows != list(range(len(beams.tokens))))
        step = decoder.step(beams.tokens[:, -1:], beams.state, ready)
        beams, logits = beams.follow(step), step.logits[:, -1]


def _grow(beams: Beams, logits: Float[Tensor, "rows vocabulary"], width: int, no_repeat: int) -> Grown:
    """The 2 x width best ways to go on with each sentence: enough, since at most `width` of them end.

    A width of 1 needs the best alone: if it ends, so does the search.
    """
    words = torch.log_softmax(logits.to(beams.scores.dtype), dim=-1)
    for never in NEVER:
        words.select(-1, never).fill_(float("-inf"))
    words = penalties.forbid_repeats(words, beams.tokens[:, 1:], no_repeat)
    rows, vocabulary = words.shape
    ways = 1 if width == 1 else min(2 * width, vocabulary)
    scores, words = topk(words, ways)  # of each row first: so few are left to compare
    scores = scores + beams.scores.unsqueeze(-1)
    first = torch.arange(0, rows, width, device=logits.device).unsqueeze(1)
    if width == 1:
        grown = Grown(scores, first.expand_as(words), words)
    else:
        best = scores.view(-1, width * ways).topk(min(2 * width, width * ways))
        chosen = words.view(-1, width * ways).gather(1, best.indices)
        grown = Grown(best.values, first + best.indices.div(ways, rounding_mode="floor"), chosen)
    if any(map(math.isnan, grown.scores[:, 0].tolist())):
        raise NotFiniteError("the model's predictions are not finite numbers; it cannot be searched")
    return grown


def _end(beams: Beams, last: Candidate, judge: Judge, real: Bool[Tensor, " source"]) -> Hypothesis:
    """A hypothesis that goes no further: it met END, or its limit."""
    finished = last.word == END
    tokens = beams.tokens[last.row, 1:].tolist() + ([] if finished else [last.word])
    seen = None if beams.maps is None else beams.maps[last.row].clone()
    return Hypothesis(tokens, judge.score(last.score, len(tokens) + finished, seen, real), seen, finished)


def _advance(beams: Beams, chosen: Grown, moved: bool) -> Beams:
    """The rows that live on, each with its new word; where none has `moved`, they are all of them, in order."""
    scores, rows, words = (each.flatten() for each in chosen)
    beams = beams.select(rows) if moved else beams
    tokens = torch.cat([beams.tokens, words.unsqueeze(1)], dim=1)
    return Beams(tokens, scores, beams.maps, beams.state)
