"""What every corpus gives."""

from dataclasses import dataclass
from typing import Protocol

from regard.types import Example


@dataclass(frozen=True)
class Splits:
    """The three parts of a corpus: to learn from, to choose by, to be judged on."""

    train: list[Example]
    dev: list[Example]
    test: list[Example]


class Corpus(Protocol):
    """A generator of a corpus with `size` training examples: a pure function of its arguments."""

    def __call__(self, seed: int, size: int) -> Splits:
        """The corpus; `seed` and `size` change its train only, and a smaller train begins a larger."""
