"""Strings of letters, to themselves or backwards: nothing to know, only where to look."""

import random
import string
import zlib
from collections.abc import Callable

from regard.data.corpora.core import Splits
from regard.types import Example

LONGEST, RANGE = 30, 5  # the longest string, and how many lengths make a group
TEST, DEV = 1200, 300  # multiples of LONGEST: every length equally often
SHARES = ("test", "test", "dev", *["train"] * 7)  # who owns how many tenths of all strings

Reorder = Callable[[range], range]  # the places of a string in the order in which the target takes them


def reverse(seed: int, size: int) -> Splits:
    """A string of letters to the same string backwards: `regard` to `drager`.

    It teaches the bottleneck of a fixed summary: nothing can be guessed from what came before, so a model
    without attention must carry the whole string in one vector and fails as strings grow, while attention
    draws an antidiagonal. Every length from 1 to 30 is equally frequent, and `group` is a range of lengths.
    No string of one split is in another, so the shortest, which are few, repeat within their own. Dev and
    test are the same for every seed and size. `links` join every letter with itself.
    """
    return _corpus("reverse", seed, size, lambda places: places[::-1])


def copy(seed: int, size: int) -> Splits:
    """A string of letters to itself: `regard` to `regard`.

    What is looked for stands where it is written, so that a window around the own position (local-m) is
    enough, and attention draws the diagonal. Lengths, groups, splits and links are made as in `reverse`.
    """
    return _corpus("copy", seed, size, lambda places: places)


def _corpus(name: str, seed: int, size: int, reorder: Reorder) -> Splits:
    return Splits(
        train=_examples(name, "train", size, random.Random(f"{name}:train:{seed}"), reorder),
        dev=_examples(name, "dev", DEV, random.Random(f"{name}:dev"), reorder),
        test=_examples(name, "test", TEST, random.Random(f"{name}:test"), reorder),
    )


def _examples(name: str, split: str, count: int, generator: random.Random, reorder: Reorder) -> list[Example]:
    examples = []
    for number in range(count):
        length = number % LONGEST + 1
        text, order = _letters(split, length, generator), reorder(range(length))
        shortest = (length - 1) // RANGE * RANGE + 1
        examples.append(
            Example(
                source=text,
                target="".join(text[place] for place in order),
                group=f"{shortest}-{shortest + RANGE - 1}",
                origin=f"{name}:{split}:{number + 1}",
                links=tuple(zip(order, range(length), strict=True)),
            )
        )
    return examples


def _letters(split: str, length: int, generator: random.Random) -> str:
    """A string that belongs to the split, drawn until one does."""
    while True:
        text = "".join(generator.choices(string.ascii_lowercase, k=length))
        if _split_of(text) == split:
            return text


def _split_of(text: str) -> str:
    """The split that owns a string: short strings are few, so chance alone would share them."""
    return SHARES[zlib.crc32(text.encode()) % len(SHARES)]
