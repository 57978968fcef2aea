"""Tests whether two runs differ by more than chance on the same examples: approximate randomisation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.console import counted
from regard.errors import DataError
from regard.metrics import SACREBLEU, Outcome, counter
from regard.metrics.captions import CAPTION_BLEU, bleu_counts, bleu_value
from regard.metrics.text import reference_streams

TRIALS, FEWEST_TRIALS = 10_000, 1000
SWAPS = 20_000_000  # examples times trials of a test by sacreBLEU, which takes ten bytes for each
SEED = 12345  # as of sacreBLEU, which also has the environment variable SACREBLEU_SEED
CELLS = 4_000_000  # random numbers that are drawn at a time
ROUNDING = 1e-12  # differences that are closer than this, relative to the scores, are equal

Statistics = NDArray[np.float64]  # numerators and denominators: example, ratio, 2


def count_trials(metric: str, examples: int) -> int:
    """The number of trials for so many examples: `TRIALS`, or fewer if sacreBLEU would need too much memory."""
    return max(FEWEST_TRIALS, min(TRIALS, SWAPS // max(1, examples))) if metric in SACREBLEU else TRIALS


def p_value(metric: str, first: Sequence[Outcome], second: Sequence[Outcome], trials: int = TRIALS) -> float:
    """The probability of a difference at least as large (two-sided) if it made no difference which run answered.

    Noreen 1989; Riezler and Maxwell 2005: in each trial, the two answers to an example are swapped with probability one
    half, for all examples independently, and the metric of both is computed anew; p = (c + 1) / (trials + 1) if in c
    trials the difference is at least the real one. Equal answers give 1; if one run is better everywhere, on many
    examples, p is 1 / (trials + 1). BLEU and chrF are tested by sacreBLEU, except BLEU of captions; perplexity by its
    logarithm. Runs with the same examples in the same order are compared, as `regard.compare` makes them.
    """
    if len(first) != len(second) or not first:
        raise DataError(f"only outputs for the same examples can be tested, not {len(first):,} and {len(second):,}")
    if metric in SACREBLEU:
        return _by_sacrebleu(metric, first, second, trials)
    labels = sorted({text for one in (*first, *second) for text in (one.answer, one.references[0])})
    one, other = (_statistics(metric, outcomes, labels) for outcomes in (first, second))
    sums, other_sums = one.sum(0), other.sum(0)
    changes = (one - other)[(one != other).any((1, 2))]  # swapping any other example changes nothing
    value = _caption_bleu if metric in CAPTION_BLEU else _value
    values = float(value(sums)), float(value(other_sums))
    least = abs(values[0] - values[1]) - ROUNDING * max(1.0, *values)
    random, larger = np.random.default_rng(SEED), 0
    step = max(1, CELLS // max(1, len(changes)))
    for start in counted(range(0, trials, step), "testing differences", size=1):
        swapped = random.integers(2, size=(min(step, trials - start), len(changes)), dtype=np.int8).astype(np.float64)
        moved = np.tensordot(swapped, changes, 1)
        larger += int((abs(value(sums - moved) - value(other_sums + moved)) >= least).sum())
    return (larger + 1) / (trials + 1)


def _statistics(metric: str, outcomes: Sequence[Outcome], labels: Sequence[str]) -> Statistics:
    """The counts of each example, whose sums give the metric.

    Macro-averaged F1 has a ratio for each label; BLEU of captions one for each length of n-grams, and one of lengths.
    """
    if metric in CAPTION_BLEU:
        pairs = [bleu_counts(metric, outcome.answer, outcome.references) for outcome in outcomes]
        return np.array(pairs, dtype=np.float64)
    if metric != "f1":
        count = counter(metric, outcomes)
        return np.array([[count(outcome)] for outcome in outcomes], dtype=np.float64)
    column = {label: number for number, label in enumerate(labels)}
    statistics = np.zeros((len(outcomes), len(labels), 2))
    for row, outcome in enumerate(outcomes):
        answer, expected = column[outcome.answer], column[outcome.references[0]]
        statistics[row, answer, 0] = 2.0 * (answer == expected)
        statistics[row, answer, 1] += 1
        statistics[row, expected, 1] += 1
    return statistics


def _value(sums: Statistics) -> NDArray[np.float64]:
    """The metric from its sums (..., ratio, 2): the mean of all ratios that are there."""
    is_there = sums[..., 1] > 0
    ratios = np.divide(sums[..., 0], sums[..., 1], out=np.zeros(is_there.shape), where=is_there)
    return np.asarray(ratios.sum(-1) / np.maximum(is_there.sum(-1), 1))


def _caption_bleu(sums: Statistics) -> NDArray[np.float64]:
    """BLEU of captions, but 0 if no n-gram of some length is correct: such scores are tiny, and do not differ."""
    is_there = (sums[..., :-1, 0] > 0).all(-1)
    return np.where(is_there, bleu_value(sums), 0.0)


def _by_sacrebleu(metric: str, first: Sequence[Outcome], second: Sequence[Outcome], trials: int) -> float:
    """The p-value that `sacrebleu --paired-ar` gives; but 1 for equal outputs, for which it gives the smallest."""
    from sacrebleu.significance import PairedTest

    outputs = [[outcome.answer for outcome in outcomes] for outcomes in (first, second)]
    if outputs[0] == outputs[1]:
        return 1.0
    references: Any = reference_streams([outcome.references for outcome in first])
    systems: Any = [("first", outputs[0]), ("second", outputs[1])]
    _, results = PairedTest(systems, {metric: SACREBLEU[metric]()}, references, "ar", trials)()
    scores: Any = next(column for name, column in results.items() if name != "System")
    return float(scores[1].p_value)
