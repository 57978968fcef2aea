"""Metrics of captions: worked out by hand, by their definitions, and equal to those of pycocoevalcap."""

import math
import random
import time
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from regard.metrics import METRICS, Outcome, companions, counter, example_scorer, rouge_l
from regard.metrics.captions import CiderD, cider_d, words
from regard.metrics.edits import common_length

CAPTIONS = ("cider_d", *companions("cider_d"))
BLEU = ("bleu_1", "bleu_2", "bleu_3", "bleu_4")

captions = st.lists(st.sampled_from(["a", "dog", "Dog", "runs", "on", "grass", ".", ","]), max_size=7).map(" ".join)
several = st.lists(captions, min_size=1, max_size=3)
corpora = st.lists(st.tuples(captions, several), min_size=1, max_size=4)
Corpus = list[tuple[str, list[str]]]


def value(name: str, corpus: Corpus) -> float:
    outputs, references = zip(*corpus, strict=True)
    return METRICS[name](outputs, references).value


# by hand


def test_words_are_in_lower_case_without_punctuation() -> None:
    assert words('A dog , "well-fed" , runs " fast " !  It \'s  -- ... a U.S. dog .') == [
        *("a", "dog", '"well-fed"', "runs", "fast", "it", "'s", "a", "u.s.", "dog"),
    ]
    assert words(". , ;") == []


def test_bleu_clips_and_sums_over_the_corpus() -> None:
    """Words: 3 of 3 and, clipped, 1 of 3. Pairs: 2 of 2 and 0 of 2. Lengths: 3 + 3, and of the closest 4 + 2."""
    corpus = [("a dog runs", ["a dog is running", "the dog runs fast"]), ("the the the", ["the cat"])]
    assert value("bleu_1", corpus) == pytest.approx(2 / 3)
    assert value("bleu_2", corpus) == pytest.approx(math.sqrt(2 / 3 * 2 / 4))


def test_bleu_has_a_penalty_for_brevity_by_the_closest_reference() -> None:
    assert value("bleu_1", [("a dog", ["a dog runs fast"])]) == pytest.approx(math.exp(1 - 4 / 2))
    assert value("bleu_1", [("a dog runs", ["a dog", "a dog runs so fast"])]) == pytest.approx(1)  # 2 is closer than 5
    assert value("bleu_1", [("a dog runs", ["a dog", "a dog runs fast"])]) == pytest.approx(1)  # of equals, the shorter
    assert value("bleu_1", [("", ["a dog"])]) == 0


def test_cider_d_of_known_captions() -> None:
    """`a` is in all pictures and counts nothing; `dog`, `cat` and the pairs of words have the same weight."""
    references = [["a dog"], ["a cat"]]
    score = CiderD(references)
    assert score("a dog", ["a dog"]) == pytest.approx(10 * (1 + 1 + 0 + 0) / 4)
    assert score("a dog", ["a cat"]) == 0
    assert score("dog dog", ["a dog"]) == pytest.approx(10 * (1 / 2) / 4)  # min(2, 1) * 1 / (2 * 1), of words alone
    assert score("dog", ["a dog"]) == pytest.approx(10 * math.exp(-1 / (2 * 6**2)) / 4)
    assert score("dog dog", ["a dog", "a cat"]) == pytest.approx(10 * (1 / 2) / 4 / 2)
    assert cider_d(["a dog", "a dog"], references).value == pytest.approx(5 / 2)
    assert cider_d(["a dog runs here now"], [["a dog runs here now"]]).value == 0  # a picture alone weighs no n-gram


def test_rouge_l_of_known_captions() -> None:
    """The precision is 2/4 with both references; the recall is 2/3 with the first and 2/2 with the second."""
    precision, recall = 2 / 4, 1
    expected = (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision)
    assert rouge_l(["a b c d"], [["a c x", "b d"]]).value == pytest.approx(expected)
    assert rouge_l(["a b c d", "a"], [["a c x", "b d"], ["x"]]).value == pytest.approx(expected / 2)


def test_the_signatures_say_how_texts_are_compared() -> None:
    references = [["a", "b"], ["c", "d"], ["e"]]
    start = "|n:3|refs:1-2|case:lc|punct:no|tok:space|"
    for name in BLEU:
        assert METRICS[name](["a", "b", "c"], references).signature == f"{name}{start}smooth:no|length:closest"
    assert cider_d(["a", "b", "c"], [*references[:2], ["e", "f"]]).signature == (
        "cider_d|n:3|refs:2|case:lc|punct:no|tok:space|ngrams:1-4|sigma:6|df:references|scale:10"
    )
    assert rouge_l(["a", "b", "c"], references).signature == f"rouge_l{start}beta:1.2|best:precision,recall"


# properties


@settings(max_examples=1)
@given(captions)
def test_a_case_that_takes_long_is_no_failure(text: str) -> None:
    """As on a busy machine; hypothesis itself would allow 0.2 s for a case."""
    time.sleep(0.25)


@given(captions, captions)
def test_the_common_length_is_that_of_the_recursive_definition(one: str, other: str) -> None:
    @cache
    def longest(left: Sequence[str], right: Sequence[str]) -> int:
        if not left or not right:
            return 0
        if left[0] == right[0]:
            return 1 + longest(left[1:], right[1:])
        return max(longest(left[1:], right), longest(left, right[1:]))

    assert common_length(one.split(), other.split()) == longest(tuple(one.split()), tuple(other.split()))


