"""A forecast as a picture: the history, a fan of quantiles after it, and the map of the forecast over both below."""

import math
from collections.abc import Callable, Iterator, Sequence

from regard.maps import AttentionMap, SeriesView
from regard.show import steps
from regard.show.labels import clipped, make_visible
from regard.show.large import DOTS, pool
from regard.show.layout import HAIRLINE, INK, MARGIN, PALE, Area, Image, Line, Picture, Square, Word
from regard.show.scale import darkest, shades

WIDE, HIGH, GAP = 900.0, 250.0, 12.0  # width of both plots, height of the fan, and space between it and the map
MAP, TALLEST, LOWEST = 330.0, 22.0, 1.0  # height of a map of many rows, and of a row, at most and at least
SMALL, PITCH = 11.0, 13.0  # font size of all but the title, and least distance between two lines of text
MARK = "#e8790c"  # of the largest weight of a row, and of the value that it is on
WIDEST, NARROWEST = (217, 231, 247), (134, 177, 228)  # colours of the intervals; those between are mixed
MEDIAN = "#143e7d"
BEYOND = "#f1f4f8"  # of the part of a map that a step cannot look at
DOT = 2.4  # radius of an observed value
CROWDED = 5.0  # pixels between two values; if they are closer, they have no circles
NOTES = 400  # steps of a forecast that have a note of their own, at most

Points = tuple[tuple[float, float], ...]


def lay_out(
    attention: AttentionMap | None,
    view: SeriesView,
    title: str,
    spell: Callable[[str], str] = str,
    scale: str = "map",
    written: int | None = None,
) -> Picture:
    """Place the fan and, below it on the same time axis, the map with a row for each step of the forecast.

    `written` is the number of its steps that are drawn, in a picture of the same size; None draws all.
    """
    wide, history = WIDE / len(view.times), len(view.history)
    written = view.quantiles.shape[1] if written is None else written
    lines, words = _values(view)
    fan = [*lines, *_fan(view, wide, written)]
    squares, image, areas = [], None, _notes(view, wide)
    foot, right = HIGH, WIDE
    later: list[Word] = []
    if attention is not None and attention.rows and attention.columns:
        tall = row_height(attention)
        top, foot = HIGH + GAP, HIGH + GAP + tall * len(attention.rows)
        image = _image(attention, view, top, tall, scale, written)
        found = steps.looks(attention, view)
        drawn = [look for look in found if look.row < written]
        fan += [*_beyond(attention, view, top, tall, written), *_frame(top, foot), *_marks(view, drawn, top, tall)]
        names = _rows(attention, found, top, tall, spell)
        later = [word for word in names if word.y - 4 > top + written * tall]
        words, right = words + names, max(right, *(word.x + word.length for word in names))
        areas += _looks(attention, view, found, top, tall)
        squares = [Square(13 + 10 * level, foot + 34, 10, level / 10) for level in range(11)]
        words += [Word(x, foot + 43, text, SMALL, ink=PALE) for x, text in _legend(attention, scale)]
    now = history * wide
    fan.append(Line(((now, 0), (now, foot)), PALE, 0.75))
    for step, label in steps.time_ticks(view.times, int(WIDE / (0.61 * SMALL))):
        x = (step + 0.5) * wide
        fan = [Line(((x, 0), (x, HIGH)), HAIRLINE), *fan, Line(((x, foot), (x, foot + 5)), PALE)]
        words.append(Word(x, foot + 19, clipped(spell(make_visible(label)), 24), SMALL, "center", ink=PALE))
    left = -max([10.0, *(word.length - word.x for word in words if word.anchor == "right")])
    keys, key_lines = _key(view, left)
    name = make_visible(title or view.name)
    spelled = spell(name)
    size = 15.0 if spelled == name else 10.0
    words += [*keys, Word(left, -44, clipped(spelled, int((right - left) / (0.61 * size))), size)]
    areas.append(Area(left, -60, right - left, 20, name))
    right = max(right, *(word.x + word.length / (2 if word.anchor == "center" else 1) for word in words if word.x > 0))
    under = foot + (50 if squares else 26)
    extent = (left - MARGIN, -58 - MARGIN, right - left + 2 * MARGIN, under + 58 + 2 * MARGIN)
    shown = [word for word in words if word not in later]
    return Picture(squares, shown, *extent, (*fan, *key_lines), image, tuple(areas))


