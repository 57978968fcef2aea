"""The weights of a model: read them from a model, load them into a model, load those that a run has stored."""

import shlex
from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from regard.errors import CorruptError
from regard.storage import MODEL, Run


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


def stored_weights(run: Run) -> dict[str, Tensor]:
    """Load the weights that a run has stored; CorruptError if there are none or the file is damaged."""
    if not run.has_file(MODEL):
        how = f"go on with: regard train --resume {shlex.quote(str(run.path))}"
        raise CorruptError(f"the run {run.path} is not complete: nothing was validated yet; if it was stopped, {how}")
    try:
        return load_tensors(run.read(MODEL))
    except SafetensorError as error:
        raise CorruptError(f"{run.path / MODEL} holds no weights: {error}") from error
