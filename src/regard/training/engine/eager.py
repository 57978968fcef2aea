"""Eager updates: ordinary PyTorch execution, on any device, with any batch."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.batching import Batches
from regard.device import out_of_memory, precision
from regard.errors import NotFiniteError, ResourceError
from regard.tasks.core import AnyBatched, Batched
from regard.training.engine.core import Engine
from regard.training.schedules import learning_rate
from regard.training.stopping import Stopper


class Eager(Engine):
    """Collates the batches of an update on the CPU, and reads the loss of an update before the next one begins."""

    splits: bool = True  # whether a batch that does not fit into memory is split

    def update(self, batches: Batches, stopper: Stopper) -> None:
        """Run one update; a stop may abandon it until the optimizer's step."""
        learn_once(self, batches, stopper)

    def collect(self) -> None:
        """Do nothing: each update ends before the next one begins."""

    def pieces(self, batches: Batches) -> list[Any]:
        """The batches of the next update."""
        first = self.session.progress.update * self.settings.accumulate
        return [self.collate(batches[first + index]) for index in range(self.settings.accumulate)]

    def collate(self, indices: Sequence[int]) -> Any:
        """The batch of the examples at these indices."""
        return self.task.collate(self.data, indices).to(self.device)

    def tokens(self, piece: Any) -> int:
        """The number of tokens that the loss of a batch is summed over."""
        return self.task.tokens(piece)

    def loss(self, piece: Any, sampling: float) -> Float[Tensor, ""]:
        """The summed loss of a batch; `sampling` is the share of scheduled sampling."""
        return self.task.loss(self.session.model, piece, self.settings.smoothing, sampling)

    def backward(self, piece: Any, tokens: float, sampling: float, *, last: bool) -> float:
        """Add the gradient of a batch to that of the update, which has so many tokens; returns the batch's loss.

        `last` says whether it is the last batch of the update.
        """
        with precision(self.settings.precision, self.device):
            loss = self.loss(piece, sampling)
        (loss / tokens).backward()
        return loss.item()

    def clip(self) -> float:
        """Clip the gradient; returns its norm before that."""
        parameters = self.session.model.parameters()
        return torch.nn.utils.clip_grad_norm_(parameters, self.settings.clip or math.inf).item()

    def examples(self, pieces: Sequence[Any]) -> list[int]:
        """The indices of the examples of an update, for messages."""
        return [index for piece in pieces for index in piece.examples.tolist()]

    def count(self, pieces: Sequence[Any]) -> None:
        """Add to the progress what else is counted of the batches of an update: nothing."""


def learn_once(engine: Eager, batches: Batches, stopper: Stopper) -> None:
    """Run one update on train.accumulate batches: the gradient is that of the mean loss per target token.

    The mean is over all batches of the update, in all processes. A stop may abandon the update until the optimizer's
    step; the session is then as before the update.
    """
    session, settings = engine.session, engine.settings
    progress, model = session.progress, session.model
    number = progress.update + 1
    with session.undone_if_stopped(), stopper.undoable():
        pieces = engine.pieces(batches)
        model.train()
        share = settings.sampling * number / max(1, settings.cross_entropy_updates)
        own, tokens = _gradient(engine, pieces, sampling=share)
        total, norm = engine.global_sum(own), engine.clip()
        _check_finite(number, total, norm, engine, pieces)
    session.set_rate(learning_rate(settings, number))
    session.optimizer.step()
    progress.update = number
    progress.total += total
    progress.tokens += tokens
    progress.norms += norm
    progress.normed += 1
    engine.count(pieces)


def _gradient(engine: Eager, pieces: Sequence[Batched], sampling: float) -> tuple[float, int]:
    """Forward and backward over all pieces (batches or parts of them).

    Returns the summed loss in this process, and the tokens in all processes. If a piece does not fit into memory, it is
    split in two, and all pieces are run again.
    """
    engine.session.optimizer.zero_grad(set_to_none=True)
    tokens = engine.global_sum(sum(map(engine.tokens, pieces)))
    total = 0.0
    for index, piece in enumerate(pieces):
        try:
            total += engine.backward(piece, tokens, sampling, last=index + 1 == len(pieces))
        except (MemoryError, RuntimeError) as error:
            if not engine.splits or not out_of_memory(error):
                raise
            split = [*pieces[:index], *halves(piece), *pieces[index + 1 :]]
        else:
            continue
        return _gradient(engine, split, sampling)  # not inside `except`, which keeps the failed tensors alive
    return total, tokens


def halves(piece: AnyBatched) -> list[AnyBatched]:
    """Splits a batch into two with half of its rows each; ResourceError if it has only one row."""
    rows = torch.arange(len(piece.examples), device=piece.examples.device)
    if len(rows) == 1:
        raise ResourceError("a single example does not fit into memory; lower data.max_length or the model's widths")
    return [piece.select(half) for half in rows.split((len(rows) + 1) // 2)]


def _check_finite(update: int, loss: float, norm: float, engine: Eager, pieces: Sequence[Batched]) -> None:
    """Raise NotFiniteError if loss or gradient is not finite; the message names the examples of the batch."""
    if math.isfinite(loss) and math.isfinite(norm):
        return
    origins = [engine.data.examples[index].origin for index in engine.examples(pieces)]
    more = f" and {len(origins) - 8:,} more" if len(origins) > 8 else ""
    raise NotFiniteError(
        f"update {update}: the loss is {loss}, the norm of its gradient {norm}; the weights are as before. "
        f"The batch held {', '.join(origins[:8])}{more}. "
        "A lower train.learning_rate, more train.warmup or a smaller train.clip often helps"
    )
