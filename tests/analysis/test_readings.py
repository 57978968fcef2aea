"""Ways to read links: each equals its own map's links, choices never see what they are judged by, both directions."""

from itertools import product
from pathlib import Path

import pytest

import regard
from regard.analysis.alignment import READINGS, SYMMETRIES, alignment_error_rate, grow_diagonal
from regard.analysis.forced import word_maps
from regard.analysis.readings import Reading, halves, readings, reversed_gold, symmetric_rows, table
from regard.data.gold import Gold
from regard.errors import RecipeError
from regard.types import Example

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
EXAMPLES = [Example("ab ba", "ab ba"), Example("b a b", "ba b"), Example("a", "b"), Example("dab c", "a b c")]
SURE = [{(0, 0), (1, 1)}, {(0, 0)}, {(0, 0)}, {(0, 0), (1, 2)}]
GOLD = Gold(EXAMPLES, SURE, [{(1, 0)}, set(), set(), {(0, 1)}], 0)


@pytest.mark.parametrize("name", ["translate_bahdanau", "translate_transformer"])
def test_the_mean_of_the_last_layer_is_the_map_that_predictions_show(name: str) -> None:
    predictor = regard.load(GOLDEN / name / "finished", device="cpu")
    found = readings(predictor, EXAMPLES)
    last = max(reading.layer for reading in found)
    shown = word_maps(predictor, EXAMPLES)
    for step in READINGS:
        assert found[Reading(last, None, False, step)] == [set(one.links()) for one in shown[step]]
    assert {reading.by_norm for reading in found} == {False, True}
    assert all(len(links) == len(EXAMPLES) for links in found.values())


def test_a_run_without_attention_to_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="needs translate"):
        readings(regard.load(GOLDEN / "tag" / "finished", device="cpu"), EXAMPLES)


def test_each_half_is_read_as_was_best_on_the_other() -> None:
    first, second = halves(4)
    assert sorted(first + second) == [0, 1, 2, 3]
    right, wrong = SURE, [{(7, 7)}] * 4
    good_on_first = [right[place] if place in first else wrong[place] for place in range(4)]
    good_on_second = [right[place] if place in second else wrong[place] for place in range(4)]
    candidates = {}
    for layer, by_norm, step in product((1, 2), (False, True), READINGS):
        candidates[Reading(layer, None, by_norm, step)] = wrong
        candidates[Reading(layer, 1, by_norm, step)] = good_on_first
        candidates[Reading(layer, 2, by_norm, step)] = good_on_second
    rows = {row.name: row for row in table(candidates, GOLD)}
    assert len(rows) == 13
    assert rows["best head, output step"].error.value == 1.0  # what is best on a half is wrong on the other
    assert rows["best head, output step"].chosen == ("layer 1 head 1, output step", "layer 1 head 2, output step")
    assert rows["mean of the last layer, by norm, input step"].error.value == 1.0
    everywhere = dict.fromkeys(candidates, right)
    assert all(
        row.error.value == alignment_error_rate(right, SURE, GOLD.possible).value == 0
        for row in table(everywhere, GOLD)
    )


def test_links_of_both_directions_are_joined() -> None:
    forward, backward = {(0, 0), (1, 1), (2, 3)}, {(0, 0), (1, 1), (1, 2), (5, 5)}
    assert SYMMETRIES["intersection"](forward, backward) == {(0, 0), (1, 1)}
    assert SYMMETRIES["union"](forward, backward) == forward | backward
    assert grow_diagonal(forward, backward) == {(0, 0), (1, 1), (1, 2), (2, 3)}  # (5, 5) is no neighbour
    assert grow_diagonal({(0, 0), (1, 0)}, {(0, 0), (0, 1), (1, 0)}) == {(0, 0), (1, 0), (0, 1)}
    assert grow_diagonal(set(), {(0, 0)}) == set()
    reading = Reading(1, None, False, "output step")
    turned = [{(target, source) for source, target in links} for links in SURE]
    rows = symmetric_rows({reading: SURE}, {reading: turned}, GOLD)
    assert [row.error.value for row in rows] == [0.0, 0.0, 0.0]
    assert [row.name.partition(", ")[2] for row in rows] == list(SYMMETRIES)


def test_gold_for_the_other_direction_is_turned() -> None:
    turned = reversed_gold(GOLD)
    assert turned.examples[1] == Example("ba b", "b a b")
    assert turned.sure[3] == {(0, 0), (2, 1)}
    assert reversed_gold(turned) == GOLD
