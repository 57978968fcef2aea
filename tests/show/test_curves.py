"""Laws of charts: every point is drawn at its place, names do not overlap, hostile labels do no harm."""

import itertools
import math
import re
import struct
import sys
from xml.etree import ElementTree

import pytest

from regard.errors import MissingExtraError, RecipeError
from regard.show.curves import APART, COLOURS, CORNERS, DRAWINGS, WIDTH, Curve, Labels, Point, draw, lay_out
from regard.show.layout import Line

NAMESPACE = "{http://www.w3.org/2000/svg}"
LABELS = Labels("7 <pairs> & more", "length", "exact_match (higher is better)")


def curve(name: str, *values: float, lengths: tuple[float, ...] = (2, 5, 11)) -> Curve:
    return Curve(name, tuple(Point(length, value, 20) for length, value in zip(lengths, values, strict=False)))


CURVES = {
    "nothing": [],
    "no points": [curve("a")],
    "one point": [curve("a", 0.5)],
    "zeros": [curve("a", 0, 0, 0)],
    "one outlying length": [curve("a", *[0.5] * 6, lengths=(1, 2, 3, 4, 5, 900))],
    "rounding": [curve("a", 0.3, 0.3), curve("b", 0.1 + 0.2, 0.3)],
    "deviations": [Curve("a", (Point(2, 0.0, 20, 0.1), Point(5, 0.9, 20, 0.3)))],
    "all equal": [curve(name, 1, 1, 1) for name in "abc"],
    "narrow": [curve("a", 0.971, 0.972, 0.979), curve("b", 0.98, 0.9721, 0.97)],
    "bleu": [curve("a", 31.2, 28.4, 12.0), curve("b", 30.1, 11.9, 0.4)],
    "perplexities": [curve("a", 12_345.0, 900.0, 40.0)],
    "tiny": [curve("a", 1e-7, 2e-7, 0)],
    "hostile": [curve('<b>&"\x1b[31m\u202e\ud800\0 $\\frac$', 1, 0), curve("n" * 200, 0, 1)],
    "many": [curve(f"run {number}", number / 40, 0.5, 0.5) for number in range(40)],
}
every_chart = pytest.mark.parametrize("curves", CURVES.values(), ids=CURVES)


def center(line: Line) -> tuple[float, float]:
    return tuple(math.fsum(axis) / len(line.points) for axis in zip(*line.points, strict=True))


@every_chart
def test_svg_is_xml_with_a_note_for_every_point(curves: list[Curve]) -> None:
    root = ElementTree.fromstring(draw(curves, ".svg", LABELS))
    notes = [title.text or "" for title in root.iter(f"{NAMESPACE}title")]
    points = [point for curve in curves for point in curve.points]
    spreads = [f" ± {point.deviation:.2g}" if point.deviation else "" for point in points]
    values = [f"{point.value:.4g}{spread}" for point, spread in zip(points, spreads, strict=True)]
    wanted = [f"{value} at {point.length:.3g} tokens, 20 examples" for value, point in zip(values, points, strict=True)]
    assert [note.rpartition(": ")[2] for note in notes] == wanted
    words = [word.text for word in root.iter(f"{NAMESPACE}text")]
    assert set(LABELS) <= {(word or "").removesuffix("; not to scale") for word in words}
    assert all(word and word.isprintable() for word in words)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"].startswith("7 <pairs> & more: ")


@every_chart
def test_all_parts_are_inside_the_picture(curves: list[Curve]) -> None:
    picture = lay_out(curves, LABELS)
    right, bottom = picture.left + picture.width, picture.top + picture.height
    for line in picture.lines:
        for x, y in line.points:
            assert picture.left <= x <= right
            assert picture.top <= y <= bottom
    for word in picture.words:
        begin = word.x - word.length * {"left": 0, "center": 0.5, "right": 1}[word.anchor]
        assert picture.left <= begin
        assert begin + word.length <= right
        assert picture.top <= word.y - word.size
        assert word.y <= bottom


@every_chart
def test_names_of_curves_do_not_overlap(curves: list[Curve]) -> None:
    words = lay_out(curves, LABELS).words
    names = sorted(word.y for word in words if word.x > WIDTH)
    assert len(names) == len(curves)
    assert all(after - before >= APART - 1e-6 for before, after in itertools.pairwise(names))


def test_labels_of_lengths_do_not_overlap() -> None:
    close = [curve("a", *([0.5] * 9), lengths=(10, 10.2, 10.4, 11, 12, 13, 30, 60, 60.5))]
    words = lay_out(close, LABELS).words
    ticks = [word for word in words if re.fullmatch(r"\d+(\.\d)?", word.text) and word.anchor == "center"]
    assert ticks[0].text == "10"
    assert ticks[-1].text in ("60", "60.5")
    assert 3 <= len(ticks) < 9
    for before, after in itertools.pairwise(ticks):
        assert before.x + before.length / 2 < after.x - after.length / 2


