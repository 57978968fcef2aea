"""The engine of captured updates on the CPU, where no CUDA graph exists: for commands of forks.py.

A graph's launch runs the operations that would have been captured; all else is the engine's own.
"""

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
        self.engine._update(self.index, self.widths)


def capture(engine: Captured, rows: int, widths: tuple[int, int]) -> tuple[Launch, torch.Tensor]:
    """Takes the place of Captured._capture."""
    index = torch.zeros(rows, dtype=torch.int64)
    return Launch(engine, index, widths), index


def install() -> None:
    """Let this process take the engine of captured updates on the CPU."""
    torch.cuda.graph_pool_handle = torch.cuda.Stream = lambda: None  # type: ignore[assignment, misc, return-value]
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor  # type: ignore[method-assign, assignment]
    devices.memory = lambda device: 1 << 40
    choose._conditions["captured_updates"] = lambda task, model, data: False
    Captured._capture = capture  # type: ignore[assignment, method-assign]
