"""Attention maps and charts as SVG."""

from base64 import b64encode
from html import escape

from regard.maps import AttentionMap
from regard.show.arrange import arrange
from regard.show.dots import PALETTE, SIGNED, encode, encode_pixels
from regard.show.labels import make_visible
from regard.show.layout import FONTS, HAIRLINE, Area, Image, Line, Photo, Picture, Square, Word
from regard.show.ramp import tint

FAMILY = ", ".join(["ui-monospace", "Menlo", "Consolas", *(f"'{name}'" for name in FONTS), "monospace"])


def svg(attention: AttentionMap, title: str = "", scale: str | None = None) -> str:
    """The map as a self-contained SVG; a tooltip on each cell shows its labels and weight.

    A large map is an image inside the SVG; tooltips on its rows and above its columns show their labels. A map over a
    picture or a recording is drawn on it.
    """
    description = title or f"attention map: {len(attention.rows)} outputs over {len(attention.columns)} sources"
    return paint(arrange(attention, title, scale=scale), description)


def paint(picture: Picture, description: str) -> str:
    """Draw a picture as a self-contained SVG; screen readers read the description."""
    view_box = f"{picture.left:.1f} {picture.top:.1f} {picture.width:.1f} {picture.height:.1f}"
    x, y, width, height = view_box.split()
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{view_box}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(make_visible(description))}" font-family="{FAMILY}">',
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
            *map(_image, [picture.image] if picture.image else []),
            *map(_photo, picture.photos),
            *map(_rectangle, picture.squares),
            *map(_line, picture.lines),
            *map(_text, picture.words),
            *map(_area, picture.areas),
            "</svg>\n",
        ]
    )


def _image(image: Image) -> str:
    content = encode(image.levels, SIGNED if image.signed else PALETTE)
    return _embedded(image, content, ' style="image-rendering: pixelated"')


def _photo(photo: Photo) -> str:
    return _embedded(photo, encode_pixels(photo.pixels))


def _embedded(image: Image | Photo, content: bytes, style: str = "") -> str:
    return (
        f'<image x="{image.x:g}" y="{image.y:g}" width="{image.width:g}" height="{image.height:g}" '
        f'preserveAspectRatio="none"{style} href="data:image/png;base64,{b64encode(content).decode()}"/>'
    )


def _area(area: Area) -> str:
    place = f'x="{area.x:.1f}" y="{area.y:.1f}" width="{area.width:.1f}" height="{area.height:.1f}"'
    return f'<rect {place} fill="none" pointer-events="all">{_note(area.note)}</rect>'


def _rectangle(square: Square) -> str:
    red, green, blue = tint(square.weight)
    return (
        f'<rect x="{square.x:g}" y="{square.y:g}" width="{square.size:g}" height="{square.size:g}" '
        f'fill="#{red:02x}{green:02x}{blue:02x}" stroke="{HAIRLINE}">'
        f"{_note(square.note)}</rect>"
    )


def _line(line: Line) -> str:
    points = " ".join(f"{x:.4g},{y:.4g}" for x, y in line.points)
    if line.filled:
        return f'<polygon points="{points}" fill="{line.ink}">{_note(line.note)}</polygon>'
    stroke = f'stroke="{line.ink}" stroke-width="{line.width:g}" stroke-linejoin="round"'
    return f'<polyline points="{points}" fill="none" {stroke}>{_note(line.note)}</polyline>'


def _note(text: str) -> str:
    """The title element of a shape, which browsers show as a tooltip."""
    return f"<title>{escape(text)}</title>" if text else ""


def _text(word: Word) -> str:
    anchor = {"left": "start", "center": "middle", "right": "end"}[word.anchor]
    turn = f' transform="rotate({-word.angle} {word.x:g} {word.y:g})"' if word.angle else ""
    return (
        f'<text x="{word.x:g}" y="{word.y:g}" font-size="{word.size:g}" text-anchor="{anchor}" '
        f'fill="{word.ink}"{turn}>{escape(word.text)}</text>'
    )
