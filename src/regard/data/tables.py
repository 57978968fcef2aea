"""From columns of texts or numbers to series.

A long table has a row for each value, a wide one has a column for each series. A step without a value is missing, which
is noted, and never filled in.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.frequency import Frequency, Numbers
from regard.data.grids import Grid, Rows, grid
from regard.data.records import list_names
from regard.data.series import LineNumbers, Series
from regard.data.times import LOCAL, Parsed, parse_times
from regard.errors import DataError, did_you_mean, shown

# The names of columns that are taken for these roles if no other is given, in lower case.
SERIES = ("series", "series_id", "id", "unique_id", "item_id")
TIME = ("time", "date", "datetime", "ds", "timestamp")
VALUE = ("value", "y", "target")
MISSING = {"", "na", "n/a", "nan", "null", "none"}  # texts of a missing number, in lower case
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
INFINITE = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)
DECIMAL_COMMA = re.compile(r"[+-]?[0-9.]*,[0-9]+")

Column = Sequence[str] | NDArray[Any]  # of a file, or of a data frame
Where = Callable[[int], str]  # the place of a row, for messages


@dataclass(frozen=True)
class Columns:
    """The roles of the columns of a long table; an empty name stands for the usual ones, such as `time` or `ds`."""

    series: str = ""  # the name of the series; without such a column, all rows are one series
    time: str = ""
    value: str = ""
    known: tuple[str, ...] = ()  # covariates that are known in advance: rows without a value go on with them
    past: tuple[str, ...] = ()  # covariates that are known only as long as the values are
    categories: tuple[str, ...] = ()  # texts that are the same in all rows of a series


USUAL = Columns()


class LoadedSeries(NamedTuple):
    """Series, and sentences about what a user should know of how they were read."""

    series: list[Series]
    notes: tuple[str, ...]


class Roles(NamedTuple):
    """The places of the columns of a table by role."""

    series: int | None  # None: all rows are one series
    time: int
    value: int
    known: Sequence[int] = ()
    past: Sequence[int] = ()
    categories: Sequence[int] = ()
    unused: Sequence[str] = ()  # the names of other columns

    @staticmethod
    def of_long(name: str, header: Sequence[str], columns: Columns) -> "Roles":
        """The places of the columns of a long table; `name` is that of the file."""
        series = _named(name, header, columns.series) if columns.series else _usual(name, header, SERIES)
        time = _required(name, header, columns.time, TIME)
        value = _required(name, header, columns.value, VALUE)
        known, past, categories = (
            [_named(name, header, column) for column in group]
            for group in (columns.known, columns.past, columns.categories)
        )
        used = [*([] if series is None else [series]), time, value, *known, *past, *categories]
        if repeated := [header[place] for place in used if used.count(place) > 1]:
            raise DataError(f"{name}: the column {shown(repeated[0])} has several roles; give it one")
        unused = [column for place, column in enumerate(header) if place not in used]
        return Roles(series, time, value, known, past, categories, unused)

    @staticmethod
    def of_wide(width: int) -> "Roles":
        """The places of the columns of a wide table: series are read as if they were covariates of the first."""
        return Roles(None, 0, 1, known=range(2, width))

    @property
    def numbers(self) -> list[int]:
        """The places of the columns that hold numbers: values, known covariates, past covariates."""
        return [self.value, *self.known, *self.past]


def _named(name: str, header: Sequence[str], column: str) -> int:
    """The place of a column."""
    if column not in header:
        similar = did_you_mean(column, header)
        raise DataError(f"{name} has no column {shown(column)}; there are {list_names(header)}{similar}")
    if header.count(column) > 1:
        raise DataError(f"{name} has several columns {shown(column)}; rename all but one")
    return header.index(column)


def _usual(name: str, header: Sequence[str], usual: Sequence[str]) -> int | None:
    """The place of the column that has the first of these names; None if there is none."""
    lower = [column.lower() for column in header]
    found = next((word for word in usual if word in lower), None)
    return None if found is None else _named(name, header, header[lower.index(found)])


def _required(name: str, header: Sequence[str], column: str, usual: Sequence[str]) -> int:
    """The place of a column, or if none is given, of the one with a usual name."""
    place = _named(name, header, column) if column else _usual(name, header, usual)
    if place is None:
        text = f"none is named {', '.join(usual[:-1])} or {usual[-1]}; there are {list_names(header)}"
        raise DataError(f"{name} has no column of the {usual[0]}: {text}; name it")
    return place


def is_long(header: Sequence[str], columns: Columns) -> bool:
    """Whether a table is long: its columns are named, or one has a usual name of values or of series."""
    return columns != USUAL or not {column.lower() for column in header}.isdisjoint({*VALUE, *SERIES})


class Table:
    """The rows of a table, which are added some at a time: times and numbers of each, categories of each series."""

    def __init__(self, name: str, roles: Roles, frequency: Frequency | None) -> None:
        self.name, self.roles, self.frequency = name, roles, frequency
        self.ids: dict[str, int] = {}  # of series by name, in the order of their first rows
        self.categories: list[tuple[str, ...]] = []  # of each series
        self._parts: list[Rows] = []

    def add(self, columns: Sequence[Column], names: Sequence[str], lines: LineNumbers) -> None:
        """Append some rows: all columns, their names, and the line of each row."""
        roles = self.roles

        def where(row: int) -> str:
            return f"{self.name}:{lines[row]}"

        series = ["series"] * len(lines) if roles.series is None else _texts(columns[roles.series])
        if "" in series:
            raise DataError(f"{where(series.index(''))}: a row without the name of its series")
        ids = [self.ids.setdefault(name, len(self.ids)) for name in series]
        self._add_categories(ids, [_texts(columns[place]) for place in roles.categories], where)
        has_calendar = self.frequency is not None and self.frequency.has_calendar
        kind = self._parts[0].times.kind if self._parts else ""
        times = _times(columns[roles.time], where, digits_are_dates=has_calendar, kind=kind)
        numbers = [numbers_of(columns[place], where, f"the column {shown(names[place])}") for place in roles.numbers]
        self._parts.append(Rows(np.array(ids, np.int64), times, np.stack(numbers, axis=1), lines))

    def _add_categories(self, ids: list[int], columns: list[list[str]], where: Where) -> None:
        if not columns:
            self.categories = [()] * len(self.ids)
            return
        for row, (number, *labels) in enumerate(zip(ids, *columns, strict=True)):
            if number == len(self.categories):
                self.categories.append(tuple(labels))
            elif self.categories[number] != tuple(labels):
                before = f"but {list_names(self.categories[number])} before; they are the same in all rows of a series"
                raise DataError(f"{where(row)}: the categories are {list_names(labels)}, {before}")

    def rows(self) -> Rows:
        """All rows, in the order in which they were added; DataError if there are none."""
        if not self._parts:
            raise DataError(f"{self.name} has a header, but no rows; give at least one value")
        ids, times, numbers, lines = zip(*self._parts, strict=True)
        offsets = [part.offsets for part in times if part.offsets is not None]
        all_times = np.concatenate([part.numbers for part in times])
        parsed = Parsed(times[0].kind, all_times, np.concatenate(offsets) if offsets else None)
        return Rows(np.concatenate(ids), parsed, np.concatenate(numbers), np.concatenate(lines))


def of_long(table: Table) -> LoadedSeries:
    """The series of a long table.

    If there are known covariates, a series ends with its last value, and the rows after it are the future.
    """
    rows, names = table.rows(), list(table.ids)
    steps = grid(table.name, names, rows, table.frequency)
    ends = np.cumsum(steps.steps)
    begins = ends - steps.steps
    numbers, lines = _on_grid(rows, steps, begins[rows.ids], int(ends[-1]))
    series, known = [], 1 + len(table.roles.known)
    for index, (name, begin, end) in enumerate(zip(names, begins, ends, strict=True)):
        last = end
        if known > 1:
            last = begin + max(1, len(np.trim_zeros(~np.isnan(numbers[begin:end, 0]), "b")))
        series.append(
            Series(
                name=name,
                values=np.ascontiguousarray(numbers[begin:last, 0]),
                frequency=steps.frequency,
                start=steps.start(index),
                position=steps.position(index),
                known=numbers[begin:end, 1:known],
                past=numbers[begin:last, known:],
                categories=table.categories[index],
                origin=f"{table.name}:{lines[begin]}",
                lines=lines[begin:last],
            )
        )
    unused = table.roles.unused
    notes = [f"{table.name}: columns without a role are not used: {list_names(unused)}"] if unused else []
    return checked(table.name, series, [*notes, *steps.notes])


def of_wide(table: Table, names: Sequence[str]) -> LoadedSeries:
    """The series of a wide table; all have the same steps."""
    rows = table.rows()
    steps = grid(table.name, [names[0]], rows, table.frequency)
    numbers, lines = _on_grid(rows, steps, np.zeros_like(rows.ids), int(steps.steps[0]))
    start, position, origin = steps.start(0), steps.position(0), f"{table.name}:{lines[0]}"
    series = [
        Series(name, np.ascontiguousarray(values), steps.frequency, start, position, origin=origin, lines=lines)
        for name, values in zip(names, numbers.T, strict=True)
    ]
    return checked(table.name, series, steps.notes)


def _on_grid(rows: Rows, steps: Grid, begins: NDArray[np.int64], count: int) -> tuple[Numbers, LineNumbers]:
    """The numbers and lines of all steps, NaN and 0 without a row; `begins` has the first step of each row's series."""
    numbers, lines = np.full((count, rows.numbers.shape[1]), np.nan), np.zeros(count, np.int32)
    places = begins + steps.positions
    numbers[places], lines[places] = rows.numbers, rows.lines
    return numbers, lines