@pytest.mark.parametrize("name", CAPTIONS)
@given(corpus=corpora)
def test_neither_order_nor_case_nor_punctuation_matters(name: str, corpus: Corpus) -> None:
    expected = pytest.approx(value(name, corpus), abs=1e-12)
    assert 0 <= value(name, corpus) <= (10 if name == "cider_d" else 1) + 1e-9
    assert value(name, corpus[::-1]) == expected
    assert value(name, [(output, texts[::-1]) for output, texts in corpus]) == expected
    assert value(name, [(output, [text.upper() for text in texts]) for output, texts in corpus]) == expected
    assert value(name, [(output + " !", [text + " ." for text in texts]) for output, texts in corpus]) == expected


@pytest.mark.parametrize("name", CAPTIONS)
@given(corpus=corpora)
def test_references_that_are_all_there_twice_change_nothing(name: str, corpus: Corpus) -> None:
    expected = pytest.approx(value(name, corpus), abs=1e-12)
    assert value(name, [(output, texts * 2) for output, texts in corpus]) == expected


@pytest.mark.parametrize("name", CAPTIONS)
@given(corpus=corpora)
def test_the_highest_score_is_that_of_a_reference(name: str, corpus: Corpus) -> None:
    """With the texts of different pictures different in each word, so that each n-gram has a weight in CIDEr-D."""
    texts = [f"{text} {place}x {place}y {place}z {place}" for place, (text, _) in enumerate(corpus)]
    assume(len(texts) > 1)
    same = [(text, [text]) for text in texts]
    assert value(name, same) == pytest.approx(10 if name == "cider_d" else 1)
    if name != "cider_d":
        with_others = [(text, [*others, text]) for text, (_, others) in zip(texts, corpus, strict=True)]
        assert value(name, with_others) == pytest.approx(1)


@given(corpora)
def test_cider_d_is_the_mean_over_the_examples_also_of_several_seeds(corpus: Corpus) -> None:
    outcomes = [Outcome(str(place), tuple(texts), text, 0.0) for place, (text, texts) in enumerate(corpus)]
    expected = value("cider_d", corpus)
    for joined in (outcomes, outcomes * 3):
        values = [*map(example_scorer("bleu_4", joined), joined)]
        assert sum(values) / len(values) == pytest.approx(expected, abs=1e-12)
        assert [*map(counter("cider_d", joined), joined)] == [(one, 1) for one in values]


@pytest.mark.parametrize("name", CAPTIONS)
def test_a_missing_output_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="zip"):
        METRICS[name](["a"], [["a"], ["b"]])


# pycocoevalcap

OUTPUTS = [
    "a brown dog runs across the grass",
    "Two children play with a red ball on the beach .",
    "a man",
    "a woman in a blue coat stands in front of a shop",
]
REFERENCES = [
    ["A brown dog is running over green grass .", "The dog runs across a lawn .", "a dog runs"],
    ["Two kids are playing with a ball at the beach .", "Children play ball on the sand ."],
    ["a man climbs a steep rock", "A climber on a rock .", "a man with a rope", "someone climbs"],
    ["A woman stands in front of a shop .", "A lady in a blue coat waits outside a store ."],
]


def test_the_values_are_those_that_pycocoevalcap_computed() -> None:
    """Version 1.2 on the same tokens."""
    computed = {
        "bleu_1": 0.935483870937565,
        "bleu_2": 0.8113590233117892,
        "bleu_3": 0.6362780450992299,
        "bleu_4": 0.47642298131346866,
        "cider_d": 2.314636236385494,
        "rouge_l": 0.7110078964601373,
    }
    assert {name: METRICS[name](OUTPUTS, REFERENCES).value for name in computed} == pytest.approx(computed, abs=1e-9)


def by_pycocoevalcap(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    expected = {place: [" ".join(words(text)) for text in texts] for place, texts in enumerate(references)}
    written = {place: [" ".join(words(text))] for place, text in enumerate(outputs)}
    values = dict(zip(BLEU, Bleu(4).compute_score(expected, written, verbose=0)[0], strict=True))
    values["cider_d"] = float(Cider().compute_score(expected, written)[0])
    return values | {"rouge_l": float(Rouge().compute_score(expected, written)[0])}


@pytest.mark.parametrize("pictures", [1, 2, 7, 500])
def test_the_values_are_those_of_pycocoevalcap_on_random_captions(pictures: int) -> None:
    pytest.importorskip("pycocoevalcap")
    generator = random.Random(pictures)
    vocabulary = [*(f"word{number}" for number in range(40)), "A", "the", ".", ","]

    def changed(text: str) -> str:
        tokens = [token if generator.random() < 0.7 else generator.choice(vocabulary) for token in text.split()]
        return " ".join(tokens[: generator.randint(0, 14)])

    texts = [" ".join(generator.choices(vocabulary, k=13)) for _ in range(pictures)]
    references = [[text, *(changed(text) for _ in range(generator.randint(0, 4)))] for text in texts]
    outputs = [changed(text) for text in texts]
    computed = by_pycocoevalcap(outputs, references)
    assert set(computed) == set(CAPTIONS)
    assert {name: METRICS[name](outputs, references).value for name in computed} == pytest.approx(computed, abs=1e-9)
