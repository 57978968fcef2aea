"""Series that are given in Python: values, dictionaries of them, and data frames."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.records import list_names
from regard.data.series import Series
from regard.data.series_files import INFERRED, Reading, without_times
from regard.data.tables import (
    TIME,
    USUAL,
    VALUE,
    Columns,
    LoadedSeries,
    Roles,
    Table,
    checked,
    is_long,
    numbers_of,
    of_long,
    of_wide,
)
from regard.errors import DataError, shown


def given(data: Any, how: Reading = INFERRED, name: str = "series given in Python") -> LoadedSeries:
    """The series that a program gave; `name` is for messages.

    These are: series as they are; the values of one series; a dictionary of values by name; and data frames, long or
    wide. A data frame is anything with `columns` (pandas, polars) or `column_names` (Arrow), or a dictionary with
    columns of times and values. An index of times, as pandas has it, stands for a column.
    """
    if isinstance(data, Series):
        return checked(name, [data])
    if isinstance(data, Sequence) and data and all(isinstance(one, Series) for one in data):
        return checked(name, list(data))
    if (frame := _frame(data, how.columns)) is not None:
        return _of_frame(frame, how, name)
    frequency, start = without_times(name, how.frequency, how.start)
    by_name = data if isinstance(data, Mapping) else {"series": data}
    series = [Series(str(key), _values(by_name[key], str(key), name), frequency, start, origin=name) for key in by_name]
    if not series:
        raise DataError(f"{name}: none; give at least one")
    return checked(name, series)


class _Frame(NamedTuple):
    """The columns of a data frame."""

    names: list[str]
    columns: list[NDArray[Any]]


def _frame(data: Any, columns: Columns) -> _Frame | None:
    """The columns of a data frame, an index of times before them; None if it is none."""
    index = getattr(data, "index", None)
    indexed = [] if index is None or callable(index) else [np.asarray(index)]  # lists have a method of that name
    times = [array for array in indexed if array.dtype.kind == "M"]
    if isinstance(data, Mapping):
        lower = {str(key).lower() for key in data}
        if columns == USUAL and (lower.isdisjoint(VALUE) or lower.isdisjoint(TIME)):
            return None
        names = list(data)
    elif (there := getattr(data, "column_names", getattr(data, "columns", None))) is not None:
        names = list(there)
    elif times:  # a series of pandas
        return _Frame(["time", "value"], [*times, np.asarray(data)])
    else:
        return None
    arrays = [np.asarray(data[key]) for key in names]
    if any(array.dtype.kind == "M" for array in arrays):
        times = []
    return _Frame([*(["time"] if times else []), *map(str, names)], [*times, *arrays])


def _of_frame(frame: _Frame, how: Reading, name: str) -> LoadedSeries:
    if how.start is not None:
        raise DataError(f"{name}: a data frame has times of its own; give no start")
    shapes = {array.shape for array in frame.columns}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 1 or not shape[0]:
        raise DataError(f"{name}: the columns {list_names(frame.names)} have no rows, or not equally many")
    lines = np.arange(1, shape[0] + 1, dtype=np.int32)
    if is_long(frame.names, how.columns):
        table = Table(name, Roles.of_long(name, frame.names, how.columns), how.frequency)
        table.add(frame.columns, frame.names, lines)
        return of_long(table)
    if len(frame.names) < 2:
        raise DataError(f"{name}: the data frame has one column, {shown(frame.names[0])}; give times and values")
    table = Table(name, Roles.of_wide(len(frame.names)), how.frequency)
    table.add(frame.columns, frame.names, lines)
    return of_wide(table, frame.names[1:])


def _values(values: Any, key: str, name: str) -> NDArray[np.float64]:
    """The values of a series."""
    place = f"{name}: series {shown(key)}"
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise DataError(f"{place} is {shown(values)}; give its values, such as a list of numbers")
    array = np.asarray(values) if hasattr(values, "__array__") else _objects(values)
    if array.ndim != 1 or not len(array):
        raise DataError(f"{place} has values of shape {array.shape}; give one or more in a row, by name if several")
    return numbers_of(array, lambda index: f"{place}, value {index + 1:,}", "it")


def _objects(values: Iterable[Any]) -> NDArray[Any]:
    """An array of one axis, whatever the items are."""
    items = list(values)
    array = np.empty(len(items), object)
    for index, item in enumerate(items):
        array[index] = item
    return array
