"""Ways to read word links from a run's attention: which layer and head, weighted by norms or not, at which step.

A reading is chosen on one half of the gold sentences and reported on the other, and the other way round, so that no
link that it is judged by took part in its choice.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from regard.analysis.alignment import READINGS, SYMMETRIES, Link, alignment_error_rate
from regard.analysis.forced import force, translator, word_axes
from regard.console import counted
from regard.data.gold import Gold
from regard.errors import RecipeError
from regard.maps import AttentionMap, AttentionMaps
from regard.metrics import Measured
from regard.models import CROSS
from regard.predict import Predictor
from regard.types import Example

CHUNK = 32  # sentences whose maps of all heads are in memory at a time
SEED = 1  # of the two halves


class Reading(NamedTuple):
    """One way to read links from the attention to the source."""

    layer: int
    head: int | None  # None: the mean of all heads
    by_norm: bool
    step: str  # a key of READINGS

    def __str__(self) -> str:
        heads = "mean" if self.head is None else f"head {self.head}"
        return f"layer {self.layer} {heads}{', by norm' if self.by_norm else ''}, {self.step}"


Links = list[set[Link]]  # of each sentence


class Row(NamedTuple):
    """The alignment error rate of one family of readings, each half with the reading chosen on the other half."""

    name: str
    error: Measured
    chosen: tuple[str, str]  # on the first half, and on the second


def readings(predictor: Predictor, examples: Sequence[Example]) -> dict[Reading, Links]:
    """The links of the given targets by every reading: each layer, head or mean, raw or by norm, at each step."""
    task = translator(predictor)
    if task.source is None:
        raise RecipeError(f"words are aligned with words: the source of this run is {task.recipe.source!r}, not text")
    links: dict[Reading, Links] = {}
    starts = range(0, len(examples), CHUNK)
    for start in counted(starts, "reading links", size=1):
        chunk = examples[start : start + CHUNK]
        for example, forced in zip(chunk, force(predictor, chunk, all_maps=True), strict=True):
            if forced.maps is None or CROSS not in forced.maps.sites:
                raise RecipeError(f"{predictor.run.path} has no attention to the source, so it aligns nothing")
            axes, count = word_axes(task, example), len(forced.tokens)
            for reading, attention in _maps(forced.maps.select(CROSS)):
                shift = READINGS[reading.step]
                rows = replace(attention, weights=attention.weights[shift : shift + count], rows=forced.tokens)
                links.setdefault(reading, []).append(set(rows.merged(*axes).links()))
    return links


def _maps(maps: AttentionMaps) -> Iterator[tuple[Reading, AttentionMap]]:
    """The maps of all readings of one output."""
    for own, by_norm in product(maps.layers, (False, True)):
        layer = own.by_norm() if by_norm else own
        heads = [None] if own.heads == 1 else [None, *range(1, own.heads + 1)]
        for head, step in product(heads, READINGS):
            yield Reading(own.layer, head, by_norm, step), layer.map(head)


def halves(count: int) -> tuple[list[int], list[int]]:
    """The sentences of two halves, dealt at random by `SEED`."""
    order = list(range(count))
    random.Random(SEED).shuffle(order)
    return sorted(order[: count // 2]), sorted(order[count // 2 :])


def error(links: Links, gold: Gold, places: Sequence[int]) -> float:
    """The alignment error rate on some of the sentences."""
    parts = ([side[place] for place in places] for side in (links, gold.sure, gold.possible))
    return alignment_error_rate(*parts).value


def best(candidates: dict[Reading, Links], gold: Gold, places: Sequence[int]) -> Reading:
    """The reading with the lowest error on these sentences; of equal ones the first."""
    return min(candidates, key=lambda reading: error(candidates[reading], gold, places))


FAMILIES: dict[str, Callable[[Reading, int], bool]] = {  # of a reading and the last layer
    "mean of the last layer": lambda reading, last: reading.layer == last and reading.head is None,
    "best layer's mean": lambda reading, last: reading.head is None,
    "best head": lambda reading, last: True,
}


def table(candidates: dict[Reading, Links], gold: Gold) -> list[Row]:
    """A row for each family of readings, raw and by norm, at each step; and one for the best of all."""
    last = max(reading.layer for reading in candidates)
    rows = []
    for (name, belongs), by_norm, step in product(FAMILIES.items(), (False, True), READINGS):
        family = {
            reading: links
            for reading, links in candidates.items()
            if belongs(reading, last) and (reading.by_norm, reading.step) == (by_norm, step)
        }
        rows.append(_row(f"{name}{', by norm' if by_norm else ''}, {step}", family, gold))
    rows.append(_row("best of all", candidates, gold))
    return rows


def _row(name: str, candidates: dict[Reading, Links], gold: Gold) -> Row:
    """The error with the best reading of each half on the other half; counts of both are summed."""
    first, second = halves(len(gold.examples))
    choices = best(candidates, gold, first), best(candidates, gold, second)
    found = _crossed(candidates[choices[0]], candidates[choices[1]], first, second)
    return Row(name, _measured(found, gold), (str(choices[0]), str(choices[1])))


def _crossed(of_first: Links, of_second: Links, first: Sequence[int], second: Sequence[int]) -> Links:
    """The links of all sentences: of the second half as chosen on the first, and the other way round."""
    found: Links = [set() for _ in (*first, *second)]
    for place in second:
        found[place] = of_first[place]
    for place in first:
        found[place] = of_second[place]
    return found


def _measured(links: Links, gold: Gold) -> Measured:
    value, signature = alignment_error_rate(links, gold.sure, gold.possible)
    return Measured(value, f"{signature}|forced|words merged|links:argmax|chosen on the other half, seed:{SEED}")


def symmetric_rows(forward: dict[Reading, Links], backward: dict[Reading, Links], gold: Gold) -> list[Row]:
    """A row for each way to join the links of two runs of opposite directions, each read in its best way.

    `backward` are the readings of the run that translates the other way, with links as it gives them: (its source word,
    its target word), which is (target word, source word) here.
    """
    turned = {
        reading: [{(source, target) for target, source in links} for links in sentences]
        for reading, sentences in backward.items()
    }
    first, second = halves(len(gold.examples))
    joined: list[dict[str, Links]] = []
    chosen = []
    for half in (first, second):
        one, other = best(forward, gold, half), best(turned, gold, half)
        pairs = list(zip(forward[one], turned[other], strict=True))
        joined.append({name: [join(*pair) for pair in pairs] for name, join in SYMMETRIES.items()})
        chosen.append(f"{one}; reverse {other}")
    rows = []
    for name in SYMMETRIES:
        found = _crossed(joined[0][name], joined[1][name], first, second)
        rows.append(Row(f"both directions, {name}", _measured(found, gold), (chosen[0], chosen[1])))
    return rows


def reversed_gold(gold: Gold) -> Gold:
    """The gold set for a run of the other direction: sources and targets, and the ends of links, are swapped."""
    examples = [replace(example, source=example.target, target=example.source) for example in gold.examples]
    sure, possible = (
        [{(target, source) for source, target in links} for links in side] for side in (gold.sure, gold.possible)
    )
    return Gold(examples, sure, possible, gold.skipped)
