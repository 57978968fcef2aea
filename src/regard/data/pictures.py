"""Reads pictures, within limits, as arrays of RGB pixels of one size; files are decoded by Pillow."""

import io
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.data import formats
from regard.data.archives import StoredFiles
from regard.data.corpora.shapes import PREFIX, render
from regard.data.files import LIMITS
from regard.data.media import Medium
from regard.errors import DataError, MissingExtraError, pick, shown
from regard.recipe import Limits

Pixels = NDArray[np.uint8]  # height x width x RGB
Numbers = NDArray[Any]

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
BLENDED = 2**18  # transparent pixels that are laid on white at a time


class StoredPictures:
    """Reads pictures by name: `set/a.jpg`, `set/train.tar/a.jpg` in a tar file, or the scene `shapes:...`."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._files = StoredFiles(limits)

    def content(self, source: str) -> bytes:
        """The content of the file; of a scene, its description; of a picture given in Python, its size and pixels."""
        if isinstance(source, Medium):
            return repr(source.content.shape).encode() + source.content.tobytes()
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
    if isinstance(source, Medium):
        return np.array(source.content)
    for prefix, render_scene in SCENES.items():
        if source.startswith(prefix):
            return render_scene(source)
    return decode(content, source, limits)


def decode(content: bytes, name: str, limits: Limits = LIMITS) -> Pixels:
    """The pixels of the content of a JPEG, PNG, GIF (its first frame), WebP or BMP file, turned as its EXIF data says.

    Transparent pixels are laid on white. Grey, palette and CMYK pictures become RGB; of 16 bits the upper 8 count.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Pillow", "vision", f"reading the picture {name}") from error
    kind = _kind(content)
    if not kind:
        known = ", ".join(dict.fromkeys((*SIGNATURES.values(), "WebP")))
        raise DataError(f"{name} is not a picture: it is {formats.describe(content)}; give a file in {known}")
    with _refusing_damage(name, f"{kind} picture", limits), Image.open(io.BytesIO(content), formats=[kind]) as image:
        return _from_image(image, name, limits)  # until now only the header was read


def is_picture(start: bytes) -> bool:
    """Whether a file that begins with these bytes has a format that is read."""
    return bool(_kind(start))


@contextmanager
def _refusing_damage(name: str, what: str, limits: Limits) -> Iterator[None]:
    """In the block, all that Pillow raises becomes a DataError that names the picture, and its warnings are ignored."""
    from PIL import UnidentifiedImageError
    from PIL.Image import DecompressionBombError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about damaged metadata, or sizes, for which there is a limit
            yield
    except (DataError, MemoryError):
        raise
    except DecompressionBombError as error:
        raise _too_large(name, limits) from error
    except UnidentifiedImageError as error:  # its own text is the address of an object
        raise DataError(f"{name} is not a whole {what} (its header is damaged); fetch or save it again") from error
    except Exception as error:  # Pillow raises many kinds of exceptions for damaged files
        reason = shown(str(error)) if str(error) else type(error).__name__
        raise DataError(f"{name} is not a whole {what} ({reason}); fetch or save it again") from error


def _from_image(image: Any, name: str, limits: Limits) -> Pixels:
    """The pixels of an image of Pillow, turned as its EXIF data says."""
    from PIL import ImageOps

    _check_size(image.width * image.height, name, limits)
    if not image.width * image.height:
        raise DataError(f"{name} has no pixels: {image.width} x {image.height}; give another picture")
    return _to_rgb(ImageOps.exif_transpose(image))


def _check_size(pixels: int, name: str, limits: Limits) -> None:
    if pixels > limits.picture_pixels:
        raise _too_large(name, limits)


def _too_large(name: str, limits: Limits) -> DataError:
    how = "make it smaller, or raise data.limits.picture_pixels"
    return DataError(f"{name} has more than {limits.picture_pixels:,} pixels; {how}")


