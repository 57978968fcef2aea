"""The interface between the training loop and the engines that run its updates."""

from abc import ABC, abstractmethod
from typing import ClassVar

from regard.data.batching import Batches
from regard.tasks import AnyTask
from regard.tasks.core import Encoded
from regard.training.session import Session
from regard.training.stopping import Stopper

SMALLER = "lower train.batch_tokens, data.max_length or the sizes of the model"  # advice if memory is too small


class Engine(ABC):
    """Runs the updates of a session's model on batches of the data, and counts them in `session.progress`."""

    few_shapes: ClassVar[bool] = False  # whether batches should have few widths, because each new width takes time

    def __init__(self, task: AnyTask, session: Session, data: Encoded) -> None:
        self.task, self.session, self.data = task, session, data

    @abstractmethod
    def update(self, batches: Batches, stopper: Stopper) -> None:
        """Run one update. If loss or gradient is not finite, NotFiniteError is raised here or in `collect`."""

    @abstractmethod
    def collect(self) -> None:
        """Wait for unfinished updates, and add their summed loss and tokens to `session.progress`."""

    def global_tokens(self, tokens: int) -> int:
        """The tokens of an update in all processes; `tokens` is the number in this process.

        The loss is divided by it: then the summed gradients of several processes are the gradient of one process
        that has all their batches.
        """
        return tokens
