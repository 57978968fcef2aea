"""Line chart of a metric by source length, with one curve for each compared run, as SVG and PNG."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import NamedTuple

from regard.errors import pick
from regard.show.labels import clipped, make_visible
from regard.show.layout import HAIRLINE, MARGIN, PALE, SIZE, Line, Picture, Word
from regard.show.png import paint as paint_png
from regard.show.svg import paint as paint_svg

WIDTH, HEIGHT = 480.0, 260.0  # of the plot, in pixels
SMALL, APART = 11.0, 18.0  # font size of the axes, and least distance between the names of two curves, in pixels
NAME = 48  # maximum width of a curve's name, in characters
ACROSS = 60  # maximum characters in a line of the title; longer titles are wrapped
RIM, MOST_RIMS = 1.5, 3  # equal curves: pixels by which the lower ones are wider at each side, and how many of them are
START = 24.0  # x of the shortest length: the axis has no zero, so that no part of it is empty
EMPTY = 0.75  # largest part of the x axis between two neighbouring lengths; otherwise it is not to scale
ROUNDING = 1e-9  # values that are closer than this, relative to the largest, are equal
# Okabe and Ito 2008: colours that colour-blind people can tell apart; their yellow is too pale for a line.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#24303f")
# The shapes of the marks: number of corners, and the angle of the first in degrees.
CORNERS = ((24, 0), (4, 45), (3, 30), (4, 0), (3, 90))


class Point(NamedTuple):
    """One point of a curve: the score of the examples in one bin of lengths."""

    length: float  # the median, in tokens
    value: float
    examples: int
    deviation: float = 0.0  # of the value between seeds


class Curve(NamedTuple):
    """The scores of one run by length, shortest first."""

    name: str
    points: tuple[Point, ...]


class Labels(NamedTuple):
    """The texts of a chart besides the names of its curves."""

    title: str
    across: str  # label of the x axis
    upward: str  # label of the y axis


def svg(curves: Sequence[Curve], labels: Labels) -> bytes:
    """The chart as a self-contained SVG; a tooltip on each mark shows its numbers."""
    description = f"{labels.title}: {labels.upward} by {labels.across}, for {', '.join(curve.name for curve in curves)}"
    return paint_svg(lay_out(curves, labels), description).encode()


def png(curves: Sequence[Curve], labels: Labels) -> bytes:
    """The chart as a PNG that looks like the SVG."""
    return paint_png([*labels, *(curve.name for curve in curves)], lambda spell: lay_out(curves, labels, spell))


DRAWINGS: dict[str, Callable[[Sequence[Curve], Labels], bytes]] = {".svg": svg, ".png": png}


def draw(curves: Sequence[Curve], ending: str, labels: Labels) -> bytes:
    """The chart as the content of a picture file; the file's ending chooses the format."""
    return pick(DRAWINGS, ending.lower(), "picture ending")(curves, labels)


def lay_out(curves: Sequence[Curve], labels: Labels, spell: Callable[[str], str] = str) -> Picture:
    """Place all parts of the chart; the name of each curve stands at its right end, and names do not overlap.

    `spell` replaces characters that no installed font has.
    """
    height = max(HEIGHT, APART * len(curves))
    points = [point for curve in curves for point in curve.points]
    lengths = sorted({point.length for point in points})
    across, is_to_scale = _across(lengths)
    low, high, step = _range([max(0.0, point.value + way * point.deviation) for point in points for way in (-1, 1)])
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step  # the axis begins and ends at a tick

    def place(length: float, value: float) -> tuple[float, float]:
        return across[length], height - (max(low, value) - low) / (high - low) * height

    lines, words = _upward(low, high, step, height)
    for x, text in _ticks(lengths, [across[length] for length in lengths]):
        lines.append(Line(((x, height), (x, height + 4)), PALE))
        words += [Word(x, height + 18, text, SMALL, "center", ink=PALE)] if text else []
    placed = [tuple(place(point.length, point.value) for point in curve.points) for curve in curves]
    ends = [places[-1][1] if places else height for places in placed]
    for number, (curve, places, y) in enumerate(zip(curves, placed, _apart(ends, height), strict=True)):
        ink = COLOURS[number % len(COLOURS)]
        equal = sum(_pixels(places) == _pixels(others) for others in placed[number + 1 :])  # drawn over this one
        rim = RIM * min(equal, MOST_RIMS)
        lines += [Line(places, ink, 2 + 2 * rim)] if len(places) > 1 else []
        for point, center in zip(curve.points, places, strict=True):
            spread = [place(point.length, point.value + way * point.deviation) for way in (-1, 1)]
            lines += [Line(tuple(spread), ink)] if point.deviation else []
            value = f"{point.value:.4g}" + (f" ± {point.deviation:.2g}" if point.deviation else "")
            note = f"{curve.name}: {value} at {point.length:.3g} tokens, {point.examples:,} examples"
            lines.append(_mark(number, center, ink, make_visible(note), rim))
        lines.append(_mark(number, (WIDTH + 18, y), ink, ""))
        words.append(Word(WIDTH + 28, y + 4, spell(clipped(make_visible(curve.name), NAME))))
    below = labels.across if is_to_scale else f"{labels.across}; not to scale"
    words.append(Word(WIDTH / 2, height + 40, spell(make_visible(below)), SMALL, "center", ink=PALE))
    words.append(Word(0, -14, spell(make_visible(labels.upward)), SMALL, ink=PALE))
    title = wrap(make_visible(labels.title), ACROSS)
    words += [Word(0, -38 - 20 * (len(title) - 1 - number), spell(line), 15) for number, line in enumerate(title)]
    from_left = min(word.x - word.length for word in words if word.anchor == "right")
    to_right = max(WIDTH + 4, *(word.x + word.length for word in words if word.anchor == "left"))
    top, bottom = -18 - 20 * len(title) - SIZE - MARGIN, height + 44 + MARGIN
    width = to_right - from_left + 2 * MARGIN
    return Picture([], words, from_left - MARGIN, top, width, bottom - top, tuple(lines))


