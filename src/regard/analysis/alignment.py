"""Alignment errors: compare the links of attention maps between source and target with gold links."""

from collections.abc import Callable, Sequence, Set

from regard.maps import MARKS, AttentionMap
from regard.metrics import Measured
from regard.types import Example, Prediction

Link = tuple[int, int]  # source position, target position: (column, row)

# The decoder step whose attention is the row of a token, counted from the step that writes the token.
READINGS = {"output step": 0, "input step": 1}


def alignment_error(found: Sequence[Set[Link]], gold: Sequence[Set[Link]]) -> Measured:
    """The share of target positions with gold links for which no found link is right; lower is better.

    This is for gold that links whole blocks: each character of a source word with each character of its translation.
    `found` has at most one link per target position, as `AttentionMap.links` gives, so any link inside the block is
    right; target positions without a gold link are not judged. If each judged position has a found link, this is
    1 - |A & S| / |A| over the judged positions. (The usual alignment error rate would also require all other links of
    the block.) Counts are summed over the sentences.
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

    This is for gold alignments by human annotators: sure links S should be found, possible links P may be found, and
    every sure link counts as possible too. Counts are summed over the sentences.
    """
    agreed = total = sure_count = possible_count = 0
    for links, must, may in zip(found, sure, sure if possible is None else possible, strict=True):
        agreed += len(links & must) + len(links & (must | may))
        total += len(links) + len(must)
        sure_count, possible_count = sure_count + len(must), possible_count + len(may - must)
    signature = f"alignment_error_rate|n:{len(sure)}|sure:{sure_count}|possible:{possible_count}"
    return Measured(1 - agreed / total if total else 0.0, signature)


def grow_diagonal(forward: Set[Link], backward: Set[Link]) -> set[Link]:
    """Koehn et al. 2003, grow-diag: the links of both directions, and neighbours of these that one of them has.

    A neighbour is added if its source word or its target word has no link yet, until no more can be.
    """
    links, either = set(forward & backward), forward | backward
    before = -1
    while before != len(links):
        before = len(links)
        for source, target in sorted(either - links):
            near = any(abs(source - one) <= 1 and abs(target - other) <= 1 for one, other in links)
            is_free = all(source != one for one, _ in links) or all(target != other for _, other in links)
            if near and is_free:
                links.add((source, target))
    return links


# Ways to join the links of two models of opposite directions, both as (source word, target word).
SYMMETRIES: dict[str, Callable[[Set[Link], Set[Link]], set[Link]]] = {
    "intersection": lambda forward, backward: set(forward & backward),
    "grow-diag": grow_diagonal,
    "union": lambda forward, backward: set(forward | backward),
}


def diagonal(source: int, target: int) -> set[Link]:
    """A baseline that ignores the words: links each target word to the source word at the same relative position."""
    return {((2 * place + 1) * source // (2 * target), place) for place in range(target)}


def measure(answers: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Measured]:
    """The alignment error of the answers' maps, for each entry of `READINGS`; empty if no example can be judged.

    The gold links of an example count the characters of its source and target. So an answer is judged only if it
    equals the target and its map has one row or column per character.
    """
    fitting = []
    for answer, example in zip(answers, examples, strict=True):
        if example.links and answer.text == example.target and answer.map is not None and _fits(answer.map, example):
            fitting.append((answer.map, set(example.links)))
    if not fitting:
        return {}
    maps, gold = zip(*fitting, strict=True)
    return {
        name: alignment_error([set(attention.links(shift)) for attention in maps], gold)
        for name, shift in READINGS.items()
    }


def _fits(attention: AttentionMap, example: Example) -> bool:
    """Whether the rows and columns of a map are the characters that the gold links count."""
    sources = [label for label in attention.columns if label not in MARKS]
    return (len(sources), len(attention.rows)) == (len(example.source), len(example.target))
