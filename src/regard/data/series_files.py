"""Reads time series from CSV files, plain or gzip, within limits, and takes those that are given in Python.

A long file has a row for each value, `series,time,value`, and may have columns of covariates and categories. A wide file
has a row for each time and a column for each series. A file of M4 has a row for each series, without times. A matrix has
a column for each series and nothing else. A step without a value is missing, which is noted, and never filled in.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.console import counted
from regard.data.files import LIMITS, load, reading
from regard.data.frequency import DAY, Frequency, Numbers, Positions, Time, infer, infer_step
from regard.data.records import DELIMITERS, list_names
from regard.data.series import STEP, LineNumbers, Series
from regard.data.store import Lines
from regard.data.times import LOCAL, OFFSET, POSITION, Parsed, is_time, parse_times
from regard.errors import DataError, did_you_mean, pick, shown
from regard.recipe import Limits

# The names of columns that are taken for these roles if no other is given, in lower case.
SERIES = ("series", "series_id", "id", "unique_id", "item_id")
TIME = ("time", "date", "datetime", "ds", "timestamp")
VALUE = ("value", "y", "target")
MISSING = {"", "na", "n/a", "nan", "null", "none"}  # texts of a missing number, in lower case
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
DECIMAL_COMMA = re.compile(r"[+-]?[0-9.]*,[0-9]+")
MOST_FIELDS = 1_000_000  # of a row
CELLS = 200_000  # that are converted to numbers at a time
FEW_STEPS, MOST_GAPS = 1000, 100  # a series may have so many steps, and more if it has a row for one of so many

Where = Callable[[int], str]  # the place of a row, for messages
Rows = Iterable[tuple[int, list[str]]]  # the number of a line, from 1, and its fields


@dataclass(frozen=True)
class Columns:
    """The roles of the columns of a long file; an empty name stands for the usual ones, such as `time` or `ds`."""

    series: str = ""  # the name of the series; without such a column, all rows are one series
    time: str = ""
    value: str = ""
    known: tuple[str, ...] = ()  # covariates that are known in advance: rows without a value go on with them
    past: tuple[str, ...] = ()  # covariates that are known only as long as the values are
    categories: tuple[str, ...] = ()  # texts that are the same in all rows of a series


class LoadedSeries(NamedTuple):
    """Series, and sentences about what was changed when they were read."""

    series: list[Series]
    notes: tuple[str, ...]


class Reading(NamedTuple):
    """How a file is read."""

    columns: Columns = Columns()
    frequency: Frequency | None = None  # None: it is inferred from the times
    start: Time | None = None  # of the first values, if a file has no times


NO_COLUMNS = Columns()


def read(
    name: str,
    format: str = "",
    columns: Columns = NO_COLUMNS,
    frequency: Frequency | None = None,
    start: Time | None = None,
    limits: Limits = LIMITS,
) -> LoadedSeries:
    """The series of a file in one of FORMATS, which its header tells if it is not given.

    Without a `frequency`, it is inferred from the times; of a file without times, steps are counted. `start` is the
    time of the first value of each series of such a file.
    """
    file = _open(name, limits)
    chosen = format or _format(file, columns)
    return pick(FORMATS, chosen, "format of series")(file, Reading(columns, frequency, start))


# from lines to fields


class _File(NamedTuple):
    """The lines of a CSV file, and what its first line says."""

    name: str
    lines: Lines
    first: int  # index of the first line with text
    delimiter: str
    header: list[str]

    def where(self, number: int) -> str:
        return f"{self.name}:{number}"

    def rows(self, skip_first: bool = True) -> Iterator[tuple[int, list[str]]]:
        """The number of each line with text, and its fields."""
        lines = islice(self.lines, self.first + skip_first, None)
        for number, line in enumerate(counted(lines, reading(self.name), len(self.lines)), self.first + skip_first + 1):
            if line and not line.isspace():
                yield number, _fields(line, self.delimiter, self.name, number)


def _open(name: str, limits: Limits) -> _File:
    lines = load(name, limits)
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise DataError(f"{name} has no line with text; give a header and at least one row")
    text = lines.item(first)
    delimiter = max(DELIMITERS, key=text.count)  # of equally many, the first
    return _File(name, lines, first, delimiter, [field.strip() for field in _fields(text, delimiter, name, first + 1)])


def _fields(line: str, delimiter: str, name: str, number: int) -> list[str]:
    """The fields of a line; a field in quotes may hold delimiters, but no newline."""
    if line.count(delimiter) >= MOST_FIELDS:
        raise DataError(f"{name}:{number}: more than {MOST_FIELDS:,} fields; split the file")
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise DataError(f"{name}:{number}: this line is not valid CSV ({error}); check its quotes") from error


def _blocks(rows: Rows, width: int) -> Iterator[tuple[list[int], list[list[str]]]]:
    """The numbers and fields of some rows at a time, fewer if they have many fields."""
    iterator, size = iter(rows), max(1, CELLS // width)
    while block := list(islice(iterator, size)):
        numbers, fields = zip(*block, strict=True)
        yield list(numbers), list(fields)


def _of_width(file: _File, rows: Rows, first: str = "the header names") -> Rows:
    """The rows; DataError at one that has not as many fields as the first line."""
    width = len(file.header)
    for number, fields in rows:
        if len(fields) != width:
            raise DataError(f"{file.where(number)}: {len(fields):,} fields, but {first} {width:,}")
        yield number, fields


def _format(file: _File, columns: Columns) -> str:
    """The format that the header tells."""
    names = {name.lower() for name in file.header}
    if columns != NO_COLUMNS:
        return "long"
    if len(file.header) > 1 and file.header == [f"V{number}" for number in range(1, len(file.header) + 1)]:
        return "m4"
    _check_header(file)
    if not names.isdisjoint(VALUE) or not names.isdisjoint(SERIES):
        return "long"
    _, fields = next(file.rows(), (0, [""]))
    if is_time(fields[0]):
        return "wide"
    raise DataError(
        f"{file.name}: no column is named {', '.join(VALUE[:-1])} or {VALUE[-1]}, and the first holds no times; "
        f"there are {list_names(file.header)}; name those of series, time and value, or the format: {', '.join(FORMATS)}"
    )


def _check_header(file: _File) -> None:
    """Refuse a first line that is data."""
    if all(NUMBER.fullmatch(name) or is_time(name) for name in file.header):
        how = "write one such as series,time,value; or give the format matrix if each column is a series without times"
        raise DataError(f"{file.where(file.first + 1)}: no header, but {list_names(file.header)}; {how}")


# from texts to numbers


def _floats(texts: Sequence[str], where: Where, column: Callable[[int], str]) -> Numbers:
    """The numbers of texts, NaN for missing ones; DataError at the first that is no finite number.

    `where` and `column` give place and column of a text. All are converted at once if nothing is odd about them.
    """
    try:
        numbers = np.array([float(text) if text else np.nan for text in texts])
        together = "".join(texts)
        if together.isascii() and "_" not in together and not np.isinf(numbers).any():  # Python reads 1_000 and ١
            return numbers
    except ValueError:
        pass
    return np.array([_number(text, lambda: f"{where(index)}: {column(index)}") for index, text in enumerate(texts)])


def _number(text: str, where: Callable[[], str]) -> float:
    stripped = text.strip()
    if stripped.lower() in MISSING:
        return np.nan
    if not NUMBER.fullmatch(stripped):
        comma = "; write a decimal point" if DECIMAL_COMMA.fullmatch(stripped) else ", and no missing value"
        raise DataError(f"{where()} has {shown(text)}, which is no number{comma}")
    number = float(stripped)
    if np.isinf(number):
        raise DataError(f"{where()} has {shown(text)}, which is too large for a number")
    return number


def _texts(column: Sequence[Any] | NDArray[Any]) -> list[str]:
    """The texts of a column; of missing ones none."""
    return ["" if _is_missing(value) else str(value).strip() for value in column]


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _numbers(column: Sequence[Any] | NDArray[Any], where: Where, name: str) -> Numbers:
    """The numbers of a column of texts, or of one that was given in Python."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "fiub":
        numbers = column.astype(np.float64)
        infinite = np.flatnonzero(np.isinf(numbers))
        if len(infinite):
            raise DataError(f"{where(int(infinite[0]))}: the column {shown(name)} has an infinite number")
        return numbers
    texts = _texts(column) if isinstance(column, np.ndarray) else column
    return _floats(texts, where, lambda _: f"the column {shown(name)}")


