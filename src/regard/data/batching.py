"""Groups examples of similar length into batches with a limited number of tokens."""

import math
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

FEW, DRAWN = 1000, 65_536  # numbers that are shuffled one by one, and places to swap that are drawn at a time
LONG_SOURCES = 2  # if sources usually have more than so many times as many positions as targets, see `has_long_sources`


def length_array(lengths: Lengths) -> NDArray[np.int32]:
    """The lengths as an array: a row for each example, with its source and its target length."""
    return np.asarray(lengths, dtype=np.int32).reshape(-1, 2)


class Mixture:
    """Draws the examples of an epoch from several corpora, each with a fixed share; a pure function of seed and epoch.

    An epoch has as many examples as there are. Each corpus is read in random order, again and again, and an epoch goes
    on where the last one ended: so no example is drawn twice before all others of its corpus are drawn.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int) -> None:
        self._sizes, self._seed = sizes, seed
        bounds = np.cumsum([0.0, *weights]) / math.fsum(weights) * sum(sizes)
        self.counts = np.diff(np.round(bounds).astype(np.int64)).tolist()  # of examples of each corpus in an epoch

    def draw(self, epoch: int) -> NDArray[np.int32]:
        """The indices of the examples of an epoch."""
        parts, first = [np.empty(0, np.int32)], 0
        for corpus, (size, count) in enumerate(zip(self._sizes, self.counts, strict=True)):
            start, end = epoch * count, (epoch + 1) * count
            for number in range(start // size, -(-end // size)):
                order = shuffled(size, random.Random(f"corpus {self._seed} {corpus} {number}"))
                parts.append(first + order[max(0, start - number * size) : end - number * size])
            first += size
        return np.concatenate(parts)


def plan(
    lengths: Lengths, budget: int, seed: int, epoch: int, *, by_target: bool = False, mixture: Mixture | None = None
) -> IntegerRows:
    """Batches of one epoch in shuffled order, as lists of example indices; a pure function of the arguments.

    The number of rows times the length of the longest side is at most `budget`; an example longer than that gets a
    batch of its own. Examples of equal length are shuffled, so that batches differ from epoch to epoch. With
    `by_target`, those with equal sources are sorted by their targets. With a `mixture`, it draws the examples.
    """
    generator = random.Random(f"batches {seed} {epoch}")  # a string seed works alike in every process; hash() does not
    order = shuffled(len(lengths), generator)
    if mixture is not None:
        order = mixture.draw(epoch)[order]
    batches = _fill(order, length_array(lengths), budget, by_target=by_target)
    return batches.take(shuffled(len(batches), generator))


def sorted_batches(lengths: Lengths, budget: int, *, by_target: bool = False) -> IntegerRows:
    """Batches for scoring, as lists of example indices, sorted from the shortest to the longest examples."""
    order = np.arange(len(lengths), dtype=np.int32)
    return _fill(order, length_array(lengths), budget, by_target=by_target)


def shuffled(count: int, generator: random.Random) -> NDArray[np.int32]:
    """The numbers below `count`, in the order in which `generator.shuffle` puts any list of that length.

    Of many numbers, it is computed with arrays, ten times as fast, and leaves the generator in the same state.
    """
    numbers, last = np.arange(count, dtype=np.int32), count - 1
    if count > FEW:
        version, (*key, position), gauss = generator.getstate()
        twister = np.random.MT19937()
        twister.state = {"bit_generator": "MT19937", "state": {"key": np.array(key, np.uint32), "pos": position}}
        while last > FEW:  # the numbers from `first` to `last` are swapped, the last one first, as `shuffle` does it
            first = max(last - DRAWN, FEW, (1 << (last + 1).bit_length() - 1) - 1)
            others = _below(twister, last, last - first + 1)
            size = max(1, math.isqrt(last) // 4)
            for start in range(0, len(others), size):
                _swap(numbers, last - start, others[start : start + size])
            last = first - 1
        state = twister.state["state"]
        generator.setstate((version, (*state["key"].tolist(), state["pos"]), gauss))
    rest = array(LONG, numbers[: last + 1].tobytes())
    generator.shuffle(rest)
    numbers[: last + 1] = rest
    return numbers


def _below(twister: np.random.MT19937, last: int, count: int) -> NDArray[np.int64]:
    """A random number from 0 to `last`, the next from 0 to `last` - 1, and so on: `count` of them.

    As `random.Random` draws them: the highest bits of a word, or of the next word if they make a larger number. All
    bounds have the same number of bits.
    """
    bits, drawn = (last + 1).bit_length(), np.empty(0, np.int64)
    while len(drawn) < count:
        bound = last - len(drawn)
        numbers = twister.random_raw(count - len(drawn)).astype(np.int64) >> 32 - bits
        taken, previous = numbers <= bound, None
        while previous is None or not np.array_equal(taken, previous):  # each word that is taken lowers the next bound
            previous, taken = taken, numbers <= bound - (np.cumsum(taken) - taken)
        drawn = np.concatenate([drawn, numbers[taken]])
    return drawn


def _swap(numbers: NDArray[np.int32], last: int, others: NDArray[np.int64]) -> None:
    """Swap the number at `last` with that at the first of the other places, the one before it with the next, etc."""
    places = np.arange(last, last - len(others), -1)
    in_order = np.sort(others)
    if in_order[-1] < places[-1] and (in_order[1:] != in_order[:-1]).all():  # no swap depends on another
        numbers[places], numbers[others] = numbers[others], numbers[places]
        return
    view = numbers.data  # its items are Python's integers
    for place, other in zip(places.tolist(), others.tolist(), strict=True):
        view[place], view[other] = view[other], view[place]


def _fill(order: NDArray[np.int32], lengths: NDArray[np.int32], budget: int, *, by_target: bool) -> IntegerRows:
    """Sorts examples by length and cuts them into batches; examples of equal lengths keep their order."""
    sources, targets = lengths.T
    longest = np.maximum(sources, targets)
    # The source length is the second sort key, so that the shorter side needs little padding too. The sort is stable.
    by_length = _sorted(*(key[order] for key in ((longest, sources, targets) if by_target else (longest, sources))))
    order = order[by_length]
    return IntegerRows.cut(order, _sizes(longest[order], budget))


def _sorted(*keys: NDArray[np.int32]) -> NDArray[np.int64]:
    """The order of a stable sort by several keys, the first one first; they are joined to one small number if they fit.

    Numbers of two bytes are sorted ten times as fast as with `lexsort`.
    """
    joined, size = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        highest = int(key.max(initial=0)) + 1
        joined, size = joined * highest + key, size * highest
    if size >= 1 << 62:
        return np.lexsort(keys[::-1])
    return np.argsort(joined.astype(np.min_scalar_type(size)), kind="stable")


def count_batches(lengths: Lengths, budget: int) -> int:
    """The number of batches of an epoch; it depends only on how many examples have which length."""
    counts = np.bincount(np.maximum(*length_array(lengths).T))
    return len(_sizes(np.repeat(np.arange(len(counts), dtype=np.int32), counts), budget))


def _sizes(longest: NDArray[np.int32], budget: int) -> NDArray[np.int32]:
    """The number of examples of each batch, at least one, if the examples are sorted by their `longest` side."""
    if budget < 1:
        raise RecipeError(f"a batch of {budget} tokens holds nothing; give 1 or more")
    view, sizes, filled = np.maximum(longest, 1).data, array(LONG), 0  # the items of a view are Python's integers
    while filled < len(view):
        size = min(len(view) - filled, max(1, budget // view[filled]))
        if view[filled + size - 1] > view[filled]:
            last = filled - 1
            size = bisect_right(range(1, size + 1), budget, lo=1, key=lambda size: size * view[last + size])
        sizes.append(size)
        filled += size
    return np.asarray(sizes)


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
    every epoch. With a `mixture` they are not: then it is the number of batches of the first epoch; an epoch with more
    leaves some out, and one with fewer repeats some. With `few_shapes`, lengths are rounded up (`rounded_lengths`), so
    that batches have few widths; and if sources are long (`has_long_sources`), examples with targets of similar length
    are put together.
    """

    def __init__(
        self, lengths: Lengths, budget: int, seed: int, *, few_shapes: bool = False, mixture: Mixture | None = None
    ) -> None:
        if not len(lengths):
            raise DataError("there are no examples to batch; give at least one")
        self._lengths = rounded_lengths(lengths) if few_shapes else length_array(lengths)
        self._apart = few_shapes and has_long_sources(lengths)
        self._budget = budget
        self._seed = seed
        self._mixture = mixture
        if mixture is None:
            self.per_epoch = count_batches(self._lengths, budget)
            self._current: tuple[int, IntegerRows] | None = None  # cache of the latest epoch's number and plan
        else:
            self._current = 0, self._plan(0)
            self.per_epoch = len(self._current[1])

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
            current = self._current = epoch, self._plan(epoch)
        return current[1][index % len(current[1])]

    def _plan(self, epoch: int) -> IntegerRows:
        return plan(self._lengths, self._budget, self._seed, epoch, by_target=self._apart, mixture=self._mixture)


def pad(rows: Sequence[Sequence[int]]) -> Padded:
    """Pads rows of token ids to the length of the longest row, with a mask that is True for real tokens."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    ids = np.full(mask.shape, PAD, np.int64)
    ids[mask] = list(chain.from_iterable(rows))
    return Padded(torch.from_numpy(ids), torch.from_numpy(mask))
