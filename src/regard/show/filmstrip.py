"""A map over a picture as a filmstrip (Xu et al. 2015, Figure 3): the picture, then a panel for each word."""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from jaxtyping import UInt8
from torch import Tensor

from regard.maps import AttentionMap, Grid, PictureView
from regard.show.labels import clipped, make_visible, shown
from regard.show.layout import INK, MARGIN, PALE, SIZE, Area, Line, Photo, Picture, Word
from regard.show.scale import tops
from regard.show.views import fitted, overlay, resized, upsample

PANEL, GAP, LINE = 144.0, 12.0, 22.0  # longer side of a panel, space between two, and height of a word, in pixels
ACROSS = 6  # panels in a row
MOST = 120  # panels of words; of a longer output, a sentence says how many are left out
SMALL = 10.5  # font size of weights and notes
EDGE = "#c3ccd8"  # of the line around a panel: without it, a white picture would have no end on a white page
SHARPEST, BYTES = 288, 2_000_000  # dots of a panel's longer side, and bytes of the dots of all panels, at most
BRIGHTEST = {"one": "1", "map": "the largest weight of all words", "row": "the largest weight of each word"}


class Panel(NamedTuple):
    """The picture under the weights of one word."""

    word: str
    pixels: UInt8[Tensor, "height width 3"]
    weight: float  # the largest
    cell: str  # the label of the cell that has it


def panels(attention: AttentionMap, view: PictureView, height: int, width: int, scale: str) -> Iterator[Panel]:
    """The panels of all words, each of this size."""
    assert isinstance(attention.layout, Grid)
    small = resized(view.pixels, height, width)
    largest = tops(attention.weights, scale).squeeze(1).tolist()
    weights = attention.weights.detach().cpu().float().nan_to_num(0, 0, 0)
    for word, own, top in zip(attention.rows, weights, largest, strict=True):
        heat = upsample(own, attention.layout, height, width) / top
        cell = int(own.argmax())
        yield Panel(word, overlay(small, heat), own[cell].item(), attention.columns[cell])


def left_out(words: int) -> str:
    """A sentence about the words that have no panel; empty if all have one."""
    return f"the last {words - MOST:,} of {words:,} words are left out; .html and .csv have all" if words > MOST else ""


def first(attention: AttentionMap) -> AttentionMap:
    """The map of the words that have a panel."""
    if len(attention.rows) <= MOST:
        return attention
    return AttentionMap(attention.weights[:MOST], attention.rows[:MOST], attention.columns, attention.layout)


def lay_out(
    attention: AttentionMap, view: PictureView, title: str, spell: Callable[[str], str] = str, scale: str = "row"
) -> Picture:
    """Place the panels in rows: above each its word, and the largest weight that a cell has."""
    note, attention = left_out(len(attention.rows)), first(attention)
    count = len(attention.rows) + 1
    wide, high = reversed(fitted(view, PANEL))
    sharp = fitted(view, min(SHARPEST, math.sqrt(BYTES / (3 * count))))
    across = min(ACROSS, count)
    photos, words, areas = [Photo(0, 0, wide, high, resized(view.pixels, *sharp))], [], []
    for number, panel in enumerate(panels(attention, view, *sharp, scale), 1):
        row, column = divmod(number, across)
        x, y = column * (wide + GAP), row * (high + LINE + GAP)
        weight = f"{panel.weight:.2f}"
        room = wide - 6 - 0.61 * SMALL * len(weight)
        label = shown(panel.word)
        spelled = spell(label)
        size = SIZE if spelled == label else 9.0
        photos.append(Photo(x, y, wide, high, panel.pixels))
        words.append(Word(x, y - 7, clipped(spelled, int(room / (0.61 * size))), size))
        words.append(Word(x + wide, y - 7, weight, SMALL, "right", ink=PALE))
        areas.append(Area(x, y - LINE, wide, high + LINE, f"{label}: largest weight {weight}, in cell {panel.cell}"))
    under = math.ceil(count / across) * (high + LINE + GAP) - LINE
    notes = [_legend(attention, scale), *([note] if note else [])]
    words += [Word(0, under + 12 + 15 * line, text, SMALL, ink=PALE) for line, text in enumerate(notes)]
    named = make_visible(title)
    top = -LINE
    right = max(across * (wide + GAP) - GAP, *(word.x + word.length for word in words if word.anchor == "left"))
    if title:
        size = 15.0 if spell(named) == named else 10.0
        words.append(Word(0, top - 14, clipped(spell(named), int(right / (0.61 * size))), size, ink=INK))
        areas.append(Area(0, top - 30, right, 20, named))
        top -= 32
    height = under + 12 + 15 * (len(notes) - 1) + 4 - top + 2 * MARGIN
    extent = (-MARGIN, top - MARGIN, right + 2 * MARGIN, height)
    return Picture([], words, *extent, tuple(map(_edge, photos)), areas=tuple(areas), photos=tuple(photos))


def _edge(photo: Photo) -> Line:
    """A thin line around a panel."""
    left, top, right, bottom = photo.x, photo.y, photo.x + photo.width, photo.y + photo.height
    return Line(((left, top), (right, top), (right, bottom), (left, bottom), (left, top)), EDGE)


def _legend(attention: AttentionMap, scale: str) -> str:
    assert isinstance(attention.layout, Grid)
    cells = f"{attention.layout.height} × {attention.layout.width} cells"
    return f"{cells} · number: the largest weight of a cell · brightest: {BRIGHTEST[scale]}"
