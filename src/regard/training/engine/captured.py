"""Captured updates: each update is one CUDA graph, with a graph for each shape of batch, and few shapes.

A graph holds a whole update: gather the batch, forward, backward, clip, optimizer. The host copies the indices of the
examples and the learning rate to the GPU, and does not wait. It checks every `COLLECT_EVERY` updates, and before each
validation, that all losses and gradients were finite.

Of several processes each takes its rows of every batch, with a graph of as many rows in all of them, and the graphs sum
tokens, gradients and losses by NCCL.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.data.batching import Batches
from regard.data.store import Shared
from regard.device import choose_precision, explain_out_of_memory, precision
from regard.errors import NotFiniteError
from regard.kernels.choose import capturable
from regard.tasks import AnyTask
from regard.tasks.core import Encoded
from regard.training.engine.core import SMALLER_BATCHES, Engine
from regard.training.processes import ALONE
from regard.training.schedules import learning_rate
from regard.training.session import Session, stored_buffers
from regard.training.stopping import Stopper
from regard.types import BatchFirst, Capturable

WARM_UPS = 3  # runs of an update before its graph is captured: libraries choose their kernels in the first runs
COLLECT_EVERY = 50  # updates after which the host reads the sums from the GPU


@dataclass(frozen=True)
class Table:
    """All examples as tensors on the GPU, and an empty example at the end that fills up short batches.

    Sources that several examples share, such as a picture with several captions, are there once.
    """

    batch: Capturable  # its `source` has the distinct sources
    numbers: Int[Tensor, " examples"]  # the row of `batch.source` for each example

    @staticmethod
    def of(task: AnyTask, data: Encoded, device: torch.device) -> "Table":
        """The table of all examples of the data, padded to the longest."""
        whole = task.collate_all(data)
        batch = whole.batch.to(device).with_empty_example()
        numbers = torch.cat([whole.numbers, torch.tensor([len(batch.source.mask) - 1])])
        return Table(batch, numbers.to(device))

    @staticmethod
    def bytes(task: AnyTask, data: Encoded) -> int:
        """The memory that the table of this data takes: each row is as wide as the widest."""
        sources = getattr(data, "sources", ())
        rows = len(data.lengths())
        distinct = len(np.unique(sources.numbers)) if isinstance(sources, Shared) else rows
        with torch.random.fork_rng(devices=[]):  # collate may draw random numbers, and a resumed run calls this again
            batch = task.collate(data, data.widest())
        source, whole = (_bytes(tensors) // len(batch.examples) for tensors in (batch.source, batch))
        return source * distinct + (whole - source) * rows

    @property
    def empty(self) -> int:
        """The index of the empty example."""
        return len(self.numbers) - 1

    def take(self, index: Tensor, widths: tuple[int, int]) -> Any:
        """The batch of these examples, cropped to these widths of source and target."""
        return self.batch.take(index, self.numbers).crop(*widths)


def _bytes(batch: BatchFirst) -> int:
    """The memory of all tensors of a batch."""
    sizes: list[int] = []

    def count(tensor: Tensor) -> Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    batch.map_tensors(count)
    return sum(sizes)


class Captured(Engine):
    """Runs the same updates as `Eager` and `Distributed`, each as one graph launch; the GPU sums loss and tokens."""

    few_shapes = True

    def __init__(self, task: AnyTask, session: Session, data: Encoded) -> None:
        super().__init__(task, session, data)
        self.processes = session.processes
        weights = [parameter.detach() for parameter in session.model.parameters()]
        self.processes.copy_from_first([*weights, *stored_buffers(session.model)])
        self.precision = choose_precision(self.settings.precision, self.device)
        self.table = Table.of(task, data, self.device)
        self.total = torch.zeros((), device=self.device, dtype=torch.float64)
        self.tokens = torch.zeros((), device=self.device, dtype=torch.int64)
        self.norms = torch.zeros((), device=self.device, dtype=torch.float64)
        self.bad = torch.zeros((), device=self.device)
        self.collected = session.progress.update
        self.graphs: dict[tuple[int, tuple[int, int]], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.pool = torch.cuda.graph_pool_handle()  # one memory pool for all graphs, since they run one after another
        self.side = torch.cuda.Stream()  # the stream on which graphs are captured
        # if it is not 0, the fused optimizer skips its step
        session.optimizer.found_inf = torch.zeros((), device=self.device, dtype=torch.float32)  # type: ignore[attr-defined]
        self.forward = torch.compile(self._forward, dynamic=False) if self.settings.compile else self._forward

    def update(self, batches: Batches, stopper: Stopper) -> None:
        """Launch one update; the host does not wait for it."""
        with explain_out_of_memory("a captured update", f"{SMALLER_BATCHES}, or set train.capture=false"):
            self._launch(batches)

    def _launch(self, batches: Batches) -> None:
        """Replay the graph of the batch's shape, captured at first use, with the indices of its examples."""
        progress = self.session.progress
        examples, widths = batches[progress.update], batches.widths(progress.update)
        rows = math.ceil(max(len(examples), self.settings.batch_tokens // max(widths)) / self.processes.size)
        self.session.set_rate(learning_rate(self.settings, progress.update + 1))
        if (rows, widths) not in self.graphs:
            self.graphs[rows, widths] = self._capture(rows, widths)
        graph, index = self.graphs[rows, widths]
        own = examples[self.processes.rank :: self.processes.size]  # so that all processes have similar lengths
        filled = [*own, *[self.table.empty] * (rows - len(own))]  # up to `rows`, with the empty example
        index.copy_(torch.tensor(filled).pin_memory(), non_blocking=True)
        graph.replay()
        progress.update += 1
        if progress.update - self.collected >= COLLECT_EVERY:
            self.collect()

    def collect(self) -> None:
        """Wait for the GPU and add its sums to the progress; NotFiniteError if a loss or gradient was not finite."""
        progress = self.session.progress
        first, self.collected = self.collected + 1, progress.update
        if self.bad.item():
            raise NotFiniteError(
                f"updates {first} to {progress.update}: a loss or the norm of its gradient is not finite; the weights "
                "are as before it. A lower train.learning_rate, more train.warmup or a smaller train.clip often helps"
            )
        progress.total, progress.tokens = progress.total + self.total.item(), progress.tokens + int(self.tokens.item())
        progress.norms += self.norms.item()
        progress.normed += progress.update - first + 1
        for total in (self.total, self.tokens, self.norms):
            total.zero_()

    def end(self) -> None:
        """Collect, and free the graphs and the table; the optimizer no longer skips a step by itself.

        A process group waits for the graphs that use it, when it is destroyed.
        """
        self.collect()
        del self.session.optimizer.found_inf  # type: ignore[attr-defined]
        del self.graphs, self.forward, self.table  # a bound method keeps its object until cycles are collected

    def _capture(self, rows: int, widths: tuple[int, int]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Captures an update for batches of this shape, after warm-up runs that leave no trace.

        Returns the graph, and the tensor from which it reads the indices of the examples.
        """
        index = torch.arange(rows, device=self.device).clamp(max=self.table.empty)
        self.session.model.train()
        generator = torch.cuda.get_rng_state(self.device)
        sums = [self.total, self.tokens, self.norms, self.bad]
        with restored(self.session.model, self.session.optimizer, sums), capturable():
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                for _ in range(WARM_UPS):
                    self._update(index, widths)
            torch.cuda.current_stream().wait_stream(self.side)
            torch.cuda.synchronize()
        torch.cuda.set_rng_state(generator, self.device)
        graph = torch.cuda.CUDAGraph()
        # thread_local: a thread of NCCL may ask for its events while this one captures
        mode = "global" if self.processes is ALONE else "thread_local"
        with capturable(), torch.cuda.graph(graph, pool=self.pool, stream=self.side, capture_error_mode=mode):
            self._update(index, widths)
        return graph, index

    def _update(self, index: Tensor, widths: tuple[int, int]) -> None:
        """The operations of one update, as a graph captures them."""
        optimizer = self.session.optimizer
        optimizer.zero_grad(set_to_none=True)
        loss, own_tokens = self.forward(index, widths)
        tokens = self.global_sum(own_tokens)
        (loss / tokens.clamp(min=1)).backward()
        self.processes.sum_gradients(self.session.model.parameters())
        total = self.global_sum(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.session.model.parameters(), self.settings.clip or math.inf, foreach=True)
        not_finite: Tensor = optimizer.found_inf  # type: ignore[attr-defined]
        not_finite.copy_(~(norm + total).isfinite())
        optimizer.step()
        self.processes.copy_from_first(stored_buffers(self.session.model))
        self.bad += not_finite
        self.total += total
        self.tokens += tokens
        self.norms += norm

    def _forward(self, index: Tensor, widths: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The summed loss of a batch, and the number of its predictions."""
        batch = self.table.take(index, widths)
        with precision(self.precision, self.device):
            loss = self.task.loss(self.session.model, batch, self.settings.smoothing)
        return loss, batch.count_predictions()


@contextmanager
def restored(model: nn.Module, optimizer: torch.optim.Optimizer, sums: Sequence[Tensor]) -> Iterator[None]:
    """After the block, restore parameters, buffers, the optimizer's state and the sums, in place."""
    tensors = [*model.parameters(), *model.buffers(), *sums]
    copies = [tensor.detach().clone() for tensor in tensors]
    states = optimizer.state.items()
    state = {parameter: {key: value.clone() for key, value in row.items()} for parameter, row in states}
    yield
    with torch.no_grad():
        for tensor, before in zip(tensors, copies, strict=True):
            tensor.copy_(before)
        for parameter, row in optimizer.state.items():
            for key, value in row.items():
                value.copy_(state[parameter][key]) if parameter in state else value.zero_()
