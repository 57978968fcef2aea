"""Scores of outputs against references; each says by its signature how it was computed."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Measured(NamedTuple):
    """A score with its signature."""

    value: float
    signature: str


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """The share of outputs that equal their reference; higher is better."""
    same = sum(output == reference for output, reference in zip(outputs, references, strict=True))
    return Measured(same / len(references), f"exact_match|n:{len(references)}|case:mixed|space:kept")


def character_errors(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """Edits needed per character of the references; lower is better."""
    edits = sum(_edits(output, reference) for output, reference in zip(outputs, references, strict=True))
    characters = max(1, sum(map(len, references)))
    return Measured(edits / characters, f"character_errors|n:{len(references)}|case:mixed|space:kept")


def bleu(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """BLEU through sacreBLEU on raw text; higher is better."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    value = metric.corpus_score(list(outputs), [list(references)]).score
    return Measured(value, f"bleu|n:{len(references)}|{metric.get_signature()}")


def chrf(outputs: Sequence[str], references: Sequence[str]) -> Measured:
    """The F-score of character n-grams through sacreBLEU; higher is better."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    value = metric.corpus_score(list(outputs), [list(references)]).score
    return Measured(value, f"chrf|n:{len(references)}|{metric.get_signature()}")


Metric = Callable[..., Measured]  # of outputs and references, but where the one task it is for gives it something else

METRICS: dict[str, Metric] = {
    "exact_match": exact_match,
    "character_errors": character_errors,
    "bleu": bleu,
    "chrf": chrf,
}


def _edits(output: str, reference: str) -> int:
    """The Levenshtein distance of two texts."""
    row = list(range(len(reference) + 1))
    for index, left in enumerate(output, 1):
        diagonal, row[0] = row[0], index
        for column, right in enumerate(reference, 1):
            replaced = diagonal + (left != right)
            diagonal = row[column]
            row[column] = min(replaced, row[column] + 1, row[column - 1] + 1)
    return row[-1]
