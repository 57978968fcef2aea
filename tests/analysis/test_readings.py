"""Ways to read links: each equals its own map's links, choices never see what they are judged by, both directions."""

import json
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch

import regard
from commands import shared_commands
from regard.analysis.alignment import READINGS, SYMMETRIES, alignment_error_rate, grow_diagonal
from regard.analysis.forced import word_maps
from regard.analysis.readings import (
    Reading,
    choose,
    halves,
    readings,
    reversed_gold,
    silver,
    store,
    stored,
    symmetric_rows,
    table,
)
from regard.data.gold import Gold, gold, pairs
from regard.errors import CorruptError, DataError, RecipeError
from regard.show.text import pharaoh
from regard.storage import MODEL, Run
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
    with pytest.raises(RecipeError, match="only runs of translate"):
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


def test_the_best_reading_of_all_sentences_is_chosen_and_its_error_is_that_of_the_halves() -> None:
    right, wrong = SURE, [{(7, 7)}] * 4
    first, _ = halves(4)
    some = [right[place] if place in first else wrong[place] for place in range(4)]
    candidates = {Reading(1, head, False, "output step"): links for head, links in ((1, wrong), (2, some))}
    best = Reading(2, None, True, "input step")
    chosen = choose({best: right} | candidates, GOLD)
    assert (chosen.reading, chosen.error.value) == (best, 0.0)
    chosen = choose(candidates, GOLD)
    assert chosen.reading == Reading(1, 2, False, "output step")
    assert chosen.error.value == 1.0  # nothing is right on the half that did not choose


@pytest.mark.parametrize("name", ["translate_bahdanau", "translate_transformer"])
def test_the_map_of_a_reading_has_the_links_that_were_judged(name: str) -> None:
    predictor = regard.load(GOLDEN / name / "finished", device="cpu")
    words = [Example("a", "b"), Example("b", "a")]  # of one character, so that both ways to find words agree
    outputs = regard.force(predictor, words, all_maps=True)
    for reading, links in readings(predictor, words).items():
        for own, forced in zip(links, outputs, strict=True):
            assert set(reading.map(forced.maps).words().links()) == own
    text = "abcab"
    [found] = predictor.predict([text], all_maps=True)
    [forced] = regard.force(predictor, [(text, found.text)], all_maps=True)
    for step, reading in ((step, Reading(1, 1, False, step)) for step in READINGS):
        searched, given = reading.map(found.maps), reading.map(forced.maps)
        shift = READINGS[step]
        assert searched.rows == given.rows == found.tokens
        assert torch.equal(given.weights, forced.maps.pick(layer=1, head=1).weights[shift : shift + len(found.tokens)])
        assert torch.allclose(searched.weights[:-1], given.weights[:-1], atol=1e-5)
        assert "not measured" in searched.trust


def test_silver_links_are_those_on_which_two_runs_agree() -> None:
    noise = [{(7, 7)}, set(), {(5, 0)}, set()]
    forward = {Reading(1, None, False, "output step"): noise, Reading(2, None, True, "input step"): SURE}
    forward[Reading(2, 1, True, "input step")] = [{(3, 3)}] * 4  # heads are not compared
    turned = {reading: [{(row, column) for column, row in own} for own in links] for reading, links in forward.items()}
    turned[Reading(1, None, False, "output step")] = [{(9, 9)}] * 4
    made = silver(forward, turned, EXAMPLES)
    assert made.examples == EXAMPLES
    assert made.sure == SURE
    assert made.possible == [set()] * 4
    assert made.silver == "grow-diag of layer 2 mean, by norm, input step and reverse layer 2 mean, by norm, input step"
    chosen = choose(forward, made)
    assert chosen.reading == Reading(2, None, True, "input step")
    assert f"|silver:{made.silver}|" in chosen.error.signature
    with pytest.raises(DataError, match="agree on no link"):
        silver(
            {Reading(1, None, False, "output step"): [{(0, 0)}]},
            {Reading(1, None, False, "output step"): [{(1, 1)}]},
            EXAMPLES[:1],
        )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "translate_transformer" / "finished", tmp_path / "run"))


def test_a_stored_reading_counts_for_its_weights_alone(copied: Path) -> None:
    run, reading = Run.open(copied), Reading(2, None, True, "input step")
    with pytest.raises(RecipeError, match=r"no layer and head were chosen .* --heads --store$"):
        stored(run)
    store(run, choose({reading: SURE}, GOLD))
    assert stored(Run.open(copied)) == reading
    assert not (copied / ".lock").exists()
    assert regard.load(copied, device="cpu").predict(["abc"])[0].text  # the run is as before
    run.replace(MODEL, run.read(MODEL) + b" ")
    with pytest.raises(RecipeError, match="no layer and head were chosen"):
        stored(run)


@pytest.mark.parametrize(
    "damage", [{"layer": 0}, {"layer": True}, {"head": "1"}, {"head": 0}, {"by_norm": 1}, {"step": "a"}, {"step": []}]
)
def test_a_damaged_reading_is_refused(copied: Path, damage: dict[str, object]) -> None:
    run = Run.open(copied)
    run.store_reading(Reading(1, 1, False, "output step")._asdict() | damage)
    with pytest.raises(CorruptError, match=r"the reading in .* is damaged"):
        stored(run)


