"""Groups examples of similar length into batches with a limited number of tokens."""

import random
from collections.abc import Sequence

import torch

from regard.errors import DataError, RecipeError
from regard.types import PAD, Padded

Lengths = Sequence[tuple[int, int]]  # source and target length of every example, special tokens included


def plan(lengths: Lengths, budget: int, seed: int, epoch: int) -> list[list[int]]:
    """Batches of one epoch in shuffled order, as lists of example indices; a pure function of the arguments.

    The number of rows times the length of the longest side is at most `budget`; an example longer than that gets a
    batch of its own. Examples of equal length are shuffled, so that batches differ from epoch to epoch.
    """
    generator = random.Random(f"batches {seed} {epoch}")  # a string seed works alike in every process; hash() does not
    order = list(range(len(lengths)))
    generator.shuffle(order)
    batches = _fill(_sorted(order, lengths), lengths, budget)
    generator.shuffle(batches)
    return batches


def sorted_batches(lengths: Lengths, budget: int) -> list[list[int]]:
    """Batches for scoring, as lists of example indices, sorted from the shortest to the longest examples."""
    return _fill(_sorted(range(len(lengths)), lengths), lengths, budget)


def _sorted(order: Sequence[int], lengths: Lengths) -> list[int]:
    # The source length is the second sort key, so that the shorter side needs little padding too. The sort is stable.
    return sorted(order, key=lambda index: (max(lengths[index]), lengths[index][0]))


def _fill(order: Sequence[int], lengths: Lengths, budget: int) -> list[list[int]]:
    if budget < 1:
        raise RecipeError(f"a batch of {budget} tokens holds nothing; give 1 or more")
    batches: list[list[int]] = []
    for index in order:
        longest = max(1, *lengths[index])  # of its batch so far, because `order` is sorted by length
        if not batches or (len(batches[-1]) + 1) * longest > budget:
            batches.append([])
        batches[-1].append(index)
    return batches


def rounded_width(longest: int) -> int:
    """Rounds a length up to one of few batch widths: multiples of 8 up to 64, of 32 up to 256, of 128 above."""
    step = 8 if longest <= 64 else 32 if longest <= 256 else 128
    return max(1, -(-longest // step)) * step


def rounded_lengths(lengths: Lengths) -> list[tuple[int, int]]:
    """Lengths rounded up by `rounded_width`, the same on both sides; none is larger than the longest given length."""
    longest = max(max(pair) for pair in lengths)
    widths = [min(longest, rounded_width(max(pair))) for pair in lengths]
    return list(zip(widths, widths, strict=True))


class Batches:
    """The batch of every update, indexed by the update's number from 0 over all epochs, so that training can resume.

    Every epoch has `per_epoch` batches: the limits of batches depend only on the sorted lengths, which are the same in
    every epoch. With `few_shapes`, lengths are rounded up (`rounded_lengths`), so that batches have few widths.
    """

    def __init__(self, lengths: Lengths, budget: int, seed: int, *, few_shapes: bool = False) -> None:
        if not lengths:
            raise DataError("there are no examples to batch; give at least one")
        if few_shapes:
            lengths = rounded_lengths(lengths)
        self._lengths = lengths
        self._budget = budget
        self._seed = seed
        self.per_epoch = len(sorted_batches(lengths, budget))
        self._current: tuple[int, list[list[int]]] | None = None  # cache of the latest epoch's number and plan

    def width(self, update: int) -> int:
        """The width of an update's batch: the length of its longest side, rounded up with `few_shapes`."""
        return max(max(self._lengths[index]) for index in self[update])

    def locate(self, update: int) -> tuple[int, int]:
        """The epoch of an update, and the index of its batch within the epoch."""
        return divmod(update, self.per_epoch)

    def __getitem__(self, update: int) -> list[int]:
        """The indices of the examples in an update's batch."""
        epoch, index = self.locate(update)
        current = self._current
        if current is None or current[0] != epoch:
            current = self._current = epoch, plan(self._lengths, self._budget, self._seed, epoch)
        return current[1][index]


def pad(rows: Sequence[Sequence[int]]) -> Padded:
    """Pads rows of token ids to the length of the longest row, with a mask that is True for real tokens."""
    width = max(map(len, rows), default=0)
    ids = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows], dtype=torch.long)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    return Padded(ids.reshape(len(rows), width), torch.arange(width) < lengths.unsqueeze(1))
