"""Fronts for pictures: the layers that turn pixels, or features of them, into a grid of vectors; and their batches."""

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Float16, UInt8
from torch import Tensor, nn
from torch.nn import functional

from regard import recipe as recipes
from regard.attention.gates import SqueezeExcite
from regard.attention.positions import sinusoids
from regard.errors import pick
from regard.layers.efficientnet import CHANNELS, STRIDE, EfficientNetLite
from regard.maps import Grid
from regard.sources.core import Front, Vectors
from regard.types import BatchFirst


@dataclass(frozen=True)
class PictureBatch(BatchFirst):
    """Pictures of one size; the positions of a row are the cells of the front's grid, row by row, all of them real."""

    pixels: UInt8[Tensor, "batch 3 size size"]
    mask: Bool[Tensor, "batch cells"]

    def crop(self, width: int) -> "PictureBatch":
        """The first `width` cells of every row; the pixels stay whole."""
        return PictureBatch(self.pixels, self.mask[:, :width])


@dataclass(frozen=True)
class FeatureBatch(BatchFirst):
    """Features of pictures that a front with fixed weights has computed; all positions are real."""

    features: Float16[Tensor, "batch cells channels"]
    mask: Bool[Tensor, "batch cells"]

    def crop(self, width: int) -> "FeatureBatch":
        """The first `width` cells of every row."""
        return FeatureBatch(self.features[:, :width], self.mask[:, :width])


class GridPositions(nn.Module):
    """No positions: the base class, which changes no vector."""

    def __init__(self, *, side: int, width: int) -> None:
        super().__init__()

    def forward(self, cells: Float[Tensor, "batch side side width"]) -> Float[Tensor, "batch side side width"]:
        """Add the position of each cell to its vector."""
        return cells


class SinusoidalGrid(GridPositions):
    """Parmar et al. 2018: sinusoids of the row in the first half of a vector, and of the column in the second."""

    def __init__(self, *, side: int, width: int) -> None:
        super().__init__(side=side, width=width)
        half = width // 2
        rows, columns = sinusoids(torch.arange(side), half), sinusoids(torch.arange(side), width - half)
        table = rows.new_empty(side, side, width)
        table[..., :half], table[..., half:] = rows[:, None], columns[None]
        self.register_buffer("table", table, persistent=False)

    def forward(self, cells: Float[Tensor, "batch side side width"]) -> Float[Tensor, "batch side side width"]:
        """Add the sinusoids of each cell to its vector."""
        assert isinstance(self.table, Tensor)
        return cells + self.table.to(cells.dtype)


class LearnedGrid(GridPositions):
    """Dosovitskiy et al. 2021, D.4: a learned vector for each row, and one for each column."""

    def __init__(self, *, side: int, width: int) -> None:
        super().__init__(side=side, width=width)
        self.rows = nn.Parameter(torch.randn(side, 1, width))
        self.columns = nn.Parameter(torch.randn(1, side, width))

    def forward(self, cells: Float[Tensor, "batch side side width"]) -> Float[Tensor, "batch side side width"]:
        """Add the vectors of row and column of each cell to its vector."""
        return cells + self.rows + self.columns


GRID_POSITIONS: dict[str, type[GridPositions]] = {
    "none": GridPositions,
    "sinusoidal": SinusoidalGrid,
    "learned": LearnedGrid,
}


