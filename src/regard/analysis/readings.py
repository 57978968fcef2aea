"""Ways to read word links from a run's attention: which layer and head, weighted by norms or not, at which step.

A reading is chosen on one half of the gold sentences and reported on the other, and the other way round, so that no
link that it is judged by took part in its choice. Silver links are made without people: from two runs that agree.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from regard.analysis.alignment import READINGS, SYMMETRIES, Link, alignment_error_rate, grow_diagonal
from regard.analysis.forced import force, translator, word_axes
from regard.console import counted
from regard.data.gold import Gold
from regard.errors import CorruptError, DataError, RecipeError
from regard.maps import AttentionMap, AttentionMaps
from regard.metrics import Measured
from regard.models import CROSS
from regard.predict import Predictor
from regard.storage import Run
from regard.types import END, SPECIALS, Example

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

    def map(self, maps: AttentionMaps) -> AttentionMap:
        """The map of one output by this reading, whose `links` are those that were judged: a row for each token."""
        [layer] = maps.select(CROSS, self.layer).layers
        read = layer.by_norm() if self.by_norm else layer
        return replace(self.at_step(read.map(self.head)), trust=layer.other_trust)

    def at_step(self, attention: AttentionMap) -> AttentionMap:
        """The map whose row of a token is that of this reading's step, without the row of `</s>`.

        Without a row of `</s>`, as after a search, the last token has no later row, and keeps its own.
        """
        last, shift = len(attention.rows) - 1, READINGS[self.step]
        tokens = attention.rows[:-1] if attention.rows[-1:] == (SPECIALS[END],) else attention.rows
        places = [min(row + shift, last) for row in range(len(tokens))]
        return replace(attention, weights=attention.weights[places], rows=tokens)


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
            axes = word_axes(task, example)
            for reading, attention in _maps(forced.maps.select(CROSS)):
                links.setdefault(reading, []).append(set(reading.at_step(attention).merged(*axes).links()))
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


class Chosen(NamedTuple):
    """The best reading of all sentences, and what it is worth: the error of readings chosen on the other half."""

    reading: Reading
    error: Measured


def choose(candidates: dict[Reading, Links], gold: Gold) -> Chosen:
    """The best of all readings, on gold or silver links."""
    everywhere = range(len(gold.examples))
    return Chosen(best(candidates, gold, everywhere), _row("best of all", candidates, gold).error)


def store(run: Run, chosen: Chosen) -> None:
    """Keep the chosen reading in the run, for `--head best`; it counts as long as the weights are the same."""
    measured = {"alignment_error_rate": chosen.error.value, "signature": chosen.error.signature}
    run.store_reading(chosen.reading._asdict() | measured)


def stored(run: Run) -> Reading:
    """The reading that is kept in the run; RecipeError if there is none for its present weights."""
    content = run.reading()
    if content is None:
        raise RecipeError(
            f"no layer and head were chosen for the weights of {run.path}; choose them on gold links: regard align "
            f"{run.path} GOLD --heads --store"
        )
    layer, head, by_norm, step = (content.get(key) for key in Reading._fields)
    numbers = all(type(number) is int and number >= 1 for number in (layer, 1 if head is None else head))
    if not numbers or type(by_norm) is not bool or step not in list(READINGS):
        raise CorruptError(f"the reading in {run.path} is damaged; run regard align --heads --store again")
    return Reading(layer, head, by_norm, step)  # type: ignore[arg-type]


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
    signature += f"|silver:{gold.silver}" if gold.silver else ""
    return Measured(value, f"{signature}|forced|words merged|links:argmax|chosen on the other half, seed:{SEED}")


def symmetric_rows(forward: dict[Reading, Links], backward: dict[Reading, Links], gold: Gold) -> list[Row]:
    """A row for each way to join the links of two runs of opposite directions, each read in its best way.

    `backward` are the readings of the run that translates the other way, with links as it gives them: (its source word,
    its target word), which is (target word, source word) here.
    """
    turned = _turned(backward)
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


def _turned(backward: dict[Reading, Links]) -> dict[Reading, Links]:
    """The links of a run of the other direction, as (source word, target word) of this one."""
    return {
        reading: [{(source, target) for target, source in links} for links in sentences]
        for reading, sentences in backward.items()
    }


def silver(forward: dict[Reading, Links], backward: dict[Reading, Links], examples: Sequence[Example]) -> Gold:
    """Links made without people: those of two runs of opposite directions, joined by grow-diag.

    Of both runs, the means of layers are taken that agree most with each other, as Chen et al. 2020 choose layers.
    `backward` is as in `symmetric_rows`.
    """
    turned = _turned(backward)
    means = [[reading for reading in side if reading.head is None] for side in (forward, turned)]
    one, other = min(product(*means), key=lambda pair: alignment_error_rate(forward[pair[0]], turned[pair[1]]).value)
    links = [grow_diagonal(*both) for both in zip(forward[one], turned[other], strict=True)]
    if not any(links):
        raise DataError("the two runs agree on no link, so that they make no silver links; give longer pairs or gold")
    return Gold([*examples], links, [set() for _ in links], 0, f"grow-diag of {one} and reverse {other}")


def reversed_gold(gold: Gold) -> Gold:
    """The gold set for a run of the other direction: sources and targets, and the ends of links, are swapped."""
    examples = [replace(example, source=example.target, target=example.source) for example in gold.examples]
    sure, possible = (
        [{(target, source) for source, target in links} for links in side] for side in (gold.sure, gold.possible)
    )
    return Gold(examples, sure, possible, gold.skipped, gold.silver)
