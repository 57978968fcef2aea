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
    wanted = [f"{point.value:.4g} at {point.length:.3g} tokens, 20 examples" for point in points]
    assert [note.rpartition(": ")[2] for note in notes] == wanted
    words = [word.text for word in root.iter(f"{NAMESPACE}text")]
    assert set(LABELS) <= set(words)
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
    ticks = [word for word in words if re.fullmatch(r"\d+\.\d", word.text) and word.anchor == "center"]
    assert ticks[0].text == "10.0"
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
    with pytest.raises(MissingExtraError, match=r"pip install 'regard\[plot\]'$"):
        draw([], ".png", LABELS)
