"""The weights that are judged and kept: those of now, or a mean over time."""

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


class Averager:
    """An exponential mean over updates (`decay` above 0), a mean over the last validations (`last` above 1), or both.

    Polyak and Juditsky 1992 average over updates; Vaswani et al. 2017 average the last checkpoints.
    """

    def __init__(self, model: nn.Module, *, decay: float, last: int) -> None:
        self.decay = decay
        self.moving = _copy(model) if decay else None
        self.snapshots: deque[Weights] = deque(maxlen=max(1, last))

    @torch.no_grad()
    def after_update(self, model: nn.Module, *, judged: bool) -> None:
        """Take in the weights of one more update; those about to be judged count for the mean of validations."""
        if self.moving is not None:
            now = model.state_dict()
            torch._foreach_lerp_(list(self.moving.values()), [now[name] for name in self.moving], 1.0 - self.decay)
        if judged and self.snapshots.maxlen != 1:
            judged_weights = _copy(model) if self.moving is None else self.moving
            self.snapshots.append({name: value.clone() for name, value in judged_weights.items()})

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model with its mean weights, while in the block."""
        own = _copy(model)
        if self.snapshots:
            rows = {name: torch.stack([each[name].to(own[name]) for each in self.snapshots]) for name in own}
            model.load_state_dict({name: row.mean(0) for name, row in rows.items()})
        elif self.moving is not None:
            model.load_state_dict(self.moving)
        try:
            yield
        finally:
            model.load_state_dict(own)

    def tensors(self) -> Weights:
        """What a checkpoint must keep."""
        kept = {f"moving.{name}": value for name, value in (self.moving or {}).items()}
        for index, snapshot in enumerate(self.snapshots):
            kept |= {f"snapshot.{index}.{name}": value for name, value in snapshot.items()}
        return kept

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint, whose tensors are where the model is."""
        if self.moving is not None:
            self.moving = {name: tensors[f"moving.{name}"] for name in self.moving}
        index = 0
        while snapshot := under(f"snapshot.{index}.", tensors):
            self.snapshots.append(snapshot)
            index += 1


def under(start: str, tensors: Mapping[str, Tensor]) -> Weights:
    """The tensors whose names start so, without that start."""
    return {name.removeprefix(start): each for name, each in tensors.items() if name.startswith(start)}


def _copy(model: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
