"""Product titles are unambiguous, targets can end after any field, and there are few values."""

import random
from collections import Counter, defaultdict

import pytest

from regard.data.corpora import titles
from regard.data.corpora.core import Splits
from regard.data.corpora.titles import BRANDS, COLOURS, DEV, NOISE, TEST, _spelled
from regard.types import Example

FIELDS = ("brand", "size", "colour", "pack")


@pytest.fixture(scope="module")
def splits() -> Splits:
    return titles(seed=1, size=3000)


def everything(splits: Splits) -> list[Example]:
    return splits.train + splits.dev + splits.test


def record(example: Example) -> dict[str, str]:
    return dict(field.split("=") for field in example.target.split(";"))


def test_titles_have_the_documented_counts(splits: Splits) -> None:
    assert (len(splits.dev), len(splits.test)) == (DEV, TEST) == (500, 1000)


def test_a_record_has_its_fields_in_order_and_omits_missing_ones(splits: Splits) -> None:
    for example in everything(splits):
        fields = list(record(example))
        assert fields == [field for field in FIELDS if field in fields]
        assert example.group == str(len(fields))
        assert record(example).get("colour", "red") in COLOURS
        assert record(example).get("brand", "acme") in BRANDS
    targets = {example.target for example in splits.train}
    prefixes = sum(any(longer.startswith(f"{target};") for longer in targets) for target in targets)
    assert prefixes > 200  # targets that another target continues


def test_values_are_few_and_each_colour_has_all_its_spellings(splits: Splits) -> None:
    values = Counter(field for example in splits.train for field in record(example).items())
    assert len(values) < 70
    assert min(values.values()) >= 5
    spellings = {word.lower() for example in splits.train for word in example.source.split()}
    assert {word for words in COLOURS.values() for word in words} <= spellings


def test_titles_have_emoji_typos_upper_and_lower_case(splits: Splits) -> None:
    sources = [example.source for example in splits.train]
    assert all(any(noise in source.split() for source in sources) for noise in NOISE)
    branded = [example for example in splits.train if "brand" in record(example)]
    brands = [(example.source.split()[0], record(example)["brand"]) for example in branded]
    assert 100 < sum(word.lower() != brand for word, brand in brands) < 500
    assert {"NOLVEX", "nolvex", "Nolvex"} <= {word for word, _ in brands}


def test_no_title_is_shared_between_splits(splits: Splits) -> None:
    train, dev, test = ({example.source for example in part} for part in (splits.train, splits.dev, splits.test))
    assert not train & dev
    assert not train & test
    assert not dev & test


def test_no_title_has_two_records() -> None:
    records = defaultdict(set)
    for example in everything(titles(seed=1, size=20_000)):
        records[example.source.lower()].add(example.target)
    assert all(len(targets) == 1 for targets in records.values())


def test_no_typo_turns_one_value_into_another() -> None:
    meanings = defaultdict(set)
    for value, words in {**{brand: (brand,) for brand in BRANDS}, **COLOURS}.items():
        for word in words:
            meanings[word].add(value)
            for seed in range(500):
                meanings[_spelled(word, random.Random(seed)).lower()].add(value)
    assert len(meanings) > 200
    assert all(len(values) == 1 for values in meanings.values())
