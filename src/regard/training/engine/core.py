"""The interface between the training loop and the engines that run its updates."""

from abc import ABC, abstractmethod
from typing import TypeVar

from torch import Tensor

from regard.data.batching import Batches
from regard.tasks import AnyTask
from regard.tasks.core import Encoded
from regard.training.session import Session
from regard.training.stopping import Stopper

SMALLER_BATCHES = "lower train.batch_tokens, data.max_length or the sizes of the model"  # advice if memory is too small

Number = TypeVar("Number", int, float, Tensor)


class Engine(ABC):
    """Runs the updates of a session's model on batches of the data, and counts them in `session.progress`."""

    few_shapes: bool = False  # whether batches should have few widths, because each new width takes time

    def __init__(self, task: AnyTask, session: Session, data: Encoded) -> None:
        self.task, self.session, self.data = task, session, data
        self.settings = task.recipe.train
        self.device = next(session.model.parameters()).device

    @abstractmethod
    def update(self, batches: Batches, stopper: Stopper) -> None:
        """Run one update. If loss or gradient is not finite, NotFiniteError is raised here or in `collect`."""

    @abstractmethod
    def collect(self) -> None:
        """Wait for unfinished updates, and add their summed loss and tokens to `session.progress`."""

    def end(self) -> None:
        """Collect, and free what only this engine needs: it runs no more updates."""
        self.collect()

    def global_sum(self, number: Number) -> Number:
        """The sum over all processes of a number of this process; with one process, the number itself.

        All engines use it for the tokens and the loss of an update. The loss is divided by the tokens of all
        processes: then the summed gradients of several processes are the gradient of one process that has all their
        batches. `session.progress` counts the loss and the tokens of all processes.
        """
        return self.session.processes.sum(number)
