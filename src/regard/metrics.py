"""Metrics that compare outputs with references; each score has a signature that says how it was computed."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from regard.console import BLOCK, counted
from regard.errors import NotFiniteError

LARGEST_EXPONENT = 709.0  # of e, in floats of 64 bits
CACHED_TOKENS = 256  # of a text, whose places are kept while its edits are counted


class Measured(NamedTuple):
    """A score, and a signature that says how it was computed."""

    value: float
    signature: str


class Cost(NamedTuple):
    """The negative log-likelihood of texts under a model that predicts them token by token, with counts."""

    texts: int  # lines, or windows of a text
    tokens: int  # including every predicted END
    characters: int
    unknown: int  # tokens that are not in the vocabulary
    nats: float  # negative log-probability, summed over all tokens


class Outcome(NamedTuple):
    """One scored example, for lists of mistakes and for tests of differences between runs."""

    source: str
    references: tuple[str, ...]  # all correct answers; for a language model, its text
    answer: str  # empty for a language model
    score: float  # log-probability of the answer (of a search, with its penalties); of a language model, per token
    cost: Cost | None = None  # if the model predicts the tokens of the text


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Share of outputs that equal their reference exactly; higher is better."""
    same, texts = _sums("exact_match", outputs, references)
    return Measured(same / texts, f"exact_match|n:{len(references)}|case:mixed|space:kept")


