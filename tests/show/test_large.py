"""Laws of large maps: bounded in size, each dot is the largest of its weights, and a sentence says what is left out."""

import base64
import json
import os
import re
import struct
import time
import zlib
from io import BytesIO
from xml.etree import ElementTree

import pytest
import torch
from rich.cells import cell_len

from regard.maps import AttentionMap
from regard.show.dots import PALETTE, encode
from regard.show.large import CELLS, DOTS, NOTES, SIDE, Axis, arrange, has_many_cells, pool
from regard.show.maps import draw, svg
from regard.show.ramp import tint
from regard.show.terminal import terminal
from regard.show.viewer_data import ALPHABET

NAMESPACE = "{http://www.w3.org/2000/svg}"
WHOLE = os.environ.get("REGARD_ATTACK") == "whole"
MOST_BYTES, MOST_SECONDS = 10_000_000, 10  # of CPU time, so that other work on the machine does not count
SIZES = {
    "just large": (201, 200),
    "a long row": (1, 5000),
    "a long column": (5000, 3),
    "no rows": (0, 5000),
    "a thousand": (1000, 1000),
    "pooled": (2003, 1501),
}
every_size = pytest.mark.parametrize(("rows", "columns"), SIZES.values(), ids=SIZES)


def large(rows: int, columns: int) -> AttentionMap:
    labels = ("▁the", "<b>&", "日本", "\x1b[31m", "▁is")
    names = [tuple(labels[place % 5] for place in range(count)) for count in (rows, columns)]
    return AttentionMap(torch.rand(rows, columns), *names)


def dots_of(picture: bytes) -> torch.Tensor:
    """The levels of a PNG with a palette and no filters."""
    chunks, place = {}, 8
    while place < len(picture):
        size, kind = struct.unpack(">I4s", picture[place : place + 8])
        content = picture[place + 8 : place + 8 + size]
        (check,) = struct.unpack(">I", picture[place + 8 + size : place + 12 + size])
        assert check == zlib.crc32(kind + content)
        chunks[kind] = content
        place += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    assert chunks[b"PLTE"] == bytes(part for colour in PALETTE for part in colour)
    lines = torch.frombuffer(bytearray(zlib.decompress(chunks[b"IDAT"])), dtype=torch.uint8).view(height, width + 1)
    assert not lines[:, 0].any()
    return lines[:, 1:]


def image_of(drawing: str) -> torch.Tensor:
    (image,) = ElementTree.fromstring(drawing).iter(f"{NAMESPACE}image")
    return dots_of(base64.b64decode(image.attrib["href"].removeprefix("data:image/png;base64,")))


def content(page: bytes) -> dict:
    (text,) = re.findall(r'class="regard-map">(.*?)</script>', page.decode())
    return json.loads(text)


def test_pooling_takes_the_largest_weight_of_each_group() -> None:
    attention = large(23, 31)
    pooled = pool(attention, 5, 7)
    assert (pooled.rows.step, pooled.columns.step) == (5, 5)
    assert pooled.weights.shape == (5, 7) == (pooled.rows.dots, pooled.columns.dots)
    for row in range(5):
        for column in range(7):
            group = attention.weights[5 * row : 5 * row + 5, 5 * column : 5 * column + 5]
            assert pooled.weights[row, column] == group.max()
    assert pooled.rows.name(0) == "1–5 ▁the <b>& 日本 ␛[31m ▁is"
    assert pooled.rows.name(4) == "21–23 ▁the <b>& 日本"
    assert pooled.describe() == "23 outputs over 31 sources; each dot is the largest of 5 × 5 weights"
    whole = pool(attention)
    assert torch.equal(whole.weights, attention.weights)
    assert whole.describe() == "23 outputs over 31 sources"


