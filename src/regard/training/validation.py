"""Validations: the dev loss, and which weights are stored."""

import math

import torch
from safetensors.torch import save as save_tensors
from torch import nn

from regard import device as devices
from regard import models, storage
from regard.console import counted
from regard.data.batching import sorted_batches
from regard.errors import NotFiniteError
from regard.storage import Run
from regard.tasks import AnyTask
from regard.tasks.core import AnyBatched, DevLoss, Encoded
from regard.training.callbacks import Validated
from regard.training.engine.eager import halves
from regard.training.health import Health, health
from regard.training.schedules import learning_rate
from regard.training.session import Session
from regard.training.stopping import Stopper


def validate(task: AnyTask, session: Session, dev: Encoded, run: Run, stopper: Stopper) -> Validated:
    """Compute the dev loss, and store the weights if they are the best so far or train.keep = last."""
    settings, progress, model = task.recipe.train, session.progress, session.model
    with session.averager.applied(model):
        with session.undone_if_stopped(), stopper.undoable():
            dev_loss, attention_health = evaluate(task, model, dev, stopper)
        advice = "a lower train.learning_rate may help"
        if not math.isfinite(dev_loss):
            raise NotFiniteError(f"update {progress.update}: the dev loss is {dev_loss}; {advice}")
        tensors = models.weights(model)
        if name := models.not_finite(tensors):  # perhaps in a part that no dev example uses, so the loss is finite
            raise NotFiniteError(f"update {progress.update}: the tensor {name} holds NaN or infinite numbers; {advice}")
        best = dev_loss < progress.lowest
        if best or settings.keep == "last":
            run.replace(storage.MODEL, save_tensors(tensors))
    progress.waited = 0 if best else progress.waited + 1
    progress.lowest = min(progress.lowest, dev_loss)
    validated = Validated(
        update=progress.update,
        updates=settings.updates,
        loss=progress.mean_loss(),
        gradient_norm=progress.mean_norm(),
        dev_loss=dev_loss,
        best=best,
        waited=progress.waited,
        learning_rate=learning_rate(settings, progress.update),
        tokens_per_second=session.clock.rate(progress.tokens),
        seconds=session.clock.seconds(),
        health=attention_health,
    )
    progress.begin_interval()
    session.clock.start_interval()
    return validated


@torch.no_grad()
def evaluate(task: AnyTask, model: nn.Module, data: Encoded, stopper: Stopper) -> tuple[float, Health | None]:
    """The mean loss per target token, in nats, and the health of the attention if the model has a map."""
    model.eval()
    device = next(model.parameters()).device
    total, tokens, maps = 0.0, 0, []
    for indices in counted(sorted_batches(data.lengths(), task.recipe.train.batch_tokens), "validating", size=1):
        stopper.check()
        for batch, judged in _judge(task, model, task.collate(data, indices).to(device)):
            total += judged.loss.item()
            tokens += task.tokens(batch)
            if judged.attention is not None and judged.mask is not None:
                maps.append((judged.attention, judged.mask, batch.target.mask[:, 1:]))
    return total / tokens, health(maps)


def _judge(task: AnyTask, model: nn.Module, batch: AnyBatched) -> list[tuple[AnyBatched, DevLoss]]:
    """The loss and attention of a batch; a batch that does not fit into memory is split in two, again if needed."""
    try:
        return [(batch, task.dev_loss(model, batch))]
    except (MemoryError, RuntimeError) as error:
        if not devices.out_of_memory(error):
            raise
    return [judged for half in halves(batch) for judged in _judge(task, model, half)]