def row_height(attention: AttentionMap) -> float:
    """The height of a row of the map."""
    return min(TALLEST, max(LOWEST, MAP / len(attention.rows)))


def _values(view: SeriesView) -> tuple[list[Line], list[Word]]:
    """The horizontal lines at round values, and their labels."""
    axis = steps.value_axis(view)
    places = [((1 - axis.share(value)) * HIGH, label) for value, label in axis.ticks]
    lines = [Line(((0, y), (WIDE, y)), HAIRLINE) for y, _ in places]
    return lines, [Word(-8, y + 4, label, SMALL, "right", ink=PALE) for y, label in places]


def _fan(view: SeriesView, wide: float, written: int) -> Iterator[Line]:
    """Intervals, median, history and what was observed, from the lowest to the highest layer."""
    axis, history = steps.value_axis(view), len(view.history)

    def places(part: Sequence[tuple[int, float]], start: int, reach: float = 0.0) -> Points:
        """The points of values; the first and the last reach so many steps to both sides."""
        points = [((start + step + 0.5) * wide, (1 - axis.share(value)) * HIGH) for step, value in part]
        (first, above), (last, below) = points[0], points[-1]
        return ((first - reach * wide, above), *points, (last + reach * wide, below))

    for (low, high, share), ink in zip(steps.bands(view), _inks(view), strict=True):
        lower, upper = view.quantiles[low, :written], view.quantiles[high, :written]
        for part in steps.runs((lower + upper).tolist()):
            first, last = part[0][0], part[-1][0] + 1
            ends = [[*enumerate(values[first:last].tolist(), first)] for values in (lower, upper)]
            outline = (*places(ends[0], history, 0.5), *reversed(places(ends[1], history, 0.5)))
            yield Line(outline, ink, filled=True, note=f"{share} of the sample paths")
    for part in steps.runs(steps.median(view)[:written]):
        yield Line(places(part, history, 0.5), MEDIAN, 2.0, note="median")
    for part in steps.runs(view.history.tolist()):
        yield Line(places(part, 0, 0.0 if len(part) > 1 else 0.3), INK, 1.5)
    for part in [] if view.observed is None else steps.runs(view.observed[:written].tolist()):
        yield Line(places(part, history), INK, 0.75)
        if wide > 2 * DOT:
            yield from (_circle(point, DOT) for point in places(part, history)[1:-1])


def _inks(view: SeriesView) -> list[str]:
    """The colours of the intervals, widest first."""
    count = len(steps.bands(view))
    mixed = [
        [
            round(pale + (strong - pale) * number / max(1, count - 1))
            for pale, strong in zip(WIDEST, NARROWEST, strict=True)
        ]
        for number in range(count)
    ]
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in mixed]


def _circle(centre: tuple[float, float], radius: float, ink: str = INK, *, filled: bool = True) -> Line:
    angles = [math.radians(20 * corner) for corner in range(20)]  # two more than the circle has, so that it is closed
    points = tuple((centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle)) for angle in angles)
    return Line(points, ink, 1.5, filled=filled)


def _image(attention: AttentionMap, view: SeriesView, top: float, tall: float, scale: str, written: int) -> Image:
    """The weights, each column below the value that it is on; of very many, a dot is the largest of several."""
    wide, first = WIDE / len(view.times), steps.first_step(attention, view)
    pooled = pool(attention, DOTS, DOTS)
    levels = (shades(pooled.weights, scale).nan_to_num(0).clamp(0, 1) * 255).round().byte()
    levels[math.ceil(written / pooled.rows.step) :] = 0
    across, down = levels.shape[1] * pooled.columns.step * wide, levels.shape[0] * pooled.rows.step * tall
    return Image(first * wide, top, across, down, levels)


def _beyond(attention: AttentionMap, view: SeriesView, top: float, tall: float, written: int) -> Iterator[Line]:
    """The parts of a map that have no weight, because these steps cannot look there."""
    wide = WIDE / len(view.times)
    for ranges in steps.beyond(attention, view, written):
        ends = [(own.start, own.stop, top + (row + below) * tall) for row, own in enumerate(ranges) for below in (0, 1)]
        right, left = (tuple((end[side] * wide, end[2]) for end in ends) for side in (1, 0))
        yield Line((*right, *reversed(left)), BEYOND, filled=True)


