"""Random strings of letters, to be copied or reversed: only the alignment has to be learned."""

import random
import string
from collections.abc import Callable
from functools import partial

from regard.data.corpora.core import Splits, belongs, draw_splits
from regard.types import Example

LONGEST, RANGE = 30, 5  # the longest string, and the number of lengths in a group
TEST, DEV = 1200, 300  # multiples of LONGEST, so that every length is equally frequent

Reorder = Callable[[range], range]  # maps the positions of the source to their order in the target


def reverse(seed: int, size: int) -> Splits:
    """A string of letters to the reversed string: `regard` to `drager`.

    It shows the bottleneck of a summary of fixed size: letters are random, so a model without attention must store the
    whole string in one vector and fails on long strings, while attention forms an antidiagonal. Every length from 1 to
    30 is equally frequent; `group` is a range of lengths. No string is in two splits, so the shortest strings, of which
    there are few, repeat within their split. Dev and test are the same for every seed and size. `links` connect every
    source letter with its copy in the target.
    """
    return _corpus("reverse", seed, size, lambda positions: positions[::-1])


def copy(seed: int, size: int) -> Splits:
    """A string of letters to itself: `regard` to `regard`.

    Each target letter is at the same position in the source, so that a window around the current position (local-m) is
    enough, and attention forms a diagonal. Lengths, groups, splits and links are as in `reverse`.
    """
    return _corpus("copy", seed, size, lambda positions: positions)


def _corpus(name: str, seed: int, size: int, reorder: Reorder) -> Splits:
    return draw_splits(name, partial(_example, reorder), seed, train=size, dev=DEV, test=TEST)


def _example(reorder: Reorder, split: str, index: int, generator: random.Random) -> Example:
    length = index % LONGEST + 1
    text, order = _letters(split, length, generator), reorder(range(length))
    shortest = (length - 1) // RANGE * RANGE + 1
    return Example(
        source=text,
        target="".join(text[position] for position in order),
        group=f"{shortest}-{shortest + RANGE - 1}",
        links=tuple(zip(order, range(length), strict=True)),
    )


def _letters(split: str, length: int, generator: random.Random) -> str:
    """A random string of that length that belongs to the split; short strings are few, and else would be in several."""
    while True:
        text = "".join(generator.choices(string.ascii_lowercase, k=length))
        if belongs(text, split):
            return text
