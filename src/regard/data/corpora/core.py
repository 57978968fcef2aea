"""The interface of every embedded corpus, and functions that corpora share."""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from regard.types import Example

SHARES = ("test", "test", "dev", *["train"] * 7)  # a text's checksum selects its split

Draw = Callable[[str, int, random.Random], Example]  # takes the split, the index of the example in it, and a generator


@dataclass(frozen=True)
class Splits:
    """The three parts of a corpus: training, validation and test examples."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]


class Corpus(Protocol):
    """A function that generates a corpus with `size` training examples; pure: equal arguments give equal results."""

    def __call__(self, seed: int, size: int) -> Splits:
        """Generates the corpus; `seed` and `size` change only train, and a smaller train is the start of a larger."""


def draw_splits(name: str, draw: Draw, seed: int, *, train: int, dev: int, test: int) -> Splits:
    """Draws so many examples for each split; dev and test are the same for every seed."""
    return Splits(
        train=_examples(name, "train", draw, train, random.Random(f"{name}:train:{seed}")),
        dev=_examples(name, "dev", draw, dev, random.Random(f"{name}:dev")),
        test=_examples(name, "test", draw, test, random.Random(f"{name}:test")),
    )


def _examples(name: str, split: str, draw: Draw, count: int, generator: random.Random) -> list[Example]:
    return [replace(draw(split, index, generator), origin=f"{name}:{split}:{index + 1}") for index in range(count)]


def belongs(text: str, split: str) -> bool:
    """Whether the checksum of a text assigns it to the split, so that no text is in two splits."""
    return SHARES[zlib.crc32(text.encode()) % len(SHARES)] == split
