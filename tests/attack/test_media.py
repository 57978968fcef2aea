"""Hostile pictures and recordings: the right result, or one sentence that names the file; nothing is written.

With REGARD_ATTACK=whole in the environment, many more damaged files are tried.
"""

import base64
import io
import json
import os
import random
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import WHOLE, Tried, trying

from regard.data.audio import decode as decode_recording
from regard.data.features import MelSettings, log_mel, resample
from regard.data.pictures import decode as decode_picture
from regard.errors import DataError, MissingExtraError
from regard.recipe import Limits

Image = pytest.importorskip("PIL.Image")

Count = Callable[[str, object], None]
NAME = "folder/x.bin"
DAMAGED = 5000 if WHOLE else 300  # files of each kind
SMALL = Limits(picture_pixels=200_000, recording_seconds=20)
PIXELS = np.random.default_rng(1).integers(0, 256, (16, 24, 3), np.uint8)
ROWS = zlib.compress(b"\0\x01\x02\x03\x04\x05\x06")  # of a PNG with the pixels (1, 2, 3) and (4, 5, 6)


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not os.listdir(tmp_path)
    assert capfd.readouterr() == ("", "")  # decoders of other packages may print messages of their own


def attempt(decode: Callable[..., Any], content: bytes, limits: Limits = SMALL) -> tuple[Any, str]:
    """What was decoded, or None and the message."""
    try:
        return decode(content, NAME, limits), ""
    except (DataError, MissingExtraError) as error:
        return None, str(error)


def assert_is_sentence(message: str) -> None:
    assert NAME in message
    assert "\n" not in message
    assert " at 0x" not in message
    assert len(message) < 400


def saved(image: Any, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, depth: int, colours: int, rows: bytes, before: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + before + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def two(before: bytes) -> bytes:
    """A PNG with two pixels and these chunks before them."""
    return png(2, 1, 8, 2, ROWS, before)


def grey16(*values: int, before: bytes = b"") -> bytes:
    return png(len(values), 1, 16, 0, zlib.compress(b"\0" + struct.pack(f">{len(values)}H", *values)), before)


def whole_files() -> dict[str, bytes]:
    """A picture of each kind."""
    image, other = Image.fromarray(PIXELS), Image.fromarray(PIXELS[::-1].copy())
    frames = {"save_all": True, "append_images": [other]}
    return {
        "JPEG": saved(image, "JPEG", quality=95, subsampling=0),
        "JPEG, progressive": saved(image, "JPEG", progressive=True),
        "JPEG, grey": saved(image.convert("L"), "JPEG"),
        "JPEG, CMYK": saved(image.convert("CMYK"), "JPEG"),
        "PNG": saved(image, "PNG"),
        "PNG, palette with transparency": saved(image.convert("P"), "PNG", transparency=bytes(range(256))),
        "PNG, 16 bits": saved(Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257), "PNG"),
        "PNG, one bit": saved(image.convert("1"), "PNG"),
        "PNG, animated": saved(image, "PNG", **frames),
        "GIF": saved(image, "GIF"),
        "GIF, animated": saved(image, "GIF", **frames),
        "WebP": saved(image, "WEBP"),
        "WebP, lossless": saved(image.convert("RGBA"), "WEBP", lossless=True),
        "WebP, animated": saved(image, "WEBP", lossless=True, **frames),
        "BMP": saved(image, "BMP"),
        "BMP, palette": saved(image.convert("P"), "BMP"),
    }


def test_a_damaged_picture_is_read_or_refused_with_its_name(record_property: Count) -> None:
    with trying("damaged pictures", record_property) as tried:
        try_damaged_pictures(tried)


def try_damaged_pictures(tried: Tried) -> None:
    generator = random.Random(1)
    for kind, content in whole_files().items():
        assert attempt(decode_picture, content)[0].shape == (16, 24, 3)
        for number in range(DAMAGED):
            damaged = bytearray(content[: generator.choice([len(content), generator.randrange(len(content))])])
            for _ in range(generator.randrange(1, 6)):
                if damaged:
                    damaged[generator.randrange(len(damaged))] = generator.choice([0, 1, 127, 255, 128])
            with tried(kind, number):
                pixels, message = attempt(decode_picture, bytes(damaged))
                if pixels is None:
                    assert_is_sentence(message)
                else:
                    assert (pixels.dtype, pixels.ndim, pixels.shape[2]) == (np.uint8, 3, 3)


