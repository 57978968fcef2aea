"""The weights of a model: out of it, into it, and those that a run keeps."""

from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from regard.errors import CorruptError
from regard.storage import MODEL, Run


def weights(model: nn.Module) -> dict[str, Tensor]:
    """All that a model has learned, each tensor once though two parts may share it."""
    own = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    return {name: each.contiguous() for name, each in model.state_dict().items() if name in own}


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Take up what `weights` gave; RuntimeError where it does not fit."""
    shared = model.state_dict().keys() - weights(model).keys()
    missing, unexpected = model.load_state_dict(dict(tensors), strict=False)
    if unexpected or set(missing) - shared:
        raise RuntimeError(f"missing {sorted(set(missing) - shared)}, unexpected {sorted(unexpected)}")


def kept_weights(run: Run) -> dict[str, Tensor]:
    """The weights of a run that are kept so far."""
    if not run.holds(MODEL):
        how = f"go on with: regard train --resume {run.path}"
        raise CorruptError(f"the run {run.path} is not complete: nothing was validated yet; if it was stopped, {how}")
    try:
        return load_tensors(run.read(MODEL))
    except SafetensorError as error:
        raise CorruptError(f"{run.path / MODEL} holds no weights: {error}") from error
