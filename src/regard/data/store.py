"""Compact sequences: lines in one buffer of bytes, rows of whole numbers in one array, items computed when read."""

import re
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, islice, pairwise
from operator import eq, itemgetter
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from regard.types import Example

Item = TypeVar("Item")
Other = TypeVar("Other")
Integers = NDArray[np.integer[Any]]
Indices = Sequence[int] | Integers
Texts = tuple[str, str]  # source and target of an example

BLOCK = 10_000  # items whose indices are converted to Python's integers at a time
LINE_ENDS = re.compile(rb"[\r\n]*+")
SHORT, LONG = "H", "i"  # types of an array: whole numbers of two bytes, from 0 to 65,535, and of four


class Stored(Sequence[Item]):
    """Base of read-only sequences that keep their content in a compact form and make an item when it is read.

    Equal to every sequence of equal items. A slice and `take` share the content.
    """

    @abstractmethod
    def item(self, index: int) -> Item:
        """The item at an index from 0."""

    def take(self, indices: Indices) -> "Stored[Item]":
        """The items at these indices, in that order."""
        return Mapped(np.asarray(indices, dtype=np.int64), self.item)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> "Stored[Item]": ...
    def __getitem__(self, index: int | slice) -> "Item | Stored[Item]":
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self):,} items, and none at {index:,}")
        return self.item(index % len(self))

    def __iter__(self) -> Iterator[Item]:
        return map(self.item, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


class Mapped(Stored[Item]):
    """A function of each of these indices, computed when the item is read."""

    def __init__(self, indices: Integers, function: Callable[[int], Item]) -> None:
        self.indices, self.function = indices, function

    def __len__(self) -> int:
        return len(self.indices)

    def item(self, index: int) -> Item:
        """The function of the index at this place."""
        return self.function(self.indices.item(index))

    def take(self, indices: Indices) -> "Mapped[Item]":
        """The items at these indices, in that order."""
        return Mapped(self.indices[np.asarray(indices, dtype=np.int64)], self.function)

    def __iter__(self) -> Iterator[Item]:
        for start in range(0, len(self), BLOCK):
            yield from map(self.function, self.indices[start : start + BLOCK].tolist())


class Shared(Stored[Item]):
    """Items of which many are the same, such as a picture with several captions: each distinct item is kept once."""

    def __init__(self, distinct: Sequence[Item], numbers: Integers) -> None:
        self.distinct = distinct
        self.numbers = numbers  # of the distinct item at each place

    @staticmethod
    def of(names: Iterable[str], read: Callable[[list[str]], Sequence[Item]]) -> "Shared[Item]":
        """The items of these names; `read` gets each name once, and gives its item."""
        places: dict[str, int] = {}
        numbers = array(LONG, (places.setdefault(name, len(places)) for name in names))
        return Shared(read(list(places)), np.asarray(numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    def item(self, index: int) -> Item:
        """The item at an index from 0."""
        return self.distinct[self.numbers.item(index)]

    def take(self, indices: Indices) -> "Shared[Item]":
        """The items at these indices, in that order."""
        return Shared(self.distinct, self.numbers[np.asarray(indices, dtype=np.int64)])


def mapped(items: Sequence[Item], function: Callable[[Item], Other]) -> Mapped[Other]:
    """A function of each item, computed when it is read."""
    if isinstance(items, Mapped):
        inner: Callable[[int], Item] = items.function
        return Mapped(items.indices, lambda index: function(inner(index)))
    return Mapped(np.arange(len(items), dtype=np.int32), lambda index: function(items[index]))


def joined(parts: Sequence[Sequence[Item]]) -> Sequence[Item]:
    """The items of several sequences as one."""
    if len(parts) == 1:
        return parts[0]
    if parts and all(isinstance(part, Unread) for part in parts):
        return Unread.joined([part for part in parts if isinstance(part, Unread)])
    starts = [0, *accumulate(map(len, parts))]

    def item(index: int) -> Item:
        part = bisect_right(starts, index) - 1
        return parts[part][index - starts[part]]

    return Mapped(np.arange(starts[-1]), item)


class Unread(Stored[Item]):
    """Items that are read from files only when one of them is needed; `digest` tells them from all others."""

    def __init__(self, count: int, digest: str, load: Callable[[], Sequence[Item]]) -> None:
        self._size, self.digest, self._load = count, digest, load

    @cached_property
    def loaded(self) -> Sequence[Item]:
        """The items."""
        return self._load()

    @staticmethod
    def joined(parts: "Sequence[Unread[Item]]") -> "Unread[Item]":
        """The items of several as one."""
        digest = " ".join(part.digest for part in parts)
        return Unread(sum(map(len, parts)), digest, lambda: joined([part.loaded for part in parts]))

    def mapped(self, function: "Callable[[Sequence[Item]], Sequence[Other]]", name: str) -> "Unread[Other]":
        """A function of all items, which are read only if its result is needed; the name tells it from others."""
        return Unread(self._size, f"{self.digest}.{name}", lambda: function(self.loaded))

    def __len__(self) -> int:
        return self._size

    def item(self, index: int) -> Item:
        """The item at an index from 0."""
        return self.loaded[index]

    def take(self, indices: Indices) -> Sequence[Item]:  # type: ignore[override]
        """The items at these indices, in that order."""
        return take(self.loaded, indices)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.loaded)


def where(items: Iterable[Item], condition: Callable[[Item], bool]) -> Integers:
    """The indices of the items that fulfil a condition."""
    return np.asarray(array(LONG, (index for index, item in enumerate(items) if condition(item))))


def groups(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in order, `size` at a time; the last group may have fewer."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group


@overload
def take(items: Sequence[Item], indices: Indices) -> Sequence[Item]: ...
@overload
def take(items: Integers, indices: Indices) -> Integers: ...
def take(items: Any, indices: Indices) -> Any:
    """The items at these indices; as a list, unless they are `Stored` or an array."""
    if isinstance(items, Stored):
        return items.take(indices)
    if isinstance(items, np.ndarray):
        return items[indices]
    return [items[index] for index in indices]


class StoredExamples(Stored[Example]):
    """Examples of files: the index of the line of each, and functions of it: source and target, and the origin.

    `corpora` are the indices of the lines at which each of several corpora begins.
    """

    def __init__(
        self,
        lines: Integers,
        texts: Callable[[int], Texts],
        origin: Callable[[int], str],
        corpora: Sequence[int] = (0,),
    ) -> None:
        self.lines, self.texts, self.origin, self.corpora = lines, texts, origin, corpora

    @staticmethod
    def of_files(files: "Sequence[Sequence[StoredExamples]]") -> "StoredExamples":
        """All lines of files as one: those of several corpora, each of one or more files."""
        parts = [part for corpus in files for part in corpus]
        if len(parts) == 1:
            return parts[0]
        starts = [0, *accumulate(map(len, parts))]
        corpora = [0, *accumulate(sum(map(len, corpus)) for corpus in files)][:-1]

        def texts(line: int) -> Texts:
            part = bisect_right(starts, line) - 1
            return parts[part].texts(line - starts[part])

        def origin(line: int) -> str:
            part = bisect_right(starts, line) - 1
            return parts[part].origin(line - starts[part])

        return StoredExamples(np.arange(starts[-1], dtype=np.int32), texts, origin, corpora)

    def __len__(self) -> int:
        return len(self.lines)

    def item(self, index: int) -> Example:
        """The example at an index from 0."""
        line = self.lines.item(index)
        return Example(*self.texts(line), origin=self.origin(line))

    def take(self, indices: Indices) -> "StoredExamples":
        """The examples at these indices, in that order."""
        lines = self.lines[np.asarray(indices, dtype=np.int64)]
        return StoredExamples(lines, self.texts, self.origin, self.corpora)


def texts(examples: Sequence[Example]) -> Stored[Texts]:
    """The source and the target of each example."""
    if isinstance(examples, StoredExamples):
        return Mapped(examples.lines, examples.texts)
    return mapped(examples, lambda example: (example.source, example.target))


def sources(examples: Sequence[Example]) -> Stored[str]:
    """The source of each example."""
    if isinstance(examples, Unread):
        return examples.mapped(sources, "sources")
    return mapped(texts(examples), itemgetter(0))


def targets(examples: Sequence[Example]) -> Stored[str]:
    """The target of each example."""
    if isinstance(examples, Unread):
        return examples.mapped(targets, "targets")
    return mapped(texts(examples), itemgetter(1))


def with_texts(examples: Sequence[Example], change: Callable[[str, str], Texts]) -> Sequence[Example]:
    """The examples with other texts: a function of the source and the target of each."""
    if isinstance(examples, StoredExamples):
        inner = examples.texts
        return StoredExamples(examples.lines, lambda line: change(*inner(line)), examples.origin, examples.corpora)

    def changed(example: Example) -> Example:
        source, target = change(example.source, example.target)
        return replace(example, source=source, target=target)

    return mapped(examples, changed)


def with_sources(examples: Sequence[Example], change: Callable[[str, str], str]) -> Sequence[Example]:
    """The examples with other sources: a function of the source of each, and of the file that it is from."""

    def changed(texts: Texts, origin: str) -> Texts:
        return change(texts[0], origin.rpartition(":")[0]), texts[1]

    if isinstance(examples, StoredExamples):
        texts, origin = examples.texts, examples.origin
        return StoredExamples(examples.lines, lambda line: changed(texts(line), origin(line)), origin)
    return mapped(examples, lambda one: replace(one, source=changed((one.source, one.target), one.origin)[0]))


def with_variants(
    examples: Sequence[Example], variants: Callable[[str], Sequence[str]], count: int
) -> Sequence[Example]:
    """Each example so many times, with the variants of its source."""

    def varied(place: int) -> Example:
        example = examples[place // count]
        return replace(example, source=variants(example.source)[place % count])

    return Mapped(np.arange(count * len(examples), dtype=np.int64), varied)


def without_texts(examples: Sequence[Example]) -> Sequence[Example]:
    """The examples; stored ones with their origins alone, so that the memory of their texts can be freed."""
    if isinstance(examples, StoredExamples):
        return StoredExamples(examples.lines, lambda _: ("", ""), examples.origin, examples.corpora)
    return examples


class Lines(Stored[str]):
    r"""The lines of a UTF-8 text, which end at \n or \r\n only, so that parallel texts stay parallel."""

    def __init__(self, content: bytearray, starts: Integers) -> None:
        self._content = content
        self._starts = starts.data  # of each line, and the end of the last; its items are Python's integers

    def __len__(self) -> int:
        return len(self._starts) - 1

    def item(self, index: int) -> str:
        """The line at an index from 0, without its line end."""
        return self.with_end(index).removesuffix("\n").removesuffix("\r")

    def with_end(self, index: int) -> str:
        """The line at an index from 0, with its line end, if it has one."""
        return self._content[self._starts[index] : self._starts[index + 1]].decode()

    def first_with_text(self, index: int) -> int:
        """The index of the first line, from this one on, that is not blank; the number of lines if all are."""
        if index >= len(self):
            return len(self)
        match = LINE_ENDS.match(self._content, self._starts[index])
        assert match is not None  # it matches an empty text
        return len(self) if match.end() == self._starts[-1] else bisect_right(self._starts, match.end()) - 1

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), BLOCK):
            starts = self._starts[first : first + BLOCK + 1].tolist()
            for start, end in pairwise(starts):
                yield self._content[start:end].decode().removesuffix("\n").removesuffix("\r")


class IntegerRows(Stored[list[int]]):
    """Rows of whole numbers, such as the token ids of texts, in one array."""

    def __init__(self, numbers: Integers, starts: Integers, ends: Integers) -> None:
        self.numbers, self.starts, self.ends = numbers, starts, ends

    @staticmethod
    def of(rows: Iterable[list[int]]) -> "IntegerRows":
        """Stores rows of numbers from 0, with two bytes for each number if all are below 65,536, else four."""
        numbers, lengths = array(SHORT), array(LONG)
        for row in rows:
            try:
                numbers.fromlist(row)
            except OverflowError:
                numbers = array(LONG, numbers)
                numbers.fromlist(row)
            lengths.append(len(row))
        return IntegerRows.cut(np.asarray(numbers), np.asarray(lengths))

    @staticmethod
    def cut(numbers: Integers, lengths: Integers) -> "IntegerRows":
        """Cuts an array into rows of these lengths."""
        bounds = np.zeros(len(lengths) + 1, offset_type(len(numbers)))
        bounds[1:] = np.cumsum(lengths, dtype=np.int64)
        return IntegerRows(numbers, bounds[:-1], bounds[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def item(self, index: int) -> list[int]:
        """The row at an index from 0."""
        return self.numbers[self.starts.item(index) : self.ends.item(index)].tolist()

    def take(self, indices: Indices) -> "IntegerRows":
        """The rows at these indices, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return IntegerRows(self.numbers, self.starts[chosen], self.ends[chosen])


def offset_type(size: int) -> type[np.uint32] | type[np.int64]:
    """The type of offsets into a buffer of this size: of four bytes if they are enough, else of eight."""
    return np.uint32 if size < 2**32 else np.int64


def row_lengths(rows: Sequence[Sequence[Any]]) -> NDArray[np.int32]:
    """The number of items in each row."""
    if isinstance(rows, IntegerRows):
        return (rows.ends - rows.starts).astype(np.int32)
    return np.fromiter(map(len, rows), np.int32, len(rows))
