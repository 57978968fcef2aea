"""Updates on the reward of outputs that the model draws, and the change to them from updates with cross-entropy."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.batching import Batches, length_array
from regard.models import Seq2Seq
from regard.tasks import AnyTask
from regard.tasks.core import Encoded
from regard.tasks.rewards import Drawn, Rewards, generator_of
from regard.training.engine.captured import Table
from regard.training.engine.core import Engine
from regard.training.engine.eager import Eager
from regard.training.session import Session
from regard.training.stopping import Stopper
from regard.types import Batch


class Rewarded(Eager):
    """Draws outputs for a batch of sources, each of which is there once, and learns from their rewards.

    A graph cannot hold such an update, since the host scores the outputs. If the sources are on the GPU already, as a
    `Table`, a batch is taken from there.
    """

    def __init__(self, task: AnyTask, session: Session, rewards: Rewards, *, on_device: bool) -> None:
        super().__init__(task, session, rewards.data)
        assert isinstance(session.model, Seq2Seq)
        self.model, self.rewards = session.model, rewards
        self.lengths = length_array(rewards.data.lengths())
        self.batches = Batches(self.lengths, self.settings.batch_tokens, self.settings.seed)
        self.table = Table.of(task, rewards.data, self.device) if on_device else None

    def pieces(self, batches: Batches) -> list[Drawn]:
        """The sources of the next update with outputs drawn for them; `batches` are of examples, and not used."""
        generator = generator_of(self.settings.seed, self.session.progress.update, self.device)
        return [self.rewards.draw(self.model, piece, generator) for piece in super().pieces(self.batches)]

    def collate(self, indices: Sequence[int]) -> Batch:
        """The batch of the sources at these indices; the width of targets does not matter."""
        if self.table is None:
            batch: Batch = super().collate(indices)
            return batch
        widths = int(self.lengths[indices, 0].max()), 0
        taken: Batch = self.table.take(torch.tensor(indices, device=self.device), widths)
        return taken

    def tokens(self, piece: Drawn) -> int:
        """The number of tokens of all outputs."""
        return self.rewards.tokens(piece)

    def loss(self, piece: Drawn, sampling: float) -> Float[Tensor, ""]:
        """The summed loss of the outputs, without label smoothing and scheduled sampling."""
        return self.rewards.loss(self.model, piece)

    def count(self, pieces: Sequence[Drawn]) -> None:
        """Add the rewards to the progress."""
        progress = self.session.progress
        progress.rewards += self.global_sum(sum(piece.rewards.sum().item() for piece in pieces))
        progress.rewarded += self.global_sum(sum(piece.rewards.numel() for piece in pieces))


class Staged(Engine):
    """Runs the updates up to train.reward_after with one engine, and then those with reward with another."""

    def __init__(
        self,
        task: AnyTask,
        session: Session,
        data: Encoded,
        with_cross_entropy: Callable[[], Engine],
        with_reward: Callable[[], Engine],
    ) -> None:
        super().__init__(task, session, data)
        self.with_reward = with_reward
        self.is_rewarded = self._is_reward_next()
        self.current = with_reward() if self.is_rewarded else with_cross_entropy()
        self.few_shapes = self.current.few_shapes

    def update(self, batches: Batches, stopper: Stopper) -> None:
        """Run one update, with the engine whose turn it is."""
        if self._is_reward_next() and not self.is_rewarded:
            self.current.end()
            self.current, self.is_rewarded = self.with_reward(), True
        self.current.update(batches, stopper)

    def collect(self) -> None:
        """Wait for unfinished updates."""
        self.current.collect()

    def end(self) -> None:
        """Collect, and free what only the current engine needs."""
        self.current.end()

    def _is_reward_next(self) -> bool:
        return self.session.progress.update >= self.settings.reward_after
