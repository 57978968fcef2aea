"""The axes of a forecast: where each column of its map lies among the steps, round values, and times for labels."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from regard.maps import AttentionMap, SeriesView, Steps

LARGEST = 1e300  # values beyond it are drawn there, since the difference of two of them must be finite
MARGIN = 0.04  # room above and below the values, as a share of their range
FLAT = 1e-12  # a range below this share of the largest value is rounding, and the series is constant
FEWEST, BETWEEN = 4, 3  # ticks of a time axis, if there are so many steps, and characters between two labels
PARTS = re.compile("[-: ]")  # between the parts of a time: year, month, day, hour
POSITION = re.compile("-?[0-9]{1,15}")
EVERY = (1, 2, 3, 4, 6, *(12 * 2**power for power in range(40)))  # every how many hours, months, ... there is a label
WEEKS = (1, 2, *(7 * 2**power for power in range(40)))  # and every how many days
DAY = re.compile("[0-9]+-[0-9]{2}-[0-9]{2}")
ROUND = [factor * 10**power for power in range(16) for factor in (1, 2, 5)]


class Band(NamedTuple):
    """An interval around the median, between two quantiles."""

    low: int  # index of the lower quantile
    high: int
    share: str  # of the sample paths within it, such as `90 %`


class Look(NamedTuple):
    """The largest weight of a step of the forecast."""

    row: int
    step: int  # that it is on, counted from the first step of the view
    back: int  # how many steps it is before
    weight: float


def first_step(attention: AttentionMap, view: SeriesView) -> int:
    """The step of the map's first column; the last column is the step before the last: nothing looks at that one."""
    return len(view.times) - 1 - len(attention.columns)


def looks(attention: AttentionMap, view: SeriesView) -> list[Look]:
    """The largest weight of each row, without rows that have none."""
    first, history = first_step(attention, view), len(view.history)
    return [
        Look(row, first + column, history + row - first - column, attention.weights[row, column].item())
        for column, row in attention.links()
    ]


def beyond(attention: AttentionMap, view: SeriesView, rows: int) -> list[list[range]]:
    """The steps that the first rows cannot look at, as areas: of each, the range of steps of every row."""
    first, history, end = first_step(attention, view), len(view.history), len(view.times)
    lags = attention.layout.lags if isinstance(attention.layout, Steps) else ()

    def area(least: int, most: int) -> list[range]:
        """The steps from `most` to `least` back of each row."""
        nows = range(history, history + rows)
        return [range(max(first, now - most), max(first, min(end, now - least + 1))) for now in nows]

    gaps = [(one + 1, other - 1) for one, other in pairwise((0, *lags, end) if lags else ()) if other - one > 1]
    areas = [[range(first)] * rows, area(-end, 0), *(area(*gap) for gap in gaps)]
    return [ranges for ranges in areas if any(ranges)]


