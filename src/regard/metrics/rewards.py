"""Rewards: the value of a metric for each output that a model has drawn, to train it on the metric itself."""

from collections.abc import Callable, Sequence
from functools import partial

from regard.metrics import METRICS, better
from regard.metrics.captions import CAPTION_BLEU, CiderD, bleu_scores
from regard.metrics.core import ReferenceLists

ScoreOutputs = Callable[[Sequence[str], Sequence[str]], list[float]]  # of outputs for one source, and its references


def reward(metrics: Sequence[str], corpus: ReferenceLists) -> ScoreOutputs:
    """A function that gives the reward of each of several outputs for one source: the sum of the metrics.

    Metrics of which lower is better are subtracted. `corpus` are the references of all sources.
    """
    signs = [1.0 if better(metric) == "higher is better" else -1.0 for metric in metrics]
    scorers = [scorer(metric, corpus) for metric in metrics]

    def summed(outputs: Sequence[str], references: Sequence[str]) -> list[float]:
        values = [
            [sign * value for value in score(outputs, references)] for sign, score in zip(signs, scorers, strict=True)
        ]
        return [sum(of_output) for of_output in zip(*values, strict=True)]

    return summed


def scorer(metric: str, corpus: ReferenceLists) -> ScoreOutputs:
    """A function that gives the metric of each output as if it were the only one, against all its references.

    The weights of n-grams in CIDEr-D are those of the whole corpus.
    """
    if metric == "cider_d":
        return CiderD(corpus).scores
    if metric in CAPTION_BLEU:
        return partial(bleu_scores, metric)
    return lambda outputs, references: [METRICS[metric]([output], [references]).value for output in outputs]
