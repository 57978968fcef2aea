"""The weights of a model: read them from a model, load them into a model, load those that a run has stored.

Stored tensors may come from anybody: their names, shapes and types are checked before they are used.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from torch import Tensor, nn

from regard import device as devices
from regard.errors import CorruptError, shown
from regard.models.lora import merged
from regard.storage import MODEL, Folder, Run
from regard.storage.runs import resume_command
from regard.types import Vocabulary

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


class SharedRows(NamedTuple):
    """Rows of a tensor of a model, and the rows of a stored tensor for the same entries of another vocabulary."""

    own: list[int]
    stored: list[int]
    sizes: tuple[int, int]  # of both vocabularies, the model's first

    @staticmethod
    def of(own: Vocabulary, stored: Vocabulary) -> "SharedRows":
        """The rows of the entries that two vocabularies share; none if they are vocabularies of different things."""
        places = {entry: row for row, entry in enumerate(stored.entries)} if own.noun == stored.noun else {}
        pairs = [(row, places[entry]) for row, entry in enumerate(own.entries) if entry in places]
        rows, others = ([pair[side] for pair in pairs] for side in (0, 1))
        return SharedRows(rows, others, (len(own.entries), len(stored.entries)))


def fitting_weights(run: Run, model: nn.Module, shared: Mapping[str, SharedRows]) -> dict[str, Tensor]:
    """The weights of any run that have the name, shape and type of a weight of this model; the others are left out.

    A tensor in `shared` fits if it has a row for each entry of its vocabulary, and both vocabularies share entries.
    """
    _check_stored(run)
    own = weights(model)
    stored = merged(_parse(run, MODEL, devices.memory(torch.device("cpu"))))
    fitting = {
        name: weight
        for name, weight in stored.items()
        if name in own and own[name].dtype == weight.dtype and _fits(own[name], weight, shared.get(name))
    }
    _check_finite(fitting, run.path / MODEL)
    return fitting


def _fits(own: Tensor, stored: Tensor, shared: SharedRows | None) -> bool:
    if shared is None:
        return own.shape == stored.shape
    rows = (own.shape[:1], stored.shape[:1])
    return bool(shared.own) and rows == tuple((size,) for size in shared.sizes) and own.shape[1:] == stored.shape[1:]


def with_shared_rows(
    model: nn.Module, stored: Mapping[str, Tensor], shared: Mapping[str, SharedRows]
) -> dict[str, Tensor]:
    """Stored weights for a model: of a tensor in `shared`, only the rows of shared entries; the others are its own."""
    own, merged = weights(model), dict(stored)
    for name in stored.keys() & shared.keys():
        rows = torch.tensor(shared[name].own), torch.tensor(shared[name].stored)
        merged[name] = own[name].detach().index_copy(0, rows[0], stored[name][rows[1]])
    return merged


def _check_stored(run: Run) -> None:
    """Raise CorruptError if a run has stored no weights yet."""
    if not run.has_file(MODEL):
        how = f"go on with: {resume_command(run.path)}"
        raise CorruptError(f"the run {run.path} is not complete: nothing was validated yet; if it was stopped, {how}")
