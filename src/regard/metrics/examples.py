"""Metrics of single examples, for lists of mistakes and for tests of differences between runs."""

import math
from collections.abc import Callable, Iterable
from functools import partial

from regard.metrics import captions, speech, tags, text
from regard.metrics.core import Count, Counts, Outcome

# The two numbers of one example, of each metric that is a ratio of their sums.
COUNTS: dict[str, Count] = {**text.COUNTS, **speech.COUNTS, **tags.COUNTS, **captions.COUNTS}

# Metrics that take several references per output: all targets of a source. Such a source counts once.
PHONEMES = ("phoneme_errors", "word_error_share", "phoneme_errors_unstressed", "word_error_share_unstressed")
CAPTIONS = (*captions.CAPTION_BLEU, "cider_d", "rouge_l")
MULTI_REFERENCE = (*PHONEMES, *CAPTIONS)

# Metrics that take one reference or several, of which the closest counts; sacreBLEU's use all n-grams of all of them.
CLOSEST = ("exact_match", "character_errors", "word_errors", "bleu", "bleu_tokenised", "chrf")


def companions(metric: str) -> list[str]:
    """The other metrics with several references that are reported beside one of them: those of the same outputs."""
    return [name for family in (PHONEMES, CAPTIONS) if metric in family for name in family if name != metric]


def counter(metric: str, outcomes: Iterable[Outcome]) -> Callable[[Outcome], Counts]:
    """A function that gives the two numbers of one of the outcomes; those of CIDEr-D depend on all references.

    They are those of `COUNTS`, nats and tokens, or bits and characters.
    """
    if metric != "cider_d":
        return partial(_counts, metric)
    pictures = {(outcome.source, outcome.references): outcome.references for outcome in outcomes}  # of all seeds, once
    score = captions.CiderD(list(pictures.values()))
    return lambda outcome: (score(outcome.answer, outcome.references), 1)


def _counts(metric: str, outcome: Outcome) -> Counts:
    if metric == "perplexity":
        assert outcome.cost is not None
        return outcome.cost.nats, outcome.cost.tokens
    if metric == "bits_per_character":
        assert outcome.cost is not None
        return outcome.cost.nats / math.log(2), outcome.cost.characters
    takes_several = metric in (*MULTI_REFERENCE, *CLOSEST)
    return COUNTS[metric](outcome.answer, outcome.references if takes_several else outcome.references[0])


# Metrics of a whole test set that say little about one example, and the metric that is shown for an example instead.
INSTEAD = {
    "f1": "accuracy",
    "bleu": "chrf",
    "bleu_tokenised": "chrf",
    "entity_f1": "tag_accuracy",
    **dict.fromkeys(captions.CAPTION_BLEU, "cider_d"),
}


def example_scorer(metric: str, outcomes: Iterable[Outcome]) -> Callable[[Outcome], float]:
    """A function that gives the value of a metric, or of the one in `INSTEAD`, for one of the outcomes alone."""
    name = INSTEAD.get(metric, metric)
    if name == "chrf":
        return lambda outcome: text.chrf([outcome.answer], [outcome.references]).value
    count = counter(name, outcomes)

    def score(outcome: Outcome) -> float:
        total, weight = count(outcome)
        return text.exponential(total / weight) if name == "perplexity" else total / max(1, weight)

    return score
