"""When a fast path may run: what it reads past a module must be what calling the module would compute."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

Hook = TypeVar("Hook", bound=Callable[..., Any])


def observer(hook: Hook) -> Hook:
    """Mark a forward hook that changes nothing, as those of `record`: fast paths stay on and call it beside them."""
    hook.only_observes = True  # type: ignore[attr-defined]
    return hook


def is_observed(module: nn.Module) -> bool:
    """Whether a forward hook waits for calls of a module that is otherwise unchanged."""
    return bool(module._forward_hooks)


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook other than an observer may change what goes into the module, or comes out of it, or back."""
    if module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return True
    if module._forward_hooks and not all(hasattr(hook, "only_observes") for hook in module._forward_hooks.values()):
        return True
    return bool(modules._has_any_global_hook())


def is_unchanged(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether the module's own weights say what calling it does: it is exactly of one of these kinds, without hooks.

    A subclass or a replacement (LoRA, quantised layers, parametrizations) has a forward of its own, weight
    normalisation and pruning compute the weights in a hook: such modules are called.
    """
    return _is_unchanged(module, kinds)


def are_unchanged(module: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    """The same of a module and all its parts."""
    if not _is_unchanged(module, kinds):
        return False
    return all(are_unchanged(part, kinds) for part in module._modules.values() if part is not None)


def _is_unchanged(module: nn.Module, kinds: Collection[type[nn.Module]]) -> bool:
    return type(module) in kinds and "forward" not in module.__dict__ and not is_hooked(module)


def is_autocast(values: Tensor) -> bool:
    """Whether autocast makes products on the tensor's device in half precision; the meta device knows none."""
    return not values.is_meta and torch.is_autocast_enabled(values.device.type)


def without_autocast(values: Tensor) -> AbstractContextManager[Any]:
    """In the block, products on the tensor's device are in the precision of what is multiplied."""
    return torch.autocast(values.device.type, enabled=False) if is_autocast(values) else nullcontext()


def is_transformed() -> bool:
    """Whether a function transform (`torch.func.vmap`, `grad`) runs: it needs torch's own operations."""
    return not torch.compiler.is_compiling() and bool(torch._C._are_functorch_transforms_active())


_capturable = False  # a plain variable: torch.compile can trace it


@contextmanager
def capturable(on: bool = True) -> Iterator[None]:
    """In the block, layers in training take the paths that a CUDA graph can hold: they read no tensor on the host."""
    global _capturable
    before, _capturable = _capturable, on
    try:
        yield
    finally:
        _capturable = before


def is_capturable() -> bool:
    """Whether layers must take such paths now."""
    return _capturable