def accuracy(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Share of labels that are correct; higher is better."""
    return Measured(exact_match(outputs, references).value, f"accuracy|n:{len(references)}")


def f1(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Macro-averaged F1: the harmonic mean of precision and recall, averaged over all labels; higher is better."""
    pairs = list(zip(outputs, references, strict=True))
    labels = sorted({label for pair in pairs for label in pair})
    predicted, expected = Counter(outputs), Counter(references)
    correct = Counter(output for output, reference in pairs if output == reference)
    value = sum(2 * correct[label] / (predicted[label] + expected[label]) for label in labels) / len(labels)
    return Measured(value, f"f1|n:{len(references)}|average:macro|labels:{len(labels)}")


def character_errors(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Character error rate (CER): character edits per character of the references; lower is better."""
    edits, characters = _sums("character_errors", outputs, references)
    return Measured(edits / max(1, characters), f"character_errors|n:{len(references)}|case:mixed|space:kept")


def word_errors(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Word error rate (WER), as in speech recognition: word edits per word of the references; lower is better."""
    edits, words = _sums("word_errors", outputs, references)
    return Measured(edits / max(1, words), f"word_errors|n:{len(references)}|words:{words}|case:mixed|tok:space")


ReferenceLists = Sequence[Sequence[str]]  # for each output, all correct texts


def phoneme_errors(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Phoneme error rate (PER): phoneme edits per phoneme of the closest reference; lower is better."""
    return _phoneme_errors("phoneme_errors", outputs, references, "kept")


def word_error_share(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Share of words whose phonemes equal no reference, the WER of grapheme-to-phoneme papers; lower is better."""
    return _word_error_share("word_error_share", outputs, references, "kept")


def phoneme_errors_unstressed(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Phoneme error rate without stress digits on either side: AH0 and AH1 become AH; lower is better."""
    return _phoneme_errors("phoneme_errors_unstressed", outputs, references, "removed")


def word_error_share_unstressed(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Share of wrong words, compared without stress digits on either side; lower is better."""
    return _word_error_share("word_error_share_unstressed", outputs, references, "removed")


def _phoneme_errors(name: str, outputs: Sequence[str], references: ReferenceLists, stress: str) -> Measured:
    edits, phonemes = _sums(name, outputs, references)
    details = f"n:{len(outputs)}|refs:closest|phonemes:{phonemes}|stress digits {stress}"
    return Measured(edits / max(1, phonemes), f"{name}|{details}")


def _word_error_share(name: str, outputs: Sequence[str], references: ReferenceLists, stress: str) -> Measured:
    wrong, words = _sums(name, outputs, references)
    return Measured(wrong / words, f"{name}|n:{len(outputs)}|refs:closest|stress digits {stress}")


def bleu(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """BLEU of raw text, computed by sacreBLEU; higher is better."""
    return _sacrebleu("bleu", outputs, references)


def bleu_tokenised(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """BLEU of text that is already tokenised, as many papers report it; higher is better."""
    return _sacrebleu("bleu_tokenised", outputs, references)


def chrf(outputs: Sequence[str], references: Sequence[str]) -> Measured:
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


def _sacrebleu(name: str, outputs: Sequence[str], references: Sequence[str]) -> Measured:
    metric = SACREBLEU[name]()
    texts = list(outputs) if len(outputs) <= BLOCK else _CountedTexts(outputs, f"computing {name}")
    value = metric.corpus_score(texts, [list(references)]).score
    return Measured(value, f"{name}|n:{len(references)}|{metric.get_signature()}")


class _CountedTexts(list[str]):
    """Many texts for sacreBLEU; whenever they are read, an open log shows how many were."""

    def __init__(self, texts: Sequence[str], work: str) -> None:
        super().__init__(texts)
        self.work = work

    def __iter__(self) -> Iterator[str]:
        return iter(counted(super().__iter__(), self.work, len(self)))


def tag_accuracy(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Share of words with the correct tag, in lines of tags with spaces between; higher is better."""
    correct, words = _sums("tag_accuracy", outputs, references)
    return Measured(correct / max(1, words), f"tag_accuracy|n:{len(references)}|words:{words}")


def entity_f1(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """F1 of entities in BIO tags, correct if the type and both boundaries are; higher is better."""
    correct, both = _sums("entity_f1", outputs, references)
    entities = sum(len(spans(reference.split())) for reference in references)
    value = correct / max(1, both)
    return Measured(value, f"entity_f1|n:{len(references)}|entities:{entities}|average:micro|rule:conlleval")


def spans(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """The entities of BIO tags as (index of the first word, index after the last word, type).

    As in conlleval (Tjong Kim Sang and Buchholz 2000), an I-X after another type or after O also begins an entity.
    """
    entities: list[tuple[int, int, str]] = []
    current: tuple[int, str] | None = None
    for index, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        if current and (mark != "I" or kind != current[1]):
            entities.append((current[0], index, current[1]))
            current = None
        if current is None and mark in ("B", "I"):
            current = index, kind
    return entities


def perplexity(cost: Cost, how: str) -> Measured:
    """Perplexity: the exponential of the mean negative log-likelihood per token, in nats; lower is better."""
    mean = cost.nats / cost.tokens
    if mean > LARGEST_EXPONENT:
        raise NotFiniteError(
            f"the perplexity is too large for a number: the mean loss is {mean:,.1f} nats for each token"
        )
    return Measured(math.exp(mean), f"perplexity|{_counts(cost)}|nats:{mean:.4f}|{how}")


def bits_per_character(cost: Cost, how: str) -> Measured:
    """Bits of all tokens per character of text, comparable between tokenizers; lower is better."""
    bits = cost.nats / math.log(2) / cost.characters
    return Measured(bits, f"bits_per_character|{_counts(cost)}|characters:{cost.characters}|{how}")


def _counts(cost: Cost) -> str:
    return f"n:{cost.texts}|tokens:{cost.tokens}|unknown:{cost.unknown / cost.tokens:.2%}"


def masked_accuracy(outputs: Sequence[str], references: Sequence[str], how: str) -> Measured:
    """Share of masked tokens whose most likely prediction is correct; higher is better."""
    return Measured(exact_match(outputs, references).value, f"masked_accuracy|tokens:{len(references)}|{how}")


def answer_f1(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Rajpurkar et al. 2016: the F1 of the words of an answer, averaged over the questions; higher is better.

    As in SQuAD's script, answers are compared in lower case, without punctuation and articles.
    """
    total, questions = _sums("answer_f1", outputs, references)
    return Measured(total / questions, f"answer_f1|n:{len(references)}|normalised:squad")


def _word_f1(output: str, reference: str) -> float:
    predicted, expected = _normalized_words(output), _normalized_words(reference)
    if not predicted or not expected:
        return float(predicted == expected)
    return 2 * (Counter(predicted) & Counter(expected)).total() / (len(predicted) + len(expected))


def _normalized_words(answer: str) -> list[str]:
    letters = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", letters).split()


Metric = Callable[..., Measured]  # takes outputs and references, unless its only task passes other arguments

METRICS: dict[str, Metric] = {
    "exact_match": exact_match,
    "accuracy": accuracy,
    "f1": f1,
    "character_errors": character_errors,
    "word_errors": word_errors,
    "phoneme_errors": phoneme_errors,
    "word_error_share": word_error_share,
    "phoneme_errors_unstressed": phoneme_errors_unstressed,
    "word_error_share_unstressed": word_error_share_unstressed,
    "bleu": bleu,
    "bleu_tokenised": bleu_tokenised,
    "chrf": chrf,
    "tag_accuracy": tag_accuracy,
    "entity_f1": entity_f1,
    "perplexity": perplexity,
    "bits_per_character": bits_per_character,
    "masked_accuracy": masked_accuracy,
    "answer_f1": answer_f1,
}

# Metrics that take several references per output: all targets of a source. Such a source counts once.
MULTI_REFERENCE = ("phoneme_errors", "word_error_share", "phoneme_errors_unstressed", "word_error_share_unstressed")


def better(metric: str) -> str:
    """Whether `higher is better` or `lower is better`, from the end of the first line of a metric's docstring."""
    return (METRICS[metric].__doc__ or "").split("\n", 1)[0].rpartition("; ")[2].rstrip(".")


# Most metrics are a ratio of two sums over the examples. These are the two numbers of one example.

Counts = tuple[float, float]  # numerator, denominator


def _equal(output: str, reference: str) -> Counts:
    return int(output == reference), 1


def _character_edits(output: str, reference: str) -> Counts:
    return _edits(output, reference), len(reference)


def _word_edits(output: str, reference: str) -> Counts:
    return _edits(output.split(), reference.split()), len(reference.split())


def _phoneme_edits(output: str, references: Sequence[str]) -> Counts:
    """Those of the reference with the fewest edits; of equals the shortest, which gives the higher error rate."""
    return min(_word_edits(output, reference) for reference in references)


def _unequal(output: str, references: Sequence[str]) -> Counts:
    return int(output.split() not in [reference.split() for reference in references]), 1


def _without_stress(count: Callable[[str, Sequence[str]], Counts]) -> Callable[[str, Sequence[str]], Counts]:
    return lambda output, references: count(_unstressed(output), [_unstressed(text) for text in references])


def _unstressed(text: str) -> str:
    return " ".join(phoneme.rstrip(string.digits) for phoneme in text.split())


def _right_tags(output: str, reference: str) -> Counts:
    tags, right = output.split(), reference.split()
    return sum(map(str.__eq__, tags, right)), len(right)


def _right_entities(output: str, reference: str) -> Counts:
    predicted, expected = set(spans(output.split())), set(spans(reference.split()))
    return 2 * len(predicted & expected), len(predicted) + len(expected)


def _shared_words(output: str, reference: str) -> Counts:
    return _word_f1(output, reference), 1


COUNTS: dict[str, Callable[[str, Any], Counts]] = {
    "exact_match": _equal,
    "accuracy": _equal,
    "character_errors": _character_edits,
    "word_errors": _word_edits,
    "phoneme_errors": _phoneme_edits,
    "word_error_share": _unequal,
    "phoneme_errors_unstressed": _without_stress(_phoneme_edits),
    "word_error_share_unstressed": _without_stress(_unequal),
    "tag_accuracy": _right_tags,
    "entity_f1": _right_entities,
    "masked_accuracy": _right_tags,  # of the masked tokens of one text
    "answer_f1": _shared_words,
}


def _sums(metric: str, outputs: Sequence[str], references: Sequence[Any]) -> Counts:
    """The two sums whose ratio is the metric."""
    pairs = counted(zip(outputs, references, strict=True), f"computing {metric}", len(outputs))
    counts = [COUNTS[metric](output, right) for output, right in pairs]
    return sum(count for count, _ in counts), sum(count for _, count in counts)


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
        return chrf([outcome.answer], outcome.references[:1]).value
    total, weight = counts(name, outcome)
    return math.exp(total / weight) if name == "perplexity" else total / max(1, weight)


class EditRow(NamedTuple):
    """A row of the table of Levenshtein distances, as differences: bit j stands for token j of the reference.

    `D[i][j]` is the distance between the first i tokens of the output and the first j of the reference.
    """

    diagonal: int  # bit j: D[i][j + 1] equals D[i - 1][j]; else it is larger by one
    up: int  # bit j: D[i][j + 1] is D[i][j] + 1
    down: int  # bit j: D[i][j + 1] is D[i][j] - 1


def edit_rows(output: Sequence[str], reference: Sequence[str]) -> Iterator[EditRow]:
    """Yields the rows of the table of Levenshtein distances of two sequences, the row before the first token first.

    Myers 1999, in the form of Hyyrö 2003: each row is computed from the one before by operations on integers of one bit
    for each token of the reference, which compute all distances of the row at once.
    """
    every = (1 << len(reference)) - 1
    positions = _positions(reference)
    row = EditRow(0, every, 0)
    yield row
    for token in output:
        equal = positions(token) | row.down
        diagonal = ((((equal & row.up) + row.up) ^ row.up) | equal) & every
        grown = ((row.down | (every ^ (diagonal | row.up))) << 1) | 1  # bit j: D[i][j] is D[i - 1][j] + 1
        shrunk = (diagonal & row.up) << 1  # bit j: D[i][j] is D[i - 1][j] - 1
        row = EditRow(diagonal, (shrunk | (every ^ (diagonal | grown))) & every, diagonal & grown)
        yield row


def _positions(tokens: Sequence[str]) -> Callable[[str], int]:
    """A function that returns the places of a token as the bits of an integer."""
    places: dict[str, list[int]] = {}
    for place, token in enumerate(tokens):
        places.setdefault(token, []).append(place)

    @lru_cache(CACHED_TOKENS)
    def positions(token: str) -> int:
        bits = bytearray(len(tokens) // 8 + 1)
        for place in places.get(token, ()):
            bits[place // 8] |= 1 << place % 8
        return int.from_bytes(bits, "little")

    return positions


def _edits(output: Sequence[str], reference: Sequence[str]) -> int:
    """The Levenshtein distance between two sequences, of words or of characters."""
    shorter, longer = sorted((output, reference), key=len)  # few rows of many bits are faster than the reverse
    for row in edit_rows(shorter, longer):
        last = row
    return len(shorter) + last.up.bit_count() - last.down.bit_count()
