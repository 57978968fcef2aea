"""Scenes of coloured shapes with captions: drawn with numpy; the true cells of every word are known."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.corpora.core import Splits, belongs, draw_splits
from regard.errors import DataError, shown
from regard.types import Example

TEST, DEV = 1000, 500
SIZE = 64  # height and width of a scene, in pixels
FIELDS = 4  # an object stands in one of FIELDS x FIELDS fields
FIELD = SIZE // FIELDS
PREFIX = "shapes:"
MOST_OBJECTS = 16  # of a description; those of the corpus have at most four
RADII = (6, 7)
JITTER = 1  # pixels that a centre is off the middle of its field, at most
BACKGROUND = (128, 128, 128)
COLOURS = {
    "red": (220, 30, 40),
    "orange": (250, 140, 20),
    "yellow": (240, 220, 30),
    "green": (30, 160, 60),
    "blue": (30, 80, 220),
    "purple": (150, 40, 170),
}
COUNTS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1))  # objects in each group

Offsets = NDArray[np.int64]
Mask = NDArray[np.bool_]
Pixels = NDArray[np.uint8]


def _circle(across: Offsets, down: Offsets, radius: int) -> Mask:
    return across**2 + down**2 <= radius**2


def _square(across: Offsets, down: Offsets, radius: int) -> Mask:
    return np.maximum(abs(across), abs(down)) < radius


def _triangle(across: Offsets, down: Offsets, radius: int) -> Mask:
    return (abs(down) <= radius) & (2 * abs(across) <= down + radius)


def _cross(across: Offsets, down: Offsets, radius: int) -> Mask:
    return (np.minimum(abs(across), abs(down)) <= 1) & (np.maximum(abs(across), abs(down)) <= radius)


SHAPES: dict[str, Callable[[Offsets, Offsets, int], Mask]] = {  # which pixels belong, by their offsets from the centre
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "cross": _cross,
}
PLURALS = {shape: "crosses" if shape == "cross" else f"{shape}s" for shape in SHAPES}


class Thing(NamedTuple):
    """One object of a scene: its centre and its radius are in pixels, from the top left corner."""

    colour: str
    shape: str
    across: int
    down: int
    radius: int

    def mask(self) -> Mask:
        """True at the pixels of the object."""
        down, across = np.indices((SIZE, SIZE))
        return SHAPES[self.shape](across - self.across, down - self.down, self.radius)


class Group(NamedTuple):
    """All objects of one colour and shape, as a caption names them, and the fields that they stand in."""

    things: tuple[Thing, ...]

    @property
    def name(self) -> str:
        """The group in a caption: `a red circle`, `two red circles`."""
        colour, shape, *_ = self.things[0]
        if len(self.things) == 1:
            return f"{'an' if colour == 'orange' else 'a'} {colour} {shape}"
        return f"two {colour} {PLURALS[shape]}"

    @property
    def rows(self) -> range:
        """The rows of fields from the highest object to the lowest."""
        rows = [thing.down // FIELD for thing in self.things]
        return range(min(rows), max(rows) + 1)

    @property
    def columns(self) -> range:
        """The columns of fields from the first object to the last."""
        columns = [thing.across // FIELD for thing in self.things]
        return range(min(columns), max(columns) + 1)


def shapes(seed: int, size: int) -> Splits:
    """Scenes of 2 to 4 coloured shapes with captions: `a red circle left of a blue square and two green crosses above`.

    A source is the description of a scene, which `render` draws: `shapes:red-circle-12-20-6,...`, with centre and
    radius in pixels. A scene has exactly one right caption (see `describe`), so exact match is a fair metric. No
    caption, and so no scene, is in two splits. `group` is the number of objects. Dev and test are the same for every
    seed and size.
    """
    return draw_splits("shapes", _example, seed, train=size, dev=DEV, test=TEST)


def _example(split: str, index: int, generator: random.Random) -> Example:
    while True:
        kinds = generator.sample([(colour, shape) for colour in COLOURS for shape in SHAPES], 3)
        counts = generator.choice(COUNTS)
        caption, things = None, list[Thing]()
        while caption is None:  # until the places allow a caption
            things = _placed(
                [kind for kind, count in zip(kinds, counts, strict=False) for _ in range(count)], generator
            )
            caption = describe(things)
        if belongs(caption, split):
            return Example(_source(things), caption, f"{len(things)} objects")


def _placed(kinds: Sequence[tuple[str, str]], generator: random.Random) -> list[Thing]:
    """Objects of these kinds in different fields, each a little off the middle of its field."""
    things = []
    for (colour, shape), field in zip(kinds, generator.sample(range(FIELDS**2), len(kinds)), strict=True):
        down, across = (
            place * FIELD + FIELD // 2 + generator.randint(-JITTER, JITTER) for place in divmod(field, FIELDS)
        )
        things.append(Thing(colour, shape, across, down, generator.choice(RADII)))
    return sorted(things, key=lambda thing: (thing.down, thing.across))  # the order says nothing about the caption


def _source(things: Sequence[Thing]) -> str:
    return PREFIX + ",".join("-".join(map(str, thing)) for thing in things)


# from a scene to its caption


def describe(things: Sequence[Thing]) -> str | None:
    """The caption of a scene; None if the rules below give none. They never give two.

    Objects of one colour and shape are a group. Of two groups, one is `left of` the other if it ends before the other
    begins, and both share a row of fields; likewise `above`, if both share a column. Of three groups, two share a row
    of fields, and all of the third is `above` or `below` them; the pair comes first.
    """
    groups = _ordered(things)
    if groups is None:
        return None
    first, second, *others = groups
    relation = "left of" if _are_beside(first, second) else "above"
    caption = f"{first.name} {relation} {second.name}"
    for other in others:
        caption += f" and {other.name} {'above' if other.rows[-1] < first.rows[0] else 'below'}"
    return caption


def _ordered(things: Sequence[Thing]) -> tuple[Group, ...] | None:
    """The groups of a scene in the order of its caption; None if it has none."""
    kinds: dict[tuple[str, str], list[Thing]] = {}
    for thing in things:
        kinds.setdefault((thing.colour, thing.shape), []).append(thing)
    groups = [Group(tuple(members)) for members in kinds.values()]
    if max(map(len, kinds.values())) > 2:
        return None
    for first in groups:
        for second in groups:
            others = tuple(group for group in groups if group not in (first, second))
            if len(groups) == 2 and _are_above(first, second):
                return first, second
            if (
                len(groups) in (2, 3)
                and _are_beside(first, second)
                and all(_is_apart(o, first, second) for o in others)
            ):
                return first, second, *others
    return None


def _overlap(first: range, second: range) -> bool:
    return first[0] <= second[-1] and second[0] <= first[-1]


def _are_beside(left: Group, right: Group) -> bool:
    return left.columns[-1] < right.columns[0] and _overlap(left.rows, right.rows)


def _are_above(upper: Group, lower: Group) -> bool:
    return upper.rows[-1] < lower.rows[0] and _overlap(upper.columns, lower.columns)


def _is_apart(other: Group, first: Group, second: Group) -> bool:
    """Whether a group is above both others, or below both."""
    highest, lowest = min(first.rows[0], second.rows[0]), max(first.rows[-1], second.rows[-1])
    return other.rows[-1] < highest or other.rows[0] > lowest


# from a description to a picture, and to true cells


def parse(source: str) -> list[Thing]:
    """The objects of a description such as `shapes:red-circle-12-20-6,blue-square-44-22-5`."""
    parts = source.removeprefix(PREFIX).split(",")
    if len(parts) > MOST_OBJECTS:
        raise DataError(f"{shown(source)} has {len(parts):,} objects; describe at most {MOST_OBJECTS}")
    return [_parse_thing(part, source) for part in parts]


def _parse_thing(text: str, source: str) -> Thing:
    fields = text.strip().split("-")
    numbers = [int(field) for field in fields[2:] if field.isascii() and field.isdigit() and len(field) <= 2]
    if len(fields) != 5 or len(numbers) != 3 or fields[0] not in COLOURS or fields[1] not in SHAPES:
        names = f"COLOUR of {', '.join(COLOURS)} and SHAPE of {', '.join(SHAPES)}"
        expected = f"expected COLOUR-SHAPE-ACROSS-DOWN-RADIUS such as red-circle-12-20-6, with {names}"
        raise DataError(f"{shown(source)}: {shown(text)} is no object; {expected}")
    return Thing(fields[0], fields[1], *numbers)


def render(source: str) -> Pixels:
    """The picture of a description: height x width x RGB; later objects hide earlier ones."""
    pixels = np.full((SIZE, SIZE, 3), BACKGROUND, np.uint8)
    for thing in parse(source):
        pixels[thing.mask()] = COLOURS[thing.colour]
    return pixels


def true_cells(source: str, height: int, width: int) -> dict[int, frozenset[int]]:
    """For each word of the caption that names objects: the cells of a height x width grid that have pixels of them.

    Words are counted from 0 and cells row by row, as the columns of an attention map over `Grid(height, width)`.
    """
    groups = _ordered(parse(source))
    if groups is None:
        raise DataError(f"{shown(source)} has no caption; take a scene of the corpus shapes")
    cells: dict[int, frozenset[int]] = {}
    caption = describe(parse(source)) or ""
    nouns = (place for place, word in enumerate(caption.split()) if word in (*SHAPES, *PLURALS.values()))
    for place, group in zip(nouns, groups, strict=True):
        down, across = np.nonzero(np.any([thing.mask() for thing in group.things], axis=0))
        covered = down * height // SIZE * width + across * width // SIZE
        cells[place] = frozenset(np.unique(covered).tolist())
    return cells
