"""Reads time series from CSV files, plain or gzip, within limits.

A long file has a row for each value, `series,time,value`, and may have columns of covariates and categories. A wide
file has a row for each time and a column for each series. A file of M4 has a row for each series, without times. A
matrix has a column for each series, and neither names nor times.
"""

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from regard.console import counted
from regard.data.files import LIMITS, load, reading
from regard.data.frequency import Frequency, Time
from regard.data.records import DELIMITERS, list_names
from regard.data.series import STEP, LineNumbers, Series
from regard.data.store import Lines
from regard.data.tables import (
    NUMBER,
    USUAL,
    VALUE,
    Columns,
    LoadedSeries,
    Roles,
    Table,
    checked,
    floats,
    is_long,
    of_long,
    of_wide,
)
from regard.data.times import is_time
from regard.errors import DataError, pick, shown
from regard.recipe import Limits

MOST_FIELDS = 1_000_000  # of a row
CELLS = 200_000  # that are converted to numbers at a time

Row = tuple[int, list[str]]  # the number of a line, from 1, and its fields


class Reading(NamedTuple):
    """How a file is read."""

    columns: Columns = USUAL  # of a long file
    frequency: Frequency | None = None  # None: it is inferred from the times; without times, steps are counted
    start: Time | None = None  # of the first value of each series, if a file has no times


INFERRED = Reading()


def read(name: str, format: str = "", how: Reading = INFERRED, limits: Limits = LIMITS) -> LoadedSeries:
    """The series of a file in one of FORMATS; if it is not given, the header says which."""
    return of_lines(load(name, limits), name, format, how)


def of_lines(lines: Lines, name: str, format: str = "", how: Reading = INFERRED) -> LoadedSeries:
    """The series of the lines of a file, which has this name in messages."""
    file = _open(lines, name)
    return pick(FORMATS, format or _format(file, how.columns), "format")(file, how)


# from lines to fields


class _File(NamedTuple):
    """The lines of a CSV file, and the fields of the first."""

    name: str
    lines: Lines
    first: int  # index of the first line with text
    delimiter: str
    header: list[str]

    def where(self, number: int | np.int32) -> str:
        return f"{self.name}:{number}"

    def rows(self) -> Iterator[Row]:
        """The lines with text after the header."""
        for number, line in enumerate(self.texts(self.first + 1), self.first + 2):
            if line and not line.isspace():
                yield number, _fields(line, self.delimiter, self.where(number))

    def texts(self, first: int) -> Iterable[str]:
        """All lines from an index on."""
        return counted(islice(self.lines, first, None), reading(self.name), len(self.lines) - first)


def _open(lines: Lines, name: str) -> _File:
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise DataError(f"{name} has no line with text; give a header and at least one row")
    text, where = lines.item(first), f"{name}:{first + 1}"
    delimiter = max(DELIMITERS, key=text.count)  # of equally frequent ones, the first
    return _File(name, lines, first, delimiter, [field.strip() for field in _fields(text, delimiter, where)])


def _fields(line: str, delimiter: str, where: str) -> list[str]:
    """The fields of a line; one in quotes may hold delimiters, but no newline, so that no record has many lines."""
    if line.count(delimiter) >= MOST_FIELDS:
        raise DataError(f"{where}: more than {MOST_FIELDS:,} fields; split the file")
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise DataError(f"{where}: this line is not valid CSV ({error}); check its quotes") from error


class _Block(NamedTuple):
    """The cells of some rows, row by row."""

    lines: LineNumbers  # of each row
    cells: list[str]


