"""Reads columns of Parquet files by pyarrow, within limits: what would be unpacked is measured before it is.

The sizes in the footer may be wrong, and pyarrow takes memory for as many bytes as the header of a page says. So these
headers are read first, with the few rules of Thrift's compact protocol.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from regard.data.files import (
    FEW_MEMBERS,
    FIELDS,
    PIECE,
    SMALL_MEMBER,
    check_expansion,
    check_limit,
    opened,
)
from regard.errors import DataError, MissingExtraError, shown
from regard.recipe import Limits

MAGIC = b"PAR1"  # the first and the last bytes of a file; the size of the footer is in the four bytes before the last
FOOTER = 2**20  # bytes that any footer may have, and more in a large file: pyarrow takes 200 times as much memory
FOOTER_SHARE = 100  # a larger footer is at most this part of its file, and
LARGEST_FOOTER = 2**26  # bytes
DEPTH = 100  # of records in records, or of fields in the header of a page
ROWS = 1000  # that are converted at a time
BATCH = 2**26  # bytes that they may take: each may hold as much as a page, so that with large pages they are fewer
LONGEST_HEADER = 2**20  # bytes of the header of a page
LARGEST = 2**31 - 1  # number of bytes or values of a page
DICTIONARY_PAGE = 2  # a type of page; the others have values, but for those that no writer uses
SCHEMA, CHILDREN = 2, 5  # fields of the footer, and of an element of its schema
PAGE_TYPE, UNPACKED, PACKED = 1, 2, 3  # fields of the header of a page
PAGE_HEADERS = (5, 7, 8)  # further fields: of a data page, a dictionary page, a data page of version 2
COUNT = 1  # in these, the number of values
HALF_FLOAT = 2  # bytes
TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, STRUCT = 1, 2, 3, 7, 8, 9, 10, 12  # types of Thrift
INTEGERS = (4, 5, 6)
UNREADABLE = (
    OSError,
    ValueError,
    ArithmeticError,
    NotImplementedError,
    KeyError,
    IndexError,
)  # subclasses of these are pyarrow's
WRONG_TYPE = (TypeError, AttributeError)  # of a field in the footer or in the header of a page

TIMES = ("DATE", "TIME", "TIMESTAMP", "INTERVAL")  # logical types; Python's dates and times do not hold all of them

Struct = dict[int, Any]  # the values of a structure by the numbers of its fields


class Parquet:
    """An open Parquet file whose schema and footer are within the limits; see `open_parquet`."""

    def __init__(self, name: str, handle: int, size: int, limits: Limits) -> None:
        from pyarrow.parquet import ParquetFile

        self.name, self._handle, self.size, self._limits = name, handle, size, limits
        check_limit(name, size, limits.file_bytes, "bytes", "file_bytes")
        _check_footer(name, handle, size)
        with _refused(name):
            file = os.fdopen(handle, "rb", closefd=False)
            self._file = ParquetFile(file, buffer_size=PIECE, pre_buffer=False)
            self.columns: list[str] = self._file.schema_arrow.names
            self.rows: int = self._file.metadata.num_rows
            schema = self._file.schema
            self.leaves = {schema.column(place).path: place for place in range(self._file.metadata.num_columns)}
        check_limit(name, self.rows, limits.lines, "records", "lines")
        self._unpacked = self._pages = 0

    def records(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The values of each row in these columns, which are `leaves`; `a.b` is in the record of the column a."""
        for column in columns:
            self._check_type(column)
        self._count(self.rows * len(columns))  # refused now, if the footer is right
        self._unpacked = 0
        with _refused(self.name):
            for group in range(self._file.metadata.num_row_groups):
                rows = max(1, min(ROWS, BATCH // max(self._check_pages(group, column) for column in columns)))
                for batch in self._file.iter_batches(rows, [group], list(dict.fromkeys(columns)), use_threads=False):
                    yield from batch.to_pylist()

    def _check_type(self, column: str) -> None:
        """Refuse lists and blocks of bytes, of which one value may take any amount of memory, dates and the like."""
        leaf = self._file.schema.column(self.leaves[column])
        kind = leaf.logical_type.type
        if kind in TIMES or leaf.physical_type == "INT96":
            raise DataError(f"{self.name}: the column {shown(column)} holds times or dates; write them as texts")
        if leaf.max_repetition_level or (leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" and leaf.length > HALF_FLOAT):
            kind = "lists" if leaf.max_repetition_level else "blocks of bytes"
            raise DataError(f"{self.name}: the column {shown(column)} holds {kind}, expected texts or numbers")

    def _check_pages(self, group: int, column: str) -> int:
        """Refuse pages of a column that are too large or too many; returns the size of the largest, unpacked."""
        metadata = self._file.metadata.row_group(group)
        chunk = metadata.column(self.leaves[column])
        start, values, largest = chunk.data_page_offset, 0, 1
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        end = start + chunk.total_compressed_size
        while start < end:
            page, header_size = self._page(start)
            counts = [page[field].get(COUNT, -1) for field in PAGE_HEADERS if field in page]
            unpacked, packed = page.get(UNPACKED, -1), page.get(PACKED, -1)
            if len(counts) > 1 or not all(0 <= number <= LARGEST for number in (unpacked, packed, *counts)):
                raise _broken(self.name, "the header of a page is wrong")
            check_limit(f"{self.name}: a page", unpacked, self._limits.line_bytes, "bytes, unpacked", "line_bytes")
            self._count(unpacked)
            self._pages += 1
            if self._pages > FEW_MEMBERS + self._unpacked // SMALL_MEMBER:
                raise DataError(f"{self.name} has {self._pages:,} pages with little data in each; write it again")
            is_dictionary = page.get(PAGE_TYPE) == DICTIONARY_PAGE
            if is_dictionary and sum(counts) > unpacked:
                raise _broken(self.name, "a dictionary has more values than bytes")
            values += 0 if is_dictionary else sum(counts)
            start, largest = start + header_size + packed, max(largest, unpacked)
        if start != end or values != metadata.num_rows:
            raise _broken(self.name, f"a column has {values:,} values, but its rows are {metadata.num_rows:,}")
        return largest

    def _page(self, start: int) -> tuple[Struct, int]:
        """The header of the page at an offset, and the size of the header."""
        for most in (2**10, LONGEST_HEADER):  # nearly all have less than a hundred bytes
            reader = _Compact(os.pread(self._handle, most, start))
            try:
                return reader.struct(), reader.place
            except IndexError:
                continue
        raise _broken(self.name, "the header of a page does not end")

    def _count(self, unpacked: int) -> None:
        self._unpacked += unpacked
        check_limit(self.name, self._unpacked, self._limits.file_bytes, "bytes, unpacked", "file_bytes")
        check_expansion(self.name, self._unpacked, self.size, self._limits)


@contextmanager
def open_parquet(name: str, limits: Limits) -> Iterator[Parquet]:
    """Opens a Parquet file; DataError if it is none, breaks a limit, or changes before it is closed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet", f"reading the Parquet file {name}") from error
    with opened(name) as (handle, status):
        yield Parquet(name, handle, status.st_size, limits)


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """Turns errors of pyarrow, and of `_Compact`, into a DataError."""
    try:
        yield
    except UNREADABLE + WRONG_TYPE as error:
        raise _broken(name, str(error)) from error


def _broken(name: str, reason: str) -> DataError:
    return DataError(f"{name} is not a whole Parquet file ({shown(reason)}); fetch or write it again")


def _check_footer(name: str, handle: int, size: int) -> None:
    """Refuse a footer that is large, and a schema of many columns or deep records, before pyarrow reads them."""
    tail = os.pread(handle, 8, max(0, size - 8))
    length, most = int.from_bytes(tail[:4], "little"), min(LARGEST_FOOTER, max(FOOTER, size // FOOTER_SHARE))
    if size < 12 or not tail.endswith(MAGIC) or length > size - 8:
        raise _broken(name, "its end is missing")
    if length > most:
        raise DataError(f"{name} has a footer of {length:,} bytes, more than {most:,}; write it with larger row groups")
    with _refused(name):
        reader = _Compact(os.pread(handle, length, size - 8 - length), longest_list=FIELDS + 1)
        try:
            elements = reader.struct(last=SCHEMA).get(SCHEMA, [])
        except OverflowError:
            columns = f"more than {FIELDS:,} columns"
            raise DataError(f"{name} has {columns}; write it again with those that you need") from None
        open_records = [1]  # of each record around an element, how many of its fields are still to come
        for element in elements:
            open_records[-1] -= 1
            open_records.append(element.get(CHILDREN, 0))
            while open_records and not open_records[-1]:
                open_records.pop()
            if len(open_records) > DEPTH:
                raise DataError(f"{name} has records in records, more than {DEPTH} deep; write it again without them")


class _Compact:
    """Reads structures of Thrift's compact protocol from bytes; IndexError if these end too early.

    OverflowError if a list is longer than `longest_list`.
    """

    def __init__(self, content: bytes, longest_list: int = LARGEST) -> None:
        self.content, self.place, self._longest_list = content, 0, longest_list

    def struct(self, last: int = LARGEST, depth: int = 0) -> Struct:
        """The next structure, up to the field `last`."""
        values: Struct = {}
        number = 0
        while (kind := self._byte()) and number < last:
            number = number + (kind >> 4) if kind >> 4 else self._integer()
            if number in values:
                raise ValueError(f"the field {number} is there twice")
            values[number] = kind & 15 == TRUE if kind & 15 in (TRUE, FALSE) else self._value(kind & 15, depth)
        return values

    def _value(self, kind: int, depth: int) -> Any:
        if kind in INTEGERS:
            return self._integer()
        if kind == STRUCT and depth < DEPTH:
            return self.struct(depth=depth + 1)
        if kind in (LIST, SET) and depth < DEPTH:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            if count > self._longest_list:
                raise OverflowError(f"a list of {count:,} values")
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        sizes = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8}
        if kind not in sizes and kind != BINARY:
            raise ValueError(f"a field of the type {kind}")
        size = sizes.get(kind) or self._unsigned()
        start, self.place = self.place, self.place + size
        if self.place > len(self.content):
            raise IndexError("the content ends too early")
        return self.content[start : self.place]

    def _byte(self) -> int:
        self.place += 1
        return self.content[self.place - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a whole number has more than ten bytes")

    def _integer(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)
