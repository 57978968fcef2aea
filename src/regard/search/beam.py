"""Beam search with the methods that every decoder has: `prepare`, `start`, `step`. Greedy search is width 1."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoders import AnyDecoder
from regard.device import check_cancelled
from regard.errors import NotFiniteError, RecipeError
from regard.kernels.choose import takes
from regard.kernels.topk import topk
from regard.search import penalties
from regard.search.follow import report
from regard.search.hypotheses import FORBIDDEN_TOKENS, Beams, begin, check_limits
from regard.search.recorded import recorded
from regard.search.scorers import Scorer, best_words
from regard.types import END, Hypothesis, Memory


class Candidate(NamedTuple):
    """A live hypothesis, given by its row in the batch, extended by one word."""

    score: float  # log-probability
    row: int
    word: int


class Expansion(NamedTuple):
    """The most likely continuations of each sentence's live hypotheses, sorted by score, best first."""

    scores: Float[Tensor, "sentences count"]
    rows: Int[Tensor, "sentences count"]  # of the live hypotheses that are continued
    words: Int[Tensor, "sentences count"]
    stops: list[Candidate]  # the live hypotheses whose most likely next word is END; none with `ends_in_beam`

    def ends(self, width: int) -> bool:
        """Whether any hypothesis ends now: its most likely word is END, or END is among its sentence's `width` best."""
        return bool(self.stops) or END in self.words[:, :width].flatten().tolist()

    def candidates(self, width: int) -> Iterator[tuple[list[Candidate], list[Candidate]]]:
        """Yield for each sentence the candidates that end and those that stay live, both sorted best first.

        END counts if it is among the `width` best continuations of the sentence, or the most likely word of its row.
        """
        groups = zip(self.scores.tolist(), self.rows.tolist(), self.words.tolist(), strict=True)
        for number, group in enumerate(groups):
            best = [Candidate(*fields) for fields in zip(*group, strict=True)]
            ending = [candidate for candidate in best[:width] if candidate.word == END]
            ending += [stop for stop in self.stops if stop.row // width == number and stop not in ending]
            yield ending, [candidate for candidate in best if candidate.word != END][:width]


@recorded
def beam(
    decoder: AnyDecoder,
    memory: Memory,
    *,
    width: int,
    limits: Sequence[int],
    length_penalty: float = 0.0,
    coverage_penalty: float = 0.0,
    no_repeat: int = 0,
    ends_in_beam: bool = False,
    prefix: Int[Tensor, "batch prefix"] | None = None,
    n_best: int = 1,
    scorer: Scorer | None = None,
) -> list[list[Hypothesis]]:
    """Find the best hypotheses of every sentence, at least 1 and at most `n_best`, by beam search.

    `limits` holds the maximum number of tokens of each sentence, END included. A hypothesis that is cut at its limit
    is only the beginning of an output, so it is listed after all finished ones, even if it is more likely; within both
    groups the higher score comes first. The search of a sentence stops at its limit, or as soon as no live hypothesis
    can still enter its `n_best` by the upper bound of its score (`Results.bound`). So a larger `n_best` adds hypotheses
    and does not change the first ones. The other sentences of the batch do not change the result. `no_repeat` is the
    length of n-grams that no output may contain twice (0: no restriction). With `ends_in_beam`, a hypothesis ends only
    if END is among the `width` best continuations of its sentence, as in most toolkits; without, also if END is its own
    most likely next word. Every output begins with its `prefix`.
    A `scorer` has a row for each sentence; its log-probabilities are added to the decoder's by its weight.
    """
    if not 1 <= n_best <= width:
        raise RecipeError(f"a beam of width {width} finds 1 to {width} hypotheses, not {n_best}")
    check_limits(limits, memory, prefix)
    results = Results(length_penalty, coverage_penalty, width, n_best, limits, memory.mask, [[] for _ in limits])
    with torch.inference_mode():
        _search(decoder, memory, results, no_repeat, ends_in_beam, prefix, scorer)
    if not all(results.hypotheses):
        raise NotFiniteError("a sentence has no output of a probability above 0; it cannot be searched")
    return [[_outside_inference_mode(hypothesis) for hypothesis in group] for group in results.hypotheses]


def _outside_inference_mode(hypothesis: Hypothesis) -> Hypothesis:
    """The hypothesis with a copy of its map: autograd refuses tensors that were created in inference mode."""
    return hypothesis if hypothesis.map is None else hypothesis._replace(map=hypothesis.map.clone())


@dataclass(frozen=True)
class Results:
    """The best complete hypotheses of every sentence so far, at most `n_best`, and the rule that stops its search.

    They are ranked by the score  log P / length penalty + coverage penalty.
    """

    length_penalty: float
    coverage_penalty: float
    width: int
    n_best: int
    limits: Sequence[int]
    mask: Bool[Tensor, "batch source"]
    hypotheses: list[list[Hypothesis]]

    def bound(self, log_probability: float, tokens: int) -> float:
        """An upper bound of the score of any continuation that has at most `tokens` tokens, END included.

        The bound holds because log P is at most 0 and never rises, the length penalty grows with the length, and
        the coverage penalty is at most 0. Without a coverage penalty it is the score of exactly `tokens` tokens.
        """
        return log_probability / penalties.length(tokens, self.length_penalty)

    def can_improve(self, sentence: int, log_probability: float, length: int) -> bool:
        """Whether a live hypothesis of this log-probability and length may still enter the sentence's `n_best`."""
        best, limit = self.hypotheses[sentence], self.limits[sentence]
        if length >= limit or log_probability == -math.inf:
            return False
        return len(best) < self.n_best or self.bound(log_probability, limit) > best[-1].score

    def update(self, sentence: int, ending: list[Candidate], living: list[Candidate], beams: Beams) -> list[Candidate]:
        """Add the candidates that end; return those that stay live, or none if the search of the sentence is over."""
        length = beams.tokens.shape[1]  # without BEGIN, with the candidates' word
        self._add(sentence, ending, beams)
        if length == self.limits[sentence] and len(self.hypotheses[sentence]) < self.n_best:
            self._add(sentence, living, beams)
        return living if living and self.can_improve(sentence, living[0].score, length) else []

    def _add(self, sentence: int, candidates: list[Candidate], beams: Beams) -> None:
        """Insert complete candidates in order; a `Hypothesis` is built only if it can enter the `n_best`."""
        best = self.hypotheses[sentence]
        for candidate in candidates:
            full = len(best) == self.n_best
            worse = full and self.bound(candidate.score, beams.tokens.shape[1]) <= best[-1].score
            if worse or candidate.score == -math.inf:
                continue
            best.append(self._hypothesis(sentence, candidate, beams))
            best.sort(key=lambda hypothesis: (not hypothesis.finished, -hypothesis.score))
            del best[self.n_best :]

    def _hypothesis(self, sentence: int, last: Candidate, beams: Beams) -> Hypothesis:
        """Build a complete hypothesis: its last word is END, or it reached the length limit."""
        hypothesis = beams.complete(last.row, last.word, last.score)
        score = self.bound(last.score, len(hypothesis.tokens) + hypothesis.finished)
        if self.coverage_penalty:
            score += penalties.coverage(hypothesis.map, self.mask[sentence], self.coverage_penalty)
        return hypothesis._replace(score=score)


def _search(
    decoder: AnyDecoder,
    memory: Memory,
    results: Results,
    no_repeat: int,
    ends_in_beam: bool,
    prefix: Tensor | None,
    scorer: Scorer | None,
) -> None:
    """Run the beam search of a batch; the hypotheses are added to `results`."""
    width, device = results.width, memory.mask.device
    prepared = decoder.prepare(memory)
    beams, logits = begin(decoder, prepared, memory, prefix, width)
    if scorer is not None:
        beams = _begin_scoring(beams, scorer, width)
    alive = list(range(len(results.limits)))  # the sentence of each group of `width` rows
    for length in range(beams.tokens.shape[1], max(results.limits) + 1):
        expansion = _expand(beams, logits, width, no_repeat, ends_in_beam, scorer)
        best = expansion.scores[:, 0].tolist()
        if any(map(math.isnan, best)):
            raise NotFiniteError("the model's predictions are not finite numbers; it cannot be searched")
        whole = not expansion.ends(width) and all(
            results.can_improve(sentence, score, length) for sentence, score in zip(alive, best, strict=True)
        )
        if takes("whole_beams", whole):  # the usual step: every sentence stays live
            rows, words = expansion.rows[:, :width], expansion.words[:, :width]
            beams = _advance(beams, expansion.scores[:, :width], rows, words, scorer, moved=width > 1)
        else:
            living = [
                results.update(alive[group], *candidates, beams)
                for group, candidates in enumerate(expansion.candidates(width))
            ]
            live_groups = [group for group, candidates in enumerate(living) if candidates]
            if not live_groups:
                break
            if len(live_groups) < len(alive):
                alive = [alive[group] for group in live_groups]
                remaining = torch.tensor(live_groups, device=device)
                prepared = prepared.select(remaining)
                scorer = None if scorer is None else scorer.select(remaining)
            chosen = [candidate for group in live_groups for candidate in living[group]]
            moved = [candidate.row for candidate in chosen] != list(range(len(beams.tokens)))
            scores = torch.tensor([candidate.score for candidate in chosen], device=device, dtype=beams.scores.dtype)
            rows = torch.tensor([candidate.row for candidate in chosen], device=device)
            words = torch.tensor([candidate.word for candidate in chosen], device=device)
            beams = _advance(beams, scores, rows, words, scorer, moved=moved)
        report(beams)
        check_cancelled()
        step = decoder.step(beams.tokens[:, -1:], beams.state, prepared)
        beams, logits = beams.follow(step), step.logits[:, -1]


def _begin_scoring(beams: Beams, scorer: Scorer, width: int) -> Beams:
    """The first hypotheses with the state of a scorer after their prefix, and with joint scores."""
    state = scorer.start().repeat(width)
    for words in beams.tokens[:, 1:].unbind(1):
        state = scorer.advance(state, words)
    joint = (1 - scorer.weight) * beams.scores + scorer.weight * state.log_probs.to(beams.scores.dtype)
    return replace(beams, scores=joint.masked_fill(beams.scores.isneginf(), -math.inf), scored=state)


def _expand(
    beams: Beams,
    logits: Float[Tensor, "rows vocabulary"],
    width: int,
    no_repeat: int,
    ends_in_beam: bool,
    scorer: Scorer | None,
) -> Expansion:
    """The 2 x width best continuations of each sentence; enough, because at most `width` of them are END.

    A width of 1 needs only the best one: if it is END, the search is over.
    """
    log_probs = torch.log_softmax(logits.to(beams.scores.dtype), dim=-1)
    for token in FORBIDDEN_TOKENS:
        log_probs.select(-1, token).fill_(-math.inf)
    log_probs = penalties.forbid_repeats(log_probs, beams.tokens[:, 1:], no_repeat)
    rows, vocabulary = log_probs.shape
    count = 1 if width == 1 else min(2 * width, vocabulary)
    if scorer is None:
        scores, words = topk(log_probs, count)  # the best of each row first, so that the second topk compares few
    else:
        scores, words = best_words(scorer, beams.scored, log_probs, count)
    scores = scores + beams.scores.unsqueeze(-1)
    first_rows = torch.arange(0, rows, width, device=logits.device).unsqueeze(1)
    if width == 1:
        return Expansion(scores, first_rows.expand_as(words), words, [])
    stops = [] if ends_in_beam else _stops(scores[:, 0].tolist(), words[:, 0].tolist())
    best = scores.view(-1, width * count).topk(min(2 * width, width * count))
    chosen = words.view(-1, width * count).gather(1, best.indices)
    return Expansion(best.values, first_rows + best.indices.div(count, rounding_mode="floor"), chosen, stops)


def _stops(scores: list[float], words: list[int]) -> list[Candidate]:
    """The live hypotheses whose most likely next word is END, of the most likely word of each and its score."""
    most_likely = enumerate(zip(scores, words, strict=True))
    return [Candidate(score, row, END) for row, (score, word) in most_likely if word == END and score > -math.inf]


def _advance(beams: Beams, scores: Tensor, rows: Tensor, words: Tensor, scorer: Scorer | None, *, moved: bool) -> Beams:
    """Returns the hypotheses that stay live, each with one more word; if not `moved`, all stay, in their order."""
    beams = beams.select(rows.flatten()) if moved else beams
    if scorer is not None:
        beams = replace(beams, scored=scorer.advance(beams.scored, words.flatten()))
    return replace(beams.extend(words.flatten()), scores=scores.flatten())