def _kind(content: bytes) -> str:
    """The format of a file by its first bytes; empty if it is none that is read."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    return next((kind for signature, kind in SIGNATURES.items() if content.startswith(signature)), "")


def _to_rgb(image: Any) -> Pixels:
    """The pixels of a decoded picture of any mode as RGB, laid on white if some are transparent."""
    if image.mode.startswith("I"):  # grey with 16 bits; Pillow would clip it to 8
        values = np.asarray(image).clip(0, 65_535).astype(np.uint16)
        grey = (values >> 8).astype(np.uint8)
        grey[values == image.info.get("transparency", -1)] = WHITE
        return np.repeat(grey[..., None], 3, axis=-1)
    if not image.has_transparency_data:
        return np.array(image.convert("RGB"))
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    step = max(1, BLENDED // image.width)
    for top in range(0, image.height, step):
        bottom = min(top + step, image.height)
        layers = np.asarray(image.crop((0, top, image.width, bottom)).convert("RGBA")).astype(np.uint16)
        colours, alpha = layers[..., :3], layers[..., 3:]
        pixels[top:bottom] = (colours * alpha + WHITE * (WHITE - alpha) + WHITE // 2) // WHITE
    return pixels


# given in Python


def accept(value: object, name: str, limits: Limits = LIMITS) -> Medium:
    """The source for a picture that is given as an array, a tensor or an image of Pillow; `name` is for messages.

    An array is height x width x 3, a tensor 3 x height x width, and both may be height x width, of grey. They hold
    uint8, or floats from 0 to 1.
    """
    if isinstance(value, Tensor):
        pixels = _from_numbers(_channels_last(value.detach().cpu()), tuple(value.shape), name, limits)
    elif isinstance(value, np.ndarray):
        pixels = _from_numbers(value, value.shape, name, limits)
    elif is_image(value):
        with _refusing_damage(name, "picture", limits):
            pixels = _from_image(value, name, limits)
    else:
        allowed = "the name of a file, a path, an array, a tensor or an image of Pillow"
        raise DataError(f"{name} is of the type {type(value).__name__}; give {allowed}")
    height, width = pixels.shape[:2]
    return Medium(f"<picture {width}x{height}>", pixels)


def is_image(value: object) -> bool:
    """Whether this is an image of Pillow, which is then imported already."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def _channels_last(value: Tensor) -> Numbers:
    """The numbers of a tensor, 3 x height x width, in the order of an array."""
    numbers: Numbers = (value.float() if value.is_floating_point() else value).numpy()
    return np.moveaxis(numbers, 0, -1) if numbers.ndim == 3 else numbers


def _from_numbers(numbers: Numbers, given: tuple[int, ...], name: str, limits: Limits) -> Pixels:
    """The pixels of an array, height x width x 3, or height x width; `given` is the shape that messages name."""
    if not (numbers.ndim == 2 or (numbers.ndim == 3 and numbers.shape[2] == 3)) or not numbers.size:
        allowed = "height x width x 3 (of a tensor 3 x height x width), or height x width for grey"
        raise DataError(f"{name} has the shape {given}; a picture is {allowed}")
    _check_size(numbers.shape[0] * numbers.shape[1], name, limits)
    if numbers.dtype.kind == "f":
        if not (np.isfinite(numbers).all() and numbers.min() >= 0 and numbers.max() <= 1):
            how = "scale it, or give uint8 from 0 to 255"
            raise DataError(f"{name} has floats that are not finite, or not from 0 to 1; {how}")
        numbers = (numbers * WHITE).round()
    elif numbers.dtype != np.uint8:
        raise DataError(f"{name} has numbers of the type {numbers.dtype}; give uint8, or floats from 0 to 1")
    pixels = numbers.astype(np.uint8)  # a copy
    return pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=-1)


# to one size


def crop(pixels: Pixels, size: int) -> UInt8[Tensor, "3 size size"]:
    """Cuts the largest square out of the centre, and resizes it: what is outside is lost."""
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return _resized(pixels[top : top + side, left : left + side], size, size)


def pad(pixels: Pixels, size: int) -> UInt8[Tensor, "3 size size"]:
    """Resizes the whole picture until its longer side fits, and puts it into the centre of a white square."""
    whole = in_proportion(pixels, size)
    height, width = whole.shape[1:]
    top, left = (size - height) // 2, (size - width) // 2
    square = torch.full((3, size, size), WHITE, dtype=torch.uint8)
    square[:, top : top + height, left : left + width] = whole
    return square


def stretch(pixels: Pixels, size: int) -> UInt8[Tensor, "3 size size"]:
    """Resizes the whole picture to a square: nothing is lost, but what is round becomes oval."""
    return _resized(pixels, size, size)


FITS: dict[str, Callable[[Pixels, int], Tensor]] = {"crop": crop, "pad": pad, "stretch": stretch}


def in_proportion(pixels: Pixels, size: int) -> UInt8[Tensor, "3 height width"]:
    """The whole picture in its own proportions, with a longer side of this size."""
    height, width = (max(1, round(side * size / max(pixels.shape[:2]))) for side in pixels.shape[:2])
    return _resized(pixels, height, width)


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
