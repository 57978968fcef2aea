"""A forecast in a terminal: history and median as lines of braille dots, the fan as shades, and the map below them.

One column of characters is a step, or a few steps. It is the same one in the fan and in the map.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from rich.cells import cell_len
from torch import Tensor

from regard.maps import AttentionMap, SeriesView
from regard.show import steps
from regard.show.blocks import GROUND, STRONG
from regard.show.labels import clipped, make_visible
from regard.show.scale import darkest, shades

HIGH, ROWS = 13, 24  # lines of the fan, and of the map at most; if it has more rows, a line is several of them
LONGEST = 16  # cells of the label of a row
WIDEST = 4  # cells of a step, at most
NARROWEST = 8  # cells of all steps, at least
BACK = 14  # cells for how far back the largest weight of a row is
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille character, from the top; left, then right
BRAILLE = 0x2800
LOWER = " ▁▂▃▄▅▆▇█"
OBSERVED, LOOK, TICK, NOW = "•", "◆", "╵", "│"
SHADES = "·░▒▓█"  # weights, from none; without colours
BANDS = "░▒▓"  # intervals, widest first; without colours


class Inks(NamedTuple):
    """The colours of a terminal with many of them, as parts of escape codes behind 38; or 48;.

    The intervals are of middle lightness and differ in saturation: so the narrowest stands out most on dark and on
    light backgrounds, and both white and black are legible on them. The weights have their own dark ground, as in maps
    over recordings.
    """

    bands: tuple[str, str, str]  # widest first
    median: str  # beside the intervals
    pale: str
    weights: tuple[str, ...]  # from none to the largest
    white: str
    black: str


def _mixed(start: tuple[int, ...], stop: tuple[int, ...], count: int) -> tuple[str, ...]:
    """So many colours from one to another."""
    shares = [number / (count - 1) for number in range(count)]
    parts = [[round(one + (other - one) * share) for one, other in zip(start, stop, strict=True)] for share in shares]
    return tuple(f"2;{red};{green};{blue}" for red, green, blue in parts)


INKS = {
    "truecolor": Inks(
        bands=("2;116;136;166", "2;82;124;188", "2;40;108;212"),
        median="2;38;128;235",
        pale="2;128;138;152",
        weights=_mixed(GROUND, STRONG, 33),
        white="2;255;255;255",
        black="2;0;0;0",
    ),
    "256": Inks(
        bands=("5;102", "5;67", "5;26"),
        median="5;33",
        pale="5;245",
        weights=("5;234", "5;238", "5;94", "5;136", "5;178", "5;214"),
        white="5;231",
        black="5;16",
    ),
}


class Cell(NamedTuple):
    """A character of the terminal, with its colours as escape codes."""

    text: str = " "
    codes: str = ""

    def __str__(self) -> str:
        return f"\x1b[{self.codes}m{self.text}\x1b[0m" if self.codes else self.text


class Part(NamedTuple):
    """The columns of characters of the history or of the forecast."""

    steps: int
    wide: int  # columns of a step
    every: int  # steps of a column; 1 if a step has several columns

    @staticmethod
    def fitting(steps: int, room: int, widest: int) -> "Part":
        """So many steps in at most so many columns."""
        return Part(steps, max(1, min(widest, room // steps)), math.ceil(steps / room))

    @property
    def columns(self) -> int:
        """All columns."""
        return self.wide * math.ceil(self.steps / self.every)


class Columns(NamedTuple):
    """Which columns of characters each step has: the history, a line, then the forecast, whose steps may be wider."""

    history: Part
    forecast: Part

    @staticmethod
    def fitting(history: int, horizon: int, room: int) -> "Columns":
        """The columns of so many steps in this room: the forecast has a third of it, or half if it is long."""
        room = max(NARROWEST, room - 1)
        forecast = Part.fitting(horizon, max(room // 3, min(room // 2, horizon)), WIDEST)
        return Columns(Part.fitting(history, room - forecast.columns, forecast.wide), forecast)

    @property
    def now(self) -> int:
        """The column of the line between history and forecast."""
        return self.history.columns

    @property
    def total(self) -> int:
        """All columns."""
        return self.now + 1 + self.forecast.columns

    def place(self, step: int) -> float:
        """The place of a step's centre, in columns; those of both parts are full beside the line between them."""
        past, ahead = self
        if step < past.steps:
            return self.now - (past.steps - step - 0.5) / past.every * past.wide
        return self.now + 1 + (step - past.steps + 0.5) / ahead.every * ahead.wide

    def of(self, step: int) -> slice:
        """The columns of a step."""
        wide = (self.history if step < self.history.steps else self.forecast).wide
        first = math.floor(self.place(step) - (wide - 1) / 2)
        return slice(first, first + wide)

    def describe(self) -> str:
        """How many steps a column is; empty if each step has a column, and they are equally wide."""
        if self.history[1:] == self.forecast[1:] and self.history.every == 1:
            return ""
        before, after = (
            f"{part.wide} column{'s' * (part.wide > 1)} a step" if part.every == 1 else f"{part.every} steps a column"
            for part in self
        )
        return before if before == after else f"{before}, {after} after {NOW}"


