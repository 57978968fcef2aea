"""The engine of captured updates on the CPU, where no CUDA graph exists: for commands of forks.py.

A graph's launch runs the operations that would have been captured; all else is the engine's own.
"""

from collections.abc import Callable
from typing import Any

import torch

from regard import device as devices
from regard.kernels import choose
from regard.training.engine import Captured


class Launch:
    """Stands in for a CUDA graph: `replay` runs the operations of an update, with the model in training."""

    def __init__(self, engine: Captured, index: torch.Tensor, widths: tuple[int, int]) -> None:
        self.engine, self.index, self.widths = engine, index, widths

    def replay(self) -> None:
        self.engine.session.model.train()
        with choose.capturable():
            self.engine._update(self.index, self.widths)


def capture(engine: Captured, rows: int, widths: tuple[int, int]) -> tuple[Launch, torch.Tensor]:
    """Takes the place of Captured._capture."""
    index = torch.zeros(rows, dtype=torch.int64)
    return Launch(engine, index, widths), index


def stand_in(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let the engine of captured updates run on the CPU."""
    for name in ("graph_pool_handle", "Stream"):
        patch(torch.cuda, name, lambda: None)
    patch(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor)
    patch(Captured, "_capture", capture)


def install() -> None:
    """Let this process take the engine of captured updates on the CPU."""
    stand_in()
    devices.memory = lambda device: 1 << 40
    choose._conditions["captured_updates"] = lambda task, model, data: False
