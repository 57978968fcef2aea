"""Draws an AttentionMap: as text for a terminal, as SVG, as PNG."""

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from io import BytesIO

from rich.cells import cell_len, set_cell_size

from regard.errors import MissingExtraError, pick
from regard.types import AttentionMap

RAMP = ((255, 255, 255), (208, 224, 243), (146, 182, 225), (78, 130, 196), (20, 62, 125))
SHADES = "·░▒▓█"  # a dot, not a blank, leads the eye along a row to its column
INK, PALE, HAIRLINE = "#24303f", "#6b7788", "#e3e9f0"
CELL, SIZE, MARGIN = 24.0, 13.0, 20.0  # pixels
SINE, COSINE = 0.866, 0.5  # of the 60 degrees at which long column labels stand
LONGEST = 24  # the letters of a label that are drawn; an SVG's cell titles tell it whole
FONTS = (
    *("DejaVu Sans Mono", "DejaVu Sans", "Noto Sans Mono CJK JP", "Noto Sans CJK JP", "Hiragino Sans"),
    *("Yu Gothic", "Meiryo", "Apple SD Gothic Neo", "Malgun Gothic", "PingFang SC", "Microsoft YaHei"),
)
FAMILY = ", ".join(["ui-monospace", "Menlo", "Consolas", *(f"'{name}'" for name in FONTS), "monospace"])


def legible(text: str) -> str:
    """The text with all that is invisible spelled out: it can neither steer a terminal nor break XML."""
    shown = "".join(map(_spelled, text))
    starts_with_mark = unicodedata.category(shown[:1] or " ").startswith("M")
    return "◌" + shown if starts_with_mark or (shown and not cell_len(shown)) else shown


def _spelled(character: str) -> str:
    code, category = ord(character), unicodedata.category(character)
    if code < 32 or code == 127:
        return chr(0x2400 + min(code, 33))  # Unicode's pictures of controls; the one of DEL follows space's
    if category in ("Cc", "Cf", "Cn", "Cs", "Zl", "Zp"):
        return character.encode("unicode_escape").decode()
    return " " if category == "Zs" else character


def _label(text: str) -> str:
    return legible(text).replace(" ", "␣")


def _clipped(text: str, cells: int) -> str:
    return text if cell_len(text) <= cells else set_cell_size(text, cells - 1).rstrip() + "…"


def _letters(text: str) -> list[str]:
    """The text letter by letter; a mark of no width stays with its letter."""
    letters: list[str] = []
    for character in text:
        if letters and cell_len(character) == 0:
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def _colour(weight: float) -> tuple[int, int, int]:
    """The ramp's colour, even in lightness from paper to deep blue."""
    place = min(max(weight, 0.0), 1.0) * (len(RAMP) - 1)
    lower = min(int(place), len(RAMP) - 2)
    ends = zip(RAMP[lower], RAMP[lower + 1], strict=True)
    red, green, blue = (round(start + (stop - start) * (place - lower)) for start, stop in ends)
    return red, green, blue