def test_points_are_placed_by_value_and_length() -> None:
    marks = [line for line in lay_out([curve("a", 0.2, 0.6, 0.4)], LABELS).lines if line.note]
    (x1, y1), (x2, y2), (x3, y3) = map(center, marks)
    assert x1 < x2 < x3 == pytest.approx(WIDTH)
    assert (x2 - x1) * 2 == pytest.approx(x3 - x2)  # lengths 2, 5, 11
    assert y1 > y3 > y2
    assert y1 - y3 == pytest.approx(y3 - y2)


@pytest.mark.parametrize("lengths", [(2, 5, 11), (9, 12, 20.5), (100, 101)])
def test_the_x_axis_begins_near_the_shortest_length(lengths: tuple[float, ...]) -> None:
    marks = [line for line in lay_out([curve("a", 0.2, 0.6, 0.4, lengths=lengths)], LABELS).lines if line.note]
    assert 0 < center(marks[0])[0] < 0.1 * WIDTH
    assert center(marks[-1])[0] == pytest.approx(WIDTH)


def test_one_outlying_length_leaves_room_for_the_others() -> None:
    picture = lay_out(CURVES["one outlying length"], LABELS)
    places = [center(line)[0] for line in picture.lines if line.note]
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert min(gaps) == pytest.approx(max(gaps))
    words = [word.text for word in picture.words]
    assert {"1", "2", "3", "4", "5", "900", "length; not to scale"} <= set(words)
    assert "length" in [word.text for word in lay_out(CURVES["narrow"], LABELS).words]


@pytest.mark.parametrize("name", ["all equal", "rounding"])
def test_equal_curves_are_all_seen(name: str) -> None:
    lines = [line for line in lay_out(CURVES[name], LABELS).lines if line.ink in COLOURS and not line.filled]
    widths = [line.width for line in lines]
    assert len(widths) == len(CURVES[name])
    assert all(under > over + 1 for under, over in itertools.pairwise(widths))
    assert widths[-1] == 2
    different = [line for line in lay_out(CURVES["bleu"], LABELS).lines if line.ink in COLOURS and not line.filled]
    assert [line.width for line in different] == [2, 2]


def test_values_that_differ_by_rounding_have_an_axis_from_zero() -> None:
    labels = [word.text for word in lay_out(CURVES["rounding"], LABELS).words if word.anchor == "right"]
    assert labels == ["0.0", "0.1", "0.2", "0.3", "0.4"]


def test_deviations_are_drawn_from_mean_less_to_mean_plus_one_within_the_axes() -> None:
    picture = lay_out(CURVES["deviations"], LABELS)
    first, second = [line for line in picture.lines if line.width == 1 and line.ink == COLOURS[0] and not line.filled]
    marks = [center(line) for line in picture.lines if line.note]
    assert first.points[0] == (pytest.approx(marks[0][0]), pytest.approx(marks[0][1]))  # not below the axis
    (_, below), (_, above) = second.points
    assert (below + above) / 2 == pytest.approx(marks[1][1])
    assert above < below


def test_the_y_axis_begins_at_zero_unless_that_crowds_the_values() -> None:
    def ticks(curves: list[Curve]) -> list[str]:
        return [word.text for word in lay_out(curves, LABELS).words if word.anchor == "right"]

    assert ticks([curve("a", 0.9, 0.1)]) == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert ticks(CURVES["narrow"]) == ["0.970", "0.972", "0.974", "0.976", "0.978", "0.980"]
    assert ticks(CURVES["perplexities"]) == ["0", "5,000", "10,000", "15,000"]
    assert ticks(CURVES["zeros"])[0] == "0.0"


def test_no_two_of_many_curves_have_the_same_colour_and_mark() -> None:
    assert math.gcd(len(COLOURS), len(CORNERS)) == 1  # so that their combinations repeat as late as possible
    lines = [line for line in lay_out(CURVES["many"][:35], LABELS).lines if line.note and "run" in line.note]
    shapes = set()
    for line in lines[::3]:
        x, y = center(line)
        shapes.add((line.ink, tuple((round(a - x, 3), round(b - y, 3)) for a, b in line.points)))
    assert len(shapes) == 35


@every_chart
@pytest.mark.parametrize("ending", DRAWINGS)
def test_equal_curves_give_equal_bytes(curves: list[Curve], ending: str) -> None:
    assert draw(curves, ending, LABELS) == draw(curves, ending, LABELS) != b""


def test_png_is_a_picture_of_the_curves() -> None:
    picture = draw(CURVES["bleu"], ".PNG", LABELS)
    signature, width, height = struct.unpack(">8s8x2I", picture[:24])
    assert signature == b"\x89PNG\r\n\x1a\n"
    assert width > height > 0
    assert picture != draw(CURVES["narrow"], ".png", LABELS)


def test_an_unknown_ending_or_a_missing_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match=r"unknown picture ending '.gif'; choose from .svg, .png"):
        draw([], ".gif", LABELS)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'regard\[plot\]', or in a clone: "):
        draw([], ".png", LABELS)