def _times(column: Sequence[Any] | NDArray[Any], where: Where, *, digits_are_dates: bool, kind: str) -> Parsed:
    """The times of a column of texts, or of one that was given in Python."""
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        seconds = column.astype("datetime64[s]")
        odd = np.flatnonzero(np.isnat(column) | (seconds != column))
        if len(odd):
            text = shown(str(column[odd[0]]))
            raise DataError(f"{where(int(odd[0]))}: {text} is no time in whole seconds")
        return Parsed(LOCAL, seconds.astype(np.int64), None)
    texts = _texts(column) if isinstance(column, np.ndarray) else column
    return parse_times(texts, where, digits_are_dates=digits_are_dates, kind=kind)


# long files


class _Roles(NamedTuple):
    """The indices of the columns of a long table; -1 if it has no column of series."""

    series: int
    time: int
    value: int
    known: list[int]
    past: list[int]
    categories: list[int]
    unused: list[str]  # the names of other columns

    @property
    def numbers(self) -> list[int]:
        """The columns that hold numbers, in the order of `_Table.numbers`."""
        return [self.value, *self.known, *self.past]


class _Table:
    """The rows of a long table: times and numbers of each row, name and categories of each series."""

    def __init__(self, name: str, roles: _Roles, frequency: Frequency | None) -> None:
        self.name, self.roles, self.frequency = name, roles, frequency
        self.ids: dict[str, int] = {}  # of series by name, in the order of their first rows
        self.categories: list[tuple[str, ...]] = []  # of each series
        self._kind = ""  # of times
        self._rows: list[_Rows] = []

    def add(self, columns: Sequence[Any], names: Sequence[str], lines: LineNumbers) -> None:
        """Append some rows: all columns, their names, and the line of each row."""
        roles = self.roles

        def where(row: int) -> str:
            return f"{self.name}:{lines[row]}"

        series = _texts(columns[roles.series]) if roles.series >= 0 else ["series"] * len(lines)
        if "" in series:
            raise DataError(f"{where(series.index(''))}: a row without the name of its series")
        ids = [self.ids.setdefault(name, len(self.ids)) for name in series]
        self._add_categories(ids, [_texts(columns[place]) for place in roles.categories], where)
        has_calendar = self.frequency is not None and self.frequency.has_calendar
        times = _times(columns[roles.time], where, digits_are_dates=has_calendar, kind=self._kind)
        numbers = [_numbers(columns[place], where, names[place]) for place in roles.numbers]
        self._kind = times.kind
        self._rows.append(_Rows(np.array(ids, np.int64), times, np.stack(numbers, axis=1), lines))

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

    def rows(self) -> "_Rows":
        """All rows, in the order of the file."""
        ids, times, numbers, lines = zip(*self._rows, strict=True)
        return _Rows(np.concatenate(ids), _concatenated(times), np.concatenate(numbers), np.concatenate(lines))


