"""The corpus shapes: scenes are drawn alike everywhere, have one right caption, and no caption is in two splits."""

from collections import Counter

import numpy as np
import pytest

from regard.data.corpora.core import Splits
from regard.data.corpora.shapes import (
    COLOURS,
    FIELD,
    SHAPES,
    SIZE,
    SceneObject,
    describe,
    parse,
    render,
    shapes,
    true_cells,
)
from regard.errors import DataError


@pytest.fixture(scope="module")
def scenes() -> Splits:
    return shapes(seed=1, size=8000)


def place(colour: str, shape: str, row: str, column: str) -> SceneObject:
    across, down = (int(field) * FIELD + FIELD // 2 for field in (column, row))
    return SceneObject(colour, shape, across, down, 6)


def test_no_caption_and_no_scene_is_in_two_splits(scenes: Splits) -> None:
    parts = [scenes.train, scenes.dev, scenes.test]
    for texts in ([{example.target for example in part} for part in parts], [{e.source for e in p} for p in parts]):
        train, dev, test = texts
        assert not train & dev
        assert not train & test
        assert not dev & test
    assert (len(scenes.dev), len(scenes.test)) == (500, 1000)


def test_there_are_thousands_of_captions_with_all_colours_shapes_counts_and_relations(scenes: Splits) -> None:
    captions = {example.target for example in scenes.train}
    assert len(captions) >= 5000
    words = {word for caption in captions for word in caption.split()}
    assert words >= {*COLOURS, *SHAPES, "a", "an", "two", "left", "of", "above", "crosses"}
    assert set(Counter(example.group for example in scenes.train)) == {"2 objects", "3 objects", "4 objects"}
    assert len(COLOURS) == 6
    assert len(SHAPES) == 4


def test_a_caption_follows_from_the_picture_alone(scenes: Splits) -> None:
    for example in scenes.test:
        objects = parse(example.source)
        assert describe(objects) == describe(objects[::-1]) == example.target
        assert 2 <= len(objects) <= 4


@pytest.mark.parametrize(
    ("caption", "objects"),
    [
        ("a red circle left of a blue square", ["blue square 1 3", "red circle 1 0"]),
        ("an orange cross above a blue square", ["blue square 3 1", "orange cross 0 2"]),
        ("two red circles above a blue square", ["red circle 0 2", "blue square 3 0", "red circle 1 1"]),
        (
            "a red circle left of a blue square above two green triangles",
            ["green triangle 2 0", "green triangle 3 3", "red circle 0 0", "blue square 0 1"],
        ),
        (
            "a red cross left of a red circle left of two blue crosses",
            ["blue cross 2 2", "red circle 2 1", "red cross 2 0", "blue cross 2 3"],
        ),
        (None, ["red circle 0 0", "red circle 0 1"]),  # one group alone
        (None, ["red circle 0 0", "red circle 0 1", "red circle 0 2", "blue square 1 0"]),  # three of a kind
        (None, ["red circle 0 0", "blue square 0 1", "red circle 0 2"]),  # groups of a row are mixed
        (None, ["red circle 0 0", "red circle 1 1", "blue square 1 2"]),  # bands share a row
        (None, ["red circle 0 0", "red circle 2 1", "blue square 1 2"]),  # a band within another
    ],
)
def test_captions_of_scenes(caption: str | None, objects: list[str]) -> None:
    for order in (objects, objects[::-1]):
        assert describe([place(*one.split()) for one in order]) == caption


def test_every_object_is_drawn_in_its_colour_and_within_its_field(scenes: Splits) -> None:
    for example in scenes.test[:200]:
        pixels = render(example.source)
        assert (pixels.shape, pixels.dtype) == ((SIZE, SIZE, 3), np.uint8)
        for one in parse(example.source):
            mask = one.mask()
            assert 30 <= mask.sum() <= 200
            assert (pixels[mask] == COLOURS[one.colour]).all()
            down, across = np.nonzero(mask)
            assert {*(down // FIELD)} == {one.down // FIELD}
            assert {*(across // FIELD)} == {one.across // FIELD}


def test_shapes_are_drawn_as_they_are_named() -> None:
    masks = {shape: SceneObject("red", shape, 30, 30, 6).mask()[24:37, 24:37] for shape in SHAPES}
    assert (masks["square"][1:-1, 1:-1]).all()
    assert masks["circle"].sum() == 113  # points of a grid within distance 6
    assert masks["triangle"].sum(1).tolist() == [1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13]
    assert masks["cross"].sum(1).tolist() == [3] * 5 + [13] * 3 + [3] * 5
    for mask in masks.values():
        assert (mask == mask[:, ::-1]).all()


@pytest.mark.parametrize("sides", [(4, 4), (8, 8), (7, 5)])
def test_true_cells_are_those_with_pixels_of_the_named_objects(scenes: Splits, sides: tuple[int, int]) -> None:
    height, width = sides
    for example in scenes.test[:100]:
        words = example.target.split()
        cells = true_cells(example.source, height, width)
        nouns = {*SHAPES, *(f"{shape}s" for shape in SHAPES), "crosses"}
        assert list(cells) == [word for word, text in enumerate(words) if text in nouns]
        for word, covered in cells.items():
            expected = set()
            for one in parse(example.source):
                if one.colour == words[word - 1] and words[word].startswith(one.shape):
                    down, across = np.nonzero(one.mask())
                    pairs = zip(down.tolist(), across.tolist(), strict=True)
                    expected |= {row * height // SIZE * width + column * width // SIZE for row, column in pairs}
            assert covered == expected


@pytest.mark.parametrize(
    "source",
    [
        *("shapes:", "shapes:red", "shapes:red-circle-1-2", "shapes:red-circle-1-2-3-4", "shapes:pink-circle-1-2-3"),
        *("shapes:red-ring-1-2-3", "shapes:red-circle-x-2-3", "shapes:red-circle--1-2-3", "shapes:red-circle-1-2-333"),
        *("shapes:red-circle-1-2-³", f"shapes:red-circle-{'9' * 5000}-2-3", "shapes:red-circle-1-2-3,"),
    ],
)
def test_a_description_that_cannot_be_drawn_is_refused(source: str) -> None:
    with pytest.raises(DataError, match=r"is no object; expected COLOUR-SHAPE-ACROSS-DOWN-RADIUS such as red-circle"):
        render(source)


def test_many_objects_and_scenes_without_a_caption_are_refused() -> None:
    with pytest.raises(DataError, match=r"has 17 objects; describe at most 16"):
        render("shapes:" + ",".join(["red-circle-1-2-3"] * 17))
    with pytest.raises(DataError, match=r"has no caption; take a scene of the corpus shapes"):
        true_cells("shapes:red-circle-8-8-5,red-circle-40-40-5", 8, 8)
