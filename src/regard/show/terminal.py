"""The map as text for a terminal."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from textwrap import wrap

from rich.cells import cell_len, set_cell_size
from rich.console import Console

from regard.errors import pick
from regard.maps import AttentionMap, PictureView, SeriesView, Spectrogram
from regard.show import blocks, sparklines
from regard.show.labels import LONGEST, clipped, letters, make_visible, shown
from regard.show.large import Axis, has_many_cells, pool
from regard.show.scale import legible_scale, shades, tops
from regard.show.views import source_view

SHADES = "·░▒▓█"  # a dot, not a blank, so that the eye can follow a row to its column
LIMITS = (0.125, 0.375, 0.625, 0.875)  # the least weights of the shades after the dot
MINUS = "−"  # behind the shade of a negative weight, in a difference of two maps
MARK = "•"  # the largest weight of a row in which all are too small for a shade
LINES = 50  # maximum rows of a large map
# The ink of weak and strong weights. Both are of middle lightness, and the shades let the background through: so a
# stronger weight stands out more on dark and on light backgrounds, which a program cannot ask for.
WEAK, STRONG = (122, 140, 166), (38, 128, 235)
NEGATIVE = (214, 120, 20)  # the strong ink of negative weights
# The inks of the dot and of each shade as escape codes, by the colours that a terminal has. With all colours, each
# weight has its own ink. Of 16 colours, white would vanish on light backgrounds, and dark blue on dark ones.
FEW = ("90", "94", "94", "94", "94")
INKS = {
    "truecolor": (),
    "256": ("38;5;103", "38;5;67", "38;5;67", "38;5;68", "38;5;33"),
    "standard": FEW,
    "windows": FEW,
}
INKS_BELOW = {"256": "38;5;172", "standard": "33", "windows": "33"}  # of negative weights


def drawing(attention: AttentionMap, scale: str | None = None) -> str:
    """The map as text, with the width and the colours of the terminal that stdout is, if it is one.

    Without a `scale`, the darkest shade is the weight 1, or the largest weight of the map if all are small. With enough
    colours, a map over a picture or a recording is drawn on it; one over a series is always drawn below its forecast.
    Below stands how far the map may be trusted, if it says so.
    """
    console = Console()
    drawn = _drawn_for(console, attention, scale)
    if not attention.trust:
        return drawn
    sentence = make_visible(attention.trust)
    lines = wrap(sentence, console.width, break_on_hyphens=False) if console.is_terminal else [sentence]
    return "\n".join([drawn, *lines, ""])


def _drawn_for(console: Console, attention: AttentionMap, scale: str | None) -> str:
    """The map alone."""
    colours = None if console.no_color else console.color_system
    view = source_view(attention)
    if isinstance(view, SeriesView):
        return sparklines.forecast(attention, view, width=console.width, colours=colours, scale=scale or "map")
    if colours in blocks.PICTURES:
        if isinstance(view, PictureView):
            return blocks.filmstrip(attention, view, width=console.width, colours=colours, scale=scale or "row")
        if isinstance(view, Spectrogram):
            return blocks.recording(attention, view, width=console.width, colours=colours, scale=scale or "map")
    scale = scale or legible_scale(attention.weights)
    return terminal(attention, width=console.width, colours=colours, scale=scale)


def drawing_of_series(view: SeriesView) -> str:
    """A forecast without a map as text, with the width and the colours of the terminal that stdout is, if it is one."""
    console = Console()
    return sparklines.forecast(
        None, view, width=console.width, colours=None if console.no_color else console.color_system
    )


def terminal(attention: AttentionMap, *, width: int, colours: str | None, scale: str = "one") -> str:
    """The map as text for a terminal of that width; a wider map is split into blocks of columns.

    `colours` is a colour system as rich names it: "truecolor", "256", "standard" or None for no colours. A large map is
    pooled to one block; a sentence says so.
    """
    if not has_many_cells(attention):
        return _drawn(attention, width, colours, scale)
    pooled = pool(attention, LINES, max(1, (width - width // 3 - 1) // 2))
    labels = _names(pooled.rows, "{number}:{label}"), _names(pooled.columns, "{number}")
    drawing = _drawn(AttentionMap(pooled.weights, *labels), width, colours, scale)
    advice = "the formats .svg, .png and .html show more dots, and .csv has every weight"
    return drawing + "".join(f"{line}\n" for line in wrap(f"{pooled.describe()}; {advice}", max(width, 10)))


def _names(axis: Axis, style: str) -> tuple[str, ...]:
    """The labels of an axis; if dots have several, the number of the first or also its label."""
    first = [(number, axis.labels[number - 1]) for number in map(axis.number, range(axis.dots))]
    return axis.labels if axis.step == 1 else tuple(style.format(number=number, label=label) for number, label in first)


def _drawn(attention: AttentionMap, width: int, colours: str | None, scale: str) -> str:
    """The map as text, with a cell for each weight."""
    rows = [clipped(shown(row), max(1, min(LONGEST, width // 3))) for row in attention.rows]
    margin = max(map(cell_len, rows), default=0)
    room = width - margin - 1
    header, widths = _header(attention.columns, room)
    inks = None if colours is None else pick(INKS, colours, "colour system")
    lines = []
    shaded = shades(attention.weights, scale).tolist()
    marks = [_mark(weights) for weights in shaded]
    for start, stop in _even_blocks(widths, room):
        if stop - start < len(widths):
            which = f"column {stop}" if stop - start == 1 else f"columns {start + 1}–{stop}"
            lines.append(clipped(f"{which} of {len(widths)}", width))
        labels = ["".join(line[start:stop]) for line in header]
        lines += [" " * (margin + 1) + line for line in labels if line.strip()]
        for row, weights, marked in zip(rows, shaded, marks, strict=True):
            cells = "".join(
                _painted(
                    weights[column],
                    widths[column],
                    inks,
                    MARK if column == marked else SHADES[0],
                    ink_below=INKS_BELOW.get(colours or "", ""),
                )
                for column in range(start, stop)
            )
            lines.append(" " * (margin - cell_len(row)) + row + " " + cells)
        lines.append("")
    names = _names_of_shades(attention, scale)
    marked = any(mark is not None for mark in marks)
    ink_below = INKS_BELOW.get(colours or "", "")
    legend = _legend(names, width, inks, marked=marked)
    if attention.is_signed:
        samples = [_painted(sign, 2, inks, ink_below=ink_below) for sign in (1.0, -1.0)]
        legend.append(f"{samples[0]} more weight in the first map  {samples[1]} in the second")
    return "\n".join([*lines, *legend]) + "\n"


def _mark(weights: list[float]) -> int | None:
    """The column of a row's largest weight, if all its weights are too small for a shade, and it is not 0."""
    sizes = list(map(abs, weights))
    largest = max(sizes, default=0.0)
    return sizes.index(largest) if 0 < largest < LIMITS[0] else None