def checked(name: str, series: list[Series], notes: Sequence[str] = ()) -> LoadedSeries:
    """The series, and a note on missing values; DataError if a series has no value."""
    for one in series:
        if one.missing == len(one):
            raise DataError(f"{one.origin}: series {shown(one.name)} has no value; leave it out")
    incomplete = [one for one in series if one.missing]
    if not incomplete:
        return LoadedSeries(series, tuple(notes))
    without_row = sum(int((one.lines == 0).sum()) for one in incomplete)
    blank = sum(one.missing for one in incomplete) - without_row
    counts = [f"{without_row:,} missing steps"] if without_row else []
    counts += [f"{blank:,} missing values"] if blank else []
    note = f"{name}: {len(incomplete):,} series with {' and '.join(counts)}, which are masked"
    return LoadedSeries(series, (*notes, note))


# from texts to numbers


def numbers_of(column: Column, where: Where, noun: str) -> Numbers:
    """The numbers of a column, NaN for missing ones; DataError at the first that is no finite number."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "fiub":
        numbers = column.astype(np.float64)
        infinite = np.flatnonzero(np.isinf(numbers))
        if len(infinite):
            raise DataError(f"{where(int(infinite[0]))}: {noun} has an infinite number, which is no value")
        return numbers
    return floats(_texts(column) if isinstance(column, np.ndarray) else column, lambda row: f"{where(row)}: {noun}")


def floats(texts: Sequence[str], place: Where) -> Numbers:
    """The numbers of texts; `place` is the beginning of a message about one."""
    try:  # all at once, if nothing is odd about them
        numbers = np.array([float(text) if text else np.nan for text in texts])
        together = "".join(texts)
        if together.isascii() and "_" not in together and not np.isinf(numbers).any():  # Python reads 1_000 and ١
            return numbers
    except ValueError:
        pass
    numbers = np.empty(len(texts))
    for index, text in enumerate(texts):
        try:
            numbers[index] = _float(text.strip())
        except ValueError as error:
            raise DataError(f"{place(index)} has {shown(text)}, {error}") from None
    return numbers


def _float(text: str) -> float:
    if text.lower() in MISSING:
        return np.nan
    if NUMBER.fullmatch(text) and not np.isinf(number := float(text)):
        return number
    if NUMBER.fullmatch(text) or INFINITE.fullmatch(text):
        raise ValueError("which is not finite; leave the cell empty if the value is missing")
    if DECIMAL_COMMA.fullmatch(text):
        raise ValueError("which is no number; write a point, not a comma, before decimals")
    raise ValueError("which is no number; leave the cell empty if the value is missing")


def _texts(column: Column) -> list[str]:
    """The texts of a column; of a missing value, an empty one."""
    if isinstance(column, np.ndarray):
        return ["" if _is_missing(value) else str(value).strip() for value in column.tolist()]
    return [text.strip() for text in column]


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or the missing value of pandas, which compares with nothing."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def _times(column: Column, where: Where, *, digits_are_dates: bool, kind: str) -> Parsed:
    """The times of a column."""
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        seconds = column.astype("datetime64[s]")
        odd = np.flatnonzero(np.isnat(column) | (seconds != column))
        if len(odd):
            raise DataError(f"{where(int(odd[0]))}: {column[odd[0]]} is no time in whole seconds")
        return Parsed(LOCAL, seconds.astype(np.int64), None)
    texts = _texts(column) if isinstance(column, np.ndarray) else column
    return parse_times(texts, where, digits_are_dates=digits_are_dates, kind=kind)
