"""Examples to batches: sentences of like length stand together, under a budget of tokens."""

import random
from collections.abc import Sequence

import torch

from regard.errors import DataError, RecipeError
from regard.types import BEGIN, END, PAD, Batch, Padded

Lengths = Sequence[tuple[int, int]]  # source and target length of every example, special tokens included


def plan(lengths: Lengths, budget: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of one epoch, in shuffled order: a pure function of its arguments.

    Rows times the longest side is at most `budget`; an example longer than that stands alone.
    Examples of equal length are shuffled among each other, so that they meet others in every epoch.
    """
    generator = random.Random(f"batches {seed} {epoch}")  # a text seeds the same in every process; hash() does not
    order = list(range(len(lengths)))
    generator.shuffle(order)
    batches = _fill(_sorted(order, lengths), lengths, budget)
    generator.shuffle(batches)
    return batches


def in_order(lengths: Lengths, budget: int) -> list[list[int]]:
    """Batches for scoring: from the shortest to the longest, nothing left to chance."""
    return _fill(_sorted(range(len(lengths)), lengths), lengths, budget)


def _sorted(order: Sequence[int], lengths: Lengths) -> list[int]:
    # The source length comes second, so that the shorter side is padded little too; equals keep their order.
    return sorted(order, key=lambda index: (max(lengths[index]), lengths[index][0]))


def _fill(order: Sequence[int], lengths: Lengths, budget: int) -> list[list[int]]:
    if budget < 1:
        raise RecipeError(f"a batch of {budget} tokens holds nothing; give 1 or more")
    batches: list[list[int]] = []
    for index in order:
        longest = max(1, *lengths[index])  # the newest is the longest of its batch, for they come sorted
        if not batches or (len(batches[-1]) + 1) * longest > budget:
            batches.append([])
        batches[-1].append(index)
    return batches


def fixed_width(longest: int) -> int:
    """The width of a batch for an example of that length, where batches have few shapes: multiples of 8, then wider.

    Up to 64 every eighth is one, then every 32nd, from 256 on every 128th.
    """
    step = 8 if longest <= 64 else 32 if longest <= 256 else 128
    return max(1, -(-longest // step)) * step


def widened(lengths: Lengths) -> list[tuple[int, int]]:
    """The lengths as batches of few shapes have them; none is wider than the longest of all."""
    longest = max(max(pair) for pair in lengths)
    widths = [min(longest, fixed_width(max(pair))) for pair in lengths]
    return list(zip(widths, widths, strict=True))


class Batches:
    """The batch of every update, counted from 0 over all epochs, so that training can begin at any of them.

    Where a batch ends depends on the sorted lengths alone, which no shuffling changes: every epoch has
    `per_epoch` batches. With `few_shapes`, lengths count as `widened`, so that few widths of batches come up.
    """

    def __init__(self, lengths: Lengths, budget: int, seed: int, *, few_shapes: bool = False) -> None:
        if not lengths:
            raise DataError("there are no examples to batch; give at least one")
        if few_shapes:
            lengths = widened(lengths)
        self._lengths = lengths
        self._budget = budget
        self._seed = seed
        self.per_epoch = len(in_order(lengths, budget))
        self._current: tuple[int, list[list[int]]] | None = None  # only a cache: the latest epoch and its plan

    def width(self, update: int) -> int:
        """How wide the batch of an update is."""
        return max(max(self._lengths[index]) for index in self[update])

    def locate(self, update: int) -> tuple[int, int]:
        """The epoch of an update, and its place in that epoch."""
        return divmod(update, self.per_epoch)

    def __getitem__(self, update: int) -> list[int]:
        """The examples of an update."""
        epoch, index = self.locate(update)
        current = self._current
        if current is None or current[0] != epoch:
            current = self._current = epoch, plan(self._lengths, self._budget, self._seed, epoch)
        return current[1][index]


def pad(rows: Sequence[Sequence[int]]) -> Padded:
    """Rows of ids as one tensor, as wide as the longest of them."""
    width = max(map(len, rows), default=0)
    ids = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows], dtype=torch.long)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    return Padded(ids.reshape(len(rows), width), torch.arange(width) < lengths.unsqueeze(1))


def collate(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], indices: Sequence[int]) -> Batch:
    """The batch of the examples that `indices` names, out of the ids of all sources and targets."""
    return Batch(
        source=pad([[*sources[index], END] for index in indices]),
        target=pad([[BEGIN, *targets[index], END] for index in indices]),
        examples=torch.tensor(indices, dtype=torch.long),
    )
