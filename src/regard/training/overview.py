"""The lines that are printed before training: what will be learned, from what, and on which device."""

from collections.abc import Iterator

import torch
from torch import nn

from regard import device as devices
from regard.data.batching import count_batches
from regard.errors import quantity
from regard.recipe import Train
from regard.tasks import AnyTask
from regard.tasks.core import Encoded

FEW, SHORT = 10, 1000  # examples, and their tokens in all: with fewer of both, a line warns


def overview(
    task: AnyTask, model: nn.Module, device: torch.device, data: Encoded, dev: Encoded, examples: int
) -> Iterator[str]:
    """The lines printed before training: data, vocabulary, parameters, device, updates, precision.

    Precision: what `auto` chose, and that forced bfloat16 may be slow; nothing is printed for float32.
    """
    settings, learned = task.recipe.train, quantity(len(data.examples), task.noun)
    too_long = examples - len(data.examples)
    dropped = f" ({too_long:,} over {task.recipe.data.max_length} tokens dropped)" if too_long else ""
    yield f"{learned} to learn from{dropped}, {quantity(len(dev.examples), f'dev {task.noun}')}"
    if len(data.examples) < FEW and sum(map(sum, data.lengths())) < SHORT:
        yield f"warning: only {learned} to learn from; the model will hardly answer others"
    yield from task.describe(data, dev)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    learning = f", of which {parameters - frozen:,} learn," if frozen else ""
    parts = [f"{parameters:,} parameters{learning} on {device}"]
    if settings.cross_entropy_updates:
        size = f"at most {settings.batch_tokens * settings.accumulate:,} tokens"
        parts += [f"{settings.cross_entropy_updates:,} updates of {size}", _passes(settings, data)]
    yield ", ".join(parts)
    if rewarded := settings.updates - settings.cross_entropy_updates:
        outputs = f"{settings.reward_samples} outputs drawn for each source of a batch"
        yield f"{rewarded:,} updates on the reward {' + '.join(settings.reward)} of {outputs}"
    automatic = devices.choose_precision("auto", device)
    if settings.precision == "auto":
        rule = "train.precision=auto is bfloat16 on a GPU that computes in it, else float32"
        yield f"precision: {automatic} on {device} ({rule})"
    elif settings.precision == "bfloat16" != automatic:
        yield f"precision: bfloat16 on {device}, as forced; this may be slow, train.precision=auto is {automatic} here"


def _passes(settings: Train, data: Encoded) -> str:
    """How often training reads the data (epochs); about, since on a GPU lengths are rounded and batches may be more."""
    batches = count_batches(data.lengths(), settings.batch_tokens)
    passes = settings.cross_entropy_updates * settings.accumulate / batches
    if passes < 0.05:
        return "less than a tenth of a pass over the data"
    number = f"{passes:,.0f}" if passes >= 9.95 else f"{passes:.1f}"
    return "about one pass over the data" if number == "1.0" else f"about {number} passes over the data"
