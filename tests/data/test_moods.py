"""The sentiment corpus is balanced, has disjoint splits, and cannot be solved with a bag of words."""

from collections import Counter

import pytest

from regard.data.corpora import moods
from regard.data.corpora.core import Splits
from regard.data.corpora.moods import PHRASES, WORDS
from regard.types import Example

OPPOSITE = {"positive": "negative", "negative": "positive"}


@pytest.fixture(scope="module")
def splits() -> Splits:
    return moods(seed=1, size=8000)


def words_of(example: Example, sentiment: str) -> list[str]:
    return [word for word in example.source.split() if word in WORDS[sentiment]]


def test_labels_and_groups_are_equally_frequent(splits: Splits) -> None:
    for part in (splits.train, splits.dev, splits.test):
        counts = Counter((example.target, example.group) for example in part)
        assert set(counts) == {(label, group) for label in WORDS for group in PHRASES}
        assert max(counts.values()) - min(counts.values()) <= 1


def test_no_sentence_is_shared_between_splits(splits: Splits) -> None:
    train, dev, test = ({example.source for example in part} for part in (splits.train, splits.dev, splits.test))
    assert not train & dev
    assert not train & test
    assert not dev & test
    assert len(test) > 900


def test_no_sentence_has_two_labels(splits: Splits) -> None:
    labels: dict[str, set[str]] = {}
    for example in splits.train + splits.dev + splits.test:
        labels.setdefault(example.source, set()).add(example.target)
    assert all(len(found_labels) == 1 for found_labels in labels.values())


def test_a_group_decides_which_words_of_sentiment_occur(splits: Splits) -> None:
    for example in splits.dev:
        own, opposite = words_of(example, example.target), words_of(example, OPPOSITE[example.target])
        expected = {"plain": (True, False), "negated": (False, True)}.get(example.group, (True, True))
        assert (bool(own), bool(opposite)) == expected


def test_swapping_the_words_of_sentiment_gives_the_opposite_label(splits: Splits) -> None:
    """The bag of words stays the same, but the label changes."""
    labels = {example.source: example.target for example in moods(seed=1, size=200_000).train}
    twins = 0
    for example in splits.train:
        if example.group in ("contrast", "turn"):
            [own], [opposite] = words_of(example, example.target), words_of(example, OPPOSITE[example.target])
            swapped = {own: opposite, opposite: own}
            twin = " ".join(swapped.get(word, word) for word in example.source.split())
            twins += twin in labels
            assert labels.get(twin, OPPOSITE[example.target]) == OPPOSITE[example.target]
    assert twins > 900