def bands(view: SeriesView) -> list[Band]:
    """The intervals around the median, widest first."""
    pairs = [(low, len(view.levels) - 1 - low) for low in range(len(view.levels) // 2)]
    return [Band(low, high, f"{100 * (view.levels[high] - view.levels[low]):.3g} %") for low, high in pairs]


def median(view: SeriesView) -> list[float]:
    """The median of each step of the forecast."""
    values: list[float] = view.quantiles[view.levels.index(0.5)].tolist()
    return values


def describe(view: SeriesView, row: int) -> str:
    """A step of the forecast in words: its time, the median, the widest interval, and what was observed."""
    text = f"{view.times[len(view.history) + row]}: median {short(median(view)[row])}"
    for low, high, share in bands(view)[:1]:
        text += f", {share} {short(view.quantiles[low, row].item())} to {short(view.quantiles[high, row].item())}"
    if view.observed is None or math.isnan(view.observed[row].item()):
        return text
    return f"{text}, observed {short(view.observed[row].item())}"


def summary(attention: AttentionMap | None, view: SeriesView) -> list[str]:
    """A forecast in a few lines: its first and last step, how well it fits what was observed, and where it looks."""
    horizon = view.quantiles.shape[1]
    lines = [describe(view, row) for row in ((0, horizon - 1) if horizon > 1 else (0,))]
    if view.observed is not None and (known := view.observed.isfinite()).any():
        error = (view.observed - torch.tensor(median(view)))[known].abs().mean().item()
        inside = [
            f"{int(within.sum())} of {int(known.sum())} within {share}"
            for low, high, share in bands(view)[:1]
            for within in [known & (view.quantiles[low] <= view.observed) & (view.observed <= view.quantiles[high])]
        ]
        lines.append(f"observed: {', '.join([*inside, f'mean absolute error of the median {short(error)}'])}")
    if attention is not None and (found := looks(attention, view)):
        [(back, count)] = Counter(look.back for look in found).most_common(1)
        lines.append(
            f"largest weight {back} step{'s' * (back != 1)} back in {count} of {len(attention.rows)} rows of the map"
        )
    return lines


def short(value: float) -> str:
    """A number with 4 digits, or all digits before the point."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}".replace("e+", "e")


# values


class ValueAxis(NamedTuple):
    """The axis of the values."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]  # round values, and their labels

    def share(self, value: float) -> float:
        """The place of a value: 0 is the lower end, 1 the upper; values beyond are at the ends."""
        return min(max(0.0, (value - self.low) / (self.high - self.low)), 1.0)


def value_axis(view: SeriesView, most: int = 8) -> ValueAxis:
    """The axis of all values that are drawn, with at most so many ticks; it goes below 0 only if a value does."""
    observed = [] if view.observed is None else view.observed.tolist()
    drawn = [*view.history.tolist(), *view.quantiles.flatten().tolist(), *observed]
    values = [min(max(-LARGEST, value), LARGEST) for value in drawn if math.isfinite(value)] or [0.0]
    low, high = min(values), max(values)
    if high - low <= FLAT * max(abs(low), abs(high)):
        around = abs(low) / 10 or 1.0
        low, high = low - around, high + around
    margin = MARGIN * (high - low)
    low, high = (low if 0 <= low < margin else low - margin), high + margin
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * 0.999)
    numbers = range(math.ceil(low / step), math.floor(high / step) + 1)
    return ValueAxis(low, high, tuple((number * step, _round(number * step, step)) for number in numbers))


def _round(value: float, step: float) -> str:
    """A multiple of a step as text: with all its digits, or with a power of ten if it is very large or small."""
    if value == 0:
        return "0"
    power, unit = math.floor(math.log10(abs(value)) + 1e-9), math.floor(math.log10(step) + 1e-9)
    if unit >= -4 and (power < 6 or power - unit > 4):
        return f"{value:,.{max(0, -unit)}f}"
    return f"{value:.{max(0, power - unit)}e}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


# times


def time_ticks(times: Sequence[str], room: int) -> list[tuple[int, str]]:
    """Steps with labels that have room beside each other, at least one; `room` is that of all, in characters.

    They are where a year, month, day or hour begins, or round positions.
    """
    if all(map(POSITION.fullmatch, times)):
        return _positions([*map(int, times)], max(1, room // (max(map(len, times)) + BETWEEN)))
    anchor = 0  # a step where a larger part begins: a label of every seventh day is there, too
    for end in [match.start() for match in PARTS.finditer(times[0])]:
        begins = [step for step, (one, other) in enumerate(pairwise(times), 1) if one[:end] != other[:end]]
        if len(begins) >= FEWEST:
            is_hour = times[0][end] == ":"
            return _thinned([(step, times[step] if is_hour else times[step][:end]) for step in begins], room, anchor)
        anchor = begins[0] if begins else anchor
    return _thinned([*enumerate(times)], room, anchor)


def _positions(numbers: Sequence[int], most: int) -> list[tuple[int, str]]:
    """Those of evenly spaced numbers that are multiples of a round number."""
    stride = abs(numbers[1] - numbers[0]) if len(numbers) > 1 else 1
    for every in ROUND:
        multiples = [(step, str(number)) for step, number in enumerate(numbers) if number // (stride or 1) % every == 0]
        if len(multiples) <= most:
            return multiples or [(0, str(numbers[0]))]
    return [(0, str(numbers[0]))]


def _thinned(labels: Sequence[tuple[int, str]], room: int, anchor: int) -> list[tuple[int, str]]:
    """Every so many of the labels, so that they have room; one is at the anchor, if it has a label."""
    most = max(1, room // (max(len(label) for _, label in labels) + BETWEEN))
    numbers = WEEKS if all(DAY.fullmatch(label) for _, label in labels) else EVERY
    every = next(every for every in numbers if math.ceil(len(labels) / every) <= most)
    start = next((number for number, (step, _) in enumerate(labels) if step == anchor), 0)
    return [*labels[start % every :: every]]


def from_right(label: str, longest: int) -> str:
    """The end of a time that fits into so many characters, without its first parts: `11-18 07:00`."""
    while len(label) > longest and (part := PARTS.search(label)):
        label = label[part.end() :]
    return label


def runs(values: Iterable[float]) -> list[list[tuple[int, float]]]:
    """The stretches of values without a gap, each value with its step."""
    parts: list[list[tuple[int, float]]] = [[]]
    for step, value in enumerate(values):
        if math.isfinite(value):
            parts[-1].append((step, value))
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]
