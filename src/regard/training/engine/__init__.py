"""Engines: how updates run, eagerly or as captured CUDA graphs. The training loop uses only the interface `Engine`."""

import torch

from regard import device as devices
from regard import memory
from regard.console import say
from regard.kernels.choose import takes
from regard.tasks import AnyTask
from regard.tasks.core import Encoded
from regard.training.engine.captured import Captured, Table
from regard.training.engine.core import SMALLER_BATCHES, Engine
from regard.training.engine.eager import Eager
from regard.training.engine.rewarded import Rewarded, Staged
from regard.training.session import Session

__all__ = ["SMALLER_BATCHES", "Captured", "Eager", "Engine", "Rewarded", "Staged", "choose"]


# Share of a GPU's memory, and of the machine's, where they are put together, that the examples may take. Of all its
# memory, not of what is free now: a resumed run must choose the same engine, whose batches are others.
LARGEST_TABLE = 0.4


def choose(task: AnyTask, session: Session, data: Encoded) -> Engine:
    """Returns the engine for this training: captured updates if they are possible, otherwise eager ones.

    If there is train.reward, updates with cross-entropy are such ones, and those with reward are eager.
    """

    def with_reward() -> Engine:
        rewards = task.rewards(data)
        return Rewarded(task, session, rewards, on_device=_fits_on_device(task, session, rewards.data))

    if task.recipe.train.reward:
        return Staged(task, session, data, lambda: _with_cross_entropy(task, session, data), with_reward)
    return _with_cross_entropy(task, session, data)


def _with_cross_entropy(task: AnyTask, session: Session, data: Encoded) -> Engine:
    """The engine of updates with cross-entropy; all processes that train together choose the same one."""
    fits = not session.processes.maximum(int(not _fits_on_device(task, session, data)))
    if fits and not session.is_sharded:
        return Captured(task, session, data)
    if session.losses is None:
        return Eager(task, session, data)
    from regard.training.engine.distributed import Distributed  # imports the compiler of torch, for a second

    return Distributed(task, session, data, few_shapes=fits)


def _fits_on_device(task: AnyTask, session: Session, data: Encoded) -> bool:
    """Whether updates may be captured, and the GPU has memory for all examples; a line says so if it has not."""
    if task.recipe.train.lora_rank or not takes("captured_updates", task, session.model, data):
        return False
    device = next(session.model.parameters()).device
    smaller = min(device, torch.device("cpu"), key=devices.memory)
    needed, most = Table.bytes(task, data), int(LARGEST_TABLE * devices.memory(smaller))
    if needed > most:
        sizes = f"{needed / memory.GIB:,.1f} GiB, more than the {most / memory.GIB:,.1f} GiB that they may have"
        say(f"the examples would take {sizes} on {smaller}: each batch is copied there, and updates are not captured")
    return needed <= most
