"""Short stories and questions about them, whose answers stand in the story."""

import random
import zlib
from typing import NamedTuple

from regard.data.corpora.core import Splits
from regard.types import Example

TEST, DEV = 900, 300  # multiples of the three kinds of questions
SHARES = ("test", "test", "dev", *["train"] * 7)  # who owns how many tenths of all names
LEAST, MOST = 2, 4  # sentences of a story

ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
VOWELS = ("a", "e", "i", "o", "u")
PEOPLE, PLACES = ("n", "s", "l", "ra"), ("burg", "ford", "ville", "stad")  # how names end
VERBS = ("danced", "worked", "cooked", "sang", "painted", "slept")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
TOLD = (
    "{person} {verb} in {place} on {day} .",
    "On {day} {person} {verb} in {place} .",
    "In {place} {person} {verb} on {day} .",
)
ASKED = {
    "who": "Who was in {place} on {day} ?",
    "where": "Where was {person} on {day} ?",
    "when": "When was {person} in {place} ?",
}
ANSWERED = {"who": "person", "where": "place", "when": "day"}


class Fact(NamedTuple):
    """Who did what, where and when."""

    person: str
    verb: str
    place: str
    day: str


def facts(seed: int, size: int) -> Splits:
    """A question and a story to the words of the story that answer: `Where was Miran on Friday ?` to `Tobaburg`.

    It teaches pointing: names of people and places are made up, and no name of one split is in another, so that
    nothing can be known by heart; the answer is found by what stands around it. `group` is what is asked for,
    `source` is question<TAB>story. No person, place or day comes twice in a story. Dev and test are the same for
    every seed and size.
    """
    return Splits(
        train=_examples("train", size, random.Random(f"facts:train:{seed}")),
        dev=_examples("dev", DEV, random.Random("facts:dev")),
        test=_examples("test", TEST, random.Random("facts:test")),
    )


def _examples(split: str, count: int, generator: random.Random) -> list[Example]:
    groups = tuple(ASKED)
    examples = []
    for number in range(count):
        group, story = groups[number % len(groups)], _story(split, generator)
        told = " ".join(generator.choice(TOLD).format(**fact._asdict()) for fact in story)
        fact = generator.choice(story)
        question = ASKED[group].format(**fact._asdict())
        answer = fact._asdict()[ANSWERED[group]]
        examples.append(Example(f"{question}\t{told}", answer, group=group, origin=f"facts:{split}:{number + 1}"))
    return examples


def _story(split: str, generator: random.Random) -> list[Fact]:
    count = generator.randint(LEAST, MOST)
    people, places = (_names(split, count, endings, generator) for endings in (PEOPLE, PLACES))
    verbs, days = generator.choices(VERBS, k=count), generator.sample(DAYS, count)
    return [Fact(*row) for row in zip(people, verbs, places, days, strict=True)]


def _names(split: str, count: int, endings: tuple[str, ...], generator: random.Random) -> list[str]:
    """So many names that belong to the split, none of which is a part of another."""
    names: list[str] = []
    while len(names) < count:
        syllables = [generator.choice(ONSETS) + generator.choice(VOWELS) for _ in range(2)]
        name = "".join([*syllables, generator.choice(endings)]).capitalize()
        owner = SHARES[zlib.crc32(name.encode()) % len(SHARES)]
        if owner == split and not any(name in other or other in name for other in names):
            names.append(name)
    return names