def _blocks(file: _File, first: int) -> Iterator[_Block]:
    """The rows from a line on, many at a time, which is faster; DataError if one is not as wide as the first line."""
    texts, width = iter(file.texts(first)), len(file.header)
    while block := list(islice(texts, max(1, CELLS // width))):
        lines = np.arange(first + 1, first + 1 + len(block), dtype=np.int32)
        first += len(block)
        if blank := [index for index, line in enumerate(block) if not line or line.isspace()]:
            lines = np.delete(lines, blank)
            block = [line for line in block if line and not line.isspace()]
        if block:
            yield _Block(lines, _cells(file, lines, block, width))


def _cells(file: _File, lines: LineNumbers, texts: Sequence[str], width: int) -> list[str]:
    """The fields of some lines."""
    joined = file.delimiter.join(texts)
    if '"' in joined:
        rows = [_fields(text, file.delimiter, file.where(line)) for text, line in zip(texts, lines, strict=True)]
        counts, cells = list(map(len, rows)), [cell for row in rows for cell in row]
    else:
        counts, cells = [text.count(file.delimiter) + 1 for text in texts], []
    for line, count in zip(lines, counts, strict=True):
        if count != width:
            text = f"{count:,} fields, but line {file.first + 1} has {width:,}"
            raise DataError(f"{file.where(line)}: {text}; write equally many, and decimals with a point")
    return cells or joined.split(file.delimiter)


def _format(file: _File, columns: Columns) -> str:
    """The format that the first line tells."""
    if (
        columns == USUAL
        and len(file.header) > 1
        and all(name == f"V{number}" for number, name in enumerate(file.header, start=1))
    ):
        return "m4"
    _check_header(file)
    if is_long(file.header, columns):
        return "long"
    if (row := next(file.rows(), None)) is not None and is_time(row[1][0]):
        return "wide"
    what = f"no column is named {', '.join(VALUE[:-1])} or {VALUE[-1]}, and the first holds no times"
    how = f"name the columns of series, time and value, or one of the formats {', '.join(FORMATS)}"
    raise DataError(f"{file.name}: {what}; there are {list_names(file.header)}; {how}")


def _check_header(file: _File) -> None:
    """Refuse a first line that is data."""
    if all(NUMBER.fullmatch(name) or is_time(name) for name in file.header):
        how = "write one such as series,time,value, or give the format matrix if each column is a series without times"
        raise DataError(f"{file.where(file.first + 1)}: no header, but {list_names(file.header)}; {how}")


# from fields to series


def _long(file: _File, how: Reading) -> LoadedSeries:
    """A row for each value: `series,time,value`, and columns of covariates and categories."""
    _check_header(file)
    return of_long(_table(file, how, Roles.of_long(file.name, file.header, how.columns)))


def _wide(file: _File, how: Reading) -> LoadedSeries:
    """A row for each time, which is in the first column, and a column for each series; all end at the same time."""
    _check_header(file)
    where, names = file.where(file.first + 1), file.header[1:]
    if not names:
        raise DataError(f"{where}: one column; a wide file has one of times, and one for each series")
    if "" in names:
        raise DataError(f"{where}: column {names.index('') + 2:,} has no name; write that of its series")
    if len(set(names)) < len(names):
        repeated = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{where}: several columns {shown(repeated)}; rename all but one")
    return of_wide(_table(file, how, Roles.of_wide(len(file.header))), names)


def _table(file: _File, how: Reading, roles: Roles) -> Table:
    """All rows of a file with times."""
    if how.start is not None:
        raise DataError(f"{file.name} has times of its own; give no start")
    table = Table(file.name, roles, how.frequency)
    width = len(file.header)
    for lines, cells in _blocks(file, file.first + 1):
        table.add([cells[place::width] for place in range(width)], file.header, lines)
    return table


def _m4(file: _File, how: Reading) -> LoadedSeries:
    """A row for each series, as in the M4 competition: its name, then its values; short rows end with empty cells."""
    _check_header(file)
    frequency, start = without_times(file.name, how.frequency, how.start)
    series: dict[str, Series] = {}
    for number, (first, *texts) in file.rows():
        name, where = first.strip(), file.where(number)
        if len(texts) >= len(file.header):
            raise DataError(f"{where}: {len(texts) + 1:,} fields, but the header has {len(file.header):,}")
        if not name:
            raise DataError(f"{where}: a row without the name of its series")
        if name in series:
            raise DataError(f"{where}: series {shown(name)} is also at {series[name].origin}; rename one")
        while texts and not texts[-1].strip():
            texts.pop()
        if not texts:
            raise DataError(f"{where}: series {shown(name)} has no value; leave it out")
        values = floats(texts, _field_of(where))
        lines = np.full(len(values), number, np.int32)
        series[name] = Series(name, values, frequency, start, origin=where, lines=lines)
    if not series:
        raise DataError(f"{file.name} has a header, but no rows; give at least one series")
    return checked(file.name, [*series.values()])


def _field_of(where: str) -> Callable[[int], str]:
    """The place of a value of M4: the first is in the second field."""
    return lambda index: f"{where}: field {index + 2:,}"


def _matrix(file: _File, how: Reading) -> LoadedSeries:
    """A column for each series, and neither names nor times."""
    frequency, start = without_times(file.name, how.frequency, how.start)
    blocks = [(lines, floats(cells, _cell_of(file, lines))) for lines, cells in _blocks(file, file.first)]
    lines = np.concatenate([block_lines for block_lines, _ in blocks])
    columns = np.concatenate([numbers for _, numbers in blocks]).reshape(len(lines), -1).T
    origin = file.where(file.first + 1)
    series = [
        Series(str(number), np.ascontiguousarray(values), frequency, start, origin=origin, lines=lines)
        for number, values in enumerate(columns, start=1)
    ]
    return checked(file.name, series)


def _cell_of(file: _File, lines: LineNumbers) -> Callable[[int], str]:
    """The place of a number of a matrix."""
    width = len(file.header)
    return lambda index: f"{file.where(lines[index // width])}: column {index % width + 1:,}"


def without_times(name: str, frequency: Frequency | None, start: Time | None) -> tuple[Frequency, Time | None]:
    """Frequency and start of series without times; DataError if they do not fit."""
    if start is not None and (frequency is None or not frequency.has_calendar):
        raise DataError(f"{name}: a start without a frequency such as hour; give both, or neither")
    return frequency or STEP, start


FORMATS: dict[str, Callable[[_File, Reading], LoadedSeries]] = {
    "long": _long,
    "wide": _wide,
    "m4": _m4,
    "matrix": _matrix,
}