def test_a_reading_that_names_no_weights_is_refused(copied: Path) -> None:
    run = Run.open(copied)
    run.store_reading(Reading(1, 1, False, "output step")._asdict() | {"weights": None})
    with pytest.raises(CorruptError, match=r"weights; run regard align --heads --store again$"):
        stored(run)


def test_pairs_with_tabs_may_have_links_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("ab ba\tab  ba\nb a\tba b\n", encoding="utf-8")
    (tmp_path / "pairs.bars").write_text("ab ba ||| ab ba\nb a ||| ba b\n", encoding="utf-8")
    (tmp_path / "links.pharaoh").write_text("0-0 1-1\n0-0\n", encoding="utf-8")
    given = [gold((str(tmp_path / name), str(tmp_path / "links.pharaoh"))) for name in ("pairs.tsv", "pairs.bars")]
    assert given[0].sure == given[1].sure == [{(0, 0), (1, 1)}, {(0, 0)}]
    alone = [pairs((str(tmp_path / name),)) for name in ("pairs.tsv", "pairs.bars")]
    assert [(one.source, one.target) for one in alone[0].examples] == [("ab ba", "ab ba"), ("b a", "ba b")]
    assert [one.source for one in alone[1].examples] == ["ab ba", "b a"]
    assert alone[0].sure == [set(), set()]
    (tmp_path / "source").write_text("ab\n", encoding="utf-8")
    for names, sentence in (
        (("source",), "source:1: not in the expected format; give one file of"),
        (("source", "links.pharaoh"), "must be parallel"),
        (("source",) * 3, "3 files given"),
    ):
        with pytest.raises(DataError, match=sentence):
            pairs(tuple(str(tmp_path / name) for name in names))


def test_the_chosen_head_is_kept_and_looked_at(copied: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("ab ba\tab ba\nb a\tba b\n", encoding="utf-8")
    (tmp_path / "gold.tsv").write_text("ab ba\tab ba\t0-0 1-1\nb a\tba b\t0-0 1p1\n", encoding="utf-8")
    command = shared_commands()
    for arguments, sentence in (
        (("align", copied, "gold.tsv", "--store"), "--store is for the table of --heads; add --heads"),
        (("align", copied, "pairs.tsv", "--heads", "--silver"), "add --reverse with a run of the other way"),
        (("look", copied, "ab", "--head", "best"), "--heads --store"),
        (("look", copied, "ab", "--head", "best", "--layer", "1"), "leave out --site, --layer, --all and --beside"),
        (("look", copied, "ab", "--head", "worst"), "--head 'worst': give the number of a head"),
        (("look", copied, "ab", "--head", "0"), "--head '0': give the number"),
    ):
        refused = command(*arguments, folder=tmp_path)
        assert refused.code == 2
        assert sentence in refused.error
    given = ("--heads", "--store", "--json", "--quiet")
    made = command("align", copied, "pairs.tsv", "--silver", "--reverse", copied, *given, folder=tmp_path)
    made.assert_behaved()
    content = json.loads(made.out)
    assert "|silver:grow-diag of layer" in content["signature"]
    assert not any(row["name"].startswith("both") for row in content["readings"])
    assert stored(Run.open(copied))._asdict() == content["best"]
    command("align", copied, "gold.tsv", *given, folder=tmp_path).assert_behaved()
    reading = stored(Run.open(copied))
    plain = command("look", copied, "ab", "--target", "ba", "--head", "best", "-o", "a.pharaoh", folder=tmp_path)
    assert plain.code == 0, plain.error
    assert str(reading) in plain.lines
    predictor = regard.load(copied, device="cpu")
    [forced] = regard.force(predictor, [("ab", "ba")], all_maps=True)
    assert (tmp_path / "a.pharaoh").read_bytes() == pharaoh(reading.map(forced.maps))
    (tmp_path / "one.tsv").write_text("ab\tba\n", encoding="utf-8")
    command("force", copied, "one.tsv", "--head", "best", "-o", "b.pharaoh", "--quiet", folder=tmp_path)
    assert (tmp_path / "b.pharaoh").read_bytes() == (tmp_path / "a.pharaoh").read_bytes()
    numbered = command("look", copied, "ab", "--head", "1", "--json", folder=tmp_path)
    assert json.loads(numbered.out)["head"] == 1


def test_the_command_prints_a_row_for_each_reading(tmp_path: Path) -> None:
    run = GOLDEN / "translate_transformer" / "finished"
    (tmp_path / "gold.tsv").write_text("ab ba\tab ba\t0-0 1-1\nb a\tba b\t0-0 1p1\n", encoding="utf-8")
    given = ("align", run, "gold.tsv", "--heads", "--reverse", run)
    plain, as_json = (shared_commands()(*given, *more, "--quiet", folder=tmp_path) for more in ((), ("--json",)))
    plain.assert_behaved()
    rows = json.loads(as_json.out)["readings"]
    assert len(rows) == 13 + len(SYMMETRIES)
    names = [row["name"] for row in rows]
    assert [line.split("  ")[0] for line in plain.lines[:-1]] == [*names, "chosen on all sentences"]
    assert all(0 <= row["alignment_error_rate"] <= 1 for row in rows)
    alone = shared_commands()("align", run, "gold.tsv", "--reverse", run, folder=tmp_path)
    assert alone.code == 2
    assert "add --heads" in alone.error