def _pixels(places: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
    """The places, rounded to pixels: curves that are equal in these hide each other."""
    return [(round(x), round(y)) for x, y in places]


def _range(values: Sequence[float]) -> tuple[float, float, float]:
    """Begin and end of an axis, and a round step; it begins at 0 unless that would crowd the values."""
    high = max(values, default=0.0) or 1.0
    low = min(values, default=0.0)
    low = 0.0 if low <= high / 2 or high - low < ROUNDING * high else low
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return low, high, next(times * power for times in (1, 2, 5, 10) if times * power >= rough * 0.999)


def _upward(low: float, high: float, step: float, height: float) -> tuple[list[Line], list[Word]]:
    """The horizontal grid lines of the chart, with the labels of the y axis."""
    digits = max(0, -math.floor(math.log10(step)))
    lines, words = [], []
    for number in range(round((high - low) / step) + 1):
        y = height - number * step / (high - low) * height
        lines.append(Line(((0, y), (WIDTH, y)), HAIRLINE if number else PALE))
        words.append(Word(-8, y + 4, f"{low + number * step:,.{digits}f}", SMALL, "right", ink=PALE))
    return lines, words


def _ticks(lengths: Sequence[float], places: Sequence[float]) -> list[tuple[float, str]]:
    """The ticks of the x axis, one for each bin; the label is empty if it would touch the one before."""
    free, ticks = -math.inf, []
    for length, x in zip(lengths, places, strict=True):
        word = Word(x, 0, f"{length:.1f}".removesuffix(".0"), SMALL)
        fits = x - word.length / 2 > free
        ticks.append((x, word.text if fits else ""))
        free = x + word.length / 2 + 4 if fits else free
    return ticks


def _apart(wanted: Sequence[float], height: float) -> list[float]:
    """Positions near the wanted ones, at least `APART` from each other, so that names do not overlap."""
    placed = list(wanted)
    order = sorted(range(len(placed)), key=lambda index: placed[index])
    free = 0.0
    for index in order:
        placed[index] = max(placed[index], free)
        free = placed[index] + APART
    free = height
    for index in reversed(order):
        placed[index] = min(placed[index], free)
        free = placed[index] - APART
    return placed


def _across(lengths: Sequence[float]) -> tuple[dict[float, float], bool]:
    """The x of each length, and whether they are to scale: not if that left most of the axis empty between two."""
    if len(lengths) < 2:
        return dict.fromkeys(lengths, WIDTH / 2), True
    room = WIDTH - START
    scaled = {length: START + (length - lengths[0]) / (lengths[-1] - lengths[0]) * room for length in lengths}
    widest = max((after - before for before, after in pairwise(scaled.values())), default=0.0)
    if len(lengths) < 3 or widest <= EMPTY * WIDTH:
        return scaled, True
    return {length: START + number / (len(lengths) - 1) * room for number, length in enumerate(lengths)}, False


def _mark(number: int, place: tuple[float, float], ink: str, note: str, rim: float = 0.0) -> Line:
    """The mark of a curve at a point; curves of the same colour have marks of different shapes."""
    corners, turn = CORNERS[number % len(CORNERS)]
    radius = (4 if corners == 24 else 5) + rim
    angles = [math.radians(turn + 360 * corner / corners) for corner in range(corners)]
    points = tuple((place[0] + radius * math.cos(angle), place[1] + radius * math.sin(angle)) for angle in angles)
    return Line(points, ink, filled=True, note=note)
