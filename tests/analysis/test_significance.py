"""Approximate randomisation: p-values that are known, or that counting all swaps gives."""

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from regard.analysis import significance
from regard.analysis.significance import TRIALS, count_trials, p_value
from regard.errors import DataError
from regard.metrics import COUNTS, METRICS, MULTI_REFERENCE, Cost, Outcome


def outcomes(answers: Sequence[str], references: Sequence[str]) -> list[Outcome]:
    pairs = enumerate(zip(answers, references, strict=True))
    return [
        Outcome(str(place), (right,), answer, 0.0, Cost(1, 3, 2, 0, len(answer))) for place, (answer, right) in pairs
    ]


RIGHT = [f"the right answer is {number}" for number in range(40)]
WRONG = ["wrong"] * 40


OF_CORPORA = ["f1", "cider_d", "bleu_1", "bleu_2", "bleu_3", "bleu_4"]


@pytest.mark.parametrize("metric", [*COUNTS, *OF_CORPORA, "perplexity", "bits_per_character", "bleu", "chrf"])
def test_equal_answers_give_one_and_better_ones_throughout_the_smallest(metric: str) -> None:
    right, wrong = outcomes(RIGHT, RIGHT), outcomes(WRONG, RIGHT)
    if metric == "entity_f1":
        right, wrong = (outcomes(tags, ["B-X O"] * 40) for tags in (["B-X O"] * 40, ["O O"] * 40))
    assert p_value(metric, right, right) == p_value(metric, wrong, wrong) == 1.0
    assert p_value(metric, right, wrong, trials=199) == pytest.approx(1 / 200)


def test_a_hand_made_case() -> None:
    """One run is right in three more examples: of the eight ways to swap these, two give as large a difference."""
    first, second = outcomes(RIGHT, RIGHT), outcomes([*WRONG[:3], *RIGHT[3:]], RIGHT)
    p = p_value("exact_match", first, second)
    assert p == pytest.approx(2 / 8, abs=0.015)  # 3.5 standard deviations of 10,000 trials
    assert p == p_value("exact_match", second, first) == p_value("exact_match", first, second)
    assert (p * (TRIALS + 1) - 1) == pytest.approx(round(p * (TRIALS + 1) - 1))


@pytest.mark.parametrize("metric", [*COUNTS, *OF_CORPORA])
def test_the_p_value_is_that_of_all_swaps(metric: str) -> None:
    generator = random.Random(metric)
    tags, size = ["O", "B-X", "I-X", "B-Y"], 4
    if metric.startswith("bleu_"):  # few tags in longer lines, so that some n-grams are correct
        tags, size = tags[:2], 7
    if metric in ("accuracy", "f1"):
        lines = [[generator.choice("abc") for _ in range(7)] for _ in range(3)]
    else:
        lines = [[" ".join(generator.choices(tags, k=size)) for _ in range(7)] for _ in range(3)]
    references, *systems = lines
    right = [[text] for text in references] if metric in MULTI_REFERENCE else references
    extra = ("",) if metric == "masked_accuracy" else ()

    def score(texts: Sequence[str]) -> float:
        if metric == "masked_accuracy":  # its outputs are single tokens
            return METRICS[metric](" ".join(texts).split(), " ".join(references).split(), *extra).value
        return METRICS[metric](texts, right).value

    real, larger = abs(score(systems[0]) - score(systems[1])), 0
    for swaps in itertools.product((0, 1), repeat=7):
        mixed = [[systems[swap ^ side][place] for place, swap in enumerate(swaps)] for side in (0, 1)]
        larger += abs(score(mixed[0]) - score(mixed[1])) >= real - 1e-9
    p = p_value(metric, *(outcomes(texts, references) for texts in systems))
    assert p == pytest.approx(larger / 2**7, abs=0.02)


def test_captions_without_a_correct_n_gram_do_not_differ() -> None:
    """No pair of words is correct, so both BLEU-2 are 0; pycocoevalcap gives both tiny values, which differ."""
    references = [f"the {number} dogs" for number in range(40)]
    first, second = outcomes(["the"] * 40, references), outcomes(["dogs the the"] * 40, references)
    assert p_value("bleu_1", first, second, trials=199) == pytest.approx(1 / 200)
    assert p_value("bleu_2", first, second, trials=199) == 1


def test_all_references_of_a_caption_are_used_in_its_test() -> None:
    """Each answer equals the second reference; with the first alone, both runs would be as wrong."""
    references = [(f"other {number}", f"right {number} of all forty") for number in range(40)]
    first = [Outcome(str(place), texts, texts[1], 0.0) for place, texts in enumerate(references)]
    second = [outcome._replace(answer="wrong answers of this run") for outcome in first]
    for metric in ("bleu_4", "cider_d", "rouge_l"):
        assert p_value(metric, first, second, trials=199) == pytest.approx(1 / 200)


def test_bleu_is_tested_by_sacrebleu() -> None:
    generator = random.Random(5)
    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree"]
    references = [" ".join(generator.choices(words, k=9)) for _ in range(30)]

    def changed(share: float) -> list[str]:
        return [
            " ".join(generator.choice(words) if generator.random() < share else word for word in text.split())
            for text in references
        ]

    one, other = changed(0.2), changed(0.3)
    systems = [("one", one), ("other", other)]
    _, results = PairedTest(systems, {"bleu": BLEU()}, [references], "ar", 300)()
    mine = p_value("bleu", outcomes(one, references), outcomes(other, references), trials=300)
    assert mine == results["BLEU"][1].p_value
    assert 1 / 301 < mine < 1


def test_sacrebleu_makes_fewer_trials_with_many_examples() -> None:
    numbers = [count_trials("bleu", examples) for examples in (1, 2000, 4000, 1_000_000)]
    assert numbers == [10_000, 10_000, 5000, 1000]
    assert count_trials("exact_match", 1_000_000) == 10_000


def test_many_examples_are_tested_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = outcomes(RIGHT, RIGHT), outcomes([*WRONG[:20], *RIGHT[20:39], "no"], RIGHT)
    whole = p_value("character_errors", first, second, trials=100)
    monkeypatch.setattr(significance, "CELLS", 21 * 7)
    assert p_value("character_errors", first, second, trials=100) == whole


def test_other_examples_are_refused() -> None:
    with pytest.raises(DataError, match="only outputs for the same examples can be tested, not 40 and 39"):
        p_value("exact_match", outcomes(RIGHT, RIGHT), outcomes(RIGHT[1:], RIGHT[1:]))


def test_a_label_that_only_one_run_writes_counts_for_that_run_alone() -> None:
    references, answers = ["a", "b", "a", "b"], ["a", "b", "c", "b"]
    statistics = significance._statistics("f1", outcomes(answers, references), ["a", "b", "c", "d"])
    assert np.isclose(significance._value(statistics.sum(0)), METRICS["f1"](answers, references).value)
