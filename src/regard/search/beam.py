"""Beam search over the verbs of any decoder; greedy is width 1."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoders import Decoder
from regard.device import check_cancelled
from regard.errors import NotFiniteError, RecipeError
from regard.kernels.choose import takes
from regard.kernels.topk import topk
from regard.search import penalties
from regard.search.hypotheses import NEVER, Beams, begin, check_limits
from regard.types import END, Hypothesis, Memory


class Candidate(NamedTuple):
    """A live hypothesis, by its row in the batch, and one more word."""

    score: float  # log-probability
    row: int
    word: int


class Expansion(NamedTuple):
    """The likeliest continuations of each sentence's live hypotheses, the best first."""

    scores: Float[Tensor, "sentences count"]
    rows: Int[Tensor, "sentences count"]  # the live hypotheses that are continued
    words: Int[Tensor, "sentences count"]
    stops: list[Candidate]  # the live hypotheses whose own likeliest word is END

    def ends(self, width: int) -> bool:
        """Whether any hypothesis ends here: END is its likeliest word, or among the best `width` of its sentence."""
        return bool(self.stops) or END in self.words[:, :width].flatten().tolist()

    def candidates(self, width: int) -> Iterator[tuple[list[Candidate], list[Candidate]]]:
        """For each sentence, the candidates that end, and those that live on; both the best first.

        END counts if it is among the `width` best continuations of the sentence, or the likeliest word of its row.
        """
        groups = zip(self.scores.tolist(), self.rows.tolist(), self.words.tolist(), strict=True)
        for number, group in enumerate(groups):
            best = [Candidate(*each) for each in zip(*group, strict=True)]
            ending = [each for each in best[:width] if each.word == END]
            ending += [each for each in self.stops if each.row // width == number and each not in ending]
            yield ending, [each for each in best if each.word != END][:width]


@dataclass(frozen=True)
class Scorer:
    """How finished hypotheses are compared: log P / length penalty + coverage penalty."""

    length_penalty: float
    coverage_penalty: float

    def score(
        self,
        log_probability: float,
        tokens: int,
        attention: Float[Tensor, "tokens source"] | None,
        real: Bool[Tensor, " source"],
    ) -> float:
        """The score of a hypothesis of so many tokens; `real` is True where the source is not padding."""
        score = self.bound(log_probability, tokens)
        return score + penalties.coverage(attention, real, self.coverage_penalty) if self.coverage_penalty else score

    def bound(self, log_probability: float, tokens: int) -> float:
        """An upper bound of the score of any continuation of at most so many tokens.

        It is sound because log P is at most 0 and only falls, the length penalty grows with the length, and the
        coverage penalty is at most 0.
        """
        return log_probability / penalties.length(tokens, self.length_penalty)


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

    `limits` are the most tokens of each sentence, END counted; a hypothesis that is cut there is only the beginning of
    an output, so it comes after all that ended, however likely. A sentence is done at its limit, or as soon as no live
    hypothesis can still enter its `n_best` by an upper bound of its score (`Scorer.bound`); so a larger `n_best` adds
    hypotheses and leaves the first ones as they are. Other sentences of the batch change nothing. `no_repeat` forbids
    to write any n-gram of that length twice; every output begins with its `prefix`.
    """
    if not 1 <= n_best <= width:
        raise RecipeError(f"a beam of width {width} finds 1 to {width} hypotheses, not {n_best}")
    check_limits(limits, memory, prefix)
    scorer = Scorer(length_penalty, coverage_penalty)
    results = Results(scorer, width, n_best, limits, memory.mask, [[] for _ in limits])
    with torch.inference_mode():
        _search(decoder, memory, results, no_repeat, prefix)
    if not all(results.hypotheses):
        raise NotFiniteError("a sentence has no output of a probability above 0; it cannot be searched")
    return [[_outside_inference_mode(each) for each in found] for found in results.hypotheses]


def _outside_inference_mode(hypothesis: Hypothesis) -> Hypothesis:
    """The same with a copy of its map that autograd accepts; it refuses tensors made in inference mode."""
    return hypothesis if hypothesis.map is None else hypothesis._replace(map=hypothesis.map.clone())


@dataclass(frozen=True)
class Results:
    """The best finished hypotheses of every sentence so far, at most `n_best`, and the rule that ends a sentence."""

    scorer: Scorer
    width: int
    n_best: int
    limits: Sequence[int]
    mask: Bool[Tensor, "batch source"]
    hypotheses: list[list[Hypothesis]]

    def can_improve(self, sentence: int, log_probability: float, length: int) -> bool:
        """Whether a live hypothesis of that log-probability and length may still enter the sentence's `n_best`."""
        found, limit = self.hypotheses[sentence], self.limits[sentence]
        if length >= limit or log_probability == -math.inf:
            return False
        return len(found) < self.n_best or self.scorer.bound(log_probability, limit) > found[-1].score

    def update(
        self, sentence: int, ending: list[Candidate], living: list[Candidate], beams: Beams, length: int
    ) -> list[Candidate]:
        """Keep the candidates that end; returns those that live on, none if the sentence is done."""
        self._add(sentence, ending, beams)
        if length == self.limits[sentence] and len(self.hypotheses[sentence]) < self.n_best:
            self._add(sentence, living, beams)
        return living if living and self.can_improve(sentence, living[0].score, length) else []

    def _add(self, sentence: int, candidates: list[Candidate], beams: Beams) -> None:
        """Sort candidates that go no further into the results; what does not enter the best is not built at all."""
        found = self.hypotheses[sentence]
        for candidate in candidates:
            length = beams.tokens.shape[1]  # without BEGIN, with the candidate's word
            full = len(found) == self.n_best
            worse = full and self.scorer.bound(candidate.score, length) <= found[-1].score
            if worse or candidate.score == -math.inf:
                continue
            found.append(self._hypothesis(sentence, candidate, beams))
            found.sort(key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
            del found[self.n_best :]

    def _hypothesis(self, sentence: int, last: Candidate, beams: Beams) -> Hypothesis:
        """A hypothesis that goes no further: its last word is END, or it reached its limit."""
        finished = last.word == END
        tokens = beams.tokens[last.row, 1:].tolist() + ([] if finished else [last.word])
        attention = None if beams.maps is None else beams.maps[last.row].clone()
        score = self.scorer.score(last.score, len(tokens) + finished, attention, self.mask[sentence])
        return Hypothesis(tokens, score, attention, finished)


def _search(
    decoder: Decoder[Any, Any], memory: Memory, results: Results, no_repeat: int, prefix: Tensor | None
) -> None:
    """Fill the results."""
    width, device = results.width, memory.mask.device
    ready = decoder.prepare(memory)
    beams, logits = begin(decoder, ready, memory, prefix, width)
    alive = list(range(len(results.limits)))  # the sentence behind each group of rows
    for length in range(beams.tokens.shape[1], max(results.limits) + 1):
        expansion = _expand(beams, logits, width, no_repeat)
        best = expansion.scores[:, 0].tolist()
        if any(map(math.isnan, best)):
            raise NotFiniteError("the model's predictions are not finite numbers; it cannot be searched")
        whole = not expansion.ends(width) and all(
            results.can_improve(sentence, score, length) for sentence, score in zip(alive, best, strict=True)
        )
        if takes("whole_beams", whole):  # as at most steps: all rows go on, and none is looked at by itself
            rows, words = expansion.rows[:, :width], expansion.words[:, :width]
            beams = _advance(beams, expansion.scores[:, :width], rows, words, moved=width > 1)
        else:
            living = [
                results.update(alive[group], *candidates, beams, length)
                for group, candidates in enumerate(expansion.candidates(width))
            ]
            kept = [group for group, candidates in enumerate(living) if candidates]
            if not kept:
                break
            if len(kept) < len(alive):
                alive = [alive[group] for group in kept]
                ready = ready.select(torch.tensor(kept, device=device))
            chosen = [each for group in kept for each in living[group]]
            moved = [each.row for each in chosen] != list(range(len(beams.tokens)))
            scores = torch.tensor([each.score for each in chosen], device=device, dtype=beams.scores.dtype)
            places = (torch.tensor([each[part] for each in chosen], device=device) for part in (1, 2))
            beams = _advance(beams, scores, *places, moved=moved)
        check_cancelled()
        step = decoder.step(beams.tokens[:, -1:], beams.state, ready)
        beams, logits = beams.follow(step), step.logits[:, -1]


def _expand(beams: Beams, logits: Float[Tensor, "rows vocabulary"], width: int, no_repeat: int) -> Expansion:
    """The 2 x width best continuations of each sentence: enough, since each live row has but one END.

    A width of 1 needs the best alone: if it is END, the search is over.
    """
    log_probs = torch.log_softmax(logits.to(beams.scores.dtype), dim=-1)
    for never in NEVER:
        log_probs.select(-1, never).fill_(-math.inf)
    log_probs = penalties.forbid_repeats(log_probs, beams.tokens[:, 1:], no_repeat)
    rows, vocabulary = log_probs.shape
    count = 1 if width == 1 else min(2 * width, vocabulary)
    scores, words = topk(log_probs, count)  # the best of each row first, so that few are left to compare
    scores = scores + beams.scores.unsqueeze(-1)
    first = torch.arange(0, rows, width, device=logits.device).unsqueeze(1)
    if width == 1:
        return Expansion(scores, first.expand_as(words), words, [])
    firsts = enumerate(zip(scores[:, 0].tolist(), words[:, 0].tolist(), strict=True))
    stops = [Candidate(score, row, END) for row, (score, word) in firsts if word == END and score > -math.inf]
    best = scores.view(-1, width * count).topk(min(2 * width, width * count))
    chosen = words.view(-1, width * count).gather(1, best.indices)
    return Expansion(best.values, first + best.indices.div(count, rounding_mode="floor"), chosen, stops)


def _advance(beams: Beams, scores: Tensor, rows: Tensor, words: Tensor, *, moved: bool) -> Beams:
    """The rows that live on, each with its new word; unless `moved`, they are all of them, in order."""
    beams = beams.select(rows.flatten()) if moved else beams
    tokens = torch.cat([beams.tokens, words.flatten().unsqueeze(1)], dim=1)
    return Beams(tokens, scores.flatten(), beams.maps, beams.state)