class _Rows(NamedTuple):
    """Some rows of a long table."""

    ids: Positions  # (rows,): the index of the series
    times: Parsed
    numbers: Numbers  # (rows, columns): see `_Roles.numbers`
    lines: LineNumbers  # (rows,)


def _concatenated(parts: Sequence[Parsed]) -> Parsed:
    offsets = [part.offsets for part in parts if part.offsets is not None]
    numbers = np.concatenate([part.numbers for part in parts])
    return Parsed(parts[0].kind, numbers, np.concatenate(offsets) if offsets else None)


def _long(file: _File, how: Reading) -> LoadedSeries:
    """A row for each value: `series,time,value`, and columns of covariates and categories."""
    _check_header(file)
    _check_has_times(file.name, how)
    table = _Table(file.name, _roles(file.name, file.header, how.columns), how.frequency)
    _add_all(table, file)
    return _of_table(table)


def _roles(name: str, header: Sequence[str], columns: Columns) -> _Roles:
    """The places of the columns of a long table."""
    series = _place(name, header, columns.series, SERIES, "series")
    time = _place(name, header, columns.time, TIME, "time")
    value = _place(name, header, columns.value, VALUE, "value")
    known, past, categories = (
        [_place(name, header, column, (), "") for column in group]
        for group in (columns.known, columns.past, columns.categories)
    )
    used = [place for place in (series, time, value, *known, *past, *categories) if place >= 0]
    if repeated := [header[place] for place in used if used.count(place) > 1]:
        raise DataError(f"{name}: the column {shown(repeated[0])} has several roles; give it one")
    unused = [column for place, column in enumerate(header) if place not in used]
    return _Roles(series, time, value, known, past, categories, unused)


