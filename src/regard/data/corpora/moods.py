"""Short sentences that praise or complain, in which what is said hangs on the order of the words."""

import random
import zlib
from collections.abc import Callable
from typing import NamedTuple

from regard.data.corpora.core import Splits
from regard.types import Example

TEST, DEV = 1000, 500
SHARES = ("test", "test", "dev", *["train"] * 7)  # who owns how many tenths of all sentences

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


class Said(NamedTuple):
    """The parts of a sentence: a word of its own mood, one of the other, and what is spoken of."""

    right: str
    wrong: str
    thing: str


PHRASES: dict[str, tuple[Callable[[Said], str], ...]] = {
    "plain": (
        lambda said: f"{said.thing} was {said.right}",
        lambda said: f"what a {said.right} day , and {said.thing} was {said.right} too",
    ),
    "negated": (
        lambda said: f"{said.thing} was not {said.wrong}",
        lambda said: f"{said.thing} was never {said.wrong}",
        lambda said: f"nobody would call {said.thing} {said.wrong}",
        lambda said: f"{said.thing} was anything but {said.wrong}",
    ),
    "contrast": (
        lambda said: f"{said.thing} was {said.right} , not {said.wrong}",
        lambda said: f"{said.thing} was not {said.wrong} , but {said.right}",
        lambda said: f"{said.thing} was {said.right} and not {said.wrong} at all",
    ),
    "turn": (
        lambda said: f"they said {said.thing} was {said.wrong} , but it was {said.right}",
        lambda said: f"at first {said.thing} was {said.wrong} , then {said.right}",
        lambda said: f"{said.thing} is {said.right} now , though it was {said.wrong} before",
    ),
}


def moods(seed: int, size: int) -> Splits:
    """A sentence to its mood: `the soup was not bad , but great` is positive, with the words changed round negative.

    It teaches that a bag of words is not enough: in `negated` the one word of mood says the opposite of the
    sentence, and each sentence of `contrast` and `turn` has a twin of the same words with the other label; `group`
    is one of these. Labels are equally frequent, and no sentence of one split is in another. Dev and test are the
    same for every seed and size.
    """
    return Splits(
        train=_examples("train", size, random.Random(f"moods:train:{seed}")),
        dev=_examples("dev", DEV, random.Random("moods:dev")),
        test=_examples("test", TEST, random.Random("moods:test")),
    )


def _examples(split: str, count: int, generator: random.Random) -> list[Example]:
    labels, groups = tuple(WORDS), tuple(PHRASES)
    examples = []
    for number in range(count):
        label, group = labels[number % 2], groups[number // 2 % len(groups)]
        text = _sentence(split, label, group, generator)
        examples.append(Example(text, label, group=group, origin=f"moods:{split}:{number + 1}"))
    return examples


def _sentence(split: str, label: str, group: str, generator: random.Random) -> str:
    """A sentence that belongs to the split, drawn until one does."""
    other = next(each for each in WORDS if each != label)
    while True:
        thing = f"{generator.choice(OWNERS)} {generator.choice(THINGS)}"
        said = Said(generator.choice(WORDS[label]), generator.choice(WORDS[other]), thing)
        text = generator.choice(PHRASES[group])(said)
        if SHARES[zlib.crc32(text.encode()) % len(SHARES)] == split:
            return text
