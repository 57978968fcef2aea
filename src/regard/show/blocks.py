"""Maps over pictures and recordings in a terminal: a half block `▀` shows two pixels, one above the other."""

from textwrap import wrap

import torch
from jaxtyping import Float, UInt8
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from regard.maps import AttentionMap, Frames, PictureView, Spectrogram
from regard.show import filmstrip as strips
from regard.show import palette
from regard.show.labels import LONGEST, clipped, shown
from regard.show.large import pool
from regard.show.scale import darkest, shades
from regard.show.spectrogram import duration, row_names, ticks
from regard.show.views import fitted, loudness, resized, row_times

# How pictures, weights and spectrograms are painted with so many colours; 16 are too few for them.
PICTURES = {"truecolor": palette.exact, "256": palette.dithered}
WEIGHTS = {"truecolor": palette.exact, "256": palette.nearest}
SPECTRA = {"truecolor": palette.exact, "256": palette.grey}
NARROWEST, WIDEST, GAP = 18, 30, 2  # terminal cells of a panel, and between two
ROWS, SOUND = 50, 12  # lines of an alignment at most, and of a spectrogram
# Colours from quiet to loud and from no weight to full weight. They have their own dark ground, which is the same on
# dark and on light terminals.
GROUND = (22, 28, 40)
LOUD = (206, 224, 246)
STRONG = (255, 176, 32)
EDGE = (
    0.25  # so much of a middle grey is mixed to the outermost pixels of a panel: a white one ends on a white terminal
)


def filmstrip(attention: AttentionMap, view: PictureView, *, width: int, colours: str, scale: str = "row") -> str:
    """The picture and a panel for each word, in rows of the terminal's width."""
    paint, note = PICTURES[colours], strips.left_out(len(attention.rows))
    attention = strips.first(attention)
    count = len(attention.rows) + 1
    across = max(1, min(count, (width + GAP) // (NARROWEST + GAP)))
    side = max(2, min(WIDEST, (width + GAP) // across - GAP))
    high, wide = fitted(view, side)
    size = (high + high % 2, wide)  # a line has two rows of pixels
    blocks = [["", *_lines(paint(_edged(resized(view.pixels, *size))))]]
    for panel in strips.panels(attention, view, *size, scale):
        weight = f" {panel.weight:.2f}" if wide >= 10 else ""
        word = set_cell_size(clipped(shown(panel.word), wide - len(weight)), wide - len(weight))
        blocks.append([word + weight, *_lines(paint(_edged(panel.pixels)))])
    blocks[0][0] = " " * wide
    lines = []
    for start in range(0, count, across):
        lines += [(" " * GAP).join(parts).rstrip(" ") for parts in zip(*blocks[start : start + across], strict=True)]
        lines.append("")
    sentences = [f"number: the largest weight; brightest: {strips.BRIGHTEST[scale]}", note]
    return "\n".join(lines + [line for sentence in sentences for line in wrap(sentence, max(width, 10))]) + "\n"


def recording(attention: AttentionMap, view: Spectrogram, *, width: int, colours: str, scale: str = "map") -> str:
    """A line for each token with its weights over time and its time, and the spectrogram below."""
    assert isinstance(attention.layout, Frames)
    whole = duration(attention, view)
    pooled = pool(attention, ROWS, len(attention.columns))
    names = [clipped(name, max(1, min(LONGEST, width // 4))) for name in row_names(pooled.rows)]
    margin = max(map(cell_len, [*names, "Hz"])) + 1
    cells = max(4, width - margin - 8)  # a time such as 12.34 s is behind each line
    times = row_times(attention)
    share = len(attention.columns) * attention.layout.seconds / whole
    weights = _over_time(shades(pooled.weights, scale), share, cells)
    lines = []
    for dot, (name, row) in enumerate(zip(names, weights, strict=True)):
        time = times[dot * pooled.rows.step]
        drawn = _lines(WEIGHTS[colours](_mixed(row.expand(2, -1), STRONG)))[0]
        label = " " * (margin - 1 - cell_len(name)) + name
        lines.append(f"{label} {drawn}" + ("" if time is None else f" {time:5.2f} s"))
    levels = loudness(view, len(view.features), 2 * SOUND)
    sound = _over_time(levels.T.flip(0), len(view.features) * view.seconds / whole, cells, mean=True)
    spectrum = _lines(SPECTRA[colours](_mixed(sound, LOUD)))
    kinds = [f"{view.highest / 1000:g}k", *[""] * (len(spectrum) - 2), "Hz"]
    spoken = [(time, shown(row)) for time, row in zip(times, attention.rows, strict=True) if time is not None]
    lines.append(" " * margin + _beside(sorted(spoken), whole, cells))
    lines += [f"{kind:>{margin - 1}} {line}" for kind, line in zip(kinds, spectrum, strict=True)]
    lines.append(" " * margin + _beside(ticks(whole, max(2, cells // 8)), whole, cells))
    sentence = f"brightest: {darkest(attention.weights, scale)}; time: that of a row's largest weight"
    return "\n".join([*lines, "", *wrap(sentence, max(width, 10))]) + "\n"


def _over_time(
    values: Float[Tensor, "rows places"], share: float, cells: int, *, mean: bool = False
) -> Float[Tensor, "rows cells"]:
    """The values spread over this share of so many cells: the largest of each cell, or the mean; 0 behind them."""
    places, used = values.shape[1], max(1, round(share * cells))
    starts = [cell * places // used for cell in range(used)]
    stops = [max(start + 1, (cell + 1) * places // used) for cell, start in enumerate(starts)]
    spread = values.new_zeros(len(values), cells)
    for cell, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        part = values[:, start:stop]
        spread[:, cell] = part.mean(1) if mean else part.amax(1)
    return spread


def _mixed(values: Float[Tensor, "rows columns"], colour: tuple[int, int, int]) -> UInt8[Tensor, "rows columns 3"]:
    """Pixels between the ground (0) and a colour (1)."""
    ground = torch.tensor(GROUND, dtype=torch.float32)
    shares = values.detach().cpu().float().nan_to_num(0, 0, 0).clamp(0, 1).unsqueeze(-1)
    return (ground + (torch.tensor(colour) - ground) * shares).round().byte()


def _edged(pixels: UInt8[Tensor, "height width 3"]) -> UInt8[Tensor, "height width 3"]:
    """The panel with a thin edge, which takes no room: its outermost pixels, nearer to a middle grey."""
    height, width, _ = pixels.shape
    inside = torch.zeros(height, width, 1, dtype=torch.bool)
    inside[1:-1, 1:-1] = True
    return torch.where(inside, pixels, (pixels + EDGE * (128 - pixels.float())).round().byte())


def _beside(labels: list[tuple[float, str]], seconds: float, cells: int) -> str:
    """A line of labels, each of which begins at its time; those that have no room are left out."""
    line = ""
    for time, label in labels:
        place = round(time / seconds * cells)
        if place >= cell_len(line) + bool(line) and place + cell_len(label) <= cells + 8:
            line += " " * (place - cell_len(line)) + label
    return line


def _lines(colours: list[list[str]]) -> list[str]:
    """The pixels as lines of half blocks, two rows of pixels each; of an odd number, the last row is repeated."""
    lower = [*colours[1::2], *colours[-1:]]
    return [
        "".join(f"\x1b[38;{above};48;{below}m▀\x1b[0m" for above, below in zip(*rows, strict=True))
        for rows in zip(colours[0::2], lower, strict=False)
    ]