def _place(name: str, header: Sequence[str], column: str, usual: Sequence[str], role: str) -> int:
    """The index of a column, or if none is given, of the first that has a usual name; -1 if there are no series."""
    if column:
        places = [place for place, there in enumerate(header) if there == column]
    else:
        lower = [there.lower() for there in header]
        places = [place for word in usual for place, there in enumerate(lower) if there == word]
        places = [place for place in places if lower[place] == lower[places[0]]]
    if len(places) > 1:
        raise DataError(f"{name} has several columns {shown(header[places[0]])}; rename all but one")
    if not places and not column and role == "series":
        return -1
    if not places:
        wanted = shown(column) if column else f"of the {role}: none is named {', '.join(usual[:-1])} or {usual[-1]}"
        raise DataError(f"{name} has no column {wanted}; there are {list_names(header)}{did_you_mean(column, header)}")
    return places[0]


def _of_table(table: _Table) -> LoadedSeries:
    """The series of a long table, with NaN for the steps that it has no row for."""
    rows, names = table.rows(), list(table.ids)
    grid = _grid(table.name, names, rows, table.frequency)
    ends = np.cumsum(grid.steps)
    begins = ends - grid.steps
    places = begins[rows.ids] + grid.positions
    numbers = np.full((ends[-1], rows.numbers.shape[1]), np.nan)
    lines = np.zeros(ends[-1], np.int32)
    numbers[places], lines[places] = rows.numbers, rows.lines
    series, known = [], 1 + len(table.roles.known)
    for name, begin, end, start, categories in zip(names, begins, ends, grid.starts, table.categories, strict=True):
        values = numbers[begin:end, 0]
        there = np.flatnonzero(~np.isnan(values))
        if not len(there):
            raise DataError(f"{table.name}:{lines[begin]}: no value of series {shown(name)} is there; leave it out")
        last = begin + (there[-1] + 1 if known > 1 else len(values))  # after the last value, known covariates go on
        series.append(
            Series(
                name=name,
                values=numbers[begin:last, 0],
                frequency=grid.frequency,
                start=np.datetime64(int(start), "s") if grid.frequency.has_calendar else None,
                position=0 if grid.frequency.has_calendar else int(start),
                known=numbers[begin:end, 1:known],
                past=numbers[begin:last, known:],
                categories=categories,
                origin=f"{table.name}:{lines[begin]}",
                lines=lines[begin:last],
            )
        )
    unused = table.roles.unused
    notes = [f"{table.name}: columns without a role are not used: {list_names(unused)}"] if unused else []
    return LoadedSeries(series, (*notes, *grid.notes, *_missing(table.name, series)))


