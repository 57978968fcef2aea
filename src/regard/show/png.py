"""Attention maps and charts as PNG, drawn with matplotlib."""

from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import MissingExtraError
from regard.maps import AttentionMap
from regard.show.arrange import arrange as arrange_map
from regard.show.dots import PALETTE, SIGNED
from regard.show.labels import make_visible
from regard.show.layout import FONTS, HAIRLINE, Image, Photo, Picture, Square
from regard.show.ramp import tint


def png(attention: AttentionMap, title: str = "", scale: str | None = None) -> bytes:
    """The map as a PNG that looks like the SVG; a character that no installed font has is shown by its code point."""
    texts = (title, attention.trust, *attention.rows, *attention.columns)
    return paint(texts, lambda spell: arrange_map(attention, title, spell, scale))


def paint(texts: Iterable[str], arrange: Callable[[Callable[[str], str]], Picture], sharpness: float = 200) -> bytes:
    """Draw a picture that contains these texts as a PNG.

    `arrange` returns its layout; its argument is a function that replaces characters that no installed font has. 100
    pixels of the layout have `sharpness` dots.
    """
    try:
        from matplotlib import collections, figure, patches
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing a PNG") from error
    families, missing = _fonts(set("".join(map(make_visible, texts))) | set("␣…"))
    picture = arrange(lambda text: _with_codes(text, missing))
    dots = min(sharpness, 100 * 8000 / max(picture.width, picture.height))  # dots per inch: at most 8000 dots a side
    canvas = figure.Figure((picture.width / 100, picture.height / 100), dpi=dots, facecolor="white")
    axes = canvas.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])
    if picture.image:
        palette = np.array(SIGNED if picture.image.signed else PALETTE, dtype=np.uint8)
        _add_image(axes, picture.image, palette[picture.image.levels.numpy()], "nearest")
    for photo in picture.photos:
        _add_image(axes, photo, photo.pixels.numpy(), "antialiased")
    axes.set_xlim(picture.left, picture.left + picture.width)
    axes.set_ylim(picture.top + picture.height, picture.top)
    fills = [tuple(part / 255 for part in tint(square.weight)) for square in picture.squares]
    corners = list(map(_corners, picture.squares))
    axes.add_collection(collections.PolyCollection(corners, facecolors=fills, edgecolors=HAIRLINE, lw=0.72))
    for line in picture.lines:
        is_closed = line.filled or line.points[0] == line.points[-1]  # matplotlib would leave out the last side
        shape = patches.Polygon(line.points, closed=is_closed, fill=line.filled, color=line.ink)
        shape.set(linewidth=0 if line.filled else line.width * 0.72, joinstyle="round")
        axes.add_patch(shape)
    for word in picture.words:
        place, points = (word.x, word.y, word.text), word.size * 0.72  # 100 pixels of the layout are an inch
        style = axes.text(*place, color=word.ink, fontsize=points, fontfamily=families, ha=word.anchor)
        style.set(rotation=word.angle, rotation_mode="anchor", parse_math=False)  # else a $ would start a formula
    file = BytesIO()
    canvas.savefig(file, format="png", metadata={"Software": None})  # no version, so that equal maps give equal bytes
    return file.getvalue()


def _add_image(axes: Any, image: Image | Photo, pixels: NDArray[np.uint8], interpolation: str) -> None:
    extent = (image.x, image.x + image.width, image.y + image.height, image.y)
    axes.imshow(pixels, extent=extent, interpolation=interpolation, aspect="auto")


def _corners(square: Square) -> list[tuple[float, float]]:
    right, bottom = square.x + square.size, square.y + square.size
    return [(square.x, square.y), (right, square.y), (right, bottom), (square.x, bottom)]


def _with_codes(text: str, missing: set[str]) -> str:
    """The text with every missing character replaced by its code point, such as U+65E5."""
    if missing.isdisjoint(text):
        return text
    parts = (f" U+{ord(character):04X} " if character in missing else character for character in text)
    return " ".join("".join(parts).split())


def _fonts(characters: set[str]) -> tuple[list[str], set[str]]:
    """Installed font families that together have the characters, and the characters that no family has."""
    from matplotlib import font_manager, get_data_path

    regular = [f for f in font_manager.fontManager.ttflist if (f.style, f.weight) == ("normal", 400)]
    # Of matplotlib's own fonts most are for formulas, and Last Resort has a box for every character: leave them out.
    others = {f.name for f in regular if not f.fname.startswith(get_data_path()) and "Resort" not in f.name}
    names = [name for name in FONTS if name in {f.name for f in regular}] + sorted(others - set(FONTS))
    families, missing = names[:1], set(characters) - _glyphs(names[0])
    for name in names[1:]:
        if supplied := missing and missing & _glyphs(name):
            families.append(name)
            missing -= supplied
    return families, missing


def _glyphs(name: str) -> set[str]:
    """The characters that a font family has."""
    from matplotlib import font_manager

    try:
        font = font_manager.get_font(font_manager.findfont(name))
    except (OSError, RuntimeError):  # the file was removed since matplotlib listed it, or is damaged
        return set()
    return set(map(chr, font.get_charmap())) if font.scalable else set()
