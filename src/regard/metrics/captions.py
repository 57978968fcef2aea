"""Metrics of captions, each against several references: on equal tokens, the values of pycocoevalcap.

Texts are split at spaces and compared in lower case, without the tokens that are punctuation marks.
"""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

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
    return _compared(output, BleuReferences.of(name, references))


def bleu_scores(name: str, outputs: Sequence[str], references: Sequence[str]) -> list[float]:
    """BLEU of several outputs for one picture, of each alone."""
    expected = BleuReferences.of(name, references)
    counts = [_compared(output, expected) for output in outputs]
    scores: list[float] = bleu_value(np.array(counts, dtype=np.float64)).tolist()
    return scores


class BleuReferences(NamedTuple):
    """The references of a picture as BLEU counts them."""

    most: list[dict[NGram, int]]  # for each length of n-grams, how often each occurs at most in any reference
    lengths: list[int]

    @staticmethod
    def of(name: str, references: Sequence[str]) -> "BleuReferences":
        """Count the n-grams up to the length that a metric uses."""
        expected = [words(text) for text in references]
        most: list[dict[NGram, int]] = [{} for _ in range(CAPTION_BLEU[name])]
        for length, counts in enumerate(most, start=1):
            for tokens in expected:
                for ngram, count in ngrams(tokens, length).items():
                    if count > counts.get(ngram, 0):
                        counts[ngram] = count
        return BleuReferences(most, [len(tokens) for tokens in expected])


def _compared(output: str, references: BleuReferences) -> list[Counts]:
    """The counts of `bleu_counts`."""
    written = words(output)
    counts: list[Counts] = []
    for length, most in enumerate(references.most, start=1):
        mine = ngrams(written, length)
        counts.append((sum(min(count, most.get(ngram, 0)) for ngram, count in mine.items()), mine.total()))
    closest = min(references.lengths, key=lambda size: (abs(size - len(written)), size))
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
        pictures = Counter(ngram for texts in references for ngram in _different(texts))  # that have each n-gram
        self.pictures = {ngram: count for ngram, count in pictures.items() if count > 1}  # most are in one alone
        # By number of pictures: the logarithm of their inverse share. An n-gram of no picture counts as one of one.
        logarithms = [math.log(max(1, count)) for count in range(len(references) + 1)]
        self.rarities = [logarithms[-1] - logarithm for logarithm in logarithms]

    def __call__(self, output: str, references: Sequence[str]) -> float:
        """The score of one output."""
        return self.scores([output], references)[0]

    def scores(self, outputs: Sequence[str], references: Sequence[str]) -> list[float]:
        """The scores of several outputs for one picture; the vectors of its references are computed once."""
        expected = CiderReferences.of([self._weighted(text) for text in references])
        return [expected.similarity(self._weighted(output)) for output in outputs]

    def _weighted(self, text: str) -> "Weighted":
        """The n-grams, each with its count times the logarithm of the inverse share of pictures that have it."""
        tokens = words(text)
        rarities, pictures = self.rarities, self.pictures
        vectors = [
            {ngram: count * rarities[pictures.get(ngram, 1)] for ngram, count in ngrams(tokens, length).items()}
            for length in LENGTHS
        ]
        return Weighted(len(tokens), vectors, [math.hypot(*vector.values()) for vector in vectors])


class Weighted(NamedTuple):
    """A text as CIDEr-D compares it: a TF-IDF vector for each length of n-grams."""

    length: int
    vectors: list[dict[NGram, float]]
    norms: list[float]


class CiderReferences(NamedTuple):
    """The references of a picture, with the weights of an n-gram in all of them in one place.

    Most n-grams of an output are in no reference: they need one look-up, not one for each reference.
    """

    weights: dict[NGram, list[tuple[int, float]]]  # of each n-gram: the numbers of the references, and its weight there
    texts: list[Weighted]

    @staticmethod
    def of(texts: list[Weighted]) -> "CiderReferences":
        """The references with these vectors."""
        weights: dict[NGram, list[tuple[int, float]]] = {}
        for number, text in enumerate(texts):
            for vector in text.vectors:
                for ngram, weight in vector.items():
                    weights.setdefault(ngram, []).append((number, weight))
        return CiderReferences(weights, texts)

    def similarity(self, written: Weighted) -> float:
        """The mean over the references of the cosines with an output, where no weight counts more than theirs."""
        totals = [0.0] * len(self.texts)
        for place, (vector, norm) in enumerate(zip(written.vectors, written.norms, strict=True)):
            shared = [0.0] * len(self.texts)
            for ngram, weight in vector.items():
                for number, other in self.weights.get(ngram, ()):
                    shared[number] += min(weight, other) * other
            for number, text in enumerate(self.texts):
                if product := norm * text.norms[place]:
                    totals[number] += shared[number] / product
        lengths = (text.length for text in self.texts)
        penalties = (math.exp(-((written.length - length) ** 2) / (2 * SIGMA**2)) for length in lengths)
        means = (penalty * total / len(LENGTHS) for penalty, total in zip(penalties, totals, strict=True))
        return SCALE * math.fsum(means) / len(self.texts)


def _different(texts: Sequence[str]) -> set[NGram]:
    """The n-grams of all lengths in any of the texts."""
    return {ngram for tokens in map(words, texts) for length in LENGTHS for ngram in ngrams(tokens, length)}


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
