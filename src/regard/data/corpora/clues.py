"""Sentences in which some words determine others: data for a masked language model."""

import random
from collections.abc import Callable

from regard.data.corpora.core import Splits, belongs, draw_splits
from regard.types import Example

TEST, DEV = 1000, 500

ROWS = (
    ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
)
OPPOSITES = (
    *(("hot", "cold"), ("big", "small"), ("old", "new"), ("wet", "dry"), ("open", "closed"), ("full", "empty")),
    *(("dark", "bright"), ("heavy", "light"), ("cheap", "dear"), ("clean", "dirty")),
)
PEOPLE = {
    "she": ("anna", "clara", "emma", "ida", "laura", "maria", "nora", "rosa", "sara", "vera"),
    "he": ("adam", "bruno", "carl", "david", "hugo", "jonas", "leo", "oscar", "paul", "victor"),
}
OWN = {"she": "her", "he": "his"}
THINGS = ("hat", "coat", "book", "cup", "key", "lamp", "chair", "box", "clock", "shoe")
ANIMALS = {"cat": "meow", "dog": "bark", "lion": "roar", "duck": "quack", "snake": "hiss", "wolf": "howl", "bee": "hum"}
VERBS = ("says", "knows", "thinks", "hears")


def clues(seed: int, size: int) -> Splits:
    """Sentences in which some words determine others: `emma says that after monday comes tuesday`.

    They teach a masked language model to use the words on both sides of a masked token. `group` is the kind of clue:
    the next or previous item of a series (`order`), opposites (`contrast`), pronouns (`person`), singular and plural
    (`number`). Other words are random, so no model can predict all masked tokens. No sentence is in two splits; source
    and target are the same text. Dev and test are the same for every seed and size.
    """
    return draw_splits("clues", _example, seed, train=size, dev=DEV, test=TEST)


def _example(split: str, index: int, generator: random.Random) -> Example:
    group = tuple(KINDS)[index % len(KINDS)]
    text = _sentence(split, group, generator)
    return Example(text, text, group)


def _sentence(split: str, group: str, generator: random.Random) -> str:
    """A random sentence of that group whose checksum assigns it to the split."""
    while True:
        _, name = _person(generator)
        text = f"{name} {generator.choice(VERBS)} that {KINDS[group](generator)}"
        if belongs(text, split):
            return text


def _person(generator: random.Random) -> tuple[str, str]:
    pronoun = generator.choice(tuple(PEOPLE))
    return pronoun, generator.choice(PEOPLE[pronoun])


def _order(generator: random.Random) -> str:
    row = generator.choice(ROWS)
    place = generator.randrange(len(row) - 1)
    if generator.random() < 0.5:
        return f"after {row[place]} comes {row[place + 1]}"
    return f"before {row[place + 1]} comes {row[place]}"


def _contrast(generator: random.Random) -> str:
    pair = list(generator.choice(OPPOSITES))
    generator.shuffle(pair)
    return f"the {generator.choice(THINGS)} is not {pair[0]} but {pair[1]}"


def _owner(generator: random.Random) -> str:
    pronoun, name = _person(generator)
    return f"{name} lost {OWN[pronoun]} {generator.choice(THINGS)} and {pronoun} found it again"


def _number(generator: random.Random) -> str:
    animal = generator.choice(tuple(ANIMALS))
    if generator.random() < 0.5:
        return f"one {animal} {ANIMALS[animal]}s"
    plural = animal.replace("wolf", "wolve") + "s"
    return f"{generator.choice(ROWS[2][1:])} {plural} {ANIMALS[animal]}"


KINDS: dict[str, Callable[[random.Random], str]] = {
    "order": _order,
    "contrast": _contrast,
    "person": _owner,
    "number": _number,
}
