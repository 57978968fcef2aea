"""Training at the speed of the GPU: one CUDA graph for each shape of batch, and few shapes.

A graph holds a whole update: gather the batch, forward, backward, clip, optimizer. The host gives it the numbers of
the examples and the learning rate, and does not wait; whether all stayed finite is asked now and then.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.data.batching import Batches
from regard.device import choose_precision, enough_memory, precision
from regard.errors import NotFiniteError
from regard.kernels.choose import capturable, takes
from regard.recipe import Train
from regard.tasks import AnyTask
from regard.tasks.core import Encoded
from regard.training.engine.core import SMALLER, Engine
from regard.training.schedules import learning_rate
from regard.training.session import Session
from regard.training.stopping import Stopper
from regard.types import Batch

WARM_UPS = 3  # runs of an update before its graph is taken: libraries choose their kernels in the first ones
COLLECT_EVERY = 50  # updates between two looks at what the GPU has summed up


@dataclass(frozen=True)
class Table:
    """All examples on the GPU, and an empty one at the end that fills up short batches."""

    batch: Batch

    @staticmethod
    def of(task: AnyTask, data: Encoded, device: torch.device) -> "Table":
        """The examples of the data, each as wide as the longest."""
        whole: Batch = task.collate(data, range(len(data.lengths()))).to(device)
        source, target = whole.source.each(_with_last), whole.target.each(_with_last)
        source.mask[-1, :1] = True  # an empty example has something to attend to, and nothing to predict
        return Table(Batch(source, target, _with_last(whole.examples)))

    @property
    def empty(self) -> int:
        """The number of the empty example."""
        return len(self.batch.examples) - 1

    def take(self, index: Tensor, width: int) -> Batch:
        """The batch of these examples, so wide; a target has one token more, for the one it begins with."""
        rows = self.batch.select(index)
        return Batch(rows.source.crop(width), rows.target.crop(width + 1), rows.examples)


def _with_last(rows: Tensor) -> Tensor:
    """One more row of zeros: PAD, and False."""
    return torch.cat([rows, torch.zeros_like(rows[:1])])


class Captured(Engine):
    """Learns as `Eager` does, but an update is one launch; loss and tokens are summed up on the GPU."""

    few_shapes = True

    def __init__(self, task: AnyTask, session: Session, data: Encoded, device: torch.device) -> None:
        super().__init__(task, session, data)
        self.device = device
        self.settings: Train = task.recipe.train
        self.precision = choose_precision(self.settings.precision, device)
        self.table = Table.of(task, data, device)
        self.total = torch.zeros((), device=device, dtype=torch.float64)
        self.tokens = torch.zeros((), device=device, dtype=torch.int64)
        self.bad = torch.zeros((), device=device)
        self.collected = session.progress.update
        self.graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.pool = torch.cuda.graph_pool_handle()  # one for all: they run one after another
        self.side = torch.cuda.Stream()  # where they are taken
        session.optimizer.found_inf = torch.zeros((), device=device)  # type: ignore[attr-defined]  # it then does not move
        self.forward = torch.compile(self._forward, dynamic=False) if self.settings.compile else self._forward

    @staticmethod
    def fits(task: AnyTask, session: Session, data: Encoded) -> bool:
        """Whether updates can be captured: on a GPU, whole batches of pairs, nothing decided on the way."""
        return takes("captured_updates", task, session.model, data)

    def update(self, batches: Batches, stopper: Stopper) -> None:
        """One update; the host does not wait for it."""
        with enough_memory("a captured update", f"{SMALLER}, or set train.capture=false"):
            self._launch(batches)

    def _launch(self, batches: Batches) -> None:
        progress = self.session.progress
        examples, width = batches[progress.update], batches.width(progress.update)
        rows = max(len(examples), self.settings.batch_tokens // width)
        self.session.set_rate(learning_rate(self.settings, progress.update + 1))
        graph, index = self._graph(rows, width)
        index.copy_(self._filled(examples, rows), non_blocking=True)
        graph.replay()
        progress.update += 1
        if progress.update - self.collected >= COLLECT_EVERY:
            self.collect()

    def collect(self) -> None:
        """Wait for the GPU and take over what it summed up; stop if anything was not finite."""
        progress = self.session.progress
        first, self.collected = self.collected + 1, progress.update
        if self.bad.item():
            raise NotFiniteError(
                f"updates {first} to {progress.update}: a loss or the norm of its gradient is not finite; the weights "
                "are as before it. A lower train.learning_rate, more train.warmup or a smaller train.clip often helps"
            )
        progress.total, progress.tokens = progress.total + self.total.item(), progress.tokens + int(self.tokens.item())
        self.total.zero_()
        self.tokens.zero_()

    def _filled(self, examples: Sequence[int], rows: int) -> Tensor:
        filled = [*examples, *[self.table.empty] * (rows - len(examples))]
        return torch.tensor(filled).pin_memory()

    def _graph(self, rows: int, width: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """The graph of a shape, and where it reads the numbers of its examples."""
        if (rows, width) not in self.graphs:
            self.graphs[rows, width] = self._capture(rows, width)
        return self.graphs[rows, width]

    def _capture(self, rows: int, width: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        index = torch.full((rows,), self.table.empty, device=self.device)
        index[: min(rows, self.table.empty)] = torch.arange(min(rows, self.table.empty), device=self.device)
        self.session.model.train()
        with self._untouched(), capturable():
            self.side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.side):
                for _ in range(WARM_UPS):
                    self._update(index, width)
            torch.cuda.current_stream().wait_stream(self.side)
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with capturable(), torch.cuda.graph(graph, pool=self.pool, stream=self.side):
            self._update(index, width)
        return graph, index

    def _update(self, index: Tensor, width: int) -> None:
        """All that one update does."""
        optimizer, parameters = self.session.optimizer, list(self.session.model.parameters())
        optimizer.zero_grad(set_to_none=True)
        loss, tokens = self.forward(index, width)
        (loss / tokens.clamp(min=1)).backward()
        norm = nn.utils.clip_grad_norm_(parameters, self.settings.clip or float("inf"), foreach=True)
        found: Tensor = optimizer.found_inf  # type: ignore[attr-defined]
        found.copy_(~(norm + loss.detach()).isfinite())
        optimizer.step()
        self.bad += found
        self.total += loss.detach()
        self.tokens += tokens

    def _forward(self, index: Tensor, width: int) -> tuple[Tensor, Tensor]:
        batch = self.table.take(index, width)
        with precision(self.precision, self.device):
            loss = self.task.loss(self.session.model, batch, self.settings.smoothing)
        return loss, batch.target.mask[:, 1:].sum()

    @contextmanager
    def _untouched(self) -> Iterator[None]:
        """Whatever is learned, summed up or drawn in the block is undone after it."""
        drawn = torch.cuda.get_rng_state(self.device)
        with restored(self.session.model, self.session.optimizer, [self.total, self.tokens, self.bad]):
            yield
        torch.cuda.set_rng_state(drawn, self.device)


@contextmanager
def restored(model: nn.Module, optimizer: torch.optim.Optimizer, sums: Sequence[Tensor]) -> Iterator[None]:
    """In place, all parameters and buffers, the optimizer's state and the sums are after the block as before it."""
    tensors = [*model.parameters(), *model.buffers(), *sums]
    kept = [each.detach().clone() for each in tensors]
    state = {each: {key: value.clone() for key, value in row.items()} for each, row in optimizer.state.items()}
    yield
    with torch.no_grad():
        for each, before in zip(tensors, kept, strict=True):
            each.copy_(before)
        for parameter, row in optimizer.state.items():
            for key, value in row.items():
                value.copy_(state[parameter][key]) if parameter in state else value.zero_()
