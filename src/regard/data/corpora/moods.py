"""Sentiment classification: short positive and negative sentences whose label depends on the order of the words."""

import random
from collections.abc import Callable
from typing import NamedTuple

from regard.data.corpora.core import Splits, belongs, draw_splits
from regard.types import Example

TEST, DEV = 1000, 500

WORDS = {
    "positive": (
        *("good", "great", "lovely", "charming", "funny", "clever", "warm", "bright", "honest", "fresh", "moving"),
        *("elegant", "generous", "delightful", "superb", "gentle"),
    ),
    "negative": (
        *("bad", "awful", "dull", "boring", "clumsy", "cold", "bland", "rude", "stale", "tedious", "shallow"),
        *("ugly", "careless", "dreadful", "noisy", "bitter"),
    ),
}
THINGS = (
    *("film", "book", "soup", "hotel", "guide", "concert", "lesson", "garden", "waiter", "story", "cake", "play"),
    *("song", "museum", "coffee", "letter", "evening", "village", "painter", "journey"),
)
OWNERS = ("the", "this", "our", "that", "their")


class Parts(NamedTuple):
    """The parts of a sentence: a word of its own sentiment, one of the opposite, and the thing they describe."""

    own: str
    opposite: str
    thing: str


PHRASES: dict[str, tuple[Callable[[Parts], str], ...]] = {
    "plain": (
        lambda parts: f"{parts.thing} was {parts.own}",
        lambda parts: f"what a {parts.own} day , and {parts.thing} was {parts.own} too",
    ),
    "negated": (
        lambda parts: f"{parts.thing} was not {parts.opposite}",
        lambda parts: f"{parts.thing} was never {parts.opposite}",
        lambda parts: f"nobody would call {parts.thing} {parts.opposite}",
        lambda parts: f"{parts.thing} was anything but {parts.opposite}",
    ),
    "contrast": (
        lambda parts: f"{parts.thing} was {parts.own} , not {parts.opposite}",
        lambda parts: f"{parts.thing} was not {parts.opposite} , but {parts.own}",
        lambda parts: f"{parts.thing} was {parts.own} and not {parts.opposite} at all",
    ),
    "turn": (
        lambda parts: f"they said {parts.thing} was {parts.opposite} , but it was {parts.own}",
        lambda parts: f"at first {parts.thing} was {parts.opposite} , then {parts.own}",
        lambda parts: f"{parts.thing} is {parts.own} now , though it was {parts.opposite} before",
    ),
}


def moods(seed: int, size: int) -> Splits:
    """A sentence to its sentiment, positive or negative: `the soup was not bad , but great` to `positive`.

    It shows that a bag of words is not enough. `group` is the kind of sentence. In `plain`, all words of sentiment
    agree with the label. In `negated`, the only one has the opposite sentiment. A sentence of `contrast` or `turn` gets
    the other label if its two words of sentiment are swapped: `the soup was not great , but bad`. Labels are equally
    frequent, and no sentence is in two splits. Dev and test are the same for every seed and size.
    """
    return draw_splits("moods", _example, seed, train=size, dev=DEV, test=TEST)


def _example(split: str, index: int, generator: random.Random) -> Example:
    label, group = tuple(WORDS)[index % 2], tuple(PHRASES)[index // 2 % len(PHRASES)]
    return Example(_sentence(split, label, group, generator), label, group)


def _sentence(split: str, label: str, group: str, generator: random.Random) -> str:
    """A random sentence of that label and group whose checksum assigns it to the split."""
    opposite = next(sentiment for sentiment in WORDS if sentiment != label)
    while True:
        thing = f"{generator.choice(OWNERS)} {generator.choice(THINGS)}"
        parts = Parts(generator.choice(WORDS[label]), generator.choice(WORDS[opposite]), thing)
        text = generator.choice(PHRASES[group])(parts)
        if belongs(text, split):
            return text
