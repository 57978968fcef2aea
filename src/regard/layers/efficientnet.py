"""EfficientNet-Lite: convolutions that turn a picture into features of a grid, with weights learned on ImageNet.

Tan and Le 2019, EfficientNet; the Lite variants (2020) have no squeeze-and-excitation, and ReLU6 in place of swish.
Stem, head and the numbers of their channels do not grow with the variant.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional

CHANNELS = 1280  # of the features
STRIDE = 32  # pixels of a cell, in height and width
STEM = 32  # channels after the first convolution
EXPANSION = 6  # channels within a block, by those that enter it; in the first stage 1
EPSILON = 1e-3  # of batch normalisation
MEAN, DEVIATION = 127.0, 128.0  # pixels are normalised as for these weights: to about -1 .. 1


class Stage(NamedTuple):
    """Blocks of one shape; the first has the stride."""

    blocks: int
    channels: int
    kernel: int
    stride: int


VARIANTS = {
    "efficientnet_lite0": (
        Stage(1, 16, 3, 1),
        Stage(2, 24, 3, 2),
        Stage(2, 40, 5, 2),
        Stage(3, 80, 3, 2),
        Stage(3, 112, 5, 1),
        Stage(4, 192, 5, 2),
        Stage(1, 320, 3, 1),
    ),
    "efficientnet_lite2": (
        Stage(1, 16, 3, 1),
        Stage(3, 24, 3, 2),
        Stage(3, 48, 5, 2),
        Stage(4, 88, 3, 2),
        Stage(4, 120, 5, 1),
        Stage(5, 208, 5, 2),
        Stage(1, 352, 3, 1),
    ),
}


class SameConvolution(nn.Conv2d):
    """A convolution with TensorFlow's padding SAME: of an odd number of zeros, the end has one more than the start.

    The outputs are as many as the inputs, divided by the stride and rounded up. Its bias is the shift of the batch
    normalisation that followed it, see `folded`.
    """

    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups)

    def forward(
        self, inputs: Float[Tensor, "batch inputs height width"]
    ) -> Float[Tensor, "batch outputs rows columns"]:
        """The convolution of the padded inputs."""
        height, width = (self._padding(size) for size in inputs.shape[-2:])
        padded = functional.pad(inputs, (*width, *height)) if any((*height, *width)) else inputs
        return super().forward(padded)

    def _padding(self, size: int) -> tuple[int, int]:
        """The zeros before and after this many inputs."""
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        outputs = -(-size // stride)
        zeros = max(0, (outputs - 1) * stride + kernel - size)
        return zeros // 2, zeros - zeros // 2


class InvertedResidual(nn.Module):
    """Sandler et al. 2018: expand the channels, convolve each by itself (depthwise), project to few; add the input.

    y = x + project(relu6(depthwise(relu6(expand(x))))).  The sum only if x and the projection have the same shape.
    """

    def __init__(self, inputs: int, outputs: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = SameConvolution(inputs, inner, kernel=1) if expansion > 1 else None
        self.depthwise = SameConvolution(inner, inner, kernel=kernel, stride=stride, groups=inner)
        self.project = SameConvolution(inner, outputs, kernel=1)
        self.has_sum = stride == 1 and inputs == outputs

    def forward(
        self, inputs: Float[Tensor, "batch inputs height width"]
    ) -> Float[Tensor, "batch outputs rows columns"]:
        """The features after this block."""
        expanded = inputs if self.expand is None else functional.relu6(self.expand(inputs))
        projected = self.project(functional.relu6(self.depthwise(expanded)))
        return inputs + projected if self.has_sum else projected


class EfficientNetLite(nn.Module):
    """The convolutions of a variant, without the classifier: features with 1,280 channels for each 32 x 32 pixels.

    Batch normalisation keeps its stored statistics, also when the weights are fine-tuned, so that pictures of one batch
    do not change each other's features. It is then an affine function of each channel, and is part of the convolutions.
    """

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.stem = SameConvolution(3, STEM, kernel=3, stride=2)
        blocks, channels = [], STEM
        for number, stage in enumerate(VARIANTS[variant]):
            expansion = EXPANSION if number else 1
            for place in range(stage.blocks):
                stride = 1 if place else stage.stride
                shape = {"kernel": stage.kernel, "stride": stride, "expansion": expansion}
                blocks.append(InvertedResidual(channels, stage.channels, **shape))
                channels = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.head = SameConvolution(channels, CHANNELS, kernel=1)

    def forward(self, pixels: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch rows columns channels"]:
        """The features of each cell, from 0 to 6."""
        normalised = (pixels.to(self.stem.weight.dtype) - MEAN) / DEVIATION
        features = self.blocks(functional.relu6(self.stem(normalised)))
        return functional.relu6(self.head(features)).movedim(1, -1)


def folded(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `EfficientNetLite` from a published state dict with batch normalisation and a classifier.

    With scale s = weight / sqrt(variance + epsilon):  s (W x - mean) + bias = (s W) x + (bias - s mean).
    """
    tensors: dict[str, Tensor] = {}
    for own, theirs, norm in _names(published):
        weight, bias, mean, variance = (
            published[f"{norm}.{part}"].double() for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = weight / torch.sqrt(variance + EPSILON)
        kernel = published[f"{theirs}.weight"].double() * scale[:, None, None, None]
        tensors |= {f"{own}.weight": kernel.contiguous(), f"{own}.bias": bias - scale * mean}
    return {name: tensor.to(published["_conv_stem.weight"].dtype) for name, tensor in tensors.items()}


def _names(published: Mapping[str, Tensor]) -> list[tuple[str, str, str]]:
    """The names of each convolution, here and in the published state dict, and of its batch normalisation there."""
    names = [("stem", "_conv_stem", "_bn0"), ("head", "_conv_head", "_bn1")]
    blocks = 1 + max(int(name.split(".")[1]) for name in published if name.startswith("_blocks."))
    for number in range(blocks):
        for part, norm in (("expand", "_bn0"), ("depthwise", "_bn1"), ("project", "_bn2")):
            theirs = f"_blocks.{number}._{part}_conv"
            if f"{theirs}.weight" in published:
                names.append((f"blocks.{number}.{part}", theirs, f"_blocks.{number}.{norm}"))
    return names
