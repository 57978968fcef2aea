"""The interface of every embedded corpus."""

from dataclasses import dataclass
from typing import Protocol

from regard.types import Example


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