def _frame(top: float, foot: float) -> Iterator[Line]:
    yield Line(((0, top), (WIDE, top), (WIDE, foot), (0, foot), (0, top), (WIDE, top)), PALE, 0.75)


def _marks(view: SeriesView, found: list[steps.Look], top: float, tall: float) -> Iterator[Line]:
    """A frame around the largest weight of each row; a circle around its value, or of many values, a line below it."""
    wide, axis = WIDE / len(view.times), steps.value_axis(view)
    values = [*view.history.tolist(), *steps.median(view)]
    for look in found:
        x, y = look.step * wide, top + look.row * tall
        aside, over = max(0.0, 1.5 - wide / 2), max(0.0, 1.5 - tall / 2)
        (left, right), (upper, lower) = (x - aside, x + wide + aside), (y - over, y + tall + over)
        outline = ((left, upper), (right, upper), (right, lower), (left, lower), (left, upper), (right, upper))
        yield Line(outline, MARK, 1.5 if min(wide, tall) > 6 else 1.0)
    for step in sorted({look.step for look in found}):
        x, y = (step + 0.5) * wide, (1 - axis.share(values[step])) * HIGH
        if wide < CROWDED:
            yield Line(((x, HIGH), (x, HIGH + 5)), MARK, max(1.0, wide - 1))
        elif math.isfinite(values[step]):
            yield _circle((x, y), min(4.0, wide / 2), MARK, filled=False)


def _rows(
    attention: AttentionMap, found: list[steps.Look], top: float, tall: float, spell: Callable[[str], str]
) -> list[Word]:
    """The times of the rows to their left, and to their right how far back the largest weight is; as room allows."""
    every = math.ceil(PITCH / tall)
    shown = [row for row in range(len(attention.rows)) if row % every == 0]
    at = {row: top + (row + 0.5) * tall + 4 for row in shown}
    words = [
        Word(-8, at[row], clipped(spell(make_visible(attention.rows[row])), 24), SMALL, "right", ink=PALE)
        for row in shown
    ]
    backs = [look for look in found if look.row in at]
    words += [Word(WIDE + 8, at[look.row], f"{look.back} back · {look.weight:.2f}", SMALL, ink=MARK) for look in backs]
    return words


def _notes(view: SeriesView, wide: float) -> list[Area]:
    """The numbers of each step of the forecast."""
    history, horizon = len(view.history), view.quantiles.shape[1]
    if horizon > NOTES:
        return []
    return [
        Area((history + row) * wide, 0, wide, HIGH, make_visible(steps.describe(view, row))) for row in range(horizon)
    ]


def _looks(
    attention: AttentionMap, view: SeriesView, found: list[steps.Look], top: float, tall: float
) -> Iterator[Area]:
    """For each row, the value that it looks at most."""
    for look in found if len(found) <= NOTES else []:
        what = f"{view.times[look.step]}, {look.back} back, weight {look.weight:.2f}"
        note = make_visible(f"{attention.rows[look.row]} looks most at {what}")
        yield Area(0, top + look.row * tall, WIDE, tall, note)


def _legend(attention: AttentionMap, scale: str) -> list[tuple[float, str]]:
    marks = "orange: the largest weight of a row, so many steps back · grey: not in reach"
    return [(1, "0"), (129, f"{darkest(attention.weights, scale)} · {marks}")]


def _key(view: SeriesView, left: float) -> tuple[list[Word], list[Line]]:
    """The names of the lines and intervals, above the fan, each after a sample."""
    samples: list[tuple[str, str, float]] = [("history", INK, 1.5), ("median", MEDIAN, 2.0)]
    intervals = zip(steps.bands(view), _inks(view), strict=True)
    samples += reversed([(band.share, ink, 10.0) for band, ink in intervals])
    words, lines, x = [], [], left
    for text, ink, width in samples:
        lines.append(Line(((x, -22), (x + 16, -22)), ink, width))
        words.append(Word(x + 21, -18, text, SMALL, ink=PALE))
        x = words[-1].x + words[-1].length + 14
    if view.observed is not None:
        lines += [Line(((x, -22), (x + 16, -22)), INK, 0.75), _circle((x + 8, -22), DOT)]
        words.append(Word(x + 21, -18, "observed", SMALL, ink=PALE))
    return words, lines
