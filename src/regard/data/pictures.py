"""Reads pictures, within limits, as arrays of RGB pixels of one size; files are decoded by Pillow."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.data.archives import StoredFiles
from regard.data.corpora.shapes import PREFIX, render
from regard.data.files import LIMITS, check_limit
from regard.errors import DataError, MissingExtraError, pick, shown
from regard.recipe import Limits

Pixels = NDArray[np.uint8]  # height x width x RGB

# The formats that are read, by the first bytes of a file. Its name says nothing. No other decoder of Pillow is called.
SIGNATURES = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"BM": "BMP",
}
SCENES: dict[str, Callable[[str], Pixels]] = {PREFIX: render}  # by the prefix of a description
WHITE = 255


class StoredPictures:
    """Reads pictures by name: `set/a.jpg`, `set/train.tar/a.jpg` in a tar file, or the scene `shapes:...`."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._files = StoredFiles(limits)

    def content(self, source: str) -> bytes:
        """The content of the file; of a scene, its description."""
        if is_scene(source):
            return source.encode()
        return self._files.read(source, self.limits.picture_bytes, "picture_bytes")


def is_scene(source: str) -> bool:
    """Whether a source is the description of a scene, and not the name of a file."""
    return source.startswith(tuple(SCENES))


def load(source: str, limits: Limits = LIMITS) -> Pixels:
    """The pixels of a picture: of a file, or of the scene that a description such as `shapes:...` describes."""
    return draw(StoredPictures(limits).content(source), source, limits)


def draw(content: bytes, source: str, limits: Limits = LIMITS) -> Pixels:
    """The pixels of a picture of this content and name: a scene is drawn, a file is decoded."""
    for prefix, render_scene in SCENES.items():
        if source.startswith(prefix):
            return render_scene(source)
    return decode(content, source, limits)


def decode(content: bytes, name: str, limits: Limits = LIMITS) -> Pixels:
    """The pixels of the content of a JPEG, PNG, GIF (its first frame), WebP or BMP file, turned as its EXIF data says.

    Transparent pixels are laid on white. Grey, palette and CMYK pictures become RGB; of 16 bits the upper 8 count.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingExtraError("Pillow", "vision", f"reading the picture {name}") from error
    kind = _kind(content, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about damaged metadata; the size has its own limit below
            with Image.open(io.BytesIO(content), formats=[kind]) as image:  # reads the header only
                width, height = image.size
                check_limit(name, width * height, limits.picture_pixels, "pixels", "picture_pixels", "make it smaller")
                return _to_rgb(ImageOps.exif_transpose(image))
    except (DataError, MemoryError):
        raise
    except Exception as error:  # Pillow raises many kinds of exceptions for damaged files
        reason = shown(str(error)) if str(error) else type(error).__name__
        raise DataError(f"{name} is not a whole {kind} picture ({reason}); fetch or save it again") from error


def _kind(content: bytes, name: str) -> str:
    """The format of a file by its first bytes."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    for signature, kind in SIGNATURES.items():
        if content.startswith(signature):
            return kind
    known = ", ".join(dict.fromkeys((*SIGNATURES.values(), "WebP")))
    raise DataError(f"{name} is not a picture: it begins with {shown(content[:12])}; give a file in {known}")


def _to_rgb(image: Any) -> Pixels:
    """The pixels of a decoded picture of any mode as RGB, laid on white if some are transparent."""
    if image.mode.startswith("I"):  # grey with 16 bits; Pillow would clip it to 8
        grey = np.asarray(image).clip(0, 65_535).astype(np.uint16) >> 8
        return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=-1)
    if not image.has_transparency_data:
        return np.array(image.convert("RGB"))
    layers = np.asarray(image.convert("RGBA")).astype(np.uint16)
    colours, alpha = layers[..., :3], layers[..., 3:]
    return ((colours * alpha + WHITE * (WHITE - alpha) + WHITE // 2) // WHITE).astype(np.uint8)


# to one size


def crop(pixels: Pixels, size: int) -> UInt8[Tensor, "3 size size"]:
    """Cuts the largest square out of the centre, and resizes it: what is outside is lost."""
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return _resized(pixels[top : top + side, left : left + side], size, size)


def pad(pixels: Pixels, size: int) -> UInt8[Tensor, "3 size size"]:
    """Resizes the whole picture until its longer side fits, and puts it into the centre of a white square."""
    height, width = (max(1, round(side * size / max(pixels.shape[:2]))) for side in pixels.shape[:2])
    top, left = (size - height) // 2, (size - width) // 2
    square = torch.full((3, size, size), WHITE, dtype=torch.uint8)
    square[:, top : top + height, left : left + width] = _resized(pixels, height, width)
    return square


def stretch(pixels: Pixels, size: int) -> UInt8[Tensor, "3 size size"]:
    """Resizes the whole picture to a square: nothing is lost, but what is round becomes oval."""
    return _resized(pixels, size, size)


FITS: dict[str, Callable[[Pixels, int], Tensor]] = {"crop": crop, "pad": pad, "stretch": stretch}


def resize(pixels: Pixels, size: int, fit: str) -> UInt8[Tensor, "3 size size"]:
    """A picture as a square of this size, in training and in prediction alike; `fit` is a name of FITS."""
    return pick(FITS, fit, "fit")(pixels, size)


def _resized(pixels: Pixels, height: int, width: int) -> UInt8[Tensor, "3 height width"]:
    """Bicubic interpolation with an antialiasing filter; a picture that has this size already is not changed."""
    channels_first = torch.from_numpy(np.array(pixels)).permute(2, 0, 1)
    if pixels.shape[:2] == (height, width):
        return channels_first.contiguous()
    options: dict[str, Any] = {"mode": "bicubic", "align_corners": False, "antialias": True}
    return functional.interpolate(channels_first[None], (height, width), **options)[0].contiguous()
