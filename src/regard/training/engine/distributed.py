"""Eager updates of several processes: each takes its rows of every batch; DDP or FSDP2 sums the gradients."""

import inspect
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from regard.data.batching import Batches
from regard.decoders.transformer import DecoderLayer
from regard.encoders.transformer import EncoderLayer
from regard.tasks import AnyTask
from regard.tasks.core import Batched, Encoded
from regard.training.engine.eager import Eager
from regard.training.processes import Processes
from regard.training.session import Session, generators_restored, stored_buffers
from regard.training.shards import whole

# DDP need not copy buffers at every update, as `update` copies those that change; torch 2.13 has a new name for this.
NEW_NAME = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
KEEP_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if NEW_NAME else "broadcast_buffers": False}


class Losses(nn.Module):
    """Computes the loss of a batch as a module's `forward`, around which DDP and FSDP2 do their work."""

    def __init__(self, task: AnyTask, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model, self.smoothing = task, model, task.recipe.train.smoothing

    def forward(self, batch: Any, sampling: float) -> Float[Tensor, ""]:
        """The summed loss of a batch."""
        return self.task.loss(self.model, batch, self.smoothing, sampling)


def shard(losses: Losses, processes: Processes) -> None:
    """Leave in each process only its part of every parameter, in place; FSDP2 gathers a module's when it is called.

    Encoder layers, decoder layers without a memory and feed-forward layers of the others are gathered one by one,
    everything else at the start of an update: keys of the memory are projected before a decoder layer is called.
    """
    mesh = init_device_mesh(next(losses.parameters()).device.type, (processes.size,))
    for module in losses.modules():
        if isinstance(module, EncoderLayer) or (isinstance(module, DecoderLayer) and module.cross is None):
            fully_shard(module, mesh=mesh)
        elif isinstance(module, DecoderLayer):
            fully_shard(module.feed, mesh=mesh)
    fully_shard(losses, mesh=mesh)


@dataclass(frozen=True)
class Share:
    """The rows of a batch that one process takes; if there are none, a row that does not count.

    Without it the process would call other modules than the others, and they would wait for each other for ever.
    """

    batch: Batched
    counts: bool

    @property
    def examples(self) -> Int[Tensor, " batch"]:
        """The index of each row's example in the data."""
        return self.batch.examples


class Distributed(Eager):
    """Eager updates of several processes, whose summed gradients are those of one process that has all rows.

    `few_shapes` says whether one process would have batches of few widths, since its updates would be captured: then
    these processes have the same batches.
    """

    splits = False  # the other processes would wait for this one

    def __init__(self, task: AnyTask, session: Session, data: Encoded, *, few_shapes: bool = False) -> None:
        super().__init__(task, session, data)
        self.few_shapes = few_shapes
        assert isinstance(session.losses, Losses)
        self.processes = session.processes
        self.module: nn.Module = session.losses
        if not isinstance(self.module, FSDPModule):
            unused = self._has_unused_parameters()  # DDP must search for these in every update
            self.module = DistributedDataParallel(
                self.module, gradient_as_bucket_view=True, find_unused_parameters=unused, **KEEP_BUFFERS
            )
            # The first gradients decide in which order DDP sums all others: now, and not in a run's first update, so
            # that a resumed run has the same bits.
            with self._without_trace():
                pass

    def update(self, batches: Batches, stopper: Any) -> None:
        """Run one update; all processes have the buffers of the first one then."""
        self.batches = batches
        super().update(batches, stopper)
        self.processes.copy_from_first(stored_buffers(self.session.model))

    def collate(self, indices: Sequence[int]) -> Share:
        """The rows of a batch that this process takes: every n-th one, so that all have similar lengths."""
        own = indices[self.processes.rank :: self.processes.size]
        return Share(super().collate(own or indices[:1]), bool(own))

    def tokens(self, piece: Share) -> int:
        """The number of tokens of this process's rows."""
        return super().tokens(piece.batch) if piece.counts else 0

    def loss(self, piece: Share, sampling: float) -> Float[Tensor, ""]:
        """The summed loss of this process's rows; 0 if it has none."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")  # outputs are never changed in place
            loss: Tensor = self.module(piece.batch, sampling)
        return loss if piece.counts else 0.0 * loss

    def backward(self, piece: Share, tokens: float, sampling: float, *, last: bool) -> float:
        """Add the gradient of a batch; that of the last one is summed over all processes.

        DDP and FSDP2 take the mean over the processes, so that each divides its loss by its share of the tokens.
        """
        with self._summed(last=last):
            return super().backward(piece, tokens / self.processes.size, sampling, last=last)

    @contextmanager
    def _summed(self, *, last: bool) -> Iterator[None]:
        """In the block, gradients are summed over the processes only if this is the last batch of an update."""
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(last)
            yield
        elif last or not isinstance(self.module, DistributedDataParallel):
            yield
        else:
            with self.module.no_sync():
                yield

    def clip(self) -> float:
        """Clip the gradient by its norm over all processes."""
        parameters = self.session.model.parameters()
        return whole(torch.nn.utils.clip_grad_norm_(parameters, self.settings.clip or math.inf)).item()

    def examples(self, pieces: Sequence[Any]) -> list[int]:
        """The indices of the examples of an update in all processes."""
        first = self.session.progress.update * self.settings.accumulate
        return [index for number in range(self.settings.accumulate) for index in self.batches[first + number]]

    def _has_unused_parameters(self) -> bool:
        """Whether a parameter gets no gradient in an update."""
        with self._without_trace():
            return any(parameter.grad is None for parameter in self.module.parameters() if parameter.requires_grad)

    @contextmanager
    def _without_trace(self) -> Iterator[None]:
        """In the block, the parameters have the gradient of the first example; all is as before after it."""
        model = self.session.model
        buffers = [(buffer, buffer.clone()) for buffer in stored_buffers(model)]
        with generators_restored():
            model.train()
            self.module(super().collate([0]), 0.0).backward()
            yield
        for buffer, before in buffers:
            buffer.copy_(before)
        self.session.optimizer.zero_grad(set_to_none=True)