def forecast(
    attention: AttentionMap | None, view: SeriesView, *, width: int, colours: str | None, scale: str = "map"
) -> str:
    """The forecast as text for a terminal of that width, and the map below, if there is one.

    `colours` is a colour system as rich names it, or None for no colours.
    """
    if attention is not None and not (attention.rows and attention.columns):
        attention = None
    axis, horizon = steps.value_axis(view, 5), view.quantiles.shape[1]
    rows = _rows(attention, view, max(1, min(LONGEST, width // 4))) if attention is not None else []
    labels = _values(axis)
    margin = max(cell_len(name) for name in [*labels, *(row.name for row in rows)]) + 1
    back = BACK if rows and width >= 5 * BACK else 0
    columns = Columns.fitting(len(view.history), horizon, width - margin - back)
    inks = INKS.get(colours or "")
    lines = _key(view, width, colours)
    for label, cells in zip(labels, _fan(view, axis, columns, colours), strict=True):
        lines.append(_line(label, cells, margin))
    if attention is not None:
        lines.append(" " * (margin + columns.now) + str(_separator(colours)))
        binned = _binned(attention, view, columns, len(rows), scale)
        for row, weights in zip(rows, binned, strict=True):
            drawn = _weights(weights.tolist(), row, columns, inks)
            text = f" {row.back} back {row.weight:.2f}" if back and row.weight > 0 else ""
            drawn[columns.now] = _separator(colours)
            lines.append(_line(row.name, drawn, margin) + text)
    lines.append(" " * margin + _ticks(view, columns, width - margin))
    if attention is not None:
        lines += wrap(_legend(attention, scale, len(rows), columns, colours), max(width, 10))
    return "".join(f"{line.rstrip(' ')}\n" for line in lines)


def _line(label: str, cells: Iterable[Cell], margin: int) -> str:
    return " " * (margin - 1 - cell_len(label)) + label + " " + "".join(map(str, cells))


def _values(axis: steps.ValueAxis) -> list[str]:
    """The label of each line of the fan, from the top; most have none."""
    labels = [""] * HIGH
    for value, label in axis.ticks:
        labels[_from_top(axis.share(value), HIGH)] = label
    return labels


def _from_top(share: float, count: int) -> int:
    """The line of a share of the height, of so many lines, counted from the top."""
    return min(count - 1, int((1 - share) * count))


# the fan


def _fan(view: SeriesView, axis: steps.ValueAxis, columns: Columns, colours: str | None) -> list[list[Cell]]:
    """The lines of the fan, from the top."""
    history = len(view.history)
    past: dict[tuple[int, int], int] = {}
    middle: dict[tuple[int, int], int] = {}
    for part in steps.runs(view.history.tolist()):
        _draw(past, [(columns.place(step), axis.share(value)) for step, value in part])
    for part in steps.runs(steps.median(view)):
        _draw(
            middle,
            [(columns.place(history + step), axis.share(value)) for step, value in part],
            columns.forecast.wide / 2,
        )
    seen = {(_from_top(axis.share(value), HIGH), place) for place, value in _observed(view, columns).items()}
    levels = _levels(view, axis, columns)
    lines = []
    for line in range(HIGH):
        cells = [
            Cell(chr(BRAILLE + past[line, place])) if (line, place) in past else Cell() for place in range(columns.now)
        ]
        cells.append(_separator(colours))
        for place in range(columns.now + 1, columns.total):
            dots = middle.get((line, place), 0)
            mark = OBSERVED if (line, place) in seen else chr(BRAILLE + dots) if dots else ""
            eighths = levels[place][8 * (HIGH - 1 - line) : 8 * (HIGH - line)]
            cells.append(_painted(eighths, mark, colours, len(steps.bands(view))))
        lines.append(cells)
    return lines


def _observed(view: SeriesView, columns: Columns) -> dict[int, float]:
    """What was observed, by column: the mean, if a column has several steps."""
    together: dict[int, list[float]] = {}
    for step, value in enumerate([] if view.observed is None else view.observed.tolist()):
        if math.isfinite(value):
            together.setdefault(int(columns.place(len(view.history) + step)), []).append(value)
    return {place: sum(values) / len(values) for place, values in together.items()}


def _separator(colours: str | None) -> Cell:
    if colours is None:
        return Cell(NOW)
    return Cell(NOW, f"38;{INKS[colours].pale}" if colours in INKS else "90")


def _draw(dots: dict[tuple[int, int], int], points: Sequence[tuple[float, float]], reach: float = 0.0) -> None:
    """Add a line through points, (column, share of the height), to the braille dots of (line, column).

    Both ends go on horizontally, so many columns far.
    """
    (first, start), (last, stop) = points[0], points[-1]
    xs, ys = (np.array(values) for values in zip((first - reach, start), *points, (last + reach, stop), strict=True))
    for side in range(math.floor(2 * xs[0]), max(math.floor(2 * xs[0]) + 1, math.ceil(2 * xs[-1]))):
        # All heights of the line within this half of a column: at its borders, and at the points between them.
        edges = np.interp(np.clip([side / 2, (side + 1) / 2], xs[0], xs[-1]), xs, ys)
        heights = [*edges.tolist(), *ys[(xs >= side / 2) & (xs <= (side + 1) / 2)].tolist()]
        for dot in range(_from_top(max(heights), 4 * HIGH), _from_top(min(heights), 4 * HIGH) + 1):
            place = dot // 4, side // 2
            dots[place] = dots.get(place, 0) | DOTS[side % 2][dot % 4]


def _levels(view: SeriesView, axis: steps.ValueAxis, columns: Columns) -> dict[int, list[int]]:
    """For each column of the forecast and each eighth of a line, from the bottom, how many intervals are there."""
    history, horizon = len(view.history), view.quantiles.shape[1]
    places = [columns.place(history + step) for step in range(horizon)]
    shares = [[axis.share(value) for value in level] for level in view.quantiles.nan_to_num().tolist()]
    edges = np.arange(columns.now + 1, columns.total + 1)
    ends = [np.interp(edges, places, own) for own in shares]  # a steep fan has all heights of its column, as a line has
    middles = (np.arange(8 * HIGH) + 0.5) / (8 * HIGH)
    levels = np.zeros((len(edges) - 1, 8 * HIGH), int)
    for low, high, _ in steps.bands(view):
        lowest, highest = (np.minimum(ends[low][:-1], ends[low][1:]), np.maximum(ends[high][:-1], ends[high][1:]))
        levels += (lowest[:, None] <= middles) & (middles <= highest[:, None])
    return {columns.now + 1 + number: own for number, own in enumerate(levels.tolist())}


def _painted(eighths: Sequence[int], mark: str, colours: str | None, bands: int) -> Cell:
    """A character of the fan: the intervals in its eighths, from the bottom, or a mark on them."""
    inks = INKS.get(colours or "")
    most = Counter(eighths).most_common(1)[0][0]
    if inks is None:
        blue = "" if colours is None else "94"
        if mark:
            return Cell(mark, "" if mark == OBSERVED else blue)
        return Cell(BANDS[_band(most, bands)], blue) if most else Cell()
    ground = f"48;{inks.bands[_band(most, bands)]}" if most else ""
    if mark and not ground:
        return Cell(mark, "" if mark == OBSERVED else f"38;{inks.median}")
    if mark:
        return Cell(mark, f"38;{inks.black if mark == OBSERVED else inks.white};{ground}")
    split, lower, upper = _split(eighths)
    if lower == upper:
        return Cell(" ", ground)
    if not lower:  # the lower part has the terminal's own background: in reverse video, that is the character's colour
        return Cell(LOWER[split], f"7;38;{inks.bands[_band(upper, bands)]}")
    above = f";48;{inks.bands[_band(upper, bands)]}" if upper else ""
    return Cell(LOWER[split], f"38;{inks.bands[_band(lower, bands)]}{above}")


def _band(level: int, bands: int) -> int:
    """The shade of a level, of three: 0 is that of the widest interval, 2 that of the narrowest."""
    return 2 if level == bands else min(1, level - 1)


def _split(eighths: Sequence[int]) -> tuple[int, int, int]:
    """The best way to show a character's eighths with two levels: those below the split, and those from it on."""

    def cost(split: int) -> int:
        return sum(len(part) - Counter(part).most_common(1)[0][1] for part in (eighths[:split], eighths[split:]))

    split = min(range(1, 8), key=cost)
    lower, upper = (Counter(part).most_common(1)[0][0] for part in (eighths[:split], eighths[split:]))
    return split, lower, upper


# the map


class Row(NamedTuple):
    """A line of the map: its label, and where its largest weight is."""

    name: str
    last: int  # step of the forecast; if a line is several, the last of them
    step: int
    back: int
    weight: float


def _rows(attention: AttentionMap, view: SeriesView, longest: int) -> list[Row]:
    every = math.ceil(len(attention.rows) / ROWS)
    found = {look.row: look for look in steps.looks(attention, view)}
    rows = []
    for first in range(0, len(attention.rows), every):
        last = min(first + every, len(attention.rows)) - 1
        best = max(
            (found[row] for row in range(first, last + 1) if row in found), key=lambda look: look.weight, default=None
        )
        name = clipped(make_visible(steps.from_right(attention.rows[first], longest)), longest)
        rows.append(Row(name, last, *(best[1:] if best else (0, 0, 0.0))))
    return rows


def _binned(
    attention: AttentionMap, view: SeriesView, columns: Columns, lines: int, scale: str
) -> Float[Tensor, "lines columns"]:
    """The shades in the columns of characters: each is the largest of its rows and steps; -inf out of reach."""
    first, every = steps.first_step(attention, view), math.ceil(len(attention.rows) / lines)
    shaded = shades(attention.weights, scale).detach().cpu().float().nan_to_num(0).clamp(0, 1)
    for ranges in steps.beyond(attention, view, len(shaded)):
        for row, own in zip(shaded, ranges, strict=True):
            row[max(0, own.start - first) : max(0, own.stop - first)] = -torch.inf
    binned = torch.full((lines, columns.total), -torch.inf)
    for column, weights in enumerate(shaded.T):
        places = columns.of(first + column)
        largest = torch.stack([part.amax() for part in weights.split(every)]).unsqueeze(1)
        binned[:, places] = torch.maximum(binned[:, places], largest)
    return binned


def _weights(weights: list[float], row: Row, columns: Columns, inks: Inks | None) -> list[Cell]:
    """The characters of a line of the map, with a mark at the largest weight; none where nothing is in reach."""
    own = columns.of(row.step)
    marked = (own.start + own.stop - 1) // 2 if row.weight > 0 else -1
    cells = []
    for place, weight in enumerate(weights):
        if weight < 0:
            cells.append(Cell())
        elif inks is None:
            cells.append(Cell(LOOK if place == marked else SHADES[min(4, int(weight * 4 + 0.5))]))
        else:
            ground = f"48;{inks.weights[round(weight * (len(inks.weights) - 1))]}"
            ink = inks.black if weight > 0.5 else inks.white
            cells.append(Cell(LOOK, f"38;{ink};{ground}") if place == marked else Cell(" ", ground))
    return cells


# words


def _ticks(view: SeriesView, columns: Columns, room: int) -> str:
    """The times below the columns, those that have room."""
    line = ""
    for step, label in steps.time_ticks(view.times, columns.total):
        place, text = int(columns.place(step)), TICK + make_visible(label)
        if place >= cell_len(line) + bool(line) and place + cell_len(text) <= room:
            line += " " * (place - cell_len(line)) + text
    return line


def _key(view: SeriesView, width: int, colours: str | None) -> list[str]:
    """The names of the lines and shades."""
    bands = steps.bands(view)
    samples: list[tuple[Cell, str]] = [(Cell("⠒⠒"), "history")]
    samples.append((Cell("⠒⠒", _painted([0] * 8, "⠒", colours, 1).codes), "median"))
    for level in range(len(bands), 0, -1):
        sample = _painted([level] * 8, "", colours, len(bands))
        samples.append((sample._replace(text=2 * sample.text), bands[level - 1].share))
    samples += [(Cell(OBSERVED), "observed")] if view.observed is not None else []
    lines, used = [""], 0
    for sample, name in samples:
        room = len(sample.text) + 1 + len(name) + 3
        if used and used + room - 3 > width:
            lines, used = [*lines, ""], 0
        lines[-1] += f"{sample} {name}   "
        used += room
    return lines


def _legend(attention: AttentionMap, scale: str, lines: int, columns: Columns, colours: str | None) -> str:
    strong = "brightest" if colours in INKS else "darkest"
    parts = [
        f"{strong}: {darkest(attention.weights, scale)}",
        f"{LOOK} the largest weight of a row",
        columns.describe(),
        f"{len(attention.rows):,} rows in {lines} lines" if lines < len(attention.rows) else "",
    ]
    return "; ".join(part for part in parts if part)