def jpeg_with(place: bytes, offset: int, content: bytes) -> bytes:
    """A JPEG file with other bytes at an offset from a marker."""
    file = bytearray(whole_files()["JPEG"])
    start = file.index(place) + offset
    file[start : start + len(content)] = content
    return bytes(file)


def patched(kind: str, offset: int, content: bytes) -> bytes:
    file = bytearray(whole_files()[kind])
    file[offset : offset + len(content)] = content
    return bytes(file)


def webp_canvas(width: int, height: int) -> bytes:
    """A WebP file whose extended header has a canvas of this size."""
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + size + whole_files()["WebP"][12:]
    return b"RIFF" + struct.pack("<I", len(body)) + body


def gif_frame(width: int, height: int) -> bytes:
    """A GIF file whose first frame has this size, beyond the screen."""
    file = bytearray(whole_files()["GIF"])
    start = file.index(b",\0\0\0\0") + 5
    file[start : start + 4] = struct.pack("<HH", width, height)
    return bytes(file)


def exif(content: bytes) -> bytes:
    return saved(Image.fromarray(PIXELS), "PNG", exif=b"Exif\0\0" + content)


TOO_LARGE = "has more than 50,000,000 pixels; make it smaller, or raise data.limits.picture_pixels"
ORIENTATION = b"II*\0\x08\0\0\0\1\0\x12\1"  # of EXIF data, up to the type of the value
BOMB = zlib.compress(bytes(50_000_000))
HOSTILE: dict[str, tuple[Callable[[], bytes], str | list[list[int]]]] = {  # content, and a sentence or the first pixels
    "no bytes": (lambda: b"", "is not a picture: it is empty; give a file in JPEG"),
    "text": (lambda: b"two dogs in the snow\n", "is not a picture: it is a text; give"),
    "only a signature": (lambda: b"\x89PNG\r\n\x1a\n", "is not a whole PNG picture"),
    "a PNG of 50,000 x 50,000": (lambda: png(50_000, 50_000, 8, 2, ROWS), TOO_LARGE),
    "a PNG of 2**31 - 1": (lambda: png(2**31 - 1, 2**31 - 1, 8, 2, ROWS), TOO_LARGE),
    "a JPEG of 65,500 x 65,500": (lambda: jpeg_with(b"\xff\xc0", 5, struct.pack(">HH", 65_500, 65_500)), TOO_LARGE),
    "a GIF screen of 65,535 x 65,535": (lambda: patched("GIF", 6, b"\xff\xff\xff\xff"), TOO_LARGE),
    "a GIF frame of 65,535 x 65,535": (lambda: gif_frame(65_535, 65_535), TOO_LARGE),
    "a WebP canvas of 60,000 x 60,000": (lambda: webp_canvas(60_000, 60_000), TOO_LARGE),
    "a WebP canvas of 2**32 pixels": (lambda: webp_canvas(65_536, 65_535), TOO_LARGE),
    "a BMP of 50,000 x 50,000": (lambda: patched("BMP", 18, struct.pack("<ii", 50_000, 50_000)), TOO_LARGE),
    "a BMP of -24 x 16": (lambda: patched("BMP", 18, struct.pack("<i", -24)), ""),
    "a PNG of 0 x 5": (lambda: png(0, 5, 8, 2, ROWS), r"is not a whole PNG picture \(its header is damaged\)"),
    "a PNG of one pixel": (lambda: png(1, 1, 8, 2, zlib.compress(b"\0\7\x08\x09")), [[7, 8, 9]]),
    "a PNG with a long text, packed": (lambda: two(chunk(b"zTXt", b"k\0\0" + BOMB)), "is not a whole PNG picture"),
    "a PNG with a long text in Unicode": (
        lambda: two(chunk(b"iTXt", b"k\0\1\0\0\0" + BOMB)),
        "is not a whole PNG picture",
    ),
    "a PNG with a large profile": (lambda: two(chunk(b"iCCP", b"k\0\0" + BOMB)), "is not a whole PNG picture"),
    "a PNG with a broken profile": (lambda: two(chunk(b"iCCP", b"k\0\0junk")), [[1, 2, 3], [4, 5, 6]]),
    "a PNG with many texts": (lambda: two(chunk(b"tEXt", b"k\0v") * 10_000), [[1, 2, 3], [4, 5, 6]]),
    "a PNG with broken EXIF data": (lambda: two(chunk(b"eXIf", b"II*\0junkjunk")), [[1, 2, 3], [4, 5, 6]]),
    "a PNG with more frames than there are": (
        lambda: two(chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))),
        [[1, 2, 3], [4, 5, 6]],
    ),
    "a PNG with more rows than there are": (lambda: png(2, 1, 8, 2, BOMB), [[0, 0, 0], [0, 0, 0]]),
    "a PNG without its palette": (lambda: png(1, 1, 8, 3, zlib.compress(b"\0\0")), [[0, 0, 0]]),
    "16 bits, grey": (lambda: grey16(256, 65_535), [[1, 1, 1], [255, 255, 255]]),
    "16 bits, grey, one transparent": (
        lambda: grey16(256, 1000, before=chunk(b"tRNS", struct.pack(">H", 1000))),
        [[1, 1, 1], [255, 255, 255]],
    ),
    "16 bits, RGB": (
        lambda: png(1, 1, 16, 2, zlib.compress(b"\0" + struct.pack(">3H", 65_535, 256, 255))),
        [[255, 1, 0]],
    ),
    "16 bits, RGB, transparent": (
        lambda: png(1, 1, 16, 6, zlib.compress(b"\0" + struct.pack(">4H", 65_535, 256, 255, 0))),
        [[255, 255, 255]],
    ),
    "orientation 99": (lambda: exif(ORIENTATION + b"\3\0\1\0\0\0\x63\0\0\0\0\0\0\0"), PIXELS[0, :2].tolist()),
    "orientation as a text": (lambda: exif(ORIENTATION + b"\2\0\4\0\0\0abc\0\0\0\0\0"), PIXELS[0, :2].tolist()),
    "EXIF data that ends": (lambda: exif(b"II*\0\x08\0\0\0\xff\xff"), PIXELS[0, :2].tolist()),
    "an animated PNG": (lambda: whole_files()["PNG, animated"], PIXELS[0, :2].tolist()),
    "an animated WebP": (lambda: whole_files()["WebP, animated"], PIXELS[0, :2].tolist()),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_picture_gives_its_pixels_or_a_sentence(case: str) -> None:
    make, expected = HOSTILE[case]
    pixels, message = attempt(decode_picture, make(), Limits())
    if isinstance(expected, str):
        assert pixels is None
        assert_is_sentence(message)
        assert message.startswith(f"{NAME} ")
        assert re.search(expected, message)
    else:
        assert pixels is not None, message
        assert pixels.reshape(-1, 3)[: len(expected)].tolist() == expected


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_pictures_have_the_same_upright_pixels(kind: str, orientation: int) -> None:
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's transpositions that undo the turning of a camera
    stored = Image.fromarray(PIXELS)
    data = Image.Exif()
    data[0x0112] = orientation
    stored = stored if orientation == 1 else stored.transpose(undo[orientation])
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    assert (decode_picture(saved(stored, kind, exif=data, **options), NAME) == PIXELS).all()


