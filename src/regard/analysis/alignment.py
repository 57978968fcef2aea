"""Alignments: the links that a map draws between source and target, and how far they are from the true ones."""

from collections.abc import Sequence, Set

from regard.maps import MARKS, AttentionMap
from regard.metrics import Measured
from regard.types import Example, Prediction

Link = tuple[int, int]  # source position, target position: (column, row)

READINGS = {"output step": 0, "input step": 1}  # how many steps after a token was written its row is read


def alignment_error(found: Sequence[Set[Link]], gold: Sequence[Set[Link]]) -> Measured:
    """The share of the linked target positions that found no link of theirs; lower is better.

    For gold that joins whole blocks, each character of a word with each of its rendering. `found` has at most one
    link to a target position, as `AttentionMap.links` gives, so any link inside the block is right; positions without a
    gold link are not judged. Where each has its link, this is 1 - |A & S| / |A| over the judged positions. (The
    usual rate would also ask for all the other links of the block.) Counts are summed over the sentences.
    """
    judged = right = 0
    for links, sure in zip(found, gold, strict=True):
        judged += len({target for _, target in sure})
        right += len({target for _, target in links & sure})
    return Measured(1 - right / judged if judged else 0.0, f"alignment_error|n:{len(gold)}|positions:{judged}")


def alignment_error_rate(
    found: Sequence[Set[Link]], sure: Sequence[Set[Link]], possible: Sequence[Set[Link]] | None = None
) -> Measured:
    """Och and Ney 2003: AER = 1 - (|A & S| + |A & P|) / (|A| + |S|); lower is better.

    For gold drawn by people: sure links S ought to be found, possible ones P may be, and the sure are possible.
    Counts are summed over the sentences.
    """
    agreed = total = musts = mays = 0
    for links, must, may in zip(found, sure, sure if possible is None else possible, strict=True):
        agreed += len(links & must) + len(links & (must | may))
        total += len(links) + len(must)
        musts, mays = musts + len(must), mays + len(may - must)
    told = f"alignment_error_rate|n:{len(sure)}|sure:{musts}|possible:{mays}"
    return Measured(1 - agreed / total if total else 0.0, told)


def diagonal(source: int, target: int) -> set[Link]:
    """Links for so many words that look at no word: each target word's source word is as far through its sentence."""
    return {((2 * place + 1) * source // (2 * target), place) for place in range(target)}


def measure(answers: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Measured]:
    """The alignment error of the answers' maps by each reading; empty where no example can be judged.

    The links of an example are those of its target, character by character: judged are answers that equal it,
    with maps of characters.
    """
    pairs = zip(answers, examples, strict=True)
    judged = [(answer.map, example) for answer, example in pairs if example.links and answer.text == example.target]
    fitting = [(seen, set(example.links)) for seen, example in judged if seen is not None and _fits(seen, example)]
    if not fitting:
        return {}
    maps, gold = zip(*fitting, strict=True)
    return {name: alignment_error([set(seen.links(shift)) for seen in maps], gold) for name, shift in READINGS.items()}


def _fits(seen: AttentionMap, example: Example) -> bool:
    """Whether a map's tokens are the characters that the links count."""
    sources = [label for label in seen.columns if label not in MARKS]
    return (len(sources), len(seen.rows)) == (len(example.source), len(example.target))
