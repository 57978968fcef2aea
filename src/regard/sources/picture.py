"""Pictures as a source: files, or scenes of a corpus, as pixels or as the features of a front with fixed weights."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float16, UInt8
from numpy.typing import NDArray
from torch import Tensor

from regard import recipe as recipes
from regard.console import counted
from regard.data import pictures
from regard.data.archives import full_name
from regard.data.decoding import Decoders, Square
from regard.data.pictures import FITS, StoredPictures, is_scene
from regard.data.store import Shared, Stored, groups
from regard.device import choose_device, only_shapes
from regard.errors import CorruptError, RecipeError, pick
from regard.layers.efficientnet import CHANNELS
from regard.maps import PictureView
from regard.recipe import Limits, Model, Recipe
from regard.sources.core import Source
from regard.sources.picture_front import FRONTS, FeatureBatch, PictureBatch, PictureFront, Pretrained
from regard.sources.pretrained import PUBLISHED, Extractor, parse_weights, published_weights
from regard.storage import CachedRows, Run

FILE = "front.safetensors"  # of a run: the published weights of its front
MIRROR = "mirror:"  # before the name of a picture: its mirror image
GROUP = 128  # pictures whose features are computed before they are written to the cache
KEY_FORMAT = 1  # of the features in the cache: raised if another version computes others
KEPT_BYTES = 2**31  # decoded pictures that stay in memory; the others are decoded again each time they are needed
SHOWN_SIDE = 512  # pixels of a side at most when a map is drawn on a picture

Image = UInt8[Tensor, "3 size size"]
Features = Float16[Tensor, "cells channels"]


class Decoded(Stored[Image]):
    """Pictures by name, decoded when they are read; those that are read first stay in memory, up to KEPT_BYTES.

    To read all of them in their order is faster than to read each: many are decoded at once.
    """

    def __init__(self, names: Sequence[str], decode: Callable[[Sequence[str]], Iterator[Image]]) -> None:
        self.names, self.decode = names, decode
        self.kept: dict[str, Image] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.names)

    def item(self, index: int) -> Image:
        """The picture at an index from 0."""
        name = self.names[index]
        if name in self.kept:
            return self.kept[name]
        (picture,) = self.decode([name])
        return self._keep(name, picture)

    def __iter__(self) -> Iterator[Image]:
        missing = [name for name in self.names if name not in self.kept]
        decoded = self.decode(missing)
        to_decode = set(missing)  # as they are now: others may be kept meanwhile
        for name in self.names:
            yield self._keep(name, next(decoded)) if name in to_decode else self.kept[name]

    def _keep(self, name: str, picture: Image) -> Image:
        """Keep a picture if there is room; returns it."""
        if name in self.kept:
            return self.kept[name]
        if self.bytes + picture.nbytes <= KEPT_BYTES:
            self.kept[name] = picture
            self.bytes += picture.nbytes
        return picture


class Computed(Stored[Features]):
    """Features of pictures, by their keys in the cache, from which they are read when they are needed."""

    def __init__(self, keys: Sequence[bytes], read: Callable[[bytes], Features]) -> None:
        self.keys, self.read = keys, read

    def __len__(self) -> int:
        return len(self.keys)

    def item(self, index: int) -> Features:
        """The features at an index from 0."""
        return self.read(self.keys[index])


class Picture(Source[Image | Features]):
    """A picture: the name of a file, or the description of a scene, as pixels of one size.

    If the front has fixed weights, the features that it computes from the pixels stand in their place.
    """

    reads_files = True
    is_sequence = False
    noun = "picture"
    descriptions: ClassVar[Mapping[str, str]] = {"shapes": "shapes:red-circle-8-8-6,blue-square-40-8-7"}

    def __init__(self, settings: recipes.Picture, limits: Limits, weights: bytes = b"", device: str = "auto") -> None:
        self.settings, self.limits, self.weights = settings, limits, weights
        self.pictures = StoredPictures(limits)
        self.grid = pick(FRONTS, settings.front, "front").grid(settings)
        self.cells = self.grid.height * self.grid.width
        self.is_frozen = settings.front in PUBLISHED and settings.frozen
        self.device = device  # that computes features, as in train.device

    @staticmethod
    def check(recipe: Recipe) -> None:
        """Raise RecipeError if a name is in no table, or the grid has more cells than data.max_length."""
        settings = recipe.picture
        pick(FITS, settings.fit, "fit")
        _check_keys(settings)
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
        """Nothing is learned from the pictures; a front with published weights gets them, or those of the origin."""
        front, weights = recipe.picture.front, b""
        if front in PUBLISHED:
            has_weights = origin is not None and origin.has_file(FILE) and origin.recipe().picture.front == front
            weights = origin.read(FILE) if origin is not None and has_weights else published_weights(front)
        return cls(recipe.picture, recipe.data.limits, weights, recipe.train.device)

    @classmethod
    def restore(cls, recipe: Recipe, read: Callable[[str], bytes]) -> "Picture":
        """The source of a stored run, with the weights of its front."""
        weights = read(FILE) if recipe.picture.front in PUBLISHED else b""
        return cls(recipe.picture, recipe.data.limits, weights, recipe.train.device)

    @classmethod
    def locate(cls, source: str, file: str) -> str:
        """The full name of a picture that a line of a data file names: in a tar file beside it, or in its folder."""
        return source if is_scene(source) else full_name(source, file)

    @classmethod
    def variants(cls, recipe: Recipe, source: str) -> tuple[str, ...]:
        """The picture, and its mirror image if the recipe says so."""
        return (source, f"{MIRROR}{source}") if recipe.picture.mirror else (source,)

    @classmethod
    def recognises(cls, start: bytes) -> bool:
        """Whether a file that begins with these bytes has a format that is read."""
        return pictures.is_picture(start)

    def accept(self, value: object, name: str) -> str:
        """The source for an array, a tensor or an image of Pillow."""
        return pictures.accept(value, name, self.limits)

    def files(self) -> dict[str, bytes]:
        """The published weights of the front, if it has any: a run predicts without the package that they are from."""
        return {FILE: self.weights} if self.weights else {}

    def encode(self, source: str) -> Image | Features:
        """The pixels of a picture, resized; their features if the front has fixed weights."""
        return self.encode_inputs([source])[0]

    def encode_inputs(self, sources: Sequence[str]) -> Sequence[Image | Features]:
        """The pixels or the features of pictures; those in the cache are used, and no other is written there."""
        return Shared.of(sources, self._look_up if self.is_frozen else lambda names: list(self._decode(names)))

    def encode_all(self, sources: Sequence[str]) -> Sequence[Image | Features]:
        """Many pictures: a picture with several captions is kept once.

        Pixels are decoded when they are read. Features are computed now, if the cache does not have them.
        """
        return Shared.of(sources, self._compute if self.is_frozen else lambda names: Decoded(names, self._decode))

    def _content(self, source: str) -> bytes:
        return self.pictures.content(_unmirrored(source))

    def _decoders(self, names: Sequence[str] = ()) -> Decoders:
        """Decoders for pictures of these names."""
        square = Square(self.settings.size, self.settings.fit, self.limits)
        return Decoders(square, sum(not is_scene(_unmirrored(name)) for name in names))

    def _pixels(self, contents: Mapping[str, bytes], decoders: Decoders) -> list[Image]:
        """The resized pixels of pictures of these names and contents; mirrored if the name says so."""
        named = [(_unmirrored(name), content) for name, content in contents.items()]
        images = decoders.decode(named)
        pairs = zip(contents, images, strict=True)
        return [image.flip(-1) if name.startswith(MIRROR) else image for name, image in pairs]

    def _decode(self, names: Sequence[str]) -> Iterator[Image]:
        """The resized pixels of pictures, many decoded at once."""
        with self._decoders(names) as decoders:
            for group in groups(names, GROUP):
                yield from self._pixels({name: self._content(name) for name in group}, decoders)

    # features of a front with fixed weights

    @cached_property
    def _extractor(self) -> Extractor:
        device = choose_device("cpu" if self.device == "cpu" else "auto")  # a run may be used where it was not trained
        return Extractor(self.settings.front, parse_weights(self.settings.front, self.weights), device)

    @cached_property
    def _rows(self) -> CachedRows:
        """The cached features of this front, its weights, and the size and the fit of pictures."""
        settings = self.settings
        parts = [settings.front, hashlib.sha256(self.weights).hexdigest(), settings.size, settings.fit, KEY_FORMAT]
        name = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        return CachedRows("features", name, self.cells * CHANNELS * torch.float16.itemsize)

    def _key(self, source: str, content: bytes) -> bytes:
        """The key of a picture in the cache: of its content, not of its name, so that a changed picture has another."""
        return hashlib.sha256(b"mirrored" * source.startswith(MIRROR) + content).digest()

    def _to_features(self, row: NDArray[np.uint8]) -> Features:
        return torch.from_numpy(row.view(np.float16).reshape(self.cells, CHANNELS).copy())

    def _compute(self, names: Sequence[str]) -> Computed:
        """The features of pictures, from the cache or computed now."""
        keys: list[bytes] = []
        with self._decoders(names) as decoders:
            for group in groups(counted(names, "features of pictures", size=GROUP), GROUP):
                named = [(name, self._content(name)) for name in group]
                own = [self._key(name, content) for name, content in named]
                keys += own
                if any(self._rows.get(key) is None for key in own):
                    with self._rows.adding() as add:
                        missing = {key: one for key, one in zip(own, named, strict=True) if self._rows.get(key) is None}
                        features = self._extractor.features(self._pixels(dict(missing.values()), decoders))
                        add({key: row.numpy().tobytes() for key, row in zip(missing, features, strict=True)})
        return Computed(keys, self._read_cached)

    def _look_up(self, names: Sequence[str]) -> list[Features]:
        """The features of pictures; those that the cache lacks are computed, and not written there."""
        features: list[Features] = []
        with self._decoders(names) as decoders:
            for group in groups(counted(names, "features of pictures", size=GROUP), GROUP):
                contents = {name: self._content(name) for name in group}
                rows = {name: self._rows.get(self._key(name, content)) for name, content in contents.items()}
                missing = {name: contents[name] for name in group if rows[name] is None}
                pixels = self._pixels(missing, decoders)
                computed = dict(zip(missing, self._extractor.features(pixels) if missing else (), strict=True))
                features += [computed[name] if row is None else self._to_features(row) for name, row in rows.items()]
        return features

    def _read_cached(self, key: bytes) -> Features:
        row = self._rows.get(key)
        if row is None:
            raise CorruptError(f"{self._rows.path} was changed while it was used; start again")
        return self._to_features(row)

    # batches

    def size(self, item: Image | Features) -> int:
        """The number of cells of the grid."""
        return self.cells

    def sizes(self, source: str, longest: int) -> list[int]:
        """The number of cells of the grid: the same for every picture."""
        return [self.cells]

    def collate(self, items: Sequence[Image | Features]) -> PictureBatch | FeatureBatch:
        """The pixels or the features of the pictures in one tensor."""
        mask = torch.ones(len(items), self.cells, dtype=torch.bool)
        return (FeatureBatch if self.is_frozen else PictureBatch)(torch.stack([*items]), mask)

    def labels(self, item: Image | Features) -> tuple[str, ...]:
        """The row and the column of each cell, counted from 1: `2,3`."""
        rows, columns = range(1, self.grid.height + 1), range(1, self.grid.width + 1)
        return tuple(f"{row},{column}" for row in rows for column in columns)

    def view(self, source: str) -> PictureView:
        """The pixels that the grid covers: as `encode`, but not smaller than they need be for display.

        A picture that is stretched for the model is shown in its own proportions: the grid covers all of it.
        """
        pixels = pictures.load(_unmirrored(source), self.limits)
        if source.startswith(MIRROR):
            pixels = pixels[:, ::-1]
        size = min(SHOWN_SIDE, max(pixels.shape[:2]))
        if self.settings.fit == "stretch":
            return PictureView(pictures.in_proportion(pixels, size).movedim(0, -1))
        return PictureView(pictures.resize(pixels, size, self.settings.fit).movedim(0, -1))

    def front(self, model: Model) -> PictureFront:
        """Build the layers from pixels or features to vectors; a Transformer reads vectors of its own width."""
        width = model.encoder.dim if model.encoder.kind == "transformer" else model.embedding
        front = pick(FRONTS, self.settings.front, "front")(self.settings, width)
        if isinstance(front, Pretrained) and front.trunk is not None and not front.project.weight.is_meta:
            front.trunk.load_state_dict(parse_weights(self.settings.front, self.weights))
        return front

    def describe(self, items: Sequence[Image | Features]) -> str:
        """The size of the pictures and of their grid, and whether the weights of the front are fixed."""
        size, grid = self.settings.size, self.grid
        text = f"pictures of {size} x {size} pixels, read as a grid of {grid.height} x {grid.width} cells"
        if self.settings.front not in PUBLISHED:
            return text
        return f"{text} by {self.settings.front} with {'fixed' if self.is_frozen else 'fine-tuned'} weights"


def _unmirrored(source: str) -> str:
    """The source of which this one is the mirror image, or itself."""
    return source.removeprefix(MIRROR) if source.startswith(MIRROR) else source


def _check_keys(settings: recipes.Picture) -> None:
    """Refuse keys that only another front uses."""
    chosen, default = pick(FRONTS, settings.front, "front"), recipes.Picture()
    foreign = {key for kind in FRONTS.values() for key in kind.own_keys} - {*chosen.own_keys}
    for key in sorted(foreign):
        if getattr(settings, key) != getattr(default, key):
            fronts = " or ".join(name for name, kind in FRONTS.items() if key in kind.own_keys)
            raise RecipeError(f"picture.{key} is for picture.front = {fronts}, not {settings.front}; leave it out")
