"""From times to steps: finds the frequency of the rows of a table, and the step that each row is for."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.frequency import DAY, Frequency, Numbers, Positions, Time, infer, infer_step
from regard.data.series import STEP, LineNumbers
from regard.data.times import LOCAL, OFFSET, POSITION, Parsed
from regard.errors import DataError, shown

FEW_STEPS, MOST_GAPS = 1000, 100  # a series may have so many steps, and more if one of so many has a row


class Rows(NamedTuple):
    """The rows of a table: each is of a series, at a time."""

    ids: Positions  # (rows,): the index of the series; each index from 0 on is there
    times: Parsed
    numbers: Numbers  # (rows, columns)
    lines: LineNumbers  # (rows,)


class Grid(NamedTuple):
    """The steps of the rows of a table."""

    frequency: Frequency
    positions: Positions  # (rows,): the step of each row, from 0
    steps: Positions  # (series,): from the first row to the last
    starts: Positions  # (series,): the first time, in seconds, or the first position
    notes: list[str]

    def start(self, index: int) -> Time | None:
        """The time of the first step of a series; None if its steps are counted."""
        return np.datetime64(int(self.starts[index]), "s") if self.frequency.has_calendar else None

    def position(self, index: int) -> int:
        """The position of the first step of a series; 0 if it has a time."""
        return 0 if self.frequency.has_calendar else int(self.starts[index])


def grid(name: str, names: Sequence[str], rows: Rows, given: Frequency | None) -> Grid:
    """The step of each row; DataError if two rows of a series have the same, or one is between two steps.

    `name` is that of the file, and `names` are those of the series. Times with offsets are taken in UTC. But if a step
    is a day or longer, they are taken as they are written, because then the date counts: midnight in local time has two
    offsets in a year.
    """
    ids, times, lines = rows.ids, rows.times, rows.lines
    clock = times.numbers if times.offsets is None else times.numbers - times.offsets
    order = np.lexsort((clock, ids))
    breaks = np.flatnonzero(np.diff(ids[order])) + 1
    _check_distinct(name, names, rows, clock, order)
    frequency = given or _infer(name, times.kind, clock[order], breaks)
    if times.kind == OFFSET and not frequency.is_within_a_day:
        return grid(name, names, rows._replace(times=Parsed(LOCAL, times.numbers, None)), given)
    if times.kind != POSITION and not frequency.has_calendar:
        raise DataError(f"{name} has times, but the frequency is {frequency}; give one such as hour, or none")
    firsts, lasts = order[np.append(0, breaks)], order[np.append(breaks, len(order)) - 1]  # rows, by series
    moments: NDArray[Any] = clock if times.kind == POSITION else clock.astype("datetime64[s]")
    positions = frequency.positions(moments, moments[firsts][ids])
    between = np.flatnonzero(positions < 0)
    if len(between):
        row = between[lines[between].argmin()]
        time, first = (_text(times.kind, clock[place]) for place in (row, firsts[ids[row]]))
        begins = f"where series {shown(names[ids[row]])} begins"
        how = "; correct it" if given else ", as inferred; correct it, or give the frequency"
        text = f"{time} is no whole number of steps after {first}, {begins}; a step is {_one(frequency)}"
        raise DataError(f"{name}:{lines[row]}: {text}{how}")
    _check_distinct(name, names, rows, positions, order)  # two days of a month are one step of months
    steps, counts = positions[lasts] + 1, np.bincount(ids)
    sparse = np.flatnonzero(steps > FEW_STEPS + MOST_GAPS * counts)
    if len(sparse):
        index = sparse[0]
        first, last = (_text(times.kind, clock[place[index]]) for place in (firsts, lasts))
        text = f"series {shown(names[index])} has {counts[index]:,} rows from {first} to {last}"
        how = f"that is {steps[index]:,} steps of {_one(frequency)}; check the times, or give the frequency"
        raise DataError(f"{name}:{lines[lasts[index]]}: {text}; {how}")
    return Grid(frequency, positions, steps, clock[firsts], _sorted(name, rows, clock))


def _infer(name: str, kind: str, clock: Positions, breaks: Positions) -> Frequency:
    if kind == POSITION:
        return infer_step(clock, breaks) or STEP
    if (frequency := infer(clock.astype("datetime64[s]"), breaks)) is None:
        raise DataError(f"{name}: no series has two times, so no frequency can be inferred; give the frequency")
    return frequency


def _check_distinct(name: str, names: Sequence[str], rows: Rows, clock: Positions, order: Positions) -> None:
    """Refuse two rows of a series that are equal on a clock."""
    twice = np.flatnonzero((np.diff(clock[order]) == 0) & (np.diff(rows.ids[order]) == 0))
    if not len(twice):
        return
    pairs = np.sort(np.stack([order[twice], order[twice + 1]]), axis=0)  # rows, the first in the file first
    before, row = pairs[:, pairs[1].argmin()]
    time = _text(rows.times.kind, rows.times.numbers[row])
    is_hour = rows.times.kind == LOCAL and rows.times.numbers[row] % DAY
    how = "keep one, or write offsets from UTC if the clock was set back" if is_hour else "keep one"
    text = f"series {shown(names[rows.ids[row]])} has two rows for {time}, the other is line {rows.lines[before]}"
    raise DataError(f"{name}:{rows.lines[row]}: {text}; {how}")


def _sorted(name: str, rows: Rows, clock: Positions) -> list[str]:
    """A note if the rows of a series are not in the order of time."""
    order = np.argsort(rows.ids, kind="stable")
    back = np.flatnonzero((np.diff(clock[order]) < 0) & (np.diff(rows.ids[order]) == 0))
    if not len(back):
        return []
    line, count = rows.lines[order[back + 1]].min(), len(np.unique(rows.ids[order[back]]))
    return [f"{name}:{line}: rows of {count:,} series are not in the order of time, first here; they were sorted"]


def _text(kind: str, number: int | np.int64) -> str:
    """The text of a time or position."""
    return str(number) if kind == POSITION else str(np.datetime64(int(number), "s")).replace("T", " ")


def _one(frequency: Frequency) -> str:
    """The frequency in a sentence: one hour, or 15 minutes."""
    return f"one {frequency}" if frequency.count == 1 else str(frequency)
