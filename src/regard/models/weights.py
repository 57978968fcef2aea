"""The weights of a model: read them from a model, load them into a model, load those that a run has stored.

Stored tensors may come from anybody: their names, shapes and types are checked before they are used.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from torch import Tensor, nn

from regard import device as devices
from regard.errors import CorruptError, shown
from regard.storage import MODEL, Folder, Run
from regard.storage.runs import resume_command

HEADER, PER_TENSOR = 1 << 20, 1 << 10  # bytes that a file may need besides the numbers: in all, and for each tensor


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's `state_dict` by name; a tensor that two parts share occurs once."""
    names = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name in names}


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load tensors that `weights` returned into a model; RuntimeError if names or shapes do not fit."""
    shared = model.state_dict().keys() - weights(model).keys()
    missing, unexpected = model.load_state_dict(dict(tensors), strict=False)
    if unexpected or set(missing) - shared:
        raise RuntimeError(f"missing {sorted(set(missing) - shared)}, unexpected {sorted(unexpected)}")


def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or an infinite number; None if all numbers are finite.

    The results stay on the device until all tensors are checked, so the host waits for a GPU once.
    """
    checks = [tensor.isfinite().all() for tensor in tensors.values()]
    finite = torch.stack(checks).tolist() if checks else []
    return next((name for name, is_finite in zip(tensors, finite, strict=True) if not is_finite), None)


def read_tensors(folder: Folder, name: str, allowed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file; CorruptError if it is damaged, or if a tensor is not like the `allowed` one of its name.

    The allowed tensors give names, shapes and types; they may be on the meta device. All numbers must be finite.
    """
    tensors = _parse(folder, name, HEADER + sum(PER_TENSOR + tensor.nbytes for tensor in allowed.values()))
    _check(tensors, allowed, folder.path / name)
    return tensors


def _parse(folder: Folder, name: str, most: int) -> dict[str, Tensor]:
    """The tensors of a file of at most `most` bytes, which are not checked."""
    content = folder.read(name, most)
    try:
        return parse_tensors(content)
    except (SafetensorError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CorruptError(f"{folder.path / name} holds no tensors: {shown(str(error))}") from error


def _check(tensors: Mapping[str, Tensor], allowed: Mapping[str, Tensor], path: Path) -> None:
    """Raise CorruptError for a tensor that is not like the allowed one of its name, or is not finite."""
    for name, tensor in tensors.items():
        if name not in allowed:
            raise CorruptError(f"{path} does not fit the run's recipe: it has an unknown tensor {shown(name)}")
        if (tensor.shape, tensor.dtype) != (allowed[name].shape, allowed[name].dtype):
            stored, expected = _describe(tensor), _describe(allowed[name])
            raise CorruptError(f"{path} does not fit the run's recipe: {name} is {stored}, and should be {expected}")
    _check_finite(tensors, path)


def _check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise CorruptError for a tensor with numbers that are not finite."""
    if name := not_finite(tensors):
        raise CorruptError(
            f"{path} cannot be used: the tensor {name} holds NaN or infinite numbers; "
            "copy the run again from where it came, or train it again"
        )


def _describe(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def read_weights(folder: Folder, model: nn.Module) -> dict[str, Tensor]:
    """The weights that a folder stores for this model; the model may be on the meta device."""
    expected = weights(model)
    tensors = read_tensors(folder, MODEL, expected)
    if missing := expected.keys() - tensors.keys():
        raise CorruptError(f"{folder.path / MODEL} does not fit the run's recipe: it lacks the tensor {min(missing)}")
    return tensors


def stored_weights(run: Run, model: nn.Module) -> dict[str, Tensor]:
    """The weights that a run has stored, checked against its model; CorruptError if there are none, or others."""
    _check_stored(run)
    return read_weights(run, model)


def fitting_weights(run: Run, model: nn.Module) -> dict[str, Tensor]:
    """The weights of any run that have the name, shape and type of a weight of this model; the others are left out."""
    _check_stored(run)
    own = {name: (weight.shape, weight.dtype) for name, weight in weights(model).items()}
    stored = _parse(run, MODEL, devices.memory(torch.device("cpu")))
    fitting = {name: weight for name, weight in stored.items() if own.get(name) == (weight.shape, weight.dtype)}
    _check_finite(fitting, run.path / MODEL)
    return fitting


def _check_stored(run: Run) -> None:
    """Raise CorruptError if a run has stored no weights yet."""
    if not run.has_file(MODEL):
        how = f"go on with: {resume_command(run.path)}"
        raise CorruptError(f"the run {run.path} is not complete: nothing was validated yet; if it was stopped, {how}")
