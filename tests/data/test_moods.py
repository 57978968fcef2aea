"""The corpus of moods: balanced, apart, and not to be had from a bag of words."""

from collections import Counter

import pytest

from regard.data.corpora import Splits, moods
from regard.data.corpora.moods import PHRASES, WORDS
from regard.types import Example

OPPOSITE = {"positive": "negative", "negative": "positive"}


@pytest.fixture(scope="module")
def splits() -> Splits:
    return moods(seed=1, size=8000)


def words_of(example: Example, mood: str) -> list[str]:
    return [word for word in example.source.split() if word in WORDS[mood]]


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
    assert all(len(each) == 1 for each in labels.values())


def test_words_say_what_the_group_promises(splits: Splits) -> None:
    for example in splits.dev:
        own, other = words_of(example, example.target), words_of(example, OPPOSITE[example.target])
        found = bool(own), bool(other)
        assert found == {"plain": (True, False), "negated": (False, True)}.get(example.group, (True, True))


def test_twins_of_the_same_words_have_opposite_labels(splits: Splits) -> None:
    """Words of mood changed round: the bag stays, the label does not."""
    labels = {example.source: example.target for example in moods(seed=1, size=200_000).train}
    twins = 0
    for example in splits.train:
        if example.group in ("contrast", "turn"):
            [own], [other] = words_of(example, example.target), words_of(example, OPPOSITE[example.target])
            swapped = {own: other, other: own}
            twin = " ".join(swapped.get(word, word) for word in example.source.split())
            twins += twin in labels
            assert labels.get(twin, OPPOSITE[example.target]) == OPPOSITE[example.target]
    assert twins > 900
