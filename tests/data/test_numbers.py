"""Number words are those of num2words, no number is in two splits, and links connect words of the same value."""

import random
import re
import sys
from collections import Counter
from itertools import pairwise

import pytest
from num2words import num2words

from regard.data.corpora import numbers
from regard.data.corpora.core import Splits
from regard.data.corpora.numbers import LONGEST, _lexicon, spell
from regard.errors import MissingExtraError, install_command
from regard.types import Example

UNITS = {
    "one": "eins",
    "two": "zwei",
    "three": "drei",
    "four": "vier",
    "five": "fünf",
    "six": "sechs",
    "seven": "sieben",
    "eight": "acht",
    "nine": "neun",
}
TENS = {
    "twenty": "zwanzig",
    "thirty": "dreißig",
    "forty": "vierzig",
    "fifty": "fünfzig",
    "sixty": "sechzig",
    "seventy": "siebzig",
    "eighty": "achtzig",
    "ninety": "neunzig",
}
TEENS = {
    "ten": "zehn",
    "eleven": "elf",
    "twelve": "zwölf",
    "thirteen": "dreizehn",
    "fourteen": "vierzehn",
    "fifteen": "fünfzehn",
    "sixteen": "sechzehn",
    "seventeen": "siebzehn",
    "eighteen": "achtzehn",
    "nineteen": "neunzehn",
}
MEANING = {"zero": "null", "hundred": "hundert", "thousand": "tausend", **UNITS, **TEENS, **TENS}


@pytest.fixture(scope="module")
def some_numbers() -> Splits:
    return numbers(seed=1, size=3000)


def english(number: int) -> str:
    return " ".join(word for word in re.split("[ ,-]+", num2words(number, lang="en")) if word != "and")


def everything(splits: Splits) -> list[Example]:
    return splits.train + splits.dev + splits.test


def linked_words(example: Example) -> list[tuple[str, set[int]]]:
    """The English words, each with the target positions that all its characters are linked to."""
    linked = []
    for word in re.finditer("[a-z]+", example.source):
        positions = [{target for source, target in example.links if source == index} for index in range(*word.span())]
        assert all(targets == positions[0] for targets in positions)
        linked.append((word.group(), positions[0]))
    return linked


def test_both_languages_are_spelled_as_by_num2words() -> None:
    lexicon = _lexicon()
    drawn = random.Random(1).sample(range(10**6), 3000)
    regular = [*range(1200), *range(2000, 10**6, 3000), *range(1000, 10**6, 100_000), 10**6 - 1]
    for number in [*regular, *drawn]:
        words, pieces = spell(number, lexicon)
        assert " ".join(words) == english(number)
        assert "".join(piece.text for piece in pieces) == num2words(number, lang="de")


@pytest.mark.parametrize(
    ("number", "source", "pieces"),
    [
        (0, "zero", ["null"]),
        (1, "one", ["eins"]),
        (12, "twelve", ["zwölf"]),
        (16, "sixteen", ["sechzehn"]),
        (21, "twenty one", ["ein", "und", "zwanzig"]),
        (101, "one hundred one", ["ein", "hundert", "eins"]),
        (321, "three hundred twenty one", ["drei", "hundert", "ein", "und", "zwanzig"]),
        (1001, "one thousand one", ["ein", "tausend", "eins"]),
        (70_717, "seventy thousand seven hundred seventeen", ["siebzig", "tausend", "sieben", "hundert", "siebzehn"]),
        (31_000, "thirty one thousand", ["ein", "und", "dreißig", "tausend"]),
    ],
)
def test_known_numbers_are_spelled_correctly(number: int, source: str, pieces: list[str]) -> None:
    words, german = spell(number, _lexicon())
    assert " ".join(words) == source
    assert [piece.text for piece in german] == pieces


def test_numbers_have_the_documented_counts_and_groups(some_numbers: Splits) -> None:
    assert len(some_numbers.test) == 1000
    assert len(some_numbers.dev) == 500
    for part in (some_numbers.test, some_numbers.dev):
        assert len({example.source for example in part}) == len(part)
    for part in (some_numbers.test, some_numbers.dev, some_numbers.train):
        groups = Counter(example.group for example in part)
        assert set(groups) == set("123456")
        assert groups["1"] < groups["2"] < groups["3"] < groups["4"] < groups["5"] < groups["6"]


def test_groups_count_digits(some_numbers: Splits) -> None:
    groups = {english(number): len(str(number)) for number in range(2000)}
    small = [example for example in everything(some_numbers) if example.source in groups]
    assert {example.group for example in small} == set("1234")
    assert all(example.group == str(groups[example.source]) for example in small)
    for example in everything(some_numbers):
        assert ("thousand" in example.source) == (example.group in "456")
        assert ("hundred" in example.source.partition(" thousand")[0]) == (example.group in "36")


def test_no_number_is_shared_between_splits() -> None:
    splits = numbers(seed=1, size=20_000)  # includes each number of three digits about three times: a leak would show
    for side in ("source", "target"):
        train, dev, test = (
            {getattr(example, side) for example in part} for part in (splits.train, splits.dev, splits.test)
        )
        assert not train & dev
        assert not train & test
        assert not dev & test


def test_every_word_is_in_train() -> None:
    train = numbers(seed=1, size=2000).train
    assert {word for example in train for word in example.source.split()} == set(MEANING)
    assert "null" in {example.target for example in train}


def test_links_connect_words_with_their_translations(some_numbers: Splits) -> None:
    for example in everything(some_numbers)[::7]:
        for word, positions in linked_words(example):
            assert positions == set(range(min(positions), max(positions) + 1))
            piece = example.target[min(positions) : max(positions) + 1]
            assert piece == MEANING[word] or (word, piece) == ("one", "ein")


def test_all_characters_are_linked_except_spaces_and_und(some_numbers: Splits) -> None:
    for example in everything(some_numbers):
        sources, targets = ({link[side] for link in example.links} for side in (0, 1))
        assert sources == {index for index, letter in enumerate(example.source) if letter != " "}
        unlinked = "".join(letter for index, letter in enumerate(example.target) if index not in targets)
        tens_and_units = [pair for pair in pairwise(example.source.split()) if pair[0] in TENS and pair[1] in UNITS]
        assert unlinked == "und" * len(tens_and_units)


def test_links_of_forty_two_cross() -> None:
    """The links of `forty two` and `zweiundvierzig` cross."""
    train = numbers(seed=1, size=2000).train
    links = next(example.links for example in train if example.source == "forty two")
    assert set(links) == {(source, target) for source in range(5) for target in range(7, 14)} | {
        (source, target) for source in range(6, 9) for target in range(4)
    }


def test_no_german_number_is_longer_than_the_limit_of_links() -> None:
    assert max(len(num2words(number, lang="de")) for number in (373_373, 777_777, 999_999)) < LONGEST


def test_numbers_without_num2words_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "num2words", None)
    message = "the corpus 'numbers' needs the package num2words; install it with: " + install_command("corpora")
    with pytest.raises(MissingExtraError, match=f"^{re.escape(message)}$"):
        numbers(seed=1, size=1)