def terminal(attention: AttentionMap, *, width: int, colour: bool) -> str:
    """The map as text for a terminal of so many columns; a wider map comes in several blocks."""
    rows = [_clipped(_label(row), max(1, min(LONGEST, width // 3))) for row in attention.rows]
    margin = max(map(cell_len, rows), default=0)
    room = width - margin - 1
    header, widths = _header(attention.columns, room)
    cell = _painted if colour else _shaded
    lines = []
    for start, stop in _blocks(widths, room):
        if stop - start < len(widths):
            lines.append(_clipped(f"columns {start + 1}–{stop} of {len(widths)}", width))
        labels = ["".join(line[start:stop]) for line in header]
        lines += [" " * (margin + 1) + line for line in labels if line.strip()]
        for row, weights in zip(rows, attention.weights.tolist(), strict=True):
            cells = map(cell, weights[start:stop], widths[start:stop])
            lines.append(" " * (margin - cell_len(row)) + row + " " + "".join(cells))
        lines.append("")
    ramp = "".join(cell(step / 4, 2) for step in range(5))
    return "\n".join([*lines, f"0 {ramp} 1"]) + "\n"


def _header(columns: Iterable[str], room: int) -> tuple[list[list[str]], list[int]]:
    """The lines of column labels, each label filled up to the width of its column, and those widths."""
    labels = [_clipped(_label(column), LONGEST) for column in columns]
    widths = [max(2, cell_len(label) + (len(_letters(label)) > 1)) for label in labels]
    stacks = [[label] for label in labels]
    if sum(widths) > room:  # lying they are too wide: let them stand, one letter under the other
        widths, stacks = [2] * len(labels), [_letters(label) for label in labels]
    height = max(map(len, stacks), default=0)
    lines = zip(*([""] * (height - len(stack)) + stack for stack in stacks), strict=True)
    return [list(map(set_cell_size, line, widths)) for line in lines], widths


def _blocks(widths: list[int], room: int) -> Iterator[tuple[int, int]]:
    start = used = 0
    for index, cells in enumerate(widths):
        if index > start and used + cells > room:
            yield start, index
            start, used = index, 0
        used += cells
    yield start, len(widths)


def _painted(weight: float, cells: int) -> str:
    red, green, blue = _colour(0.08 + 0.92 * weight)  # zero is tinted, to be seen on a white terminal too
    return f"\x1b[48;2;{red};{green};{blue}m{' ' * cells}\x1b[0m"


def _shaded(weight: float, cells: int) -> str:
    shade = SHADES[round(min(max(weight, 0.0), 1.0) * (len(SHADES) - 1))]
    return shade.ljust(cells) if shade == SHADES[0] else shade * cells


@dataclass(frozen=True)
class _Square:
    """A coloured square of a picture, placed by its upper left corner."""

    x: float
    y: float
    size: float
    weight: float
    note: str = ""


@dataclass(frozen=True)
class _Word:
    """A text of a picture, placed by its baseline; it lies level, or rises to the right at 60 degrees."""

    x: float
    y: float
    text: str
    size: float = SIZE
    anchor: str = "left"
    angle: int = 0
    ink: str = INK

    @property
    def length(self) -> float:
        """How long it is drawn at most: the letters of monospaced fonts are 0.6 of their size wide."""
        return 0.61 * self.size * cell_len(self.text)


@dataclass(frozen=True)
class _Picture:
    """What both files show, in pixels right of and below the upper left corner of the first cell."""

    squares: list[_Square]
    words: list[_Word]
    left: float
    top: float
    width: float
    height: float


def _picture(attention: AttentionMap, title: str, spell: Callable[[str], str] = str) -> _Picture:
    """Lays the map out; what `spell` replaces, because no font holds it, is set in small type."""

    def word(x: float, y: float, label: str, anchor: str = "left", angle: int = 0) -> _Word:
        text = spell(label)
        return _Word(x, y, _clipped(text, LONGEST), SIZE if text == label else 9.0, anchor, angle)

    def heading(x: float, label: str) -> _Word:
        upright = len(_letters(spell(label))) == 1
        return word(x, -9, label, "center") if upright else word(x + 4, -8, label, angle=60)

    rows = [word(-10, (n + 0.68) * CELL, _label(row), "right") for n, row in enumerate(attention.rows)]
    columns = [heading((n + 0.5) * CELL, _label(column)) for n, column in enumerate(attention.columns)]
    under = len(rows) * CELL + 16
    legend = [_Square(13 + 10 * step, under, 10, step / 10) for step in range(11)]
    ends = [_Word(x, under + 9, text, 11, ink=PALE) for x, text in ((1, "0"), (129, "1"))]
    left = -max([10 + row.length for row in rows], default=0)
    top = -9 - max([SINE * column.length + SIZE for column in columns if column.angle], default=SIZE)
    named = legible(title)
    titles = [_Word(left, top - 18, spell(named), 15 if spell(named) == named else 10)] if title else []
    words = [*titles, *columns, *ends]
    reaches = [word.x + word.length * (COSINE if word.angle else 1) for word in words]
    right = max(len(columns) * CELL, *reaches)
    top -= 18 + 15 if title else 0
    width, height = right - left + 2 * MARGIN, under + 10 - top + 2 * MARGIN
    return _Picture(_cells(attention) + legend, words + rows, left - MARGIN, top - MARGIN, width, height)


def _cells(attention: AttentionMap) -> list[_Square]:
    return [
        _Square(column * CELL, row * CELL, CELL, weight, f"{_label(output)} ← {_label(source)} {weight:.2f}")
        for row, (output, weights) in enumerate(attention)
        for column, (source, weight) in enumerate(weights)
    ]


def svg(attention: AttentionMap, title: str = "") -> str:
    """The map as a self-contained SVG; resting on a cell tells its labels and weight."""
    picture = _picture(attention, title)
    said = title or f"attention map: {len(attention.rows)} outputs over {len(attention.columns)} sources"
    place = f"{picture.left:.1f} {picture.top:.1f} {picture.width:.1f} {picture.height:.1f}"
    x, y, width, height = place.split()
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{place}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(legible(said))}" font-family="{FAMILY}">',
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
            *map(_svg_square, picture.squares),
            *map(_svg_word, picture.words),
            "</svg>\n",
        ]
    )


def _svg_square(square: _Square) -> str:
    red, green, blue = _colour(square.weight)
    return (
        f'<rect x="{square.x:g}" y="{square.y:g}" width="{square.size:g}" height="{square.size:g}" '
        f'fill="#{red:02x}{green:02x}{blue:02x}" stroke="{HAIRLINE}">'
        f"{f'<title>{escape(square.note)}</title>' if square.note else ''}</rect>"
    )


def _svg_word(word: _Word) -> str:
    anchor = {"left": "start", "center": "middle", "right": "end"}[word.anchor]
    turn = f' transform="rotate({-word.angle} {word.x:g} {word.y:g})"' if word.angle else ""
    return (
        f'<text x="{word.x:g}" y="{word.y:g}" font-size="{word.size:g}" text-anchor="{anchor}" '
        f'fill="{word.ink}"{turn}>{escape(word.text)}</text>'
    )


def png(attention: AttentionMap, title: str = "") -> bytes:
    """The map as a PNG that looks like the SVG; a character no installed font holds is told by its code."""
    try:
        from matplotlib import collections, figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing a PNG") from error
    drawn = (title, *attention.rows, *attention.columns)
    families, missing = _fonts(set("".join(map(legible, drawn))) | set("␣…"))
    picture = _picture(attention, title, lambda text: _coded(text, missing))
    dots = min(200, 100 * 8000 / max(picture.width, picture.height))  # a long map becomes fine, not huge
    canvas = figure.Figure((picture.width / 100, picture.height / 100), dpi=dots, facecolor="white")
    axes = canvas.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])
    axes.set_xlim(picture.left, picture.left + picture.width)
    axes.set_ylim(picture.top + picture.height, picture.top)
    fills = [tuple(part / 255 for part in _colour(square.weight)) for square in picture.squares]
    corners = list(map(_corners, picture.squares))
    axes.add_collection(collections.PolyCollection(corners, facecolors=fills, edgecolors=HAIRLINE, lw=0.72))
    for word in picture.words:
        place, points = (word.x, word.y, word.text), word.size * 0.72  # 100 pixels of ours are an inch
        style = axes.text(*place, color=word.ink, fontsize=points, fontfamily=families, ha=word.anchor)
        style.set(rotation=word.angle, rotation_mode="anchor", parse_math=False)  # a dollar is a dollar
    file = BytesIO()
    canvas.savefig(file, format="png", metadata={"Software": None})  # no stamp: equal maps, equal bytes
    return file.getvalue()


