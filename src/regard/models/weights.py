"""The weights of a model: read them from a model, load them into a model, load those that a run has stored."""

from collections.abc import Mapping

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from regard.errors import CorruptError, shown
from regard.storage import MODEL, Run


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's `state_dict` by name; a tensor that two parts share occurs once."""
    names = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name in names}


def check_fit(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise RuntimeError if tensors have other names or shapes than the weights of a model, also on the meta device."""
    own, all_names = weights(model), model.state_dict().keys()
    missing, unexpected = own.keys() - tensors.keys(), tensors.keys() - all_names
    misshapen = {name for name in own.keys() & tensors.keys() if own[name].shape != tensors[name].shape}
    if missing or unexpected or misshapen:
        wrong = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen}
        raise RuntimeError(", ".join(f"{what}: {shown(sorted(names))}" for what, names in wrong.items() if names))


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load tensors that `weights` returned into a model; RuntimeError if names or shapes do not fit."""
    check_fit(model, tensors)
    model.load_state_dict(dict(tensors), strict=False)


def stored_weights(run: Run) -> dict[str, Tensor]:
    """Load the weights that a run has stored; CorruptError if there are none or the file is damaged."""
    if not run.has_file(MODEL):
        how = f"go on with: regard train --resume {run.path}"
        raise CorruptError(f"the run {run.path} is not complete: nothing was validated yet; if it was stopped, {how}")
    try:
        return load_tensors(run.read(MODEL))
    except SafetensorError as error:
        raise CorruptError(f"{run.path / MODEL} holds no weights: {error}") from error
