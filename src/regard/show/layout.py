"""The layout of a picture: positions of its squares, lines and words, used for both SVG and PNG."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from textwrap import wrap

from jaxtyping import UInt8
from rich.cells import cell_len
from torch import Tensor

from regard.maps import AttentionMap
from regard.show.labels import LONGEST, clipped, letters, make_visible, shown
from regard.show.ramp import SIGNS
from regard.show.scale import ends, shades

INK, PALE, HAIRLINE = "#24303f", "#6b7788", "#e3e9f0"
CELL, SIZE, MARGIN = 24.0, 13.0, 20.0  # pixels
SMALL, SPACING, NARROWEST = 11.0, 15.0, 360.0  # of the sentence below: its size, that of a line, and its least width
SINE, COSINE = 0.866, 0.5  # of 60 degrees, the angle of long column labels
FONTS = (
    *("DejaVu Sans Mono", "DejaVu Sans", "Noto Sans Mono CJK JP", "Noto Sans CJK JP", "Hiragino Sans"),
    *("Yu Gothic", "Meiryo", "Apple SD Gothic Neo", "Malgun Gothic", "PingFang SC", "Microsoft YaHei"),
)


@dataclass(frozen=True)
class Square:
    """A coloured square of a picture, placed by its upper left corner."""

    x: float
    y: float
    size: float
    weight: float  # on the scale of the picture
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line through points or, if `filled`, the polygon with these corners."""

    points: tuple[tuple[float, float], ...]
    ink: str
    width: float = 1.0
    filled: bool = False
    note: str = ""


@dataclass(frozen=True)
class Word:
    """A text of a picture, placed by its baseline; horizontal, or rising to the right at 60 degrees."""

    x: float
    y: float
    text: str
    size: float = SIZE
    anchor: str = "left"
    angle: int = 0
    ink: str = INK

    @property
    def length(self) -> float:
        """Upper bound of the drawn length: a letter of a monospaced font is 0.6 of the font size wide."""
        return 0.61 * self.size * cell_len(self.text)


@dataclass(frozen=True)
class Image:
    """A rectangle of dots, each with one of 256 levels of the colour scale."""

    x: float
    y: float
    width: float
    height: float
    levels: UInt8[Tensor, "rows columns"]
    signed: bool = False  # level 127 is then the weight 0, and level 0 the weight -1


@dataclass(frozen=True)
class Photo:
    """A rectangle of RGB pixels."""

    x: float
    y: float
    width: float
    height: float
    pixels: UInt8[Tensor, "rows columns 3"]


@dataclass(frozen=True)
class Area:
    """A rectangle that is not drawn; a browser shows its note."""

    x: float
    y: float
    width: float
    height: float
    note: str


@dataclass(frozen=True)
class Picture:
    """All parts of a picture, in pixels; the origin is the upper left corner of the first cell, or of the plot."""

    squares: list[Square]
    words: list[Word]
    left: float
    top: float
    width: float
    height: float
    lines: tuple[Line, ...] = ()
    image: Image | None = None
    areas: tuple[Area, ...] = ()
    photos: tuple[Photo, ...] = ()


def lay_out(attention: AttentionMap, title: str, spell: Callable[[str], str] = str, scale: str = "one") -> Picture:
    """Place all parts of a map; a label that `spell` changes, because no font has its letters, is set in small type."""

    def word(x: float, y: float, label: str, anchor: str = "left", angle: int = 0) -> Word:
        text = spell(label)
        return Word(x, y, clipped(text, LONGEST), SIZE if text == label else 9.0, anchor, angle)

    def heading(x: float, label: str) -> Word:
        upright = len(letters(spell(label))) == 1
        return word(x, -9, label, "center") if upright else word(x + 4, -8, label, angle=60)

    rows = [word(-10, (n + 0.68) * CELL, shown(row), "right") for n, row in enumerate(attention.rows)]
    columns = [heading((n + 0.5) * CELL, shown(column)) for n, column in enumerate(attention.columns)]
    under = len(rows) * CELL + 16
    legend, scale_words = legend_of(attention, scale, under)
    left = -max([10 + row.length for row in rows], default=0)
    top = -9 - max([SINE * column.length + SIZE for column in columns if column.angle], default=SIZE)
    named = make_visible(title)
    titles = [Word(left, top - 18, spell(named), 15 if spell(named) == named else 10)] if title else []
    words = [*titles, *columns, *scale_words]
    reaches = [word.x + word.length * (COSINE if word.angle else 1) for word in words]
    right = max(len(columns) * CELL, *reaches)
    top -= 18 + 15 if title else 0
    width, height = right - left + 2 * MARGIN, scale_words[-1].y + 1 - top + 2 * MARGIN
    return Picture(_cells(attention, scale) + legend, words + rows, left - MARGIN, top - MARGIN, width, height)


def legend_of(attention: AttentionMap, scale: str, under: float) -> tuple[list[Square], list[Word]]:
    """The squares of the scale and the words beside it; of a difference, the words below say which sign is which."""
    low, high = ends(attention.weights, scale)
    first = -1.0 if attention.is_signed else 0.0
    start = max(13.0, 5 + Word(0, 0, low, SMALL).length)
    squares = [Square(start + 10 * step, under, 10, first + (1 - first) * step / 10) for step in range(11)]
    words = [Word(x, under + 9, text, SMALL, ink=PALE) for x, text in ((1, low), (start + 116, high))]
    return squares, [*words, *([Word(1, under + 26, SIGNS, SMALL, ink=PALE)] if attention.is_signed else [])]


def _cells(attention: AttentionMap, scale: str) -> list[Square]:
    """A square for each weight, with a note that names row, column and weight."""
    drawn = shades(attention.weights, scale).tolist()
    rows, columns = (list(map(shown, labels)) for labels in (attention.rows, attention.columns))
    return [
        Square(column * CELL, row * CELL, CELL, drawn[row][column], f"{rows[row]} ← {columns[column]} {weight:.2f}")
        for row, weights in enumerate(attention.weights.tolist())
        for column, weight in enumerate(weights)
    ]


def with_sentence(picture: Picture, sentence: str) -> Picture:
    """The picture with a sentence below it, broken into lines of its width."""
    if not sentence:
        return picture
    room = max(picture.width - 2 * MARGIN, NARROWEST)
    lines = wrap(make_visible(sentence), int(room / Word(0, 0, " ", SMALL).length), break_on_hyphens=False)
    bottom = picture.top + picture.height
    under = [
        Word(picture.left + MARGIN, bottom + number * SPACING, line, SMALL, ink=PALE)
        for number, line in enumerate(lines)
    ]
    width, height = max(picture.width, room + 2 * MARGIN), picture.height + len(lines) * SPACING + 6
    return replace(picture, words=[*picture.words, *under], width=width, height=height)
