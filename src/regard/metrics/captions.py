"""Metrics of captions, each against several references: on equal tokens, the values of pycocoevalcap.

Texts are split at spaces and compared in lower case, without the tokens that are punctuation marks.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from operator import or_
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from regard.console import counted
from regard.metrics.core import Count, Counts, Measured, ReferenceLists, sums
from regard.metrics.edits import common_length

NGram = tuple[str, ...]

LENGTHS = range(1, 5)  # of n-grams
NUMERATOR, DENOMINATOR = 1e-15, 1e-9  # added to each precision of BLEU, instead of smoothing: no division by zero
SIGMA, SCALE = 6.0, 10.0  # of CIDEr-D
BETA = 1.2  # of ROUGE-L: how much more recall counts than precision

# Punctuation marks that coco-caption removes; also the double quote, which its tokenizer writes as `` or ''.
PUNCTUATION = frozenset(["''", "'", "``", "`", '"', ".", "?", "!", ",", ":", "-", "--", "...", ";"])


def words(caption: str) -> list[str]:
    """The tokens of a caption that are compared."""
    return [token for token in caption.lower().split() if token not in PUNCTUATION]


def ngrams(tokens: Sequence[str], length: int) -> Counter[NGram]:
    """The n-grams of one length, and how often each occurs."""
    return Counter(zip(*(tokens[start:] for start in range(length)), strict=False))


def _signature(name: str, references: ReferenceLists, details: str) -> str:
    """The signature of a metric of captions, with the numbers of captions and of references for each."""
    numbers = sorted({len(texts) for texts in references})
    several = "-".join(map(str, dict.fromkeys([numbers[0], numbers[-1]])))
    return f"{name}|n:{len(references)}|refs:{several}|case:lc|punct:no|tok:space|{details}"


# BLEU


def bleu_1(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """BLEU-1 of captions, from 0 to 1: clipped precision of words, with a brevity penalty; higher is better."""
    return _bleu("bleu_1", outputs, references)


def bleu_2(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """BLEU-2 of captions, from 0 to 1: n-grams of up to two words; higher is better."""
    return _bleu("bleu_2", outputs, references)


def bleu_3(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """BLEU-3 of captions, from 0 to 1: n-grams of up to three words; higher is better."""
    return _bleu("bleu_3", outputs, references)


def bleu_4(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """BLEU-4 of captions, from 0 to 1, as papers on captions report it; higher is better."""
    return _bleu("bleu_4", outputs, references)


CAPTION_BLEU = {"bleu_1": 1, "bleu_2": 2, "bleu_3": 3, "bleu_4": 4}  # the longest n-grams of each


def _bleu(name: str, outputs: Sequence[str], references: ReferenceLists) -> Measured:
    pairs = counted(zip(outputs, references, strict=True), f"computing {name}", len(outputs))
    statistics = np.array([bleu_counts(name, output, texts) for output, texts in pairs], dtype=np.float64)
    value = float(bleu_value(statistics.sum(0)))
    return Measured(value, _signature(name, references, "smooth:no|length:closest"))


def bleu_counts(name: str, output: str, references: Sequence[str]) -> list[Counts]:
    """For each length, the correct and all n-grams of an output; last, its length and that of the closest reference."""
    written, expected = words(output), [words(text) for text in references]
    counts: list[Counts] = []
    for length in range(1, CAPTION_BLEU[name] + 1):
        most = reduce(or_, (ngrams(tokens, length) for tokens in expected))  # of each n-gram, the most in any reference
        mine = ngrams(written, length)
        counts.append(((mine & most).total(), mine.total()))
    closest = min(map(len, expected), key=lambda size: (abs(size - len(written)), size))
    return [*counts, (len(written), closest)]


def bleu_value(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Papineni et al. 2002: BLEU from the sums of `bleu_counts` over a corpus (..., lengths and 1, 2).

    BLEU = min(1, e^(1 - reference length / output length)) * (p_1 * ... * p_N)^(1/N)
    """
    ratios = (sums[..., 0] + NUMERATOR) / (sums[..., 1] + DENOMINATOR)
    precisions, brevity = ratios[..., :-1], ratios[..., -1]
    mean = precisions.prod(-1) ** (1 / precisions.shape[-1])
    return np.asarray(mean * np.exp(np.minimum(0.0, 1 - 1 / brevity)))


