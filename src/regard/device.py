"""Where tensors live."""

import torch

from regard.errors import RecipeError


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n", 1)[0]
        raise RecipeError(f"the device {name!r} cannot be used ({reason}); choose auto, cpu or cuda") from error