def test_only_maps_above_the_bounds_are_large() -> None:
    assert not has_many_cells(large(200, CELLS // 200))
    assert not has_many_cells(large(1, SIDE))
    assert has_many_cells(large(201, CELLS // 200))
    assert has_many_cells(large(1, SIDE + 1))
    long = AttentionMap(torch.rand(60, 60), ("x" * 999,) * 60, ("y",) * 60)
    assert NOTES > 60 * 60 * 1000
    assert arrange(long, "").image is None
    longer = AttentionMap(torch.rand(60, 60), ("<" * 999,) * 60, ("y",) * 60)  # in XML four letters each
    assert arrange(longer, "").image is not None


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 7)])
def test_a_png_of_dots_has_every_level(shape: tuple[int, int]) -> None:
    levels = torch.randint(256, shape, dtype=torch.uint8)
    picture = encode(levels)
    assert torch.equal(dots_of(picture), levels)
    read = pytest.importorskip("matplotlib.image").imread
    seen = (torch.from_numpy(read(BytesIO(picture)))[..., :3] * 255).round().byte()
    assert torch.equal(seen, torch.tensor(PALETTE, dtype=torch.uint8)[levels.long()])


@every_size
def test_an_svg_has_an_image_of_all_dots_and_some_labels(rows: int, columns: int) -> None:
    attention = large(rows, columns)
    drawing = svg(attention, "a <title>")
    root = ElementTree.fromstring(drawing)
    pooled = pool(attention)
    if rows:
        assert torch.equal(image_of(drawing), (pooled.weights * 255).round().byte())
        assert max(image_of(drawing).shape) <= DOTS
    words = [word.text or "" for word in root.iter(f"{NAMESPACE}text")]
    assert "a <title>" in words
    assert any(word.startswith(pooled.describe()) for word in words)
    numbers = [int(word.split(" ")[0].replace(",", "")) for word in words if re.match(r"[\d,]+ [▁<日␛]", word)]
    assert numbers.count(1) == bool(rows) + bool(columns)
    assert 2 < len(numbers) < 200
    assert all(cell_len(word) <= 24 for word in words if word[:1].isdigit() and " over " not in word)
    notes = [note.text or "" for note in root.iter(f"{NAMESPACE}title")]
    assert len(notes) == (pooled.rows.dots + pooled.columns.dots if rows else 0) + 1
    if rows:
        heaviest = pooled.weights[0].argmax().item()
        assert notes[0] == f"{pooled.rows.name(0)} ← {pooled.columns.name(heaviest)} {pooled.weights[0, heaviest]:.2f}"


def test_all_parts_of_a_large_picture_are_inside() -> None:
    picture = arrange(large(1, 401), "t" * 2000)
    right, bottom = picture.left + picture.width, picture.top + picture.height
    for word in picture.words:
        begin = word.x - word.length * (word.anchor == "right")
        assert picture.left <= begin
        assert begin + word.length * (0.5 if word.angle else 1) <= right
        assert picture.top <= word.y <= bottom
    for area in picture.areas:
        assert picture.left <= area.x
        assert area.x + area.width <= right
        assert picture.top <= area.y
        assert area.y + area.height <= bottom


def numbers(weights: str | list[list[int]]) -> torch.Tensor:
    """The weights of a page as thousandths; many of them are written as pairs of letters of base64."""
    if not isinstance(weights, str):
        return torch.tensor(weights)
    codes = [place for letter in weights for place in [ALPHABET.index(letter.encode())]]
    return torch.tensor(codes).view(-1, 2) @ torch.tensor([64, 1]) - 1000


@every_size
def test_a_page_has_rounded_weights_and_says_what_a_dot_is(rows: int, columns: int) -> None:
    attention = large(rows, columns)
    tokens = content(draw(attention, ".html"))["maps"][0]
    pooled = pool(attention, 2 * DOTS, 2 * DOTS)
    assert tokens["size"] == [rows, columns]
    stored = numbers(tokens["weights"]).view(pooled.weights.shape) * tokens["unit"]
    torch.testing.assert_close(stored, pooled.weights, rtol=0, atol=0.000501)
    assert (len(tokens["rows"]), len(tokens["columns"])) == (pooled.rows.dots, pooled.columns.dots)
    assert tokens["note"] == pooled.describe().partition("; ")[2]
    if rows:
        assert tokens["mean_entropy"] == pytest.approx(attention.entropy().mean().item(), rel=1e-4)
        assert sum(tokens["coverage"]) == pytest.approx(attention.weights.sum().item(), rel=1e-4)


def test_weights_that_are_not_finite_are_null_in_a_page_and_white_in_pictures() -> None:
    attention = large(201, 200)
    attention.weights[3, 4] = float("nan")
    assert content(draw(attention, ".html"))["maps"][0]["weights"][3][4] is None
    assert image_of(svg(attention))[3, 4] == 0
    small = AttentionMap(attention.weights[:5, :5], attention.rows[:5], attention.columns[:5])
    assert 'fill="#ffffff" stroke' in svg(small)
    assert tint(float("nan")) == (255, 255, 255)
    assert "·" in terminal(small, width=80, colours=None)


@every_size
@pytest.mark.parametrize("width", [1, 20, 80, 200])
def test_a_terminal_gets_one_block_and_a_sentence(rows: int, columns: int, width: int) -> None:
    drawing = terminal(large(rows, columns), width=width, colours=None)
    lines = drawing.splitlines()
    assert len(lines) < 80 + 200 // width * 10
    sentence = " ".join(" ".join(lines[-40:]).split())
    assert pool(large(rows, columns)).describe().split(";")[0] in sentence or width < 20
    if width >= 20:
        assert max(map(cell_len, lines)) <= width
        assert "columns 1–" not in drawing
        assert sentence.endswith("and .csv has every weight")


def bounded(attention: AttentionMap, title: str) -> None:
    """Draw the map in every format but CSV, which has every weight; the whole attack also draws the slowest."""
    for ending in (".svg", ".pharaoh", *([".html", ".png"] if WHOLE else [])):
        start = time.process_time()
        drawing = draw(attention, ending, title)
        assert time.process_time() - start < MOST_SECONDS
        assert len(drawing) < MOST_BYTES
    start = time.process_time()
    assert len(terminal(attention, width=100, colours="truecolor")) < 2_000_000
    assert time.process_time() - start < MOST_SECONDS


@pytest.mark.parametrize("letter", ["<", "\U000e0001", *(["x", "\x1b", "日", "\u0301"] if WHOLE else [])])
def test_a_label_or_title_of_a_million_letters_is_cut(letter: str) -> None:
    long = letter * 1_000_000
    attention = AttentionMap(torch.eye(3), (long, "b", "c"), ("d", long, long))
    bounded(attention, long)
    assert len(draw(attention, ".html", long)) < 200_000


def test_many_long_labels_are_bounded() -> None:
    bounded(AttentionMap(torch.rand(200, 200), ("\U000e0001" * 1000,) * 200, ("<" * 1000,) * 200), "t")


def test_the_png_of_a_thousand_by_a_thousand_is_bounded() -> None:
    pytest.importorskip("matplotlib")
    start = time.process_time()
    assert len(draw(large(1000, 1000), ".png", "t" * 10_000)) < MOST_BYTES
    assert time.process_time() - start < MOST_SECONDS


def test_a_map_of_5000_by_5000_is_bounded() -> None:
    attention = large(5000, 5000)
    bounded(attention, "t" * 10_000)
    assert "each dot is the largest of 5 × 5 weights" in svg(attention)


def test_a_dot_ends_at_the_last_token_of_its_last_label() -> None:
    labels = tuple("abcde")
    assert Axis(labels, 2).last_tokens() == [2, 4, 5]
    assert Axis(labels, 2, ends=(2, 3, 5, 6, 9)).last_tokens() == [3, 6, 9]
    assert Axis((), 1).last_tokens() == []
