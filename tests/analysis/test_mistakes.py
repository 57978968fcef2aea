"""Lists of mistakes: shortest edit paths, wrong answers worst first, and the same counts for every task."""

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from regard.analysis import mistakes
from regard.analysis.mistakes import MOST_CELLS, SHOWN, Mistake, Mistakes, Place, edits
from regard.errors import DataError
from regard.metrics import INSTEAD, MULTI_REFERENCE, Cost, Measured, Outcome, better, counter, example_scorer
from regard.predict import load
from regard.recipe import Recipe
from regard.show.text import harmless
from regard.tasks import Scored, Tag, Transduce

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
RUNS = [
    *("answer", "classify", "language_model_lines", "language_model_window", "masked_lm", "tag"),
    *("translate_luong", "translate_transformer"),  # characters, sentencepiece
]
EXAMPLES = 60

texts = st.text("abc", max_size=7)


# edits


def distance(one: str, other: str) -> int:
    """The Levenshtein distance by its recursive definition."""
    if not one or not other:
        return len(one) + len(other)
    if one[0] == other[0]:
        return distance(one[1:], other[1:])
    return 1 + min(distance(one[1:], other), distance(one, other[1:]), distance(one[1:], other[1:]))


@given(texts, texts)
def test_edits_are_a_shortest_path_to_the_answer(expected: str, answer: str) -> None:
    path = edits(expected, answer)
    assert len(path) == distance(expected, answer)
    rebuilt, shift = list(expected), 0
    for mistake, place in path:
        if mistake.name == "insertion":
            rebuilt.insert(place, mistake.answer)
            shift += 1
            continue
        assert expected[place] == mistake.expected
        if mistake.name == "deletion":
            del rebuilt[place + shift]
            shift -= 1
        else:
            rebuilt[place + shift] = mistake.answer
    assert "".join(rebuilt) == answer


def test_edits_of_known_texts() -> None:
    assert edits("sitting", "kitten") == [(Mistake("s", "k"), 0), (Mistake("i", "e"), 4), (Mistake("g", None), 6)]
    assert edits(["the", "cat"], ["see", "the", "cat"]) == [(Mistake(None, "see"), 0)]
    assert edits("same", "same") == []


def test_edits_of_very_long_texts_are_not_searched() -> None:
    side = int(MOST_CELLS**0.5) + 1
    assert edits("a" * side, "b" * side) == []
    assert edits("a" * side + "b" + "c" * side, "a" * side + "d" + "c" * side) == [(Mistake("b", "d"), side)]


@given(st.text("abc", max_size=40), st.text("abcd", max_size=40))
def test_of_several_shortest_paths_a_substitution_is_preferred_from_the_end(expected: str, answer: str) -> None:
    """The path of the plain table of distances: the bits of the fast table must choose the same one."""
    table = [[row + column for column in range(len(expected) + 1)] for row in range(len(answer) + 1)]
    for row, column in itertools.product(range(1, len(answer) + 1), range(1, len(expected) + 1)):
        substituted = table[row - 1][column - 1] + (answer[row - 1] != expected[column - 1])
        table[row][column] = min(substituted, table[row - 1][column] + 1, table[row][column - 1] + 1)
    row, column, path = len(answer), len(expected), []
    while row or column:
        if (
            row
            and column
            and table[row][column] == table[row - 1][column - 1] + (answer[row - 1] != expected[column - 1])
        ):
            row, column = row - 1, column - 1
            path += [(Mistake(expected[column], answer[row]), column)] if answer[row] != expected[column] else []
        elif column and table[row][column] == table[row][column - 1] + 1:
            column -= 1
            path.append((Mistake(expected[column], None), column))
        else:
            row -= 1
            path.append((Mistake(None, answer[row]), row))
    first = next((place for place, pair in enumerate(zip(expected, answer, strict=False)) if pair[0] != pair[1]), None)
    if first == 0 and expected[-1:] != answer[-1:]:  # otherwise equal ends are cut off before the search
        assert edits(expected, answer) == path[::-1]
    assert len(edits(expected, answer)) == len(path)


