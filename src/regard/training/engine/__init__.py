"""Engines: how updates run, eagerly or as captured CUDA graphs. The training loop uses only the interface `Engine`."""

from regard.kernels.choose import takes
from regard.tasks import AnyTask
from regard.tasks.core import Encoded
from regard.training.engine.captured import Captured
from regard.training.engine.core import SMALLER_BATCHES, Engine
from regard.training.engine.eager import Eager
from regard.training.session import Session

__all__ = ["SMALLER_BATCHES", "Captured", "Eager", "Engine", "choose"]


def choose(task: AnyTask, session: Session, data: Encoded) -> Engine:
    """Returns the engine for this training: captured updates if they are possible, otherwise eager ones."""
    kind = Captured if takes("captured_updates", task, session.model, data) else Eager
    return kind(task, session, data)
