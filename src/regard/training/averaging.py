"""Weight averaging: the weights that are validated and stored are the current ones, or a mean over time."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


class Averager:
    """Exponential moving average over updates (`decay` > 0), mean of the last validations (`last` > 1), or both.

    Polyak and Juditsky 1992 average over updates; Vaswani et al. 2017 average the last checkpoints.
    """

    def __init__(self, model: nn.Module, *, decay: float, last: int) -> None:
        self.decay = decay
        self.moving = _copy(model) if decay else None
        self.snapshots: deque[Weights] = deque(maxlen=max(1, last))

    @torch.no_grad()
    def after_update(self, model: nn.Module, *, judged: bool) -> None:
        """Update the moving average; if a validation follows (`judged`), also take a snapshot for their mean."""
        if self.moving is not None:
            now = model.state_dict()
            torch._foreach_lerp_(list(self.moving.values()), [now[name] for name in self.moving], 1.0 - self.decay)
        if judged and self.snapshots.maxlen != 1:
            weights = model.state_dict() if self.moving is None else self.moving
            self.snapshots.append({name: value.clone() for name, value in weights.items()})

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """In the block, the model has the mean weights; after it, its own again."""
        own = _copy(model)
        if self.snapshots:
            rows = {name: torch.stack([snapshot[name].to(own[name]) for snapshot in self.snapshots]) for name in own}
            model.load_state_dict({name: row.mean(0) for name, row in rows.items()})
        elif self.moving is not None:
            model.load_state_dict(self.moving)
        try:
            yield
        finally:
            model.load_state_dict(own)

    def tensors(self) -> Weights:
        """The tensors to store in a checkpoint, by name."""
        tensors = {f"moving.{name}": value for name, value in (self.moving or {}).items()}
        for index, snapshot in enumerate(self.snapshots):
            tensors |= {f"snapshot.{index}.{name}": value for name, value in snapshot.items()}
        return tensors

    def expected(self, model: nn.Module, validations: int) -> Weights:
        """Tensors with the names, shapes and types of those that `tensors` returns after so many validations."""
        last = self.snapshots.maxlen or 1
        starts = ["moving."] * (self.moving is not None)
        starts += [f"snapshot.{index}." for index in range(min(last, validations)) if last > 1]
        return {start + name: value for start in starts for name, value in model.state_dict().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore from the tensors of a checkpoint, which must be on the device of the model."""
        if self.moving is not None:
            self.moving = {name: tensors[f"moving.{name}"] for name in self.moving}
        index = 0
        while snapshot := under(f"snapshot.{index}.", tensors):
            self.snapshots.append(snapshot)
            index += 1


def under(start: str, tensors: Mapping[str, Tensor]) -> Weights:
    """The tensors whose names begin with `start`, which is removed from the names."""
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def _copy(model: nn.Module) -> Weights:
    """A copy of all weights and buffers of a model's state dict."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
