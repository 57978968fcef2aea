"""Maps with too many cells to draw each: an image of dots; a dot may be the largest weight of several cells."""

import math
from collections.abc import Callable
from html import escape
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.maps import AttentionMap
from regard.show import layout
from regard.show.labels import LONGEST, clipped, make_visible, shown
from regard.show.layout import CELL, COSINE, HAIRLINE, MARGIN, PALE, SINE, Area, Image, Line, Picture, Word
from regard.show.scale import shades

CELLS, SIDE = 40_000, 400  # a map with more cells, or with more labels on one side, is large
NOTES = 4_000_000  # so is one whose labels, repeated in the notes of all cells, take more bytes
DOTS = 1000  # maximum dots of an image on one side; a map with more cells is pooled
EDGE = 1200  # length of an image of few large dots, in pixels
SMALL, PITCH = 11.0, 16.0  # font size of the labels, and least distance between two of them, in pixels
NAME = 100  # maximum characters of the labels of one dot
STEPS = [factor * 10**power for power in range(9) for factor in (1, 2, 5)]  # every how many dots there is a label


class Axis(NamedTuple):
    """The labels of an axis and how many of them share a dot."""

    labels: tuple[str, ...]
    step: int
    ends: tuple[int, ...] = ()  # the number of the last token of each label, if labels are words of several tokens

    @property
    def dots(self) -> int:
        """The number of dots on this axis."""
        return math.ceil(len(self.labels) / self.step)

    def last_tokens(self) -> list[int]:
        """The number of the last token of each dot, counted from one."""
        labels = [min((dot + 1) * self.step, len(self.labels)) for dot in range(self.dots)]
        return [self.ends[label - 1] for label in labels] if self.ends else labels

    def number(self, dot: int) -> int:
        """The number of the first label of a dot, counted from one."""
        return dot * self.step + 1

    def name(self, dot: int, most: int = NAME) -> str:
        """The labels of a dot, after their numbers."""
        first, last = dot * self.step, min((dot + 1) * self.step, len(self.labels))
        numbers = f"{first + 1:,}" if self.step == 1 else f"{first + 1:,}–{last:,}"
        labels = " ".join(shown(label, most) for label in self.labels[first : min(last, first + most)])
        return f"{numbers} {make_visible(labels, most)}"


