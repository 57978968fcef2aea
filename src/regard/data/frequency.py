"""How far apart the steps of a series are: the times of its steps, its season, its lags and its calendar features."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import RecipeError, UnknownNameError, pick, shown

Time = np.datetime64  # whole seconds; UTC, or local time if a file has no offsets
Times = NDArray[Any]  # of datetime64, in any unit: beartype takes np.datetime64 for the one without a unit
Numbers = NDArray[np.float64]
Positions = NDArray[np.int64]

MINUTE, HOUR, DAY, WEEK = 60, 3600, 86_400, 604_800  # seconds
LONGEST_SEASON = 400  # steps; a longer cycle is no season, such as the 1,440 minutes of a day
RECENT = 7  # lags 1 to RECENT are inputs whatever the frequency is
LONGEST_STEP = 10_000 * 366 * DAY  # seconds
NAME = re.compile(r"([0-9]{0,12}) *([A-Za-z][A-Za-z _]*?)(?:-[A-Za-z]{3})?")  # count, unit, and the anchor of pandas
MONTH, MONTH_ERROR = 365.2425 / 12, 4  # days, and how much longer or shorter some months in a row may be
THURSDAY = 3  # the weekday of day 0 of numpy, 1 January 1970, counted from Monday


class Unit(NamedTuple):
    """A unit of time, and what models use of it."""

    names: tuple[str, ...] = ()  # besides its own, and its own with an s
    seconds: int = 0  # if it is always as long
    months: int = 0  # if it is a number of months
    seasons: tuple[int, ...] = ()  # cycles in units, the preferred one first
    lags: tuple[tuple[int, int], ...] = ()  # cycles in units, and how many of each are looked back
    features: tuple[str, ...] = ()  # entries of FEATURES
    label: str = ""  # the unit of numpy that the text of a time ends with


DATE = ("day_of_week", "day_of_month", "day_of_year")
UNITS: dict[str, Unit] = {
    "second": Unit(
        names=("s", "S", "sec", "secs"),
        seconds=1,
        seasons=(HOUR, MINUTE),
        lags=((MINUTE, 3), (HOUR, 1)),
        features=("second_of_minute", "minute_of_hour", "hour_of_day"),
        label="s",
    ),
    "minute": Unit(
        names=("min", "mins", "T"),
        seconds=MINUTE,
        seasons=(1440, 60),
        lags=((60, 3), (1440, 7)),
        features=("minute_of_hour", "hour_of_day", *DATE),
        label="m",
    ),
    "hour": Unit(
        names=("h", "H", "hr", "hourly"),
        seconds=HOUR,
        seasons=(24, 168),
        lags=((24, 7), (168, 4)),
        features=("hour_of_day", *DATE),
        label="m",
    ),
    "day": Unit(
        names=("d", "D", "daily"),
        seconds=DAY,
        seasons=(7,),
        lags=((7, 4), (30, 1), (365, 1)),
        features=DATE,
        label="D",
    ),
    "business_day": Unit(
        names=("b", "B", "business day"),
        seasons=(5,),
        lags=((5, 4), (21, 1), (261, 1)),
        features=DATE,
        label="D",
    ),
    "week": Unit(
        names=("w", "W", "weekly"),
        seconds=WEEK,
        seasons=(52,),
        lags=((13, 1), (52, 2)),
        features=("day_of_month", "day_of_year"),
        label="D",
    ),
    "month": Unit(
        names=("M", "ME", "MS", "BM", "BME", "BMS", "mo", "monthly"),
        months=1,
        seasons=(12,),
        lags=((12, 3),),
        features=("month_of_year",),
        label="M",
    ),
    "quarter": Unit(
        names=("q", "Q", "QE", "QS", "BQ", "BQE", "BQS", "quarterly"),
        months=3,
        seasons=(4,),
        lags=((4, 3),),
        features=("month_of_year",),
        label="M",
    ),
    "year": Unit(
        names=("y", "Y", "YE", "YS", "A", "AS", "BA", "BAS", "BY", "BYE", "BYS", "yearly", "annual"),
        months=12,
        label="Y",
    ),
    "step": Unit(),
}
LARGER = {  # a unit, and how many of the one before it make one
    "second": ("minute", 60),
    "minute": ("hour", 60),
    "hour": ("day", 24),
    "day": ("week", 7),
    "month": ("quarter", 3),
    "quarter": ("year", 4),
}
WITHIN_A_DAY = ("second", "minute", "hour")


@dataclass(frozen=True)
class Frequency:
    """The distance between two steps of a series: a number of units, such as 15 minutes.

    A `step` has no calendar: its positions are counted.
    """

    unit: str
    count: int = 1

    def __post_init__(self) -> None:
        pick(UNITS, self.unit, "unit of time")
        unit = UNITS[self.unit]
        most = LONGEST_STEP // (unit.seconds or unit.months * 31 * DAY or DAY)
        if not 1 <= self.count <= most:
            raise RecipeError(f"a step of {self.count:,} {self.unit}s; give 1 to {most:,}")

    @staticmethod
    def parse(text: str) -> "Frequency":
        """The frequency of a name: `hour`, `15 minutes`, or as pandas writes it: `H`, `15min`, `MS`, `W-SUN`."""
        match = NAME.fullmatch(text.strip())
        if match is None:
            raise UnknownNameError("frequency", text, UNITS)
        number, name = match.groups()
        if name == "m":
            raise RecipeError(f"the frequency {shown(text)} may be of minutes or of months; write min or M")
        unit = NAMES.get(name) or NAMES.get(name.lower())
        if unit is None:
            raise UnknownNameError("frequency", text, UNITS)
        return Frequency(unit, int(number or 1)).in_largest_unit()

    def in_largest_unit(self) -> "Frequency":
        """The same frequency in the largest unit that gives a whole count: 60 minutes are an hour."""
        unit, size = LARGER.get(self.unit, ("", 0))
        if not unit or self.count % size:
            return self
        return Frequency(unit, self.count // size).in_largest_unit()

    def __str__(self) -> str:
        """The name that `parse` reads: `hour`, `15 minutes`."""
        return self.unit if self.count == 1 else f"{self.count} {self.unit}s"

    @property
    def in_words(self) -> str:
        """The frequency for messages: `one hour`, `15 minutes`."""
        return f"one {self.unit.replace('_', ' ')}" if self.count == 1 else str(self)

    @property
    def has_calendar(self) -> bool:
        """Whether its steps have times."""
        return self.unit != "step"

    @property
    def is_within_a_day(self) -> bool:
        """Whether a step is shorter than a day, so that offsets from UTC matter; else only dates do."""
        return self.unit in WITHIN_A_DAY

    # what models use

    @property
    def season(self) -> int:
        """The number of steps after which a series usually repeats itself; 1 if none is usual.

        The first cycle of `Unit.seasons` that is a whole number of steps, and not more than LONGEST_SEASON: a day for
        hours and for 5 minutes or more, an hour for single minutes, a week for days, a year for weeks and months.
        """
        for cycle in UNITS[self.unit].seasons:
            if cycle % self.count == 0 and cycle // self.count <= LONGEST_SEASON:
                return cycle // self.count
        return 1

    def lags(self, longest: int | None = None) -> tuple[int, ...]:
        """The steps back whose values are inputs of a forecaster, at most `longest`, in increasing order.

        The last RECENT values; and for each cycle of `Unit.lags` one, two, ... cycles back, each with its neighbours:
        a cycle may be a little longer or shorter than the calendar says, and the two neighbours also say whether a
        series rises there. For hours: 1 to 7, 23 to 25, 47 to 49, ..., 167 to 169, 335 to 337, ..., 671 to 673. GluonTS
        chooses similarly (`gluonts.time_feature.get_lags_for_frequency`).
        """
        lags = {*range(1, RECENT + 1)}
        for cycle, times in UNITS[self.unit].lags:
            steps = cycle / self.count
            if steps > RECENT / 2:  # the neighbours of a shorter cycle are among the last values, or wrong
                lags.update(round(steps * number) + side for number in range(1, times + 1) for side in (-1, 0, 1))
        return tuple(sorted(lag for lag in lags if longest is None or lag <= longest))

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns of `calendar`."""
        return UNITS[self.unit].features

    def calendar(self, start: Time, count: int) -> Numbers:  # (count, features)
        """The calendar features of `count` steps from `start` on, each from -0.5 to 0.5; see FEATURES."""
        times = self.times(start, count)
        columns = [FEATURES[name](times) for name in self.features]
        return np.stack(columns, axis=1) if columns else np.zeros((count, 0))

    # times

    def times(self, start: Time, count: int) -> Times:
        """The times of `count` steps from `start` on.

        Steps of months keep the day of the month, or the last day if `start` is the last: 31 January, 29 February. A
        step of business days that starts on a weekend goes on from the Monday after it.
        """
        assert self.has_calendar  # positions of a `step` are counted
        unit = UNITS[self.unit]
        steps = np.arange(count, dtype=np.int64) * self.count
        first = start.astype("datetime64[s]")
        if unit.seconds:
            return first + (steps * unit.seconds).astype("timedelta64[s]")
        day = first.astype("datetime64[D]")
        if unit.months:
            days = _days_of_months(day, day.astype("datetime64[M]") + steps * unit.months)
        else:
            days = np.busday_offset(day, steps, roll="forward")
        return days.astype("datetime64[s]") + (first - day)

    def positions(self, times: NDArray[Any], starts: NDArray[Any]) -> Positions:
        """The number of steps from each start to each time; -1 where a time is before its start, or between steps.

        For steps of months a time stands for its month, whatever the day, because files name the first day, the last
        or a business day of a month. `starts` has one time, or one for each time. Of a `step`, both are whole numbers.
        """
        unit = UNITS[self.unit]
        if unit.seconds or not self.has_calendar:
            units = (times - starts).astype(np.int64)
            size = (unit.seconds or 1) * self.count
        elif unit.months:
            units = (times.astype("datetime64[M]") - starts.astype("datetime64[M]")).astype(np.int64)
            size = unit.months * self.count
        else:
            days, first_days = times.astype("datetime64[D]"), starts.astype("datetime64[D]")
            units = np.busday_count(first_days, days)
            on_step = np.is_busday(days) & np.is_busday(first_days) & (times - days == starts - first_days)
            units, size = np.where(on_step, units, -1), self.count
        return np.where((units >= 0) & (units % size == 0), units // size, -1)

    def label(self, time: Time) -> str:
        """A short text of a time that no other step has: `2026-11-18 07:00`, `2026-11-18`, `2026-11`, `2026`."""
        return str(time.astype(f"datetime64[{UNITS[self.unit].label}]")).replace("T", " ")


NAMES = {name: unit for unit, entry in UNITS.items() for name in (unit, f"{unit}s", *entry.names)}


def infer(times: Times, breaks: Positions | None = None) -> Frequency | None:
    """The frequency of the times of some series; None if no series has two times.

    `times` has the times of one series after another, each in increasing order; `breaks` are the indices at which
    another series begins. The step is the smallest difference if all others are multiples of it, else the most frequent
    one: times that do not fit it are irregular. Days are business days if some weekend is between them and none is on
    one.
    """
    pairs = _pairs(len(times), breaks)
    differences = np.diff(times).astype(np.int64)[pairs]
    if not len(differences):
        return None
    seconds = _step(differences)
    days = times.astype("datetime64[D]")
    if seconds >= 28 * DAY and (months := _months(days, pairs, seconds)):
        return Frequency("month", months).in_largest_unit()
    if seconds == DAY and np.is_busday(days).all():
        weeks = (days.astype(np.int64) + THURSDAY) // 7
        if np.diff(weeks)[pairs].any():
            return Frequency("business_day")
    return Frequency("second", seconds).in_largest_unit()


def infer_step(positions: Positions, breaks: Positions | None = None) -> Frequency | None:
    """The same for series whose steps are counted: 1, 2, 3 or 10, 20, 30."""
    differences = np.diff(positions)[_pairs(len(positions), breaks)]
    return Frequency("step", _step(differences)) if len(differences) else None


def _pairs(count: int, breaks: Positions | None) -> Positions:
    """The indices of all times but the last of each series: those that a time of the same series follows."""
    followed = np.ones(max(0, count - 1), bool)
    if breaks is not None:
        followed[breaks[breaks > 0] - 1] = False
    return np.flatnonzero(followed)


def _step(differences: Positions) -> int:
    """The smallest difference if all are multiples of it, else the most frequent one; of several, the smallest."""
    values, counts = np.unique(differences, return_counts=True)
    assert values[0] > 0  # times increase
    return int(values[0] if not (values % values[0]).any() else values[counts.argmax()])


def _months(days: Times, pairs: Positions, seconds: int) -> int:
    """The number of months of a step of so many seconds; 0 if it is a number of days, such as four weeks."""
    day_of_month = _part(days, "D", "M")
    is_same_day = (day_of_month == day_of_month[0]).all() or _is_last_of_month(days).all()
    if not is_same_day and not (np.diff(days).astype(np.int64)[pairs] % 7).any():
        return 0
    differences = np.diff(days.astype("datetime64[M]")).astype(np.int64)[pairs]
    differences = differences[differences > 0]  # two days of one month will have the same position
    months = _step(differences) if len(differences) else 0
    return months if abs(seconds / DAY - months * MONTH) <= MONTH_ERROR else 0


# calendar features


def _days_of_months(day: Time, months: Times) -> Times:
    """The days of these months that are the same day of the month as `day`, or the last if that is the last."""
    last = (months + 1).astype("datetime64[D]") - 1
    if _is_last_of_month(np.asarray([day])).all():
        return last
    return np.minimum(months.astype("datetime64[D]") + (day - day.astype("datetime64[M]")), last)


def _is_last_of_month(days: Times) -> NDArray[np.bool_]:
    return _part(days + 1, "D", "M") == 0


def _part(times: Times, unit: str, whole: str) -> Numbers:
    """The number of units, from 0, since the start of the larger unit: hours since the start of the day."""
    start = times.astype(f"datetime64[{whole}]").astype(f"datetime64[{unit}]")
    return (times.astype(f"datetime64[{unit}]") - start).astype(np.float64)


def _day_of_week(times: Times) -> Numbers:
    """0 is Monday."""
    return ((times.astype("datetime64[D]").astype(np.int64) + THURSDAY) % 7).astype(np.float64)


FEATURES: dict[str, Callable[[Times], Numbers]] = {  # the least value is -0.5, the largest is 0.5
    "second_of_minute": lambda times: _part(times, "s", "m") / 59 - 0.5,
    "minute_of_hour": lambda times: _part(times, "m", "h") / 59 - 0.5,
    "hour_of_day": lambda times: _part(times, "h", "D") / 23 - 0.5,
    "day_of_week": lambda times: _day_of_week(times) / 6 - 0.5,
    "day_of_month": lambda times: _part(times, "D", "M") / 30 - 0.5,
    "day_of_year": lambda times: _part(times, "D", "Y") / 365 - 0.5,
    "month_of_year": lambda times: _part(times, "M", "Y") / 11 - 0.5,
}
