"""Estimates the memory of a model from its shapes, so that one that cannot fit is refused before anything is built."""

import os

import torch
from torch import nn

from regard.errors import ResourceError
from regard.recipe import Train

CPU = torch.device("cpu")
GIB = 2**30
# Files with the memory limit of a container in bytes (control groups, versions 2 and 1); "max" if there is none.
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
SMALLER = "lower the widths, the layers, tokens.size or model.longest, or use a machine with more memory"


def of_model(model: nn.Module) -> int:
    """The bytes of a model's parameters and buffers; the model may be on the meta device."""
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


def of_training(model: nn.Module, settings: Train) -> int:
    """The bytes that training surely takes: the model, its gradients, two moments of AdamW, averages of the weights.

    The activations come on top; how much they take depends on the batches and on the kernels.
    """
    validations = -(-settings.updates // settings.validate)
    averages = (settings.ema > 0) + (min(settings.average, validations) if settings.average > 1 else 0)
    return of_model(model) + (3 + averages) * sum(parameter.nbytes for parameter in model.parameters())


def total(device: torch.device) -> int:
    """The bytes of memory that a device has, free or not; for the CPU at most the limit of its container."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_container_limits()])


def _container_limits() -> list[int]:
    """The memory limits of the container that this process runs in."""
    limits = []
    for name in LIMITS:
        try:
            with open(name, encoding="ascii") as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):  # there is no such file, or no limit
            continue
    return limits


def check_model(model: nn.Module, device: torch.device) -> None:
    """Raise ResourceError if a model (on the meta device) is larger than the memory of the CPU, or of this device."""
    for place in dict.fromkeys((CPU, device)):  # it is built on the CPU, then moved
        _check("the model", of_model(model), place, SMALLER)


def check_training(model: nn.Module, settings: Train, device: torch.device) -> None:
    """Raise ResourceError if a model (on the meta device) cannot be trained in the memory of this device."""
    check_model(model, device)
    less = SMALLER if settings.average == 1 else f"lower train.average, or {SMALLER}"
    _check("training (weights, gradients, optimizer, averages)", of_training(model, settings), device, less)


def _check(what: str, needed: int, device: torch.device, how_to_fix: str) -> None:
    if needed > total(device):
        sizes = f"at least {needed / GIB:,.1f} GiB of memory, but {device} has {total(device) / GIB:,.1f} GiB"
        raise ResourceError(f"{what} would take {sizes}; {how_to_fix}")