def _names_of_shades(attention: AttentionMap, scale: str) -> list[str]:
    """The weights that each shade stands for: from the dot, which has only an upper limit, to the darkest."""
    if scale == "row":
        limits = [f"{limit:.1%}" for limit in LIMITS]
        return [f"<{limits[0]}", *(f"≥{limit}" for limit in limits[:-1]), f"≥{limits[-1]} of the row's largest"]
    top = tops(attention.weights, scale)[:1].sum().item() or 1.0  # that of any row; 1 if there is none
    limits = [f"{limit * top:.3g}" for limit in LIMITS]
    return [f"<{limits[0]}", *(f"≥{limit}" for limit in limits)]


def _legend(names: list[str], width: int, inks: tuple[str, ...] | None, *, marked: bool) -> list[str]:
    """The lines that say which weights have which shade."""
    samples = [_painted(weight, 2, inks) for weight in (0.0, *LIMITS)]
    parts = [f"{sample} {name}" for sample, name in zip(samples, names, strict=True)]
    widths = [3 + len(name) for name in names]
    if marked:
        parts, widths = [*parts, f"{_painted(0.0, 2, inks, MARK)} largest"], [*widths, 10]
    return ["  ".join(parts[start:stop]) for start, stop in _blocks([cells + 2 for cells in widths], width + 2)]


def _header(columns: Iterable[str], room: int) -> tuple[list[list[str]], list[int]]:
    """The lines of column labels, each label padded to the width of its column, and these widths."""
    labels = [clipped(shown(column), LONGEST) for column in columns]
    widths = [max(2, cell_len(label) + (len(letters(label)) > 1)) for label in labels]
    stacks = [[label] for label in labels]
    if sum(widths) > room:  # too wide side by side: write each label downward, one letter a line
        widths, stacks = [2] * len(labels), [letters(label) for label in labels]
    height = max(map(len, stacks), default=0)
    lines = zip(*([""] * (height - len(stack)) + stack for stack in stacks), strict=True)
    return [list(map(set_cell_size, line, widths)) for line in lines], widths


def _even_blocks(widths: list[int], room: int) -> list[tuple[int, int]]:
    """The ranges of `_blocks`, as few, but of about equal width: the widest is as narrow as it can be."""
    blocks = list(_blocks(widths, room))
    narrowest = min(room, sum(widths) // len(blocks))
    choices = (list(_blocks(widths, cells)) for cells in range(narrowest, room))
    return next((choice for choice in choices if len(choice) == len(blocks)), blocks)


def _blocks(widths: list[int], room: int) -> Iterator[tuple[int, int]]:
    """Ranges of columns (first, last + 1) that each fit into the room; every range has at least one column."""
    start = used = 0
    for index, cells in enumerate(widths):
        if index > start and used + cells > room:
            yield start, index
            start, used = index, 0
        used += cells
    yield start, len(widths)


def _painted(weight: float, cells: int, inks: tuple[str, ...] | None, dot: str = SHADES[0], ink_below: str = "") -> str:
    """One cell of the map: a shade of so many terminal cells, in the colour of its weight; `dot` if it is small.

    A negative weight has a minus in its last cell, and `ink_below`, unless the terminal has all colours.
    """
    is_below, weight = weight < 0, min(max(0.0, abs(weight)), 1.0)  # NaN becomes 0
    level = bisect_right(LIMITS, weight)
    drawn = SHADES[level] * cells if level else dot.ljust(cells)
    if is_below and (level or dot == MARK):
        drawn = drawn[:-1] + MINUS
    if inks is None:
        return drawn
    plain = inks[level] if inks else _mixed(weight, NEGATIVE if is_below else STRONG)
    return f"\x1b[{ink_below if is_below and level and inks else plain}m{drawn}\x1b[0m"


def _mixed(weight: float, strongest: tuple[int, int, int] = STRONG) -> str:
    """The ink between the weak and the strong one that a weight has, of all colours."""
    parts = (round(weak + (strong - weak) * weight) for weak, strong in zip(WEAK, strongest, strict=True))
    return f"38;2;{';'.join(map(str, parts))}"
