"""Metrics of text: exact match, BLEU and chrF by sacreBLEU, answers of SQuAD, and the likelihood of a text."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from regard.console import BLOCK, counted
from regard.errors import TooLargeError
from regard.metrics.core import Cost, Count, Counts, Measured, References, all_of, several, sums

LARGEST_EXPONENT = 709.0  # of e, in floats of 64 bits


def exact_match(outputs: Sequence[str], references: References) -> Measured:
    """Share of outputs that equal their reference exactly; higher is better."""
    same, texts = sums(COUNTS, "exact_match", outputs, references)
    return Measured(same / texts, f"exact_match|n:{len(references)}|{several(references)}case:mixed|space:kept")


def _equal(output: str, references: str | Sequence[str]) -> Counts:
    return int(output in all_of(references)), 1


def bleu(outputs: Sequence[str], references: References) -> Measured:
    """BLEU of raw text, computed by sacreBLEU; higher is better."""
    return _sacrebleu("bleu", outputs, references)


def bleu_tokenised(outputs: Sequence[str], references: References) -> Measured:
    """BLEU of text that is already tokenised, as many papers report it; higher is better."""
    return _sacrebleu("bleu_tokenised", outputs, references)


def chrf(outputs: Sequence[str], references: References) -> Measured:
    """chrF: the F-score of character n-grams, computed by sacreBLEU; higher is better."""
    return _sacrebleu("chrf", outputs, references)


def _bleu(**settings: Any) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(**settings)


def _chrf() -> Any:
    from sacrebleu.metrics.chrf import CHRF

    return CHRF()


# The metrics of sacreBLEU, as objects of its own classes.
SACREBLEU: dict[str, Callable[[], Any]] = {
    "bleu": _bleu,
    "bleu_tokenised": partial(_bleu, tokenize="none", force=True),
    "chrf": _chrf,
}


def reference_streams(references: References) -> list[list[str | None]]:
    """References as sacreBLEU takes them: the first of all outputs, the second of all outputs, and so on."""
    return [list(texts) for texts in zip_longest(*map(all_of, references))]


def _sacrebleu(name: str, outputs: Sequence[str], references: References) -> Measured:
    metric = SACREBLEU[name]()
    texts = list(outputs) if len(outputs) <= BLOCK else _CountedTexts(outputs, f"computing {name}")
    value = metric.corpus_score(texts, reference_streams(references)).score
    return Measured(value, f"{name}|n:{len(references)}|{metric.get_signature()}")


class _CountedTexts(list[str]):
    """Many texts for sacreBLEU; whenever they are read, an open log shows how many were."""

    def __init__(self, texts: Sequence[str], work: str) -> None:
        super().__init__(texts)
        self.work = work

    def __iter__(self) -> Iterator[str]:
        return iter(counted(super().__iter__(), self.work, len(self)))


def perplexity(cost: Cost, how: str) -> Measured:
    """Perplexity: the exponential of the mean negative log-likelihood per token, in nats; lower is better."""
    mean = cost.nats / cost.tokens
    value = exponential(mean)
    if value == math.inf:
        raise TooLargeError(
            f"the perplexity is too large for a number: the mean loss is {mean:,.1f} nats for each token; train the "
            "model with a lower train.learning_rate, or choose another metric"
        )
    return Measured(value, f"perplexity|{_counts(cost)}|nats:{mean:.4f}|{how}")


def exponential(mean: float) -> float:
    """The exponential of a mean loss; infinite if it is too large for a number."""
    return math.exp(mean) if mean <= LARGEST_EXPONENT else math.inf


def bits_per_character(cost: Cost, how: str) -> Measured:
    """Bits of all tokens per character of text, comparable between tokenizers; lower is better."""
    bits = cost.nats / math.log(2) / cost.characters
    return Measured(bits, f"bits_per_character|{_counts(cost)}|characters:{cost.characters}|{how}")


def _counts(cost: Cost) -> str:
    return f"n:{cost.texts}|tokens:{cost.tokens}|unknown:{cost.unknown / cost.tokens:.2%}"


def answer_f1(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Rajpurkar et al. 2016: the F1 of the words of an answer, averaged over the questions; higher is better.

    As in SQuAD's script, answers are compared in lower case, without punctuation and articles.
    """
    total, questions = sums(COUNTS, "answer_f1", outputs, references)
    return Measured(total / questions, f"answer_f1|n:{len(references)}|normalised:squad")


def _word_f1(output: str, reference: str) -> float:
    predicted, expected = _normalized_words(output), _normalized_words(reference)
    if not predicted or not expected:
        return float(predicted == expected)
    return 2 * (Counter(predicted) & Counter(expected)).total() / (len(predicted) + len(expected))


def _normalized_words(answer: str) -> list[str]:
    letters = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", letters).split()


def _shared_words(output: str, reference: str) -> Counts:
    return _word_f1(output, reference), 1


COUNTS: dict[str, Count] = {"exact_match": _equal, "answer_f1": _shared_words}
