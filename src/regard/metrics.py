"""Metrics that compare outputs with references; each score has a signature that says how it was computed."""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Measured(NamedTuple):
    """A score, and a signature that says how it was computed."""

    value: float
    signature: str


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Share of outputs that equal their reference exactly; higher is better."""
    same = sum(output == reference for output, reference in zip(outputs, references, strict=True))
    return Measured(same / len(references), f"exact_match|n:{len(references)}|case:mixed|space:kept")


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
    edits = sum(_edits(output, reference) for output, reference in zip(outputs, references, strict=True))
    characters = max(1, sum(map(len, references)))
    return Measured(edits / characters, f"character_errors|n:{len(references)}|case:mixed|space:kept")


def word_errors(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Word error rate (WER), as in speech recognition: word edits per word of the references; lower is better."""
    pairs = [(output.split(), reference.split()) for output, reference in zip(outputs, references, strict=True)]
    words = sum(len(reference) for _, reference in pairs)
    edits = sum(_edits(output, reference) for output, reference in pairs)
    return Measured(edits / max(1, words), f"word_errors|n:{len(references)}|words:{words}|case:mixed|tok:space")


ReferenceLists = Sequence[Sequence[str]]  # for each output, all correct texts


def phoneme_errors(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Phoneme error rate (PER): phoneme edits per phoneme of the closest reference; lower is better."""
    return _phoneme_errors(_phonemes(outputs), _split_all(references, _phonemes), "phoneme_errors", "kept")


def word_error_share(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Share of words whose phonemes equal no reference, the WER of grapheme-to-phoneme papers; lower is better."""
    return _word_error_share(_phonemes(outputs), _split_all(references, _phonemes), "word_error_share", "kept")


def phoneme_errors_unstressed(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Phoneme error rate without stress digits on either side: AH0 and AH1 become AH; lower is better."""
    unstressed = _split_all(references, _unstressed)
    return _phoneme_errors(_unstressed(outputs), unstressed, "phoneme_errors_unstressed", "removed")


def word_error_share_unstressed(outputs: Sequence[str], references: ReferenceLists) -> Measured:
    """Share of wrong words, compared without stress digits on either side; lower is better."""
    unstressed = _split_all(references, _unstressed)
    return _word_error_share(_unstressed(outputs), unstressed, "word_error_share_unstressed", "removed")


Phonemes = list[list[str]]  # of each text; a text has spaces between phonemes


def _phonemes(texts: Sequence[str]) -> Phonemes:
    return [text.split() for text in texts]


def _unstressed(texts: Sequence[str]) -> Phonemes:
    return [[phoneme.rstrip(string.digits) for phoneme in text.split()] for text in texts]


def _split_all(references: ReferenceLists, split: Callable[[Sequence[str]], Phonemes]) -> list[Phonemes]:
    return [split(texts) for texts in references]


def _phoneme_errors(outputs: Phonemes, references: Sequence[Phonemes], name: str, stress: str) -> Measured:
    """Scores against the reference with the fewest edits; of equals the shortest, which gives the higher error rate."""
    pairs = zip(outputs, references, strict=True)
    closest = [min((_edits(output, text), len(text)) for text in alternatives) for output, alternatives in pairs]
    edits, phonemes = (sum(column) for column in zip(*closest, strict=True))
    details = f"n:{len(outputs)}|refs:closest|phonemes:{phonemes}|stress digits {stress}"
    return Measured(edits / max(1, phonemes), f"{name}|{details}")


def _word_error_share(outputs: Phonemes, references: Sequence[Phonemes], name: str, stress: str) -> Measured:
    wrong = sum(output not in alternatives for output, alternatives in zip(outputs, references, strict=True))
    return Measured(wrong / len(outputs), f"{name}|n:{len(outputs)}|refs:closest|stress digits {stress}")


def bleu(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """BLEU of raw text, computed by sacreBLEU; higher is better."""
    from sacrebleu.metrics.bleu import BLEU

    return _sacrebleu(BLEU(), "bleu", outputs, references)


def bleu_tokenised(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """BLEU of text that is already tokenised, as many papers report it; higher is better."""
    from sacrebleu.metrics.bleu import BLEU

    return _sacrebleu(BLEU(tokenize="none", force=True), "bleu_tokenised", outputs, references)


def chrf(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """chrF: the F-score of character n-grams, computed by sacreBLEU; higher is better."""
    from sacrebleu.metrics.chrf import CHRF

    return _sacrebleu(CHRF(), "chrf", outputs, references)


def _sacrebleu(metric: Any, name: str, outputs: Sequence[str], references: Sequence[str]) -> Measured:
    value = metric.corpus_score(list(outputs), [list(references)]).score
    return Measured(value, f"{name}|n:{len(references)}|{metric.get_signature()}")


def tag_accuracy(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Share of words with the correct tag, in lines of tags with spaces between; higher is better."""
    pairs = [(output.split(), reference.split()) for output, reference in zip(outputs, references, strict=True)]
    correct = sum(tag == right for output, reference in pairs for tag, right in zip(output, reference, strict=False))
    words = sum(len(reference) for _, reference in pairs)
    return Measured(correct / max(1, words), f"tag_accuracy|n:{len(references)}|words:{words}")


def entity_f1(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """F1 of entities in BIO tags, correct if the type and both boundaries are; higher is better."""
    predicted = {(line, *span) for line, output in enumerate(outputs) for span in spans(output.split())}
    expected = {(line, *span) for line, reference in enumerate(references) for span in spans(reference.split())}
    value = 2 * len(predicted & expected) / max(1, len(predicted) + len(expected))
    return Measured(value, f"entity_f1|n:{len(references)}|entities:{len(expected)}|average:micro|rule:conlleval")


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


class Cost(NamedTuple):
    """The negative log-likelihood of texts under a model that predicts them token by token, with counts."""

    texts: int  # lines, or windows of a text
    tokens: int  # including every predicted END
    characters: int
    unknown: int  # tokens that are not in the vocabulary
    nats: float  # negative log-probability, summed over all tokens


def perplexity(cost: Cost, how: str) -> Measured:
    """Perplexity: the exponential of the mean negative log-likelihood per token, in nats; lower is better."""
    mean = cost.nats / cost.tokens
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
    values = [_word_f1(output, reference) for output, reference in zip(outputs, references, strict=True)]
    return Measured(sum(values) / len(values), f"answer_f1|n:{len(values)}|normalised:squad")


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


def _edits(output: Sequence[str], reference: Sequence[str]) -> int:
    """The Levenshtein distance between two sequences, of words or of characters."""
    row = list(range(len(reference) + 1))
    for index, left in enumerate(output, 1):
        diagonal, row[0] = row[0], index
        for column, right in enumerate(reference, 1):
            substituted = diagonal + (left != right)
            diagonal = row[column]
            row[column] = min(substituted, row[column] + 1, row[column - 1] + 1)
    return row[-1]
