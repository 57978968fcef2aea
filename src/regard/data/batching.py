"""Groups examples of similar length into batches with a limited number of tokens."""

import random
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.store import LONG, IntegerRows
from regard.errors import DataError, RecipeError
from regard.types import PAD, Padded

# source and target length of every example, special tokens included; as an array of two columns they need less memory
Lengths = Sequence[tuple[int, int]] | NDArray[np.int32]

LONG_SOURCES = 2  # if sources usually have more than so many times as many positions as targets, see `has_long_sources`


def length_array(lengths: Lengths) -> NDArray[np.int32]:
    """The lengths as an array: a row for each example, with its source and its target length."""
    return np.asarray(lengths, dtype=np.int32).reshape(-1, 2)


def plan(lengths: Lengths, budget: int, seed: int, epoch: int, *, by_target: bool = False) -> IntegerRows:
    """Batches of one epoch in shuffled order, as lists of example indices; a pure function of the arguments.

    The number of rows times the length of the longest side is at most `budget`; an example longer than that gets a
    batch of its own. Examples of equal length are shuffled, so that batches differ from epoch to epoch. With
    `by_target`, those with equal sources are sorted by their targets.
    """
    generator = random.Random(f"batches {seed} {epoch}")  # a string seed works alike in every process; hash() does not
    order = shuffled(len(lengths), generator)
    batches = _fill(order, length_array(lengths), budget, by_target=by_target)
    return batches.take(shuffled(len(batches), generator))


def sorted_batches(lengths: Lengths, budget: int, *, by_target: bool = False) -> IntegerRows:
    """Batches for scoring, as lists of example indices, sorted from the shortest to the longest examples."""
    order = np.arange(len(lengths), dtype=np.int32)
    return _fill(order, length_array(lengths), budget, by_target=by_target)


def shuffled(count: int, generator: random.Random) -> NDArray[np.int32]:
    """The numbers below `count`, in the order in which `generator.shuffle` puts any list of that length."""
    numbers = array(LONG, range(count))
    generator.shuffle(numbers)
    return np.asarray(numbers)


def _fill(order: NDArray[np.int32], lengths: NDArray[np.int32], budget: int, *, by_target: bool) -> IntegerRows:
    """Sorts examples by length and cuts them into batches; examples of equal lengths keep their order."""
    if budget < 1:
        raise RecipeError(f"a batch of {budget} tokens holds nothing; give 1 or more")
    longest, (sources, targets) = lengths.max(1)[order], lengths[order].T
    # The source length is the second sort key, so that the shorter side needs little padding too. The sort is stable.
    by_length = np.lexsort((targets, sources, longest) if by_target else (sources, longest))
    longest = np.maximum(longest[by_length], 1)
    sizes, filled = array(LONG), 0
    while filled < len(order):
        sizes.append(_batch_size(longest[filled:], budget))
        filled += sizes[-1]
    return IntegerRows.cut(order[by_length], np.asarray(sizes))


def _batch_size(longest: NDArray[np.int32], budget: int) -> int:
    """The number of examples of the next batch, at least one, if the examples are sorted by their `longest` side."""
    most = min(len(longest), max(1, budget // longest.item(0)))
    return bisect_right(range(1, most + 1), budget, lo=1, key=lambda size: size * longest.item(size - 1))


def has_long_sources(lengths: Lengths) -> bool:
    """Whether the median source is more than twice as long as the median target, as with pictures and recordings.

    Then the source decides which examples are in a batch, and targets need a width of their own: else a decoder would
    run over mostly padding.
    """
    sides = length_array(lengths)
    return len(sides) > 0 and bool(np.median(sides[:, 0]) > LONG_SOURCES * np.median(sides[:, 1]))


def rounded_width(longest: int) -> int:
    """Rounds a length up to one of few batch widths: multiples of 8 up to 64, of 32 up to 256, of 128 above."""
    step = 8 if longest <= 64 else 32 if longest <= 256 else 128
    return max(1, -(-longest // step)) * step


def rounded_lengths(lengths: Lengths) -> NDArray[np.int32]:
    """Lengths rounded up by `rounded_width`; none is larger than the longest given length.

    They are the same on both sides, so that batches have few shapes, unless sources are long (`has_long_sources`).
    """
    sides = length_array(lengths)
    if has_long_sources(sides):
        return np.stack([_rounded(side) for side in sides.T], axis=1)
    return np.repeat(_rounded(sides.max(1)), 2).reshape(-1, 2)


def _rounded(lengths: NDArray[np.int32]) -> NDArray[np.int32]:
    """Lengths of one side rounded up by `rounded_width`, but not above the longest of them."""
    longest = lengths.max().item()
    widths = np.asarray([min(longest, rounded_width(length)) for length in range(longest + 1)], np.int32)
    return widths[lengths]


class Batches:
    """The batch of every update, indexed by the update's number from 0 over all epochs, so that training can resume.

    Every epoch has `per_epoch` batches: the limits of batches depend only on the sorted lengths, which are the same in
    every epoch. With `few_shapes`, lengths are rounded up (`rounded_lengths`), so that batches have few widths; and if
    sources are long (`has_long_sources`), examples with targets of similar length are put together.
    """

    def __init__(self, lengths: Lengths, budget: int, seed: int, *, few_shapes: bool = False) -> None:
        if not len(lengths):
            raise DataError("there are no examples to batch; give at least one")
        self._lengths = rounded_lengths(lengths) if few_shapes else length_array(lengths)
        self._apart = few_shapes and has_long_sources(lengths)
        self._budget = budget
        self._seed = seed
        self.per_epoch = len(sorted_batches(self._lengths, budget, by_target=self._apart))
        self._current: tuple[int, IntegerRows] | None = None  # cache of the latest epoch's number and plan

    def widths(self, update: int) -> tuple[int, int]:
        """The widths of an update's batch: the length of its longest source and target, rounded up with `few_shapes`.

        Both are that of the longer side, unless sources are long (`has_long_sources`).
        """
        source, target = self._lengths[self[update]].max(0).tolist()
        return (source, target) if self._apart else (max(source, target), max(source, target))

    def locate(self, update: int) -> tuple[int, int]:
        """The epoch of an update, and the index of its batch within the epoch."""
        return divmod(update, self.per_epoch)

    def __getitem__(self, update: int) -> list[int]:
        """The indices of the examples in an update's batch."""
        epoch, index = self.locate(update)
        current = self._current
        if current is None or current[0] != epoch:
            batches = plan(self._lengths, self._budget, self._seed, epoch, by_target=self._apart)
            current = self._current = epoch, batches
        return current[1][index]


def pad(rows: Sequence[Sequence[int]]) -> Padded:
    """Pads rows of token ids to the length of the longest row, with a mask that is True for real tokens."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    ids = np.full(mask.shape, PAD, np.int64)
    ids[mask] = list(chain.from_iterable(rows))
    return Padded(torch.from_numpy(ids), torch.from_numpy(mask))
