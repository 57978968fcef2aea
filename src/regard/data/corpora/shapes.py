"""Scenes of coloured shapes with captions: drawn with numpy; the true cells of every word are known."""

import random
from collections.abc import Callable, Sequence
from itertools import chain
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


class SceneObject(NamedTuple):
    """One object of a scene: its centre and its radius are in pixels, from the top left corner."""

    colour: str
    shape: str
    across: int
    down: int
    radius: int

    def mask(self) -> Mask:
        """True at the pixels of the object."""
        down, across = np.ogrid[:SIZE, :SIZE]
        return SHAPES[self.shape](across - self.across, down - self.down, self.radius)


class Group(NamedTuple):
    """All objects of one colour and shape, as a caption names them, and the fields that they stand in."""

    objects: tuple[SceneObject, ...]

    @property
    def name(self) -> str:
        """The group in a caption: `a red circle`, `two red circles`."""
        colour, shape, *_ = self.objects[0]
        if len(self.objects) == 1:
            return f"{'an' if colour == 'orange' else 'a'} {colour} {shape}"
        return f"two {colour} {PLURALS[shape]}"

    @property
    def rows(self) -> range:
        """The rows of fields from the highest object to the lowest."""
        rows = [one.down // FIELD for one in self.objects]
        return range(min(rows), max(rows) + 1)

    @property
    def columns(self) -> range:
        """The columns of fields from the first object to the last."""
        columns = [one.across // FIELD for one in self.objects]
        return range(min(columns), max(columns) + 1)


def shapes(seed: int, size: int) -> Splits:
    """Scenes of 2 to 4 coloured shapes with captions: `a red circle left of a blue square above two green crosses`.

    A source is the description of a scene, which `render` draws: `shapes:red-circle-12-20-6,...`, with centre and
    radius in pixels. A scene has exactly one right caption (see `describe`), so exact match is a fair metric. No
    caption, and so no scene, is in two splits. `group` is the number of objects. Dev and test are the same for every
    seed and size.
    """
    return draw_splits("shapes", _example, seed, train=size, dev=DEV, test=TEST)


def _example(split: str, index: int, generator: random.Random) -> Example:
    while True:
        objects = _scene(generator)
        caption = describe(objects)
        assert caption is not None
        if belongs(caption, split):
            return Example(_source(objects), caption, f"{len(objects)} objects")


def _scene(generator: random.Random) -> list[SceneObject]:
    """The objects of a random scene: bands of one or more groups, one band above the other."""
    kinds = generator.sample([(colour, shape) for colour in COLOURS for shape in SHAPES], 3)
    bands: list[list[tuple[str, str]]] = []  # the kind of each object
    for number, (kind, count) in enumerate(zip(kinds, generator.choice(COUNTS), strict=False)):
        if number == 0 or generator.random() < 0.5:
            bands.append([])
        bands[-1] += [kind] * count
    heights = [2 if len(band) == 2 and band[0] == band[1] and generator.random() < 0.5 else 1 for band in bands]
    rows = iter(sorted(generator.sample(range(FIELDS), sum(heights))))
    objects = []
    for band, height in zip(bands, heights, strict=True):
        columns = sorted(generator.sample(range(FIELDS), len(band)))
        if height == 2:
            generator.shuffle(columns)  # the left one of two may be the lower one
        own = [next(rows) for _ in range(height)] * len(band)
        objects += [_object(*place, generator) for place in zip(band, own, columns, strict=False)]
    return sorted(objects, key=lambda one: (one.down, one.across))  # the order says nothing about the caption


def _object(kind: tuple[str, str], row: int, column: int, generator: random.Random) -> SceneObject:
    """An object of this kind in a field, a little off the middle, but all of it within the field."""
    radius = generator.choice(RADII)
    most = FIELD // 2 - 1 - radius
    across, down = (place * FIELD + FIELD // 2 + generator.randint(-most, most) for place in (column, row))
    return SceneObject(*kind, across, down, radius)


def _source(objects: Sequence[SceneObject]) -> str:
    return PREFIX + ",".join("-".join(map(str, one)) for one in objects)


# from a scene to its caption


def describe(objects: Sequence[SceneObject]) -> str | None:
    """The caption of a scene; None if the rules give none. They never give two.

    Objects of one colour and shape are a group of one or two. Groups whose objects all stand in one row of fields are a
    band: the caption names them from the left to the right, with `left of` between them. Any other group is a band of
    its own. Bands are named from the top to the bottom, with `above` between them. There is no caption if bands share a
    row, or if groups of a band are mixed.
    """
    bands = _bands(objects)
    if bands is None:
        return None
    return " above ".join(" left of ".join(group.name for group in band) for band in bands)


def _bands(objects: Sequence[SceneObject]) -> list[list[Group]] | None:
    """The groups of a scene, band by band; None if it has no caption."""
    kinds: dict[tuple[str, str], list[SceneObject]] = {}
    for one in objects:
        kinds.setdefault((one.colour, one.shape), []).append(one)
    groups = [Group(tuple(members)) for members in kinds.values()]
    if len(groups) < 2 or max(len(group.objects) for group in groups) > 2:
        return None
    bands: list[list[Group]] = []
    for group in sorted(groups, key=lambda group: (group.rows[0], len(group.rows), group.columns[0])):
        if bands and len(group.rows) == 1 and group.rows == bands[-1][-1].rows:
            if group.columns[0] <= bands[-1][-1].columns[-1]:
                return None
            bands[-1].append(group)
        elif bands and group.rows[0] <= bands[-1][-1].rows[-1]:
            return None
        else:
            bands.append([group])
    return bands


# from a description to a picture, and to true cells


def parse(source: str) -> list[SceneObject]:
    """The objects of a description such as `shapes:red-circle-12-20-6,blue-square-44-22-5`."""
    parts = source.removeprefix(PREFIX).split(",")
    if len(parts) > MOST_OBJECTS:
        raise DataError(f"{shown(source)} has {len(parts):,} objects; describe at most {MOST_OBJECTS}")
    return [_parse_object(part, source) for part in parts]


def _parse_object(text: str, source: str) -> SceneObject:
    fields = text.strip().split("-")
    numbers = [int(field) for field in fields[2:] if field.isascii() and field.isdigit() and len(field) <= 2]
    if len(fields) != 5 or len(numbers) != 3 or fields[0] not in COLOURS or fields[1] not in SHAPES:
        names = f"COLOUR of {', '.join(COLOURS)} and SHAPE of {', '.join(SHAPES)}"
        expected = f"expected COLOUR-SHAPE-ACROSS-DOWN-RADIUS such as red-circle-12-20-6, with {names}"
        raise DataError(f"{shown(source)}: {shown(text)} is no object; {expected}")
    return SceneObject(fields[0], fields[1], *numbers)


def render(source: str) -> Pixels:
    """The picture of a description: height x width x RGB; later objects hide earlier ones."""
    pixels = np.full((SIZE, SIZE, 3), BACKGROUND, np.uint8)
    for one in parse(source):
        pixels[one.mask()] = COLOURS[one.colour]
    return pixels


def true_cells(source: str, height: int, width: int) -> dict[int, frozenset[int]]:
    """For each word of the caption that names objects: the cells of a height x width grid that have pixels of them.

    Words are counted from 0 and cells row by row, as the columns of an attention map over `Grid(height, width)`.
    """
    objects = parse(source)
    bands, caption = _bands(objects), describe(objects)
    if bands is None or caption is None:
        raise DataError(f"{shown(source)} has no caption; take a scene of the corpus shapes")
    nouns = (place for place, word in enumerate(caption.split()) if word in (*SHAPES, *PLURALS.values()))
    cells: dict[int, frozenset[int]] = {}
    for place, group in zip(nouns, chain.from_iterable(bands), strict=True):
        down, across = np.nonzero(np.any([one.mask() for one in group.objects], axis=0))
        covered = down * height // SIZE * width + across * width // SIZE
        cells[place] = frozenset(np.unique(covered).tolist())
    return cells