# from times to steps


class _Grid(NamedTuple):
    """The steps of the rows of a table."""

    frequency: Frequency
    positions: Positions  # (rows,): the step of each row, from 0
    steps: Positions  # (series,): from the first row to the last
    starts: Positions  # (series,): the first time or position
    notes: list[str]


def _grid(name: str, names: Sequence[str], rows: _Rows, given: Frequency | None) -> _Grid:
    """The step of each row; DataError if two rows of a series have the same, or one is between two steps.

    Times with offsets are taken in UTC. If a step is a day or longer, they are taken as they are written, because then
    the date counts: midnight may have two offsets in a year.
    """
    ids, times, lines = rows.ids, rows.times, rows.lines
    clock = times.numbers if times.offsets is None else times.numbers - times.offsets
    order = np.lexsort((clock, ids))
    breaks = np.flatnonzero(np.diff(ids[order])) + 1
    _check_distinct(name, names, rows, clock, order)
    frequency = given or _infer(name, times.kind, clock[order], breaks)
    if times.kind == OFFSET and not frequency.is_within_a_day:
        return _grid(name, names, rows._replace(times=Parsed(LOCAL, times.numbers, None)), given)
    if times.kind != POSITION and not frequency.has_calendar:
        raise DataError(f"{name} has times, but the frequency is {frequency}; give one such as hour, or none")
    firsts = order[np.concatenate([[0], breaks])]  # rows; ids are 0, 1, 2, ... in this order
    moments = clock if times.kind == POSITION else clock.astype("datetime64[s]")
    positions = frequency.positions(moments, moments[firsts][ids])
    between = np.flatnonzero(positions < 0)
    if len(between):
        row = int(between[0])
        step, first = _time(times.kind, clock[row]), _time(times.kind, clock[firsts[ids[row]]])
        text = f"{step} is not a whole number of steps from {first}, where series {shown(names[ids[row]])} begins"
        how = "correct it" if given else "correct it, or give the frequency"
        raise DataError(f"{name}:{lines[row]}: {text}; a step is {_one(frequency)}; {how}")
    _check_distinct(name, names, rows, positions, order)  # of a month there is one value
    lasts = order[np.concatenate([breaks - 1, [len(order) - 1]])]
    steps = positions[lasts] + 1
    too_long = np.flatnonzero(steps > FEW_STEPS + MOST_GAPS * np.bincount(ids))
    if len(too_long):
        one = int(too_long[0])
        first, last = (_time(times.kind, clock[row]) for row in (firsts[one], lasts[one]))
        text = f"series {shown(names[one])} has {np.bincount(ids)[one]:,} rows for {steps[one]:,} steps of {_one(frequency)}"
        how = "check the times, or give the frequency"
        raise DataError(f"{name}:{lines[lasts[one]]}: {text} from {first} to {last}; {how}")
    notes = _sorted_note(name, rows, clock)
    return _Grid(frequency, positions, steps, clock[firsts], notes)


def _infer(name: str, kind: str, clock: Positions, breaks: Positions) -> Frequency:
    if kind == POSITION:
        return infer_step(clock, breaks) or STEP
    if (frequency := infer(clock.astype("datetime64[s]"), breaks)) is None:
        raise DataError(f"{name}: no series has two values, so no frequency can be inferred; give the frequency")
    return frequency


