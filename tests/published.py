"""Random weights in the form of the published ones of EfficientNet, for tests that run without their packages."""

from functools import cache

import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from regard.device import only_shapes
from regard.layers.efficientnet import CHANNELS, EfficientNetLite, folded


def published_tensors(variant: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random tensors with the names and shapes of a published file, so that features neither vanish nor saturate."""
    generator = torch.Generator().manual_seed(3)
    with only_shapes():
        own = EfficientNetLite(variant).state_dict()
    tensors: dict[str, Tensor] = {}
    for name, like in own.items():
        if not name.endswith(".weight"):
            continue
        part = name.removesuffix(".weight")
        place, _, kind = part.rpartition(".")
        theirs = f"_conv_{kind}" if not place else f"_{place}._{kind}_conv"
        norms = {"stem": "_bn0", "head": "_bn1", "expand": "_bn0", "depthwise": "_bn1", "project": "_bn2"}
        norm = f"_{place}.{norms[kind]}" if place else norms[kind]
        fan = like[0].numel()
        tensors[f"{theirs}.weight"] = torch.randn(like.shape, generator=generator) * (2 / fan) ** 0.5
        channels = like.shape[0]
        tensors[f"{norm}.weight"] = 0.8 + 0.4 * torch.rand(channels, generator=generator)
        tensors[f"{norm}.bias"] = 0.5 * torch.randn(channels, generator=generator)
        tensors[f"{norm}.running_mean"] = 0.3 * torch.randn(channels, generator=generator)
        tensors[f"{norm}.running_var"] = 0.5 + torch.rand(channels, generator=generator)
    tensors["_fc.weight"] = torch.randn(7, CHANNELS, generator=generator)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


@cache
def random_weights(variant: str) -> bytes:
    """Such weights as regard stores them, for use in place of `published_weights`."""
    return to_safetensors(folded(published_tensors(variant)))
