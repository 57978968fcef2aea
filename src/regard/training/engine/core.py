"""What the training loop knows of the way in which updates run."""

from abc import ABC, abstractmethod
from typing import ClassVar

from regard.data.batching import Batches
from regard.tasks import AnyTask
from regard.tasks.core import Encoded
from regard.training.session import Session
from regard.training.stopping import Stopper

SMALLER = "lower train.batch_tokens, data.max_length or the sizes of the model"  # if memory does not suffice


class Engine(ABC):
    """Runs updates of a session's model on the batches of the data; `session.progress` counts them."""

    few_shapes: ClassVar[bool] = False  # whether it wants batches of few widths: each new one costs it time

    def __init__(self, task: AnyTask, session: Session, data: Encoded) -> None:
        self.task, self.session, self.data = task, session, data

    @abstractmethod
    def update(self, batches: Batches, stopper: Stopper) -> None:
        """One update. A loss or gradient that is not finite stops training, here or in `collect`."""

    @abstractmethod
    def collect(self) -> None:
        """Wait for updates under way, and add the loss and the tokens they summed to `session.progress`."""

    def global_tokens(self, tokens: int) -> int:
        """The tokens of an update in all processes, of which `tokens` are this one's: the loss is divided by them.

        So the gradients of several processes, summed, are the gradient of one process with all their batches.
        """
        return tokens
