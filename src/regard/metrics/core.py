"""What all metrics share: scores with signatures, scored examples, and sums over examples."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from regard.console import counted


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


Metric = Callable[..., Measured]  # takes outputs and references, unless its only task passes other arguments

ReferenceLists = Sequence[Sequence[str]]  # for each output, all correct texts

References = Sequence[str | Sequence[str]]  # for each output, the correct text, or all correct texts

Counts = tuple[float, float]  # numerator, denominator: most metrics are a ratio of two sums over the examples

Count = Callable[[str, Any], Counts]  # of an output and its reference, or all its references


def all_of(references: str | Sequence[str]) -> Sequence[str]:
    """The correct texts of one output, of which there may be one."""
    return [references] if isinstance(references, str) else references


def several(references: References) -> str:
    """The part of a signature that says that the closest of several references counts; empty if each output has one."""
    return "" if all(len(all_of(texts)) == 1 for texts in references) else "refs:closest|"


def sums(table: Mapping[str, Count], metric: str, outputs: Sequence[str], references: Sequence[Any]) -> Counts:
    """The sums over all examples of the two numbers of each, whose ratio is the metric; `table` has its function."""
    pairs = counted(zip(outputs, references, strict=True), f"computing {metric}", len(outputs))
    counts = [table[metric](output, right) for output, right in pairs]
    return sum(numerator for numerator, _ in counts), sum(denominator for _, denominator in counts)