# CIDEr-D


def cider_d(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """CIDEr-D of captions, from 0 to 10: n-grams weighted by how few pictures they fit; higher is better.

    The weights are those of the references that are given: all other captions of a corpus matter for each of them.
    """
    score = CiderD(references)
    pairs = counted(zip(outputs, references, strict=True), "computing cider_d", len(outputs))
    value = fmean(score(output, texts) for output, texts in pairs)
    return Measured(value, _signature("cider_d", references, "ngrams:1-4|sigma:6|df:references|scale:10"))


class CiderD:
    """Vedantam et al. 2015, CIDEr-D: a function of an output and its references, for a corpus of references.

    For each n, the cosine of the TF-IDF vectors of n-grams, g for the output and r for a reference, where g is clipped:
    10 e^(-(difference of lengths)^2 / (2 sigma^2)) * min(g, r) . r / (|g| |r|); and the mean over n and references.
    """

    def __init__(self, references: ReferenceLists) -> None:
        self.pictures = Counter(ngram for texts in references for ngram in _different(texts))  # that have each n-gram
        self.total = len(references)

    def __call__(self, output: str, references: Sequence[str]) -> float:
        """The score of one output."""
        written = words(output)
        vectors = [self._vector(written, length) for length in LENGTHS]
        return SCALE * fmean(self._similarity(written, vectors, words(text)) for text in references)

    def _similarity(self, written: list[str], vectors: list[dict[NGram, float]], expected: list[str]) -> float:
        penalty = math.exp(-((len(written) - len(expected)) ** 2) / (2 * SIGMA**2))
        others = (self._vector(expected, length) for length in LENGTHS)
        return penalty * fmean(_cosine(vector, other) for vector, other in zip(vectors, others, strict=True))

    def _vector(self, tokens: list[str], length: int) -> dict[NGram, float]:
        """The n-grams, each with its count times the logarithm of the inverse share of pictures that have it."""
        counts = ngrams(tokens, length)
        total = math.log(self.total)
        return {ngram: count * (total - math.log(max(1, self.pictures[ngram]))) for ngram, count in counts.items()}


def _different(texts: Sequence[str]) -> set[NGram]:
    """The n-grams of all lengths in any of the texts."""
    return {ngram for tokens in map(words, texts) for length in LENGTHS for ngram in ngrams(tokens, length)}


def _cosine(vector: dict[NGram, float], other: dict[NGram, float]) -> float:
    """The cosine of two vectors, where no weight of the first counts more than that of the second."""
    norms = math.hypot(*vector.values()) * math.hypot(*other.values())
    shared = sum(min(weight, other[ngram]) * other[ngram] for ngram, weight in vector.items() if ngram in other)
    return shared / norms if norms else 0.0


# ROUGE-L


def rouge_l(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """ROUGE-L of captions, from 0 to 1: F-score of longest common subsequences; higher is better."""
    total, pictures = sums(COUNTS, "rouge_l", outputs, references)
    return Measured(total / pictures, _signature("rouge_l", references, "beta:1.2|best:precision,recall"))


def _rouge_l(output: str, references: Sequence[str]) -> Counts:
    """Lin 2004: the F-score of the highest precision and the highest recall, which may be of different references."""
    written = words(output) or [""]  # a text without words equals only another one
    expected = [words(text) or [""] for text in references]
    common = [common_length(written, tokens) for tokens in expected]
    precision = max(common) / len(written)
    recall = max(length / len(tokens) for length, tokens in zip(common, expected, strict=True))
    return ((1 + BETA**2) * precision * recall / (recall + BETA**2 * precision) if precision else 0.0), 1


COUNTS: dict[str, Count] = {"rouge_l": _rouge_l}
