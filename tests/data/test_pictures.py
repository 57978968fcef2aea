"""Pictures of any format and mode become RGB of one size; damaged, hostile and huge files are refused."""

import io
import re
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data import pictures
from regard.data.pictures import FITS, crop, decode, load, pad, resize, stretch
from regard.errors import DataError, MissingExtraError
from regard.recipe import Limits

Image = pytest.importorskip("PIL.Image")
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP")
RED, GREEN, BLUE = (250, 10, 20), (10, 240, 30), (20, 30, 250)


def picture(mode: str = "RGB", size: tuple[int, int] = (24, 16)) -> Any:
    """A picture whose left half is red and whose right half is blue; the upper left eighth is green."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[:, : size[0] // 2], pixels[:, size[0] // 2 :] = RED, BLUE
    pixels[: size[1] // 2, : size[0] // 4] = GREEN
    return Image.fromarray(pixels).convert(mode)


def saved(image: Any, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def corners(pixels: np.ndarray) -> list[list[int]]:
    height, width = pixels.shape[:2]
    places = ((1, 1), (1, width - 2), (height - 2, 1), (height - 2, width - 2))
    return [pixels[place].astype(int).tolist() for place in places]


def assert_near(pixels: np.ndarray, expected: list[tuple[int, int, int]], tolerance: int = 12) -> None:
    for corner, colour in zip(corners(pixels), expected, strict=True):
        assert max(abs(own - wanted) for own, wanted in zip(corner, colour, strict=True)) <= tolerance


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read_by_its_signature(kind: str, tmp_path: Path) -> None:
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    file = tmp_path / "picture.txt"  # the name says nothing
    file.write_bytes(saved(picture(), kind, **options))
    pixels = load(str(file))
    assert (pixels.shape, pixels.dtype) == ((16, 24, 3), np.uint8)
    assert_near(pixels, [GREEN, BLUE, RED, BLUE])


def test_grey_palette_one_bit_and_cmyk_pictures_become_rgb() -> None:
    grey = decode(saved(picture("L"), "PNG"), "it")
    assert (grey[..., 0] == grey[..., 1]).all()
    assert_near(decode(saved(picture("P"), "PNG"), "it"), [GREEN, BLUE, RED, BLUE], 60)
    assert set(np.unique(decode(saved(picture("1"), "PNG"), "it"))) <= {0, 255}
    cmyk = decode(saved(picture("CMYK"), "JPEG", quality=95, subsampling=0), "it")
    assert_near(cmyk, [GREEN, BLUE, RED, BLUE], 30)


def test_of_sixteen_bits_the_upper_eight_count() -> None:
    values = np.array([[0, 255, 256, 1000], [30_000, 32_768, 65_279, 65_535]], np.uint16)
    pixels = decode(saved(Image.fromarray(values), "PNG"), "it")
    assert pixels[..., 1].tolist() == (values >> 8).tolist()


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_transparent_pixels_are_laid_on_white(kind: str) -> None:
    image = picture("RGBA")
    image.putalpha(Image.fromarray(np.repeat(np.array([[0, 128, 255]], np.uint8), 16, 0).repeat(8, 1)))
    pixels = decode(saved(image, kind, **({"lossless": True} if kind == "WEBP" else {})), "it")
    assert pixels[1, 1].tolist() == [255, 255, 255]
    assert pixels[12, 9].tolist() == [round(255 + (colour - 255) * 128 / 255) for colour in RED]
    assert pixels[1, 20].tolist() == list(BLUE)


def test_a_transparent_colour_of_a_palette_is_white() -> None:
    image = picture("RGB").quantize(4)
    image.info["transparency"] = image.getpixel((1, 12))
    pixels = decode(saved(image, "GIF", transparency=image.getpixel((1, 12))), "it")
    assert pixels[12, 1].tolist() == [255, 255, 255]
    assert_near(pixels, [GREEN, BLUE, (255, 255, 255), BLUE])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_exif_data_says(orientation: int) -> None:
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's transpositions that undo the turning of a camera
    stored = picture() if orientation == 1 else picture().transpose(undo[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = decode(saved(stored, "JPEG", quality=95, subsampling=0, exif=exif), "it")
    assert pixels.shape == (16, 24, 3)
    assert_near(pixels, [GREEN, BLUE, RED, BLUE])


def test_of_a_gif_with_frames_the_first_is_read() -> None:
    red, blue = (Image.new("RGB", (9, 7), colour) for colour in (RED, BLUE))
    pixels = decode(saved(red, "GIF", save_all=True, append_images=[blue]), "it")
    assert_near(pixels, [RED] * 4, 0)


# hostile files


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_is_cut_anywhere_is_read_or_refused_with_its_name(kind: str) -> None:
    content = saved(picture(), kind)
    refused = 0
    for length in range(len(content)):
        try:
            assert decode(content[:length], "cut.jpg").shape == (16, 24, 3)
        except DataError as error:
            assert re.match(r"cut\.jpg is not a (whole \w+ )?picture\b.*; (fetch|give)", str(error))  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            refused += 1
    assert refused > len(content) // 2


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_with_damaged_bytes_is_read_or_refused_with_its_name(kind: str) -> None:
    content = saved(picture(), kind)
    generator = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(content)
        for place in generator.integers(2, len(content), 3):
            damaged[place] = generator.integers(256)
        try:
            pixels = decode(bytes(damaged), "damaged", Limits(picture_pixels=1_000_000))
            assert pixels.ndim == 3
        except DataError as error:
            assert str(error).startswith("damaged ")  # noqa: PT017


def png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [7072, 13_000, 60_000, 2**31 - 1])
def test_a_decompression_bomb_is_refused_by_its_header(side: int) -> None:
    with pytest.raises(
        DataError, match=r"^bomb\.png (has more than 50,000,000 pixels; make it smaller|is not a whole)"
    ):
        decode(png(side, side, zlib.compress(bytes(1000))), "bomb.png")


def test_the_limits_are_keys_of_the_recipe(tmp_path: Path) -> None:
    content = saved(picture(), "PNG")
    (tmp_path / "it.png").write_bytes(content)
    name = str(tmp_path / "it.png")
    assert load(name, Limits(picture_pixels=24 * 16, picture_bytes=len(content))).shape == (16, 24, 3)
    with pytest.raises(DataError, match=r"has more than 383 pixels; .* or raise data\.limits\.picture_pixels"):
        load(name, Limits(picture_pixels=383))
    with pytest.raises(DataError, match=r"bytes; give a smaller file, or raise data\.limits\.picture_bytes"):
        load(name, Limits(picture_bytes=len(content) - 1))


@pytest.mark.parametrize(
    "content", [b"", b"B", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"<svg/>", b"\x00" * 100, b"RIFF\x00\x00\x00\x00WAVEfmt "]
)
def test_other_files_are_refused_whatever_pillow_could_read(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "it.png").write_bytes(content)
    kinds = "empty|a text|a WAV recording|of a format that is not known"
    with pytest.raises(DataError, match=rf"it\.png is not a picture: it is ({kinds}); give a file in JPEG, PNG"):
        load(str(tmp_path / "it.png"))


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot find .*none\.png"):
        load(str(tmp_path / "none.png"))
    with pytest.raises(DataError, match="is a folder"):
        load(str(tmp_path))
    with pytest.raises(DataError, match="cannot find"):
        load("a\0b.png")


def test_without_pillow_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    content = saved(picture(), "PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    message = "reading the picture it.png needs the package Pillow; install it with: pip install 'regard[vision]'"
    with pytest.raises(MissingExtraError, match=f"^{re.escape(message)}, or in a clone: "):
        decode(content, "it.png")
    assert load("shapes:red-circle-12-20-6").shape == (64, 64, 3)  # drawn without Pillow


# to one size


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 5000), (5000, 1), (7, 300), (64, 64), (129, 130)])
@pytest.mark.parametrize("size", [8, 33])
def test_every_picture_gets_the_wanted_size(fit: str, shape: tuple[int, int], size: int) -> None:
    pixels = np.full((*shape, 3), 200, np.uint8)
    resized = resize(pixels, size, fit)
    assert (resized.shape, resized.dtype) == ((3, size, size), torch.uint8)
    assert set(resized.unique().tolist()) <= {200, 255}


def test_crop_cuts_the_centre_and_pad_keeps_all_on_white() -> None:
    pixels = np.asarray(picture(size=(64, 32)))  # the centre square has no green
    cut = crop(pixels, 16).permute(1, 2, 0).numpy()
    assert_near(cut, [RED, BLUE, RED, BLUE], 0)
    whole = pad(pixels, 32).permute(1, 2, 0).numpy()
    assert_near(whole, [(255, 255, 255)] * 4, 0)
    assert_near(whole[8:24], [GREEN, BLUE, RED, BLUE], 12)
    assert (whole[:8] == 255).all()
    assert (whole[24:] == 255).all()


def test_stretch_keeps_all_and_adds_nothing() -> None:
    pixels = np.asarray(picture(size=(64, 32)))
    assert_near(stretch(pixels, 32).permute(1, 2, 0).numpy(), [GREEN, BLUE, RED, BLUE], 12)


def test_a_picture_of_the_right_size_is_not_changed() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (21, 21, 3), np.uint8)
    for fit in FITS:
        assert (resize(pixels, 21, fit).permute(1, 2, 0).numpy() == pixels).all()


def test_downsizing_averages_instead_of_skipping_pixels() -> None:
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 200
    assert (crop(stripes, 16).float() - 100)[..., 1:-1].abs().max() < 3


def test_scenes_are_known_by_their_prefix() -> None:
    assert set(pictures.SCENES) == {"shapes:"}