def _check_distinct(name: str, names: Sequence[str], rows: _Rows, clock: Positions, order: Positions) -> None:
    """Refuse two rows of a series with the same time."""
    twice = np.flatnonzero((np.diff(clock[order]) == 0) & (np.diff(rows.ids[order]) == 0))
    if not len(twice):
        return
    first = twice[rows.lines[order[twice + 1]].argmin()]
    row, before = int(order[first + 1]), int(order[first])
    step = _time(rows.times.kind, rows.times.numbers[row])
    local = rows.times.kind == LOCAL and rows.times.numbers[row] % DAY != 0
    how = "keep one, or write offsets from UTC if clocks were set back" if local else "keep one"
    text = f"series {shown(names[rows.ids[row]])} has two values for {step}, before in line {rows.lines[before]}"
    raise DataError(f"{name}:{rows.lines[row]}: {text}; {how}")


def _sorted_note(name: str, rows: _Rows, clock: Positions) -> list[str]:
    """A note if the rows of a series were not in the order of time."""
    order = np.argsort(rows.ids, kind="stable")
    back = np.flatnonzero((np.diff(clock[order]) < 0) & (np.diff(rows.ids[order]) == 0))
    if not len(back):
        return []
    row = int(order[back[0] + 1])
    count = len(np.unique(rows.ids[order[back]]))
    return [f"{name}:{rows.lines[row]}: not in the order of time, as in {count:,} series; they were sorted"]


def _missing(name: str, series: Sequence[Series]) -> list[str]:
    """A note on missing values."""
    incomplete = [one for one in series if one.missing]
    if not incomplete:
        return []
    without_row = sum(int((one.lines == 0).sum()) for one in incomplete)
    blank = sum(one.missing for one in incomplete) - without_row
    counts = [f"{without_row:,} steps without a row"] * bool(without_row) + [f"{blank:,} empty cells"] * bool(blank)
    return [f"{name}: {len(incomplete):,} series with {' and '.join(counts)}, which are masked"]


def _time(kind: str, number: np.int64) -> str:
    """The text of a time or position."""
    return str(number) if kind == POSITION else str(np.datetime64(int(number), "s")).replace("T", " ")


def _one(frequency: Frequency) -> str:
    """The frequency in a sentence: a step is one hour, or 15 minutes."""
    return f"one {frequency}" if frequency.count == 1 else str(frequency)


# other files


def _wide(file: _File, how: Reading) -> LoadedSeries:
    """A row for each time, which is in the first column, and a column for each series; all end at the same time."""
    _check_header(file)
    _check_has_times(file.name, how)
    if len(file.header) < 2:
        raise DataError(f"{file.where(file.first + 1)}: one column; a wide file has one of times, and others of values")
    names = file.header[1:]
    _check_names(file, names)
    table = _Table(file.name, _Roles(-1, 0, 1, [*range(2, len(file.header))], [], [], []), how.frequency)
    _add_all(table, file)
    return _of_wide(table, names)


def _of_wide(table: _Table, names: Sequence[str]) -> LoadedSeries:
    """The series of a wide table, which was read as a long one with covariates in place of other series."""
    rows = table.rows()
    grid = _grid(table.name, ["series"], rows, table.frequency)
    numbers = np.full((grid.steps[0], len(names)), np.nan)
    lines = np.zeros(grid.steps[0], np.int32)
    numbers[grid.positions], lines[grid.positions] = rows.numbers, rows.lines
    columns = [np.ascontiguousarray(column) for column in numbers.T]
    start = np.datetime64(int(grid.starts[0]), "s") if grid.frequency.has_calendar else None
    position = 0 if grid.frequency.has_calendar else int(grid.starts[0])
    series = [
        Series(name, values, grid.frequency, start, position, origin=f"{table.name}:{lines[0]}", lines=lines)
        for name, values in zip(names, columns, strict=True)
    ]
    return _checked(table.name, series, grid.notes)