@pytest.mark.parametrize("transform", [0, 1, 2, 255])
def test_a_jpeg_with_four_channels_is_read_as_cmyk_or_ycck(transform: int) -> None:
    file = bytearray(whole_files()["JPEG, CMYK"])
    file[file.index(b"Adobe") + 11] = transform
    assert attempt(decode_picture, bytes(file))[0].shape == (16, 24, 3)


# Decodes what it is given, and reports the message, the seconds and the growth of the peak in megabytes.
MEASURED = """
import base64, json, sys, time
import numpy, torch, PIL.Image
from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
from regard.data import audio, pictures
from regard.data.features import resample
from regard.errors import DataError

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))

for kind, content in json.load(sys.stdin):
    content, message, shape = base64.b64decode(content), "", None
    before, start = peak(), time.process_time()
    try:
        if kind == "picture":
            shape = pictures.decode(content, "x").shape
        else:
            samples, rate = audio.decode(content, "x")
            shape = resample(samples, rate, 16_000).shape
    except DataError as error:
        message = str(error)
    print(json.dumps([message, shape, time.process_time() - start, peak() - before]))
"""


def test_bombs_and_the_largest_pictures_take_little_memory(record_property: Count) -> None:
    side = 7000 if WHOLE else 2500
    transparent = png(side, side, 8, 6, zlib.compress(bytes((4 * side + 1) * side), 1))
    rate = 383_999  # of which nearly every sample has weights of its own
    cases: list[tuple[str, bytes, float]] = [  # kind, content, megabytes
        *(("picture", HOSTILE[name][0](), 40) for name in HOSTILE if HOSTILE[name][1] == TOO_LARGE),
        ("picture", HOSTILE["a PNG with a long text, packed"][0](), 40),
        ("picture", HOSTILE["a PNG with a large profile"][0](), 40),
        ("picture", transparent, 40 + 12 * side * side / 2**20),
        ("recording", wav(np.zeros(rate // 8, "<i2").tobytes(), rate=rate), 200),
    ]
    content = json.dumps([(kind, base64.b64encode(content).decode()) for kind, content, _ in cases])
    done = subprocess.run([sys.executable, "-c", MEASURED], input=content, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with trying("bombs of media", record_property) as tried:
        for (kind, _, most), line in zip(cases, done.stdout.splitlines(), strict=True):
            message, shape, seconds, megabytes = json.loads(line)
            with tried(kind, message or shape):
                assert megabytes < most
                assert seconds < 30
                assert bool(message) != bool(shape)


# recordings


def wav(data: bytes, number: int = 1, channels: int = 1, rate: int = 8000, bits: int = 16) -> bytes:
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", number, channels, rate, rate * block, block, bits)
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def recordings() -> dict[str, bytes]:
    """A recording of each kind that can be written here."""
    samples = 0.5 * np.sin(np.arange(4000) * 0.1)
    files = {
        "8 bits": wav((127 * samples + 128).astype("u1").tobytes(), bits=8),
        "16 bits": wav((32_767 * samples).astype("<i2").tobytes()),
        "24 bits": wav((2**31 * 0.9 * samples).astype("<i4").view("u1").reshape(-1, 4)[:, 1:].tobytes(), bits=24),
        "float": wav(samples.astype("<f4").tobytes(), 3, bits=32),
        "float64, two channels": wav(np.repeat(samples, 2).astype("<f8").tobytes(), 3, 2, bits=64),
    }
    if find_spec("soundfile"):
        import soundfile

        for kind in ("FLAC", "OGG", "MP3", "WAVEX"):
            stream = io.BytesIO()
            soundfile.write(stream, samples, 8000, format=kind)
            files[kind] = stream.getvalue()
    return files


def test_a_damaged_recording_is_read_or_refused_with_its_name(record_property: Count) -> None:
    files = recordings()
    files.pop("MP3", None)
    with trying("damaged recordings", record_property) as tried:
        try_damaged_recordings(tried, files)


@pytest.mark.skipif(not find_spec("soundfile"), reason="needs soundfile")
def test_a_damaged_mp3_file_is_read_or_refused_with_its_name(record_property: Count, capfd: Any) -> None:
    with trying("damaged recordings", record_property) as tried:
        try_damaged_recordings(tried, {"MP3": recordings()["MP3"]})
    capfd.readouterr()  # its C library prints notes of its own


def try_damaged_recordings(tried: Tried, files: dict[str, bytes]) -> None:
    generator = random.Random(2)
    for kind, content in files.items():
        whole, message = attempt(decode_recording, content)
        assert whole is not None, message
        for number in range(DAMAGED):
            damaged = bytearray(content[: generator.choice([len(content), generator.randrange(len(content))])])
            for _ in range(generator.randrange(1, 6)):
                if damaged:
                    end = generator.choice([min(60, len(damaged)), len(damaged)])  # often in the header
                    damaged[generator.randrange(end)] = generator.choice([0, 1, 127, 255, 128])
            with tried(kind, number):
                recording, message = attempt(decode_recording, bytes(damaged))
                if recording is None:
                    assert_is_sentence(message)
                else:
                    assert len(recording.samples)
                    assert recording.samples.isfinite().all()


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000, 192_000])
def test_a_recording_of_any_rate_has_the_same_features(rate: int) -> None:
    """A tone of 1,000 Hz, as 16 bits at this rate, read by a model for 8,000 samples per second."""
    mel = MelSettings.for_rate(8000, bands=20)
    features = []
    for own in (8000, rate):
        samples = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(own // 2) / own)
        recording = decode_recording(wav((32_767 * samples).astype("<i2").tobytes(), rate=own), NAME)
        features.append(log_mel(resample(recording.samples, recording.rate, 8000), mel)[5:-5])
    expected, found = features
    loud = expected > expected.max() - 5
    assert loud.any(0).sum() < 6
    assert torch.allclose(found[loud], expected[loud], atol=0.02)


@pytest.mark.parametrize("number", [2, 6, 7, 17, 49])
def test_compressed_wav_files_are_read_or_refused_with_a_sentence(number: int) -> None:
    recording, message = attempt(decode_recording, wav(bytes(400), number, bits=8))
    if recording is None:
        assert_is_sentence(message)
    else:
        assert recording.samples.isfinite().all()
