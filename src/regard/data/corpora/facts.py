"""Questions about short stories; every answer is a word of the story."""

import random
from typing import NamedTuple

from regard.data.corpora.core import Splits, belongs, draw_splits
from regard.types import Example

TEST, DEV = 900, 300  # multiples of 3, the number of kinds of questions
SHORTEST, LONGEST = 2, 4  # sentences of a story

ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z")
VOWELS = ("a", "e", "i", "o", "u")
PEOPLE, PLACES = ("n", "s", "l", "ra"), ("burg", "ford", "ville", "stad")  # endings of names
VERBS = ("danced", "worked", "cooked", "sang", "painted", "slept")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
STATEMENTS = (
    "{person} {verb} in {place} on {day} .",
    "On {day} {person} {verb} in {place} .",
    "In {place} {person} {verb} on {day} .",
)
QUESTIONS = {
    "who": "Who was in {place} on {day} ?",
    "where": "Where was {person} on {day} ?",
    "when": "When was {person} in {place} ?",
}
ANSWERS = {"who": "person", "where": "place", "when": "day"}  # the field of a fact that answers a question


class Fact(NamedTuple):
    """One event of a story: who did what, where and when."""

    person: str
    verb: str
    place: str
    day: str


def facts(seed: int, size: int) -> Splits:
    """A question and a story to the words of the story that answer it: `Where was Miran on Friday ?` to `Tobaburg`.

    It teaches a model to point at the answer: names of people and places are invented, and no name is in two splits,
    so that names cannot be memorised and the answer must be found by its context. `group` is the question word,
    `source` is question<TAB>story. No person, place or day comes twice in a story. Dev and test are the same for
    every seed and size.
    """
    return draw_splits("facts", _example, seed, train=size, dev=DEV, test=TEST)


def _example(split: str, index: int, generator: random.Random) -> Example:
    group, story = tuple(QUESTIONS)[index % len(QUESTIONS)], _story(split, generator)
    text = " ".join(generator.choice(STATEMENTS).format(**fact._asdict()) for fact in story)
    fact = generator.choice(story)._asdict()
    return Example(f"{QUESTIONS[group].format(**fact)}\t{text}", fact[ANSWERS[group]], group)


def _story(split: str, generator: random.Random) -> list[Fact]:
    count = generator.randint(SHORTEST, LONGEST)
    people, places = (_names(split, count, endings, generator) for endings in (PEOPLE, PLACES))
    verbs, days = generator.choices(VERBS, k=count), generator.sample(DAYS, count)
    return [Fact(*row) for row in zip(people, verbs, places, days, strict=True)]


def _names(split: str, count: int, endings: tuple[str, ...], generator: random.Random) -> list[str]:
    """`count` random names whose checksums assign them to the split; none contains another."""
    names: list[str] = []
    while len(names) < count:
        syllables = [generator.choice(ONSETS) + generator.choice(VOWELS) for _ in range(2)]
        name = "".join([*syllables, generator.choice(endings)]).capitalize()
        if belongs(name, split) and not any(name in other or other in name for other in names):
            names.append(name)
    return names
