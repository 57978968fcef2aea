"""The picture, spectrogram or series that a map is drawn on: loads it, and lays weights over its pixels."""

import math
import warnings
from collections.abc import Callable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from regard.errors import RegardError
from regard.maps import AttentionMap, Frames, Grid, Layout, PictureView, SeriesView, SourceView, Spectrogram, Steps

LUMA = (0.299, 0.587, 0.114)  # share of red, green and blue in the lightness of a pixel (ITU-R BT.601)
DIM, PALE = 0.5, 0.35  # lightness and colour of a pixel without weight, as shares of its own
GLOW, AMBER = 0.25, (255, 176, 32)  # so much of this colour is mixed to a pixel of full weight: black would stay black
RANGE = 14.0  # nats below the loudest point at which a spectrogram is lightest: 60 decibels
INK = (24, 34, 48)  # the loudest points of a spectrogram on white


def source_view(attention: AttentionMap) -> SourceView | None:
    """The picture, spectrogram or series of a map; None if it has none, or if its columns are not those of the map.

    If its file cannot be read any more, a warning says so, and the map is drawn as a matrix.
    """
    return None if attention.view is None else load(attention.view, attention.layout, len(attention.columns))


def load(view: Callable[[], SourceView | None], layout: Layout, columns: int) -> SourceView | None:
    """As `source_view`, of a map with this layout and so many columns."""
    try:
        loaded = view()
    except RegardError as error:
        warnings.warn(f"the map is drawn as a matrix: {error}", stacklevel=2)
        return None
    if isinstance(loaded, PictureView) and isinstance(layout, Grid):
        return loaded if layout.height * layout.width == columns else None
    if isinstance(loaded, SeriesView) and isinstance(layout, Steps):
        return loaded if columns < len(loaded.times) else None
    return loaded if isinstance(loaded, Spectrogram) and isinstance(layout, Frames) and columns else None


# pictures


def interpolation(cells: int, dots: int) -> Float[Tensor, "dots cells"]:
    """The share of each cell in each dot along one side of a picture: cos(pi/2 d)**2, at a distance of d < 1 cells.

    The shares of a dot sum to 1, and those of a cell are the same for all cells. So no weight is lost, and none lies
    outside the picture. At the centre of a cell its own weight counts alone, at its edge half.
    """
    places = ((torch.arange(dots, dtype=torch.float64) + 0.5) * cells / dots - 0.5).clamp(0, cells - 1)
    distances = (places.unsqueeze(1) - torch.arange(cells)).abs().clamp(max=1)
    return (1 + (distances * math.pi).cos()) / 2  # the same, and exactly 0 at 1


def upsample(weights: Float[Tensor, " cells"], grid: Grid, height: int, width: int) -> Float[Tensor, "height width"]:
    """The weights of a grid's cells, row by row, as a smooth image of this size; its mean is that of the weights."""
    cells = weights.detach().cpu().double().nan_to_num(0, 0, 0).reshape(grid.height, grid.width)
    return interpolation(grid.height, height) @ cells @ interpolation(grid.width, width).T


def overlay(
    pixels: UInt8[Tensor, "height width 3"], heat: Float[Tensor, "height width"]
) -> UInt8[Tensor, "height width 3"]:
    """The picture under a heat map from 0 to 1: dark and almost grey at 0, in its own colours and glowing at 1."""
    colours = pixels.double()
    grey = (colours @ colours.new_tensor(LUMA)).unsqueeze(-1)
    dark = (grey + (colours - grey) * PALE) * DIM
    bright = colours * (1 - GLOW) + colours.new_tensor(AMBER) * GLOW
    return (dark + (bright - dark) * heat.clamp(0, 1).unsqueeze(-1)).round().byte()


def resized(pixels: UInt8[Tensor, "height width 3"], height: int, width: int) -> UInt8[Tensor, "rows columns 3"]:
    """The picture in another size, with an antialiasing filter."""
    if pixels.shape[:2] == (height, width):
        return pixels
    channels = pixels.movedim(-1, 0)[None].float()
    changed = functional.interpolate(channels, [height, width], mode="bilinear", align_corners=False, antialias=True)
    return changed[0].movedim(0, -1).round().byte()


def fitted(view: PictureView, side: float) -> tuple[int, int]:
    """Height and width of the picture if its longer side has this size."""
    height, width = view.pixels.shape[:2]
    return max(1, round(height * side / max(height, width))), max(1, round(width * side / max(height, width)))


# spectrograms


def loudness(view: Spectrogram, frames: int, bands: int) -> Float[Tensor, "frames bands"]:
    """The spectrogram from 0 to 1, at most so many frames and bands; of longer ones, several are averaged to one.

    1 is the loudest point, 0 what is 60 decibels below it.
    """
    features = view.features.float()
    highest = features.max()
    lowest = torch.maximum(features.min(), highest - RANGE)
    levels = (features - lowest) / (highest - lowest).clamp(min=1e-6)
    size = min(frames, levels.shape[0]), min(bands, levels.shape[1])
    return functional.adaptive_avg_pool2d(levels.clamp(0, 1)[None], size)[0]


def inked(levels: Float[Tensor, "frames bands"]) -> UInt8[Tensor, "bands frames 3"]:
    """A spectrogram in dark ink on white: time from left to right, low frequencies at the bottom."""
    upright = levels.T.flip(0).unsqueeze(-1)
    return (255 + (upright.new_tensor(INK) - 255) * upright).round().byte()


def row_times(attention: AttentionMap) -> list[float | None]:
    """The second of each row's largest weight over a recording; None for `<s>`, `</s>` and rows without weight."""
    assert isinstance(attention.layout, Frames)
    times: list[float | None] = [None] * len(attention.rows)
    for column, row in attention.links():
        times[row] = column * attention.layout.seconds
    return times
