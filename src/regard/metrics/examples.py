"""Metrics of single examples, for lists of mistakes and for tests of differences between runs."""

import math

from regard.metrics import speech, tags, text
from regard.metrics.core import Count, Counts, Outcome

# The two numbers of one example, of each metric that is a ratio of their sums.
COUNTS: dict[str, Count] = {**text.COUNTS, **speech.COUNTS, **tags.COUNTS}

# Metrics that take several references per output: all targets of a source. Such a source counts once.
MULTI_REFERENCE = ("phoneme_errors", "word_error_share", "phoneme_errors_unstressed", "word_error_share_unstressed")


def counts(metric: str, outcome: Outcome) -> Counts:
    """The two numbers of one example: those of `COUNTS`, or nats per token and bits per character."""
    if metric == "perplexity":
        assert outcome.cost is not None
        return outcome.cost.nats, outcome.cost.tokens
    if metric == "bits_per_character":
        assert outcome.cost is not None
        return outcome.cost.nats / math.log(2), outcome.cost.characters
    return COUNTS[metric](outcome.answer, outcome.references if metric in MULTI_REFERENCE else outcome.references[0])


# Metrics of a whole test set that say little about one example, and the metric that is shown for an example instead.
INSTEAD = {"f1": "accuracy", "bleu": "chrf", "bleu_tokenised": "chrf", "entity_f1": "tag_accuracy"}


def example_value(metric: str, outcome: Outcome) -> float:
    """The value of a metric, or of the one in `INSTEAD`, for one example alone."""
    name = INSTEAD.get(metric, metric)
    if name == "chrf":
        return text.chrf([outcome.answer], outcome.references[:1]).value
    total, weight = counts(name, outcome)
    return math.exp(total / weight) if name == "perplexity" else total / max(1, weight)