@pytest.mark.parametrize("length", [10, 1000, 9000, 100_000])
def test_the_mistakes_of_a_file_of_megabytes_are_found_in_seconds(length: int) -> None:
    generator = random.Random(length)
    letters = [chr(0x4E00 + number) for number in range(5000)]
    pairs = [["".join(generator.choices(letters, k=length)) for _ in range(2)] for _ in range(1_000_000 // length)]
    outcomes = [Outcome("", (expected,), answer, -1.0) for expected, answer in pairs]
    start = time.process_time()
    found = mistakes.find(task(), scored("exact_match", *outcomes))
    lines = found.table(200).splitlines()
    assert time.process_time() - start < 10
    assert 0 < found.uncounted == found.to_dict()["uncounted"]
    assert f"(without {found.uncounted:,} answers, too long to compare)" in lines[0]
    assert len(found.wrong) == len(outcomes)
    counted = len(outcomes) - found.uncounted
    assert sum(kind.times for kind in found.kinds) >= 0.9 * length * counted
    assert (counted > 0) == (length < 100_000)


@given(texts, st.text("ab語\u202e", min_size=1, max_size=9), texts, st.integers(8, 40))
def test_an_example_fits_its_room_and_shows_the_mistake(before: str, marked: str, after: str, cells: int) -> None:
    shown = Place(before * 30, marked, after * 30).fit(cells)
    assert cell_len(shown) <= cells
    assert "\u202e" not in shown
    assert "[" + marked[:1].replace("\u202e", "\\") in shown


# the list


def task(kind: type[Any] = Transduce, **changes: Any) -> Any:
    """As much of a task as lists of mistakes need."""
    recipe = Recipe(**changes)
    return SimpleNamespace(recipe=recipe, mistakes=kind.mistakes, uses=kind.uses)


def scored(metric: str, *outcomes: Outcome) -> Scored:
    return Scored(metric, Measured(0.0, ""), {}, outcomes=outcomes)


def listed(metric: str, *answers: tuple[str, str, float]) -> Mistakes:
    """The mistakes of a task that writes characters; answers are (expected, answer, score)."""
    outcomes = [Outcome(f"to {expected}", (expected,), answer, score) for expected, answer, score in answers]
    return mistakes.find(task(), scored(metric, *outcomes))


def test_only_wrong_answers_are_listed_worst_first() -> None:
    answers = [("abcd", "abcd", -0.1), ("abcd", "abce", -0.5), ("abcd", "x", -0.2), ("abcd", "abcf", -0.3)]
    by_rate = listed("character_errors", *answers)
    assert [one.outcome.answer for one in by_rate.wrong] == ["x", "abcf", "abce"]  # of equals, the surest first
    assert [one.value for one in by_rate.wrong] == [1.0, 0.25, 0.25]
    assert [one.outcome.answer for one in listed("exact_match", *answers).wrong] == ["x", "abcf", "abce"]
    assert next(one.outcome.answer for one in listed("chrf", *answers).wrong) == "x"
    assert list(by_rate.rows())[:2] == [
        ("source", "expected", "answer", "score", "character_errors"),
        ("to abcd", "abcd", "x", "-0.2000", "1.0000"),
    ]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r1", "＝1", "'=1", "x;=1"])
def test_texts_that_a_spreadsheet_would_run_have_an_apostrophe_as_in_the_csv_of_a_map(text: str) -> None:
    outcome = Outcome(text, (text, "b"), f"{text}!", -1.5)
    _, row = mistakes.find(task(), scored("exact_match", outcome)).rows()
    assert row == (harmless(text), f"{harmless(text)} ||| b", harmless(f"{text}!"), "-1.5000", "0.0000")
    assert all("'" in field for field in row[:3])


def test_several_references_are_listed_and_the_closest_explains_the_mistake() -> None:
    outcome = Outcome("read", ("R IY D", "R EH D"), "R EH T", -1.0)
    right = Outcome("live", ("L IH V", "L AY V"), "L AY V", -1.0)
    words = Recipe().tokens.__class__(target="word")
    found = mistakes.find(task(tokens=words), scored("phoneme_errors", outcome, right))
    assert [kind.mistake for kind in found.kinds] == [Mistake("D", "T")]
    assert list(found.rows())[1][1] == "R IY D ||| R EH D"
    assert found.wrong[0].value == 1 / 3
    assert (found.answers, len(found.wrong)) == (2, 1)


@pytest.mark.parametrize("metric", ["bleu_1", "bleu_4", "cider_d"])
def test_captions_are_sorted_by_their_own_cider_d(metric: str) -> None:
    """`a` is in all pictures, so the answer that shares only `a` is the worst, although the other is less sure."""
    cat = Outcome("1.jpg", ("a black cat sleeps", "a cat"), "a dog", -0.1)
    bird = Outcome("2.jpg", ("a bird sings loudly", "a singing bird"), "a bird sings", -9.0)
    right = Outcome("3.jpg", ("a dog", "a brown dog"), "a dog", -1.0)
    found = mistakes.find(task(), scored(metric, bird, right, cat))
    assert found.metric == "cider_d"
    assert [one.outcome.source for one in found.wrong] == ["1.jpg", "2.jpg"]
    assert found.wrong[0].value == 0 < found.wrong[1].value


def test_kinds_are_counted_most_frequent_first_with_the_shortest_example() -> None:
    found = listed("exact_match", ("1987-07", "1981-07", -1), ("7", "1", -1), ("70", "10", -1), ("5 ", "5", -1))
    assert [(kind.mistake, kind.times) for kind in found.kinds] == [(Mistake("7", "1"), 3), (Mistake(" ", None), 1)]
    assert found.kinds[0].outcome.references == ("7",)
    assert found.table(60).splitlines() == [
        "4 of 4 answers are wrong; the most frequent of 4 edits of",
        "characters:",
        "times  mistake    example",
        "    3  7 -> 1     [7]",
        "    1  ␣ missing  5[ ]",
    ]
    added = listed("exact_match", ("ab", "abx", -1))
    assert added.table(60).splitlines()[-1] == "    1  x added  ab[x]"


def test_the_table_has_ten_kinds_in_the_width_of_the_terminal() -> None:
    letters = "abcdefghijklmn"
    found = listed("exact_match", *((f"{'long ' * 20}{letter} and more", "", -1.0) for letter in letters))
    for width in (40, 60, 120):
        lines = found.table(width).splitlines()
        assert max(map(cell_len, lines)) <= width
        assert len([line for line in lines if "missing" in line]) == SHOWN
    assert found.to_dict()["wrong"] == 14
    assert len(found.to_dict()["mistakes"]) == SHOWN


def test_all_right_is_said() -> None:
    assert listed("exact_match", ("a", "a", 0.0)).table() == "all 1 answers are right\n"


def test_tags_are_confusions_with_the_word_marked() -> None:
    outcome = Outcome("Time flies fast", ("NOUN VERB ADV",), "NOUN NOUN ADV", -1.0)
    found = mistakes.find(task(Tag), scored("entity_f1", outcome))
    assert found.metric == "tag_accuracy"
    assert found.table().splitlines()[-1] == "    1  VERB -> NOUN  Time [flies] fast"
    assert found.to_dict()["mistakes"][0] == {
        "kind": "substitution",
        "expected": "VERB",
        "answer": "NOUN",
        "times": 1,
        "example": {"source": "Time flies fast", "expected": ["NOUN VERB ADV"], "answer": "NOUN NOUN ADV"},
    }


def test_a_task_without_outcomes_is_refused() -> None:
    with pytest.raises(DataError, match=r"the task 'translate' reports no single answers"):
        mistakes.find(task(), scored("exact_match"))


def test_perplexity_of_one_text() -> None:
    outcome = Outcome("", ("ab",), "", -2.0, Cost(1, 3, 2, 0, 6.0))
    assert example_scorer("perplexity", [outcome])(outcome) == pytest.approx(7.389056)
    assert example_scorer("bits_per_character", [outcome])(outcome) == pytest.approx(6.0 / 0.693147 / 2)


# every task


def judged(name: str) -> tuple[Any, Scored, Sequence[Any]]:
    predictor = load(GOLDEN / name / "finished", device="cpu")
    recipe = predictor.task.recipe
    examples = predictor.task.examples(recipe).test[:EXAMPLES]
    return predictor.task, predictor.score(examples), examples


@pytest.mark.parametrize("name", RUNS)
def test_the_outcomes_of_every_task_are_its_score(name: str) -> None:
    task, result, examples = judged(name)
    if "window" not in name:
        assert len(result.outcomes) == (len(examples) if result.metric not in MULTI_REFERENCE else len(result.asked))
    pairs = [*map(counter(result.metric, result.outcomes), result.outcomes)]
    total = sum(pair[0] for pair in pairs) / sum(pair[1] for pair in pairs)
    value = result.measured.value
    assert total == pytest.approx(math.log(value) if result.metric == "perplexity" else value, rel=1e-5)
    found = mistakes.find(task, result)
    assert found.metric == INSTEAD.get(result.metric, result.metric)
    if task.mistakes == "texts":
        scores = [one.outcome.score for one in found.wrong]
        assert scores == sorted(scores)
        assert len(scores) == len(result.outcomes)
        assert all(one.outcome.references[0] and one.outcome.cost for one in found.wrong)
        return
    sign = 1 if better(found.metric) == "higher is better" else -1
    assert all(sign * one.value <= sign * other.value for one, other in itertools.pairwise(found.wrong))
    assert all(one.outcome.answer not in one.outcome.references for one in found.wrong)
    assert found.wrong
    assert sum(kind.times for kind in found.kinds) >= len(found.wrong)
    times = [kind.times for kind in found.kinds]
    assert times == sorted(times, reverse=True)


def test_the_blanks_of_a_masked_text_are_those_that_were_predicted() -> None:
    _, result, examples = judged("masked_lm")
    for outcome, example in zip(result.outcomes, examples, strict=True):
        words, masked = example.source.split(), outcome.source.split()
        hidden = [word for word, shown in zip(words, masked, strict=True) if shown == "___"]
        assert outcome.references == (" ".join(hidden).lower() if example.source.islower() else " ".join(hidden),)
        assert len(outcome.answer.split()) == len(hidden)


def test_classes_are_counted_as_in_a_confusion_matrix() -> None:
    task, result, _ = judged("classify")
    pairs = Counter((outcome.references[0], outcome.answer) for outcome in result.outcomes)
    wrong = {pair: times for pair, times in pairs.items() if pair[0] != pair[1]}
    assert {tuple(kind.mistake): kind.times for kind in mistakes.find(task, result).kinds} == wrong