class Pooled(NamedTuple):
    """A map in few enough dots: each is the largest weight of its rows and columns."""

    weights: Float[Tensor, "rows columns"]
    rows: Axis
    columns: Axis

    def describe(self) -> str:
        """The size of the map, and what a dot shows if it is not one weight."""
        size = f"{_count(len(self.rows.labels), 'output')} over {_count(len(self.columns.labels), 'source')}"
        steps = self.rows.step, self.columns.step
        return size + (f"; each dot is the largest of {steps[0]} × {steps[1]} weights" if max(steps) > 1 else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def has_many_cells(attention: AttentionMap) -> bool:
    """Whether the map has too many cells to draw each of them."""
    rows, columns = attention.weights.shape
    return rows * columns > CELLS or max(rows, columns) > SIDE


def pool(attention: AttentionMap, rows: int = DOTS, columns: int = DOTS) -> Pooled:
    """Pool the weights by maximum, so that there are at most so many rows and columns of dots."""
    weights = attention.weights.detach().cpu().float()
    return _pooled(Pooled(weights, Axis(attention.rows, 1), Axis(attention.columns, 1)), rows, columns)


def pool_again(pooled: Pooled, most: int) -> Pooled:
    """Pool the dots of a map by maximum, so that there are at most so many on a side."""
    return _pooled(pooled, most, most)


def _pooled(pooled: Pooled, rows: int, columns: int) -> Pooled:
    axes = (pooled.rows, rows), (pooled.columns, columns)
    steps = [max(1, math.ceil(axis.dots / most)) for axis, most in axes]
    if steps == [1, 1]:
        return pooled
    down, across = (axis._replace(step=axis.step * step) for (axis, _), step in zip(axes, steps, strict=True))
    weights = _largest_of_each(pooled.weights, steps) if pooled.weights.numel() else pooled.weights
    return Pooled(weights.reshape(down.dots, across.dots), down, across)


def _largest_of_each(
    weights: Float[Tensor, "rows columns"], steps: list[int]
) -> Float[Tensor, "dots_down dots_across"]:
    """The largest weight of each block; of a difference of two maps, which has negative ones, that farthest from 0."""

    def largest(values: Float[Tensor, "rows columns"]) -> Float[Tensor, "dots_down dots_across"]:
        return torch.nn.functional.max_pool2d(values[None, None], steps, steps, ceil_mode=True)[0, 0]

    highest = largest(weights)
    if not (weights < 0).any():
        return highest
    lowest = -largest(-weights)
    return torch.where(-lowest > highest, lowest, highest)


def arrange(attention: AttentionMap, title: str, spell: Callable[[str], str] = str, scale: str = "one") -> Picture:
    """Place all parts of a map as squares, or, if they or their notes are too many, as one image."""
    is_large = has_many_cells(attention) or _note_bytes(attention) > NOTES
    return (lay_out if is_large else layout.lay_out)(attention, title, spell, scale)


def _note_bytes(attention: AttentionMap) -> int:
    """The bytes of all labels in the notes of all cells of an SVG."""
    rows, columns = (
        sum(len(escape(shown(label)).encode()) for label in axis) for axis in (attention.rows, attention.columns)
    )
    return rows * len(attention.columns) + columns * len(attention.rows)


def lay_out(attention: AttentionMap, title: str, spell: Callable[[str], str] = str, scale: str = "one") -> Picture:
    """Place all parts of a large map: the image, a grid, some of the labels with their numbers, notes for each line."""
    pooled = pool(attention)
    wide, high = (max(1.0, min(CELL, EDGE // max(axis.dots, 1))) for axis in (pooled.columns, pooled.rows))
    width, height = pooled.columns.dots * wide, pooled.rows.dots * high
    rows = [Word(-10, (dot + 0.5) * high + 4, text, SMALL, "right") for dot, text in _labels(pooled.rows, high, spell)]
    columns = [
        Word((dot + 0.5) * wide + 4, -8, text, SMALL, angle=60) for dot, text in _labels(pooled.columns, wide, spell)
    ]
    left = -max([10 + word.length for word in rows], default=0)
    top = -9 - max([SINE * word.length + SMALL for word in columns], default=SMALL)
    under = height + 16
    legend, words = layout.legend_of(attention, scale, under)
    below = words[-1].y + 21
    words.append(Word(0, below, f"{pooled.describe()}; {_thinned(pooled, wide, high)}", SMALL, ink=PALE))
    right = max([width, *(word.x + word.length * (COSINE if word.angle else 1) for word in [*words, *columns])])
    areas = _areas(pooled, wide, high, left, top)
    if title:
        name, spelled = make_visible(title), spell(make_visible(title))
        size = 15.0 if spelled == name else 10.0
        words.append(Word(left, top - 18, clipped(spelled, int((right - left) / (0.61 * size))), size))
        areas.append(Area(left, top - 33, right - left, 20, name))
        top -= 33
    shaded = shades(pooled.weights, scale).nan_to_num(0)
    levels = (shaded.clamp(-1, 1) + 1) * 127 if attention.is_signed else shaded.clamp(0, 1) * 255
    levels = levels.round().byte()
    image = Image(0, 0, width, height, levels, attention.is_signed) if levels.numel() else None
    frame = Line(((0, 0), (width, 0), (width, height), (0, height), (0, 0)), PALE)
    extent = right - left + 2 * MARGIN, below + 6 - top + 2 * MARGIN
    parts = legend, [*words, *columns, *rows], left - MARGIN, top - MARGIN, *extent
    return Picture(*parts, (*_grid(pooled, wide, high), frame), image, tuple(areas))


def _every(pixels: float) -> int:
    """Every how many dots of this size there is room for a label."""
    return next(step for step in STEPS if step * pixels >= PITCH)


def _labels(axis: Axis, pixels: float, spell: Callable[[str], str]) -> list[tuple[int, str]]:
    """The dots that have room for a label, and these labels after their numbers."""
    dots = range(0, axis.dots, _every(pixels))
    names = [f"{axis.number(dot):,} {shown(axis.labels[axis.number(dot) - 1])}" for dot in dots]
    return [(dot, clipped(spell(name), LONGEST)) for dot, name in zip(dots, names, strict=True)]


def _thinned(pooled: Pooled, wide: float, high: float) -> str:
    """A sentence about the labels that are drawn."""
    rows, columns = _every(high) * pooled.rows.step, _every(wide) * pooled.columns.step
    every = " and ".join(
        f"every {_count(count, noun).removeprefix('1 ')}" for count, noun in ((rows, "row"), (columns, "column"))
    )
    return f"a label with its number for {every}"


def _grid(pooled: Pooled, wide: float, high: float) -> list[Line]:
    """Hairlines from the labels through the image."""
    width, height = pooled.columns.dots * wide, pooled.rows.dots * high
    across = [dot * high for dot in range(0, pooled.rows.dots, _every(high))]
    down = [dot * wide for dot in range(0, pooled.columns.dots, _every(wide))]
    lines = [((-6, y), (width, y)) for y in across] + [((x, -6), (x, height)) for x in down]
    return [Line(line, HAIRLINE, 0.5) for line in lines]


def _areas(pooled: Pooled, wide: float, high: float, left: float, top: float) -> list[Area]:
    """For each row of dots, and above each column, its whole labels and those of its largest weight."""
    if not pooled.weights.numel():
        return []
    names = [[axis.name(dot) for dot in range(axis.dots)] for axis in (pooled.rows, pooled.columns)]
    outputs, sources = names
    areas = []
    for dot, (weight, column) in enumerate(_largest(pooled.weights)):
        note = f"{outputs[dot]} ← {sources[column]} {weight:.2f}"
        areas.append(Area(left, dot * high, pooled.columns.dots * wide - left, high, note))
    for dot, (weight, row) in enumerate(_largest(pooled.weights.T)):
        areas.append(Area(dot * wide, top, wide, -top, f"{sources[dot]} → {outputs[row]} {weight:.2f}"))
    return areas


def _largest(weights: Float[Tensor, "rows columns"]) -> list[tuple[float, int]]:
    """The largest weight of each row, of whatever sign, and its column."""
    places = weights.abs().argmax(dim=-1, keepdim=True)
    return list(zip(weights.gather(-1, places).flatten().tolist(), places.flatten().tolist(), strict=True))
