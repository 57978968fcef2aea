"""Time series: values at regular steps, with covariates and categories; how one continues another."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.frequency import Frequency, Numbers, Time, Times
from regard.data.times import parse_time
from regard.errors import DataError, RecipeError, did_you_mean, shown

Mask = NDArray[np.bool_]
LineNumbers = NDArray[np.int32]

STEP = Frequency("step")


def no_covariates(steps: int = 0) -> Numbers:
    """The covariates of a series that has none."""
    return np.zeros((steps, 0))


def no_lines() -> LineNumbers:
    """The lines of a series that is in no file, or in several."""
    return np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class Series:
    """A time series: a value for each step from `start` on, NaN where it is missing.

    Two series are equal if their texts are: `to_text` has all but the place in a file.
    """

    name: str
    values: Numbers  # (steps,)
    frequency: Frequency = STEP
    start: Time | None = None  # the time of the first value, in seconds; None if it is not known
    position: int = 0  # of the first value if it has no time: 1990 of the years 1990, 1991, ...
    known: Numbers = field(default_factory=no_covariates)  # (steps or more, n): covariates that are known in advance
    past: Numbers = field(default_factory=no_covariates)  # (steps, n): covariates that are known only when values are
    categories: tuple[str, ...] = ()  # what does not change with time, such as a shop and a product
    origin: str = ""  # file and line of the first value, for messages: `sales.csv:7`
    lines: LineNumbers = field(default_factory=no_lines, repr=False)  # (steps,): of each value; 0 if it is in no line

    def __post_init__(self) -> None:
        steps = len(self.values)
        if self.values.ndim != 1 or not steps:
            raise DataError(f"{self._place}: values of shape {self.values.shape}; give one or more in a row")
        for noun, covariates in (("known", self.known), ("past", self.past)):
            if covariates.ndim != 2:
                raise DataError(
                    f"{self._place}: {noun} covariates of shape {covariates.shape}; give (steps, covariates)"
                )
        if self.known.shape[1] and len(self.known) < steps:
            raise DataError(f"{self._place}: {steps:,} values, but {len(self.known):,} steps of known covariates")
        if self.past.shape[1] and len(self.past) != steps:
            raise DataError(f"{self._place}: {steps:,} values, but {len(self.past):,} steps of past covariates")
        if any(np.isinf(numbers).any() for numbers in (self.values, self.known, self.past)):
            raise DataError(f"{self._place}: an infinite number; give finite ones, and NaN for those that are missing")
        if self.start is not None and not self.frequency.has_calendar:
            raise DataError(f"{self._place}: a start but no frequency; give both, or neither")
        for noun in ("known", "past"):  # without covariates, there are as many rows as with some
            if not getattr(self, noun).shape[1]:
                object.__setattr__(self, noun, no_covariates(steps))

    @property
    def _place(self) -> str:
        return f"{self.origin}: series {shown(self.name)}" if self.origin else f"series {shown(self.name)}"

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Series) and self.to_text() == other.to_text()

    def __hash__(self) -> int:
        return hash(self.to_text())

    @property
    def missing(self) -> int:
        """The number of values that are missing."""
        return int(np.isnan(self.values).sum())

    def upto(self, count: int) -> "Series":
        """The first `count` values, at least one, with the past covariates of these; known ones stay as they are."""
        return replace(self, values=self.values[:count], past=self.past[:count], lines=self.lines[:count])

    def from_first_value(self) -> "Series":
        """The series without the missing values before its first one, as of a product that was not sold yet."""
        first = int(np.isnan(self.values).argmin())
        if not first:
            return self
        return replace(
            self,
            values=self.values[first:],
            start=None if self.start is None else self.frequency.times(self.start, first + 1)[first],
            position=self.position + first * self._stride if self.start is None else 0,
            known=self.known[first:],
            past=self.past[first:],
            origin=f"{self.origin.rpartition(':')[0]}:{self.lines[first]}" if len(self.lines) else self.origin,
            lines=self.lines[first:],
        )

    @property
    def _stride(self) -> int:
        """The difference between the positions of two steps without times."""
        return 1 if self.frequency.has_calendar else self.frequency.count

    def times(self, count: int | None = None) -> Times | None:
        """The times of the first `count` steps, which may be more than there are values; None if they are not known."""
        return None if self.start is None else self.frequency.times(self.start, len(self) if count is None else count)

    def calendar(self, count: int | None = None) -> Numbers:  # (count, features)
        """The calendar features of the first `count` steps; without times, no features."""
        steps = len(self) if count is None else count
        return np.zeros((steps, 0)) if self.start is None else self.frequency.calendar(self.start, steps)

    def label(self, index: int) -> str:
        """A short text for a step, which may be after the last value: its time, or without times its position."""
        if self.start is None:
            return str(self.position + index * self._stride)
        return self.frequency.label(self.frequency.times(self.start, index + 1)[index])

    def labels(self, count: int | None = None) -> tuple[str, ...]:
        """The labels of the first `count` steps."""
        steps = len(self) if count is None else count
        times = self.times(steps)
        return tuple(map(self.label, range(steps)) if times is None else map(self.frequency.label, times))

    def where(self, index: int) -> str:
        """File and line of a value, or what is known of it, for messages."""
        if index < len(self.lines) and self.lines[index]:
            return f"{self.origin.rpartition(':')[0]}:{self.lines[index]}"
        return f"{self._place}, value {index + 1:,}"

    # text

    def to_text(self) -> str:
        """The series as JSON in one line, always the same for equal series; floats come back with the same bits."""
        content: dict[str, Any] = {"name": self.name, "values": _nested(self.values), "frequency": str(self.frequency)}
        if self.start is not None:
            content["start"] = str(self.start.astype("datetime64[s]"))
        if self.position:
            content["position"] = self.position
        for key, covariates in (("known", self.known), ("past", self.past)):
            if covariates.shape[1]:
                content[key] = _nested(covariates)
        if self.categories:
            content["categories"] = list(self.categories)
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_text(text: str, origin: str = "") -> "Series":
        """The series of a text of `to_text`; DataError if it is none."""
        where = origin or "series"
        try:
            content = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not valid JSON ({shown(str(error))}); write a series as an object") from error
        if not isinstance(content, dict):
            raise DataError(f"{where}: {shown(content)} is not a JSON object; write a series as an object")
        for key in content:
            if key not in KEYS:
                raise DataError(
                    f"{where}: unknown key {shown(key)}; there are {', '.join(KEYS)}{did_you_mean(key, KEYS)}"
                )
        for key, (kind, expected) in KEYS.items():
            if key in content and (not isinstance(content[key], kind) or isinstance(content[key], bool)):
                raise DataError(f"{where}: {key} is {shown(content[key])}, expected {expected}")
        categories = content.get("categories", [])
        if not all(isinstance(category, str) for category in categories):
            raise DataError(f"{where}: categories are {shown(categories)}, expected {KEYS['categories'].expected}")
        try:
            frequency = Frequency.parse(content.get("frequency", "step"))
        except RecipeError as error:
            raise DataError(f"{where}: {error}") from error
        return Series(
            name=content.get("name", "series"),
            values=_numbers(content.get("values", []), "values", where),
            frequency=frequency,
            start=parse_time(content["start"], where) if "start" in content else None,
            position=content.get("position", 0),
            known=_numbers(content["known"], "known", where) if "known" in content else no_covariates(),
            past=_numbers(content["past"], "past", where) if "past" in content else no_covariates(),
            categories=tuple(categories),
            origin=origin,
        )


class _Key(NamedTuple):
    """A key of the text of a series."""

    kind: type
    expected: str


KEYS = {
    "name": _Key(str, "a text"),
    "values": _Key(list, "a list of numbers, null for those that are missing"),
    "frequency": _Key(str, "a text such as hour"),
    "start": _Key(str, "a time such as 2026-11-18T07:00:00"),
    "position": _Key(int, "a whole number"),
    "known": _Key(list, "a list of numbers for each step"),
    "past": _Key(list, "a list of numbers for each step"),
    "categories": _Key(list, "a list of texts"),
}


def _nested(numbers: Numbers) -> list[Any]:
    """Lists of floats, None for NaN."""
    missing = np.isnan(numbers)
    if not missing.any():
        return numbers.tolist()
    objects = numbers.astype(object)
    objects[missing] = None
    return objects.tolist()


def _numbers(values: list[Any], key: str, where: str) -> Numbers:
    """The array of lists of floats, NaN for None."""
    rows = values if key != "values" else [values]
    for row in rows:
        if not isinstance(row, list) or not all(type(value) in (int, float, type(None)) for value in row):
            raise DataError(f"{where}: {key} has {shown(row)}, expected {KEYS[key].expected}")
    try:
        return np.array(values, dtype=np.float64)  # None is NaN
    except (ValueError, OverflowError) as error:
        raise DataError(f"{where}: {key} is no array of numbers ({shown(str(error))})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


# several series


class Place(NamedTuple):
    """A value of a series."""

    series: Series
    step: int  # from 0

    @property
    def value(self) -> float:
        """The value itself."""
        return float(self.series.values[self.step])

    def __str__(self) -> str:
        """File and line."""
        return self.series.where(self.step)


def first_where(series: Iterable[Series], condition: Callable[[Numbers], Mask]) -> Place | None:
    """The first value that fulfils a condition, for messages; None if there is none."""
    for one in series:
        places = np.flatnonzero(condition(one.values))
        if len(places):
            return Place(one, int(places[0]))
    return None


def is_no_count(values: Numbers) -> Mask:
    """Where values are negative or no whole numbers, so that a likelihood of counts does not allow them."""
    return ~np.isnan(values) & ((values < 0) | (values != np.floor(values)))


def continued(train: Sequence[Series], test: Sequence[Series]) -> list[Series]:
    """Each series of `test`, with the values of the series of `train` of its name before its own.

    With times, it must begin one step after the other ends. Without times (M4), it is taken to do so.
    """
    by_name = {one.name: one for one in train}
    return [_joined(_of_name(by_name, one), one) for one in test]


def _of_name(by_name: dict[str, Series], later: Series) -> Series:
    if later.name not in by_name:
        near = did_you_mean(later.name, by_name)
        raise DataError(f"{later._place} continues none of the {len(by_name):,} series for training{near}")
    return by_name[later.name]


def _joined(earlier: Series, later: Series) -> Series:
    place, steps = later._place, len(earlier)
    if earlier.frequency != later.frequency:
        raise DataError(f"{place} has a step of {later.frequency}, but in training it is {earlier.frequency}")
    if (earlier.start is None) != (later.start is None):
        raise DataError(f"{place} {'has no times' if later.start is None else 'has times'}, unlike that for training")
    if (later.start is not None or later.position) and _distance(earlier, later) != steps:
        ends = f"that for training ends at {earlier.label(steps - 1)}"
        raise DataError(f"{place} begins at {later.label(0)}, but {ends}; it must go on at {earlier.label(steps)}")
    if earlier.categories != later.categories and later.categories:
        raise DataError(f"{place} has the categories {later.categories}, but in training {earlier.categories}")
    for noun, first, second in (("known", earlier.known, later.known), ("past", earlier.past, later.past)):
        if first.shape[1] != second.shape[1]:
            counts = f"{second.shape[1]} {noun} covariates, but in training {first.shape[1]}"
            raise DataError(f"{place} has {counts}")
    return replace(
        earlier,
        values=np.concatenate([earlier.values, later.values]),
        known=np.concatenate([earlier.known[:steps], later.known]),
        past=np.concatenate([earlier.past, later.past]),
        lines=no_lines(),
    )


def _distance(earlier: Series, later: Series) -> int:
    """The number of steps from the start of a series to that of another; -1 if it is before, or between two steps."""
    starts = [one.position if one.start is None else one.start for one in (earlier, later)]
    return int(earlier.frequency.positions(np.array(starts[1:]), np.array(starts[:1]))[0])
