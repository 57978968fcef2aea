"""Pictures as a source: files, or scenes of a corpus, and the layers that turn pixels into a grid of vectors."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn
from torch.nn import functional

from regard import recipe as recipes
from regard.attention.gates import SqueezeExcite
from regard.attention.positions import sinusoids
from regard.data import pictures
from regard.data.pictures import FITS, SCENES
from regard.data.store import Stored
from regard.device import only_shapes
from regard.errors import RecipeError, pick
from regard.maps import Grid
from regard.recipe import Limits, Model, Recipe
from regard.sources.core import Front, Source, Vectors
from regard.storage import Run
from regard.types import BatchFirst

KEPT_BYTES = 2**31  # decoded pictures that stay in memory; the others are decoded again each time they are needed

Image = UInt8[Tensor, "3 size size"]


@dataclass(frozen=True)
class PictureBatch(BatchFirst):
    """Pictures of one size; the positions of a row are the cells of the front's grid, row by row, all of them real."""

    pixels: UInt8[Tensor, "batch 3 size size"]
    mask: Bool[Tensor, "batch cells"]

    def crop(self, width: int) -> "PictureBatch":
        """The first `width` cells of every row; the pixels stay whole."""
        return PictureBatch(self.pixels, self.mask[:, :width])


# the front


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
        both = [rows[:, None].expand(-1, side, -1), columns[None].expand(side, -1, -1)]
        self.register_buffer("table", torch.cat(both, dim=-1), persistent=False)

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


FRONTS: dict[str, type[PictureFront]] = {"convolution": Convolution}


# the source


class Decoded(Stored[Image]):
    """Pictures by name, decoded when they are read; those that are read first stay in memory, up to KEPT_BYTES."""

    def __init__(self, sources: Sequence[str], decode: Callable[[str], Image]) -> None:
        self.sources, self.decode = sources, decode
        self.kept: dict[str, Image] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.sources)

    def item(self, index: int) -> Image:
        """The picture at an index from 0."""
        name = self.sources[index]
        if name in self.kept:
            return self.kept[name]
        picture = self.decode(name)
        if self.bytes + picture.nbytes <= KEPT_BYTES:
            self.kept[name] = picture
            self.bytes += picture.nbytes
        return picture


class Picture(Source[Image]):
    """A picture: the name of a file, or the description of a scene, as pixels of one size."""

    reads_files = True
    noun = "picture"

    def __init__(self, settings: recipes.Picture, limits: Limits) -> None:
        self.settings, self.limits = settings, limits
        self.grid = pick(FRONTS, settings.front, "front").grid(settings)

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Raise RecipeError if a name is in no table, or the grid has more cells than data.max_length."""
        settings = recipe.picture
        pick(FITS, settings.fit, "fit")
        if settings.kernel % 2:
            raise RecipeError(
                f"picture.kernel is an even number, so that a cell lies in the middle, not {settings.kernel}"
            )
        grid = Picture(settings, recipe.data.limits).grid
        if not grid.height:
            how = "lower picture.blocks or raise picture.size"
            raise RecipeError(
                f"{settings.blocks} blocks leave nothing of {settings.size} x {settings.size} pixels; {how}"
            )
        if grid.height * grid.width > recipe.data.max_length:
            cells = f"{grid.height} x {grid.width} = {grid.height * grid.width:,} cells"
            how = "raise picture.blocks or data.max_length, or lower picture.size"
            raise RecipeError(f"the grid of a picture has {cells}, more than data.max_length; {how}")
        with only_shapes():
            pick(FRONTS, settings.front, "front")(settings, 1)

    @classmethod
    def fit(cls, recipe: Recipe, sources: Sequence[str], origin: Run | None = None) -> "Picture":
        """Nothing is learned from the pictures; the recipe says all."""
        return cls(recipe.picture, recipe.data.limits)

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Picture":
        """The source of a stored run: its recipe says all."""
        return cls(recipe.picture, recipe.data.limits)

    @classmethod
    def locate(cls, source: str, file: str) -> str:
        """The name of a picture that a line of a data file names: it is relative to the folder of that file."""
        return source if source.startswith(tuple(SCENES)) else str(Path(file).parent / source)

    @classmethod
    def recognises(cls, start: bytes) -> bool:
        """Whether a file that begins with these bytes has a format that is read."""
        return pictures.is_picture(start)

    def accept(self, value: object, name: str) -> str:
        """The source for an array, a tensor or an image of Pillow."""
        return pictures.accept(value, name, self.limits)

    def files(self) -> dict[str, bytes]:
        """None: the recipe has all settings."""
        return {}

    def encode(self, source: str) -> Image:
        """The pixels of a picture, resized."""
        return pictures.resize(pictures.load(source, self.limits), self.settings.size, self.settings.fit)

    def encode_all(self, sources: Sequence[str]) -> Sequence[Image]:
        """Many pictures, decoded when they are read; a picture with several captions is decoded once."""
        return Decoded(sources, self.encode)

    def size(self, item: Image) -> int:
        """The number of cells of the grid."""
        return self.grid.height * self.grid.width

    def collate(self, items: Sequence[Image]) -> PictureBatch:
        """The pixels of the pictures in one tensor."""
        mask = torch.ones(len(items), self.grid.height * self.grid.width, dtype=torch.bool)
        return PictureBatch(torch.stack([*items]), mask)

    def labels(self, item: Image) -> tuple[str, ...]:
        """The row and the column of each cell, counted from 1: `2,3`."""
        rows, columns = range(1, self.grid.height + 1), range(1, self.grid.width + 1)
        return tuple(f"{row},{column}" for row in rows for column in columns)

    def front(self, model: Model) -> PictureFront:
        """Build the layers from pixels to vectors; a Transformer reads vectors of its own width."""
        width = model.encoder.dim if model.encoder.kind == "transformer" else model.embedding
        return pick(FRONTS, self.settings.front, "front")(self.settings, width)

    def describe(self, items: Sequence[Image]) -> str:
        """The size of the pictures and of their grid."""
        size, grid = self.settings.size, self.grid
        return f"pictures of {size} x {size} pixels, read as a grid of {grid.height} x {grid.width} cells"