def _corners(square: _Square) -> list[tuple[float, float]]:
    right, bottom = square.x + square.size, square.y + square.size
    return [(square.x, square.y), (right, square.y), (right, bottom), (square.x, bottom)]


def _coded(text: str, missing: set[str]) -> str:
    if missing.isdisjoint(text):
        return text
    return " ".join("".join(f" U+{ord(one):04X} " if one in missing else one for one in text).split())


def _fonts(characters: set[str]) -> tuple[list[str], set[str]]:
    """Installed families that together hold the characters, and the characters that none holds."""
    from matplotlib import font_manager, get_data_path

    regular = [f for f in font_manager.fontManager.ttflist if (f.style, f.weight) == ("normal", 400)]
    # Most fonts that come with matplotlib are for formulas; one, the Last Resort, has a box for everything.
    others = {f.name for f in regular if not f.fname.startswith(get_data_path()) and "Resort" not in f.name}
    names = [name for name in FONTS if name in {f.name for f in regular}] + sorted(others - set(FONTS))
    families, missing = names[:1], set(characters) - _glyphs(names[0])
    for name in names[1:]:
        if held := missing and missing & _glyphs(name):
            families.append(name)
            missing -= held
    return families, missing


def _glyphs(name: str) -> set[str]:
    from matplotlib import font_manager

    try:
        font = font_manager.get_font(font_manager.findfont(name))
    except (OSError, RuntimeError):  # gone since the list was made, or damaged: as if it held nothing
        return set()
    return set(map(chr, font.get_charmap())) if font.scalable else set()


Drawing = Callable[[AttentionMap, str], bytes]

DRAWINGS: dict[str, Drawing] = {
    ".svg": lambda attention, title: svg(attention, title).encode(),
    ".png": png,
}


def drawing(ending: str) -> Drawing:
    """What draws a file of that ending."""
    return pick(DRAWINGS, ending.lower(), "picture ending")


def draw(attention: AttentionMap, ending: str, title: str = "") -> bytes:
    """The bytes of a picture file, in the form that the file's ending names."""
    return drawing(ending)(attention, title)