def _m4(file: _File, how: Reading) -> LoadedSeries:
    """A row for each series, as in the M4 competition: its name, then its values; short rows end with empty cells."""
    _check_header(file)
    frequency, start = _without_times(file.name, how)
    series: dict[str, Series] = {}
    for number, (first, *texts) in file.rows():
        name = first.strip()
        if len(texts) >= len(file.header):
            count = f"{len(texts) + 1:,} fields, but the header names {len(file.header):,} columns"
            raise DataError(f"{file.where(number)}: {count}")
        if not name:
            raise DataError(f"{file.where(number)}: a row without the name of its series")
        if name in series:
            raise DataError(f"{file.where(number)}: series {shown(name)} is there before, at {series[name].origin}")
        while texts and not texts[-1].strip():
            texts.pop()
        if not texts:
            raise DataError(f"{file.where(number)}: no value of series {shown(name)} is there; leave it out")
        values = _floats(texts, partial(_same, file.where(number)), lambda index: f"field {index + 2:,}")
        lines = np.full(len(values), number, np.int32)
        series[name] = Series(name, values, frequency, start, origin=file.where(number), lines=lines)
    if not series:
        raise DataError(f"{file.name} has a header, but no row; give at least one series")
    return _checked(file.name, [*series.values()], [])


def _matrix(file: _File, how: Reading) -> LoadedSeries:
    """A column for each series, and nothing else: neither names nor times."""
    frequency, start = _without_times(file.name, how)
    width, parts, lines = len(file.header), [], list[int]()
    for numbers, rows in _blocks(_of_width(file, file.rows(skip_first=False), "the first line has"), width):
        cells = [cell for row in rows for cell in row]
        places = partial(_row_of, file.name, numbers, width)
        parts.append(_floats(cells, places, lambda index: f"column {index % width + 1:,}").reshape(-1, width))
        lines += numbers
    columns, all_lines = np.concatenate(parts).T, np.array(lines, np.int32)
    series = [
        Series(
            str(number), np.ascontiguousarray(values), frequency, start, origin=file.where(lines[0]), lines=all_lines
        )
        for number, values in enumerate(columns, start=1)
    ]
    return _checked(file.name, series, [])


def _add_all(table: _Table, file: _File) -> None:
    """Append all rows of a file."""
    empty = True
    for lines, rows in _blocks(_of_width(file, file.rows()), len(file.header)):
        table.add([*zip(*rows, strict=True)], file.header, np.array(lines, np.int32))
        empty = False
    if empty:
        raise DataError(f"{file.name} has a header, but no row; give at least one value")


def _same(text: str, index: int) -> str:
    return text


def _row_of(name: str, numbers: Sequence[int], width: int, index: int) -> str:
    return f"{name}:{numbers[index // width]}"


def _check_names(file: _File, names: Sequence[str]) -> None:
    """Refuse columns without a name, and several of the same name."""
    where = file.where(file.first + 1)
    if "" in names:
        raise DataError(f"{where}: column {names.index('') + 2:,} has no name; write the name of its series")
    if len(set(names)) < len(names):
        repeated = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{where}: several columns {shown(repeated)}; rename all but one")


def _check_has_times(name: str, how: Reading) -> None:
    if how.start is not None:
        raise DataError(f"{name} has times; give no start")


def _without_times(name: str, how: Reading) -> tuple[Frequency, Time | None]:
    """Frequency and start of series without times."""
    frequency = how.frequency or STEP
    if how.start is not None and not frequency.has_calendar:
        raise DataError(f"{name}: a start without a frequency; give both, or neither")
    return frequency, how.start


def _checked(name: str, series: list[Series], notes: Sequence[str]) -> LoadedSeries:
    """The series with notes; DataError if one has no value."""
    for one in series:
        if one.missing == len(one):
            raise DataError(f"{one.origin}: no value of series {shown(one.name)} is there; leave it out")
    return LoadedSeries(series, (*notes, *_missing(name, series)))


FORMATS: dict[str, Callable[[_File, Reading], LoadedSeries]] = {
    "long": _long,
    "wide": _wide,
    "m4": _m4,
    "matrix": _matrix,
}


# from Python


