"""Estimates the memory of a model from its shapes, so that one that cannot fit is refused before anything is built."""

import torch
from torch import nn

from regard import device as devices
from regard.errors import ResourceError
from regard.recipe import Train

CPU = torch.device("cpu")
GIB = 2**30
SMALLER_MODEL = "lower the widths, the layers, tokens.size or model.longest, or use a machine with more memory"


def of_model(model: nn.Module) -> int:
    """The bytes of a model's parameters and buffers; the model may be on the meta device."""
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


def of_training(model: nn.Module, settings: Train) -> int:
    """The bytes that training surely takes: the model, its gradients, two moments of AdamW, averages of the weights.

    The activations come on top; how much they take depends on the batches and on the kernels.
    """
    snapshots = min(settings.average, settings.validations(settings.updates)) if settings.average > 1 else 0
    averages = (settings.ema > 0) + snapshots
    return of_model(model) + (3 + averages) * sum(parameter.nbytes for parameter in model.parameters())


def check_model(model: nn.Module, device: torch.device) -> None:
    """Raise ResourceError if a model (on the meta device) is larger than the memory of the CPU, or of this device."""
    for place in dict.fromkeys((CPU, device)):  # it is built on the CPU, then moved
        _check("the model", of_model(model), place, SMALLER_MODEL)


def check_training(model: nn.Module, settings: Train, device: torch.device) -> None:
    """Raise ResourceError if a model (on the meta device) cannot be trained in the memory of this device."""
    check_model(model, device)
    less = SMALLER_MODEL if settings.average == 1 else f"lower train.average, or {SMALLER_MODEL}"
    _check("training (weights, gradients, optimizer, averages)", of_training(model, settings), device, less)


def describe(needed: int, device: torch.device) -> str:
    """The sentence about the memory that training surely takes."""
    sizes = f"at least {_size(needed)} of the {_size(devices.memory(device))} of {device}"
    return f"memory: {sizes}, for weights, gradients, optimizer and averages; batches come on top"


def _size(count: int) -> str:
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / 2**20:,.1f} MiB"


def _check(what: str, needed: int, device: torch.device, how_to_fix: str) -> None:
    if needed > devices.memory(device):
        sizes = f"at least {needed / GIB:,.1f} GiB of memory, but {device} has {devices.memory(device) / GIB:,.1f} GiB"
        raise ResourceError(f"{what} would take {sizes}; {how_to_fix}")
