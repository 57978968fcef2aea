"""Metrics of labels: of whole texts, of masked tokens, of the words of a text, and of entities."""

from collections import Counter
from collections.abc import Sequence

from regard.metrics import text
from regard.metrics.core import Count, Counts, Measured, sums
from regard.metrics.text import exact_match


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


def masked_accuracy(outputs: Sequence[str], references: Sequence[str], how: str) -> Measured:
    """Share of masked tokens whose most likely prediction is correct; higher is better."""
    return Measured(exact_match(outputs, references).value, f"masked_accuracy|tokens:{len(references)}|{how}")


def tag_accuracy(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Share of words with the correct tag, in lines of tags with spaces between; higher is better."""
    correct, words = sums(COUNTS, "tag_accuracy", outputs, references)
    return Measured(correct / max(1, words), f"tag_accuracy|n:{len(references)}|words:{words}")


def entity_f1(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """F1 of entities in BIO tags, correct if the type and both boundaries are; higher is better."""
    correct, both = sums(COUNTS, "entity_f1", outputs, references)
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


def _right_tags(output: str, reference: str) -> Counts:
    tags, right = output.split(), reference.split()
    return sum(map(str.__eq__, tags, right)), len(right)


def _right_entities(output: str, reference: str) -> Counts:
    predicted, expected = set(spans(output.split())), set(spans(reference.split()))
    return 2 * len(predicted & expected), len(predicted) + len(expected)


COUNTS: dict[str, Count] = {
    "accuracy": text.COUNTS["exact_match"],
    "tag_accuracy": _right_tags,
    "entity_f1": _right_entities,
    "masked_accuracy": _right_tags,  # of the masked tokens of one text
}