def given(
    data: Any,
    columns: Columns = NO_COLUMNS,
    frequency: Frequency | None = None,
    start: Time | None = None,
    name: str = "series given in Python",
) -> LoadedSeries:
    """The series that a program gave.

    These are: series as they are; the values of one series; a dictionary of values by name; and data frames, long or
    wide. A data frame is anything with `columns` (pandas, polars) or `column_names` (Arrow), or a dictionary with a
    column of values. An index of times, as pandas has it, stands for a column.
    """
    if isinstance(data, Series):
        data = [data]
    if isinstance(data, Sequence) and data and all(isinstance(one, Series) for one in data):
        return _checked(name, list(data), [])
    how = Reading(columns, frequency, start)
    frame = _frame(data, columns)
    if frame is not None:
        return _of_frame(frame, how, name)
    by_name = data if isinstance(data, Mapping) else {"series": data}
    frequency, start = _without_times(name, how)
    series = []
    for key, values in by_name.items():
        place = f"{name}: series {shown(str(key))}"
        array = _numbers(_array(values, place), partial(_same, place), "values")
        series.append(Series(str(key), array, frequency, start, origin=name))
    if not series:
        raise DataError(f"{name}: none; give at least one")
    return _checked(name, series, [])


class _Frame(NamedTuple):
    """The columns of a data frame."""

    names: list[str]
    columns: list[NDArray[Any]]


def _frame(data: Any, columns: Columns) -> _Frame | None:
    """The columns of a data frame, an index of times first; None if it is none."""
    index = getattr(data, "index", None)
    index = None if callable(index) or index is None else np.asarray(index)  # a list has a method of that name
    has_times = index is not None and index.dtype.kind == "M"
    if isinstance(data, Mapping):
        names: list[Any] = list(data)
        lower = {str(name).lower() for name in names}
        if columns == NO_COLUMNS and (lower.isdisjoint(VALUE) or lower.isdisjoint(TIME)):
            return None
    elif (there := getattr(data, "column_names", getattr(data, "columns", None))) is not None:
        names = list(there)
    elif has_times:  # a series of pandas
        return _Frame(["time", "value"], [index, np.asarray(data)])
    else:
        return None
    arrays = [np.asarray(data[name]) for name in names]
    if has_times and not any(array.dtype.kind == "M" for array in arrays):
        return _Frame(["time", *map(str, names)], [index, *arrays])
    return _Frame([*map(str, names)], arrays)


def _of_frame(frame: _Frame, how: Reading, name: str) -> LoadedSeries:
    _check_has_times(name, how)
    rows = len(frame.columns[0]) if frame.columns else 0
    if not rows or any(array.shape != (rows,) for array in frame.columns):
        raise DataError(
            f"{name}: columns of {list_names(map(len, frame.columns))} rows; give equally many, at least one"
        )
    lines = np.arange(1, rows + 1, dtype=np.int32)
    lower = {column.lower() for column in frame.names}
    if how.columns != NO_COLUMNS or not lower.isdisjoint(VALUE) or not lower.isdisjoint(SERIES):
        table = _Table(name, _roles(name, frame.names, how.columns), how.frequency)
        table.add(frame.columns, frame.names, lines)
        return _of_table(table)
    if len(frame.names) < 2:
        raise DataError(f"{name}: the data frame has no columns but {list_names(frame.names)}; give times and values")
    table = _Table(name, _Roles(-1, 0, 1, [*range(2, len(frame.names))], [], [], []), how.frequency)
    table.add(frame.columns, frame.names, lines)
    return _of_wide(table, frame.names[1:])


def _array(values: Any, place: str) -> NDArray[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise DataError(f"{place} is {shown(values)}; give its values, such as a list of numbers")
    array = np.asarray(values) if hasattr(values, "__array__") else np.array(list(values), dtype=object)
    if array.ndim != 1 or not len(array):
        raise DataError(f"{place} has values of shape {array.shape}; give one or more in a row, by name if several")
    return array