class Block(nn.Module):
    """A convolution that halves height and width, layer normalisation of each position, ReLU, and maybe gates.

    Layer normalisation over the channels of one position (Liu et al. 2022, ConvNeXt) mixes neither pictures nor
    positions. Group or batch normalisation would tell every cell about the whole picture, and attention to an empty
    cell could then mean anything.
    """

    def __init__(self, inputs: int, outputs: int, *, kernel: int, squeeze_excite: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, kernel, stride=2, padding=kernel // 2 - 1)
        self.norm = nn.LayerNorm(outputs)
        self.gates = SqueezeExcite(channels=outputs) if squeeze_excite else nn.Identity()

    def forward(
        self, inputs: Float[Tensor, "batch height width inputs"]
    ) -> Float[Tensor, "batch rows columns outputs"]:
        """The features of half the height and width, rounded down."""
        features = self.convolution(inputs.movedim(-1, 1)).movedim(1, -1)
        return self.gates(functional.relu(self.norm(features)))


class PictureFront(Front):
    """Base class of fronts for pictures: turns pixels into the vectors of a grid."""

    own_keys: ClassVar[tuple[str, ...]] = ()  # of the section picture: those that only this front uses

    def __init__(self, settings: recipes.Picture, width: int) -> None:
        super().__init__()

    @staticmethod
    @abstractmethod
    def grid(settings: recipes.Picture) -> Grid:
        """The grid of the vectors."""


class Convolution(PictureFront):
    """Blocks of convolutions from pixels to a grid; then the position of each cell is mixed into its vector.

    With kernels of width 2, which do not overlap, a cell sees its own pixels only, so that attention to a cell means
    attention to what is there. The width is always even: with 3, a cell would see more to its upper left.

    cell = W features + position,  vector = cell + V relu(U cell).  Without the last step, the mean of all vectors, from
    which a decoder starts, would not depend on where things are.
    """

    own_keys = ("channels", "blocks", "kernel", "squeeze_excite")

    def __init__(self, settings: recipes.Picture, width: int) -> None:
        super().__init__(settings, width)
        channels = [3, *(settings.channels * 2**block for block in range(settings.blocks))]
        make = partial(Block, kernel=settings.kernel, squeeze_excite=settings.squeeze_excite)
        self.blocks = nn.Sequential(*(make(*pair) for pair in pairwise(channels)))
        self.project = nn.Linear(channels[-1], width)
        self.layout = self.grid(settings)
        positions = pick(GRID_POSITIONS, settings.positions, "kind of grid positions")
        self.positions = positions(side=self.layout.height, width=width)
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    @staticmethod
    def grid(settings: recipes.Picture) -> Grid:
        """The grid after the last block: each one halves both sides, rounded down."""
        side = settings.size // 2**settings.blocks
        return Grid(side, side)

    @property
    def width(self) -> int:
        """The width of the vectors."""
        return self.project.out_features

    def embed(self, source: PictureBatch) -> Vectors:
        """A vector for every cell of the grid, row by row."""
        pixels = source.pixels.to(self.project.weight.dtype) / 127.5 - 1.0
        cells = self.positions(self.project(self.blocks(pixels.movedim(1, -1))))
        vectors = (cells + self.mix(cells)).flatten(1, 2)
        return Vectors(vectors[:, : source.mask.shape[1]], source.mask, self.layout)


class Pretrained(PictureFront):
    """Base class of fronts with published weights: vector = W features + position.

    If the weights are fixed (`picture.frozen`), this part of the model begins with the features, which the source
    computes once for each picture. Otherwise it begins with the pixels, and all weights are trained.
    """

    own_keys = ("frozen",)

    def __init__(self, settings: recipes.Picture, width: int) -> None:
        super().__init__(settings, width)
        self.trunk = None if settings.frozen else EfficientNetLite(settings.front)
        self.project = nn.Linear(CHANNELS, width)
        self.layout = self.grid(settings)
        positions = pick(GRID_POSITIONS, settings.positions, "kind of grid positions")
        self.positions = positions(side=self.layout.height, width=width)

    @staticmethod
    def grid(settings: recipes.Picture) -> Grid:
        """A cell for each 32 x 32 pixels, and for a rest of them."""
        side = -(-settings.size // STRIDE)
        return Grid(side, side)

    @property
    def width(self) -> int:
        """The width of the vectors."""
        return self.project.out_features

    def embed(self, source: PictureBatch | FeatureBatch) -> Vectors:
        """A vector for every cell of the grid, row by row."""
        cells = self.positions(self.project(self._features(source)))
        return Vectors(cells.flatten(1, 2)[:, : source.mask.shape[1]], source.mask, self.layout)

    def _features(self, source: PictureBatch | FeatureBatch) -> Float[Tensor, "batch height width channels"]:
        if self.trunk is None:
            assert isinstance(source, FeatureBatch)
            missing = self.layout.height * self.layout.width - source.features.shape[1]  # if the batch was cropped
            real = source.features.masked_fill(~source.mask.unsqueeze(-1), 0.0)  # 0 times NaN would be NaN in gradients
            features = functional.pad(real, (0, 0, 0, missing)) if missing else real
            return features.to(self.project.weight.dtype).unflatten(1, (self.layout.height, self.layout.width))
        assert isinstance(source, PictureBatch)
        return self.trunk(source.pixels)


class EfficientNetLite0(Pretrained):
    """Tan and Le 2019, EfficientNet-Lite0: 3.4 million weights from ImageNet, made for 224 x 224 pixels."""


class EfficientNetLite2(Pretrained):
    """Tan and Le 2019, EfficientNet-Lite2: 4.8 million weights from ImageNet, made for 260 x 260 pixels."""


FRONTS: dict[str, type[PictureFront]] = {
    "convolution": Convolution,
    "efficientnet_lite0": EfficientNetLite0,
    "efficientnet_lite2": EfficientNetLite2,
}
