"""Validations: the dev loss, the metric and samples on a part of dev, and which weights are stored."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from regard import device as devices
from regard import models, storage
from regard.console import counted
from regard.data.batching import sorted_batches
from regard.errors import CorruptError, NotFiniteError, RecipeError, TooLargeError, pick
from regard.kernels.choose import capturable
from regard.maps import TEXT
from regard.metrics import better
from regard.recipe import Recipe
from regard.storage import Run
from regard.tasks import AnyTask
from regard.tasks.core import AnyBatched, DevLoss, Encoded, by_source, evenly
from regard.training.callbacks import Sample, Validated
from regard.training.engine.eager import halves
from regard.training.health import Health, health
from regard.training.processes import ALONE, Processes
from regard.training.schedules import learning_rate
from regard.training.session import Session, generators_restored
from regard.training.stopping import Stopper
from regard.types import Example

BEST_BY = ("loss", "metric")  # values of train.best_by
SAMPLES = 3  # outputs that are shown
CHARACTERS = 50_000  # of the examples that a validation predicts, at most: this bounds its time
MOST_EXTRA = 50  # of search.max_extra in a validation: a model that has learned little may never end an output


def validate(
    task: AnyTask, session: Session, dev: Encoded, part: Sequence[Example], run: Run, stopper: Stopper
) -> Validated:
    """Compute the dev loss, and store the weights if they are the best so far or train.keep = last.

    `part` are the dev examples that are predicted, for the metric.
    """
    settings, progress, processes = task.recipe.train, session.progress, session.processes
    advice, part_scored, failure = "a lower train.learning_rate may help", PartScored(), ""
    with judged_model(task, session) as model:
        with session.undone_if_stopped(), stopper.undoable():
            dev_loss, attention_health = evaluate(task, model, dev, stopper, processes)
            if part and math.isfinite(dev_loss) and processes.first:
                try:
                    part_scored = score(task, model, part)
                except NotFiniteError as error:  # the other processes must end, too
                    known = isinstance(error, TooLargeError)  # whose message has its own advice
                    failure = str(error) if known else f"update {progress.update}: {error}; {advice}"
            value, failure = processes.broadcast([part_scored.value, failure])
        if failure:
            raise NotFiniteError(failure)
        if not math.isfinite(dev_loss):
            raise NotFiniteError(f"update {progress.update}: the dev loss is {dev_loss}; {advice}")
        tensors = models.weights(model)
        if name := models.not_finite(tensors):  # perhaps in a part that no dev example uses, so the loss is finite
            raise NotFiniteError(f"update {progress.update}: the tensor {name} holds NaN or infinite numbers; {advice}")
        cost = cost_of(task.recipe, dev_loss, value)
        improved, best = cost < progress.lowest, (cost, dev_loss) < (progress.lowest, progress.best_loss)
        if processes.first and (best or settings.keep == "last"):
            run.replace(storage.MODEL, save_tensors(tensors))
    progress.waited = 0 if improved else progress.waited + 1
    if best:
        progress.lowest, progress.best_loss = cost, dev_loss
    validated = Validated(
        update=progress.update,
        updates=settings.updates,
        loss=progress.mean_loss(),
        gradient_norm=progress.mean_norm(),
        dev_loss=dev_loss,
        metric=task.recipe.metric,
        value=value,
        examples=len(part),
        samples=part_scored.samples,
        best=best,
        waited=progress.waited,
        learning_rate=learning_rate(settings, progress.update),
        tokens_per_second=session.clock.rate(progress.tokens),
        seconds=session.clock.seconds(),
        health=attention_health,
        problem=part_scored.problem,
        reward=progress.mean_reward(),
    )
    progress.begin_interval()
    session.clock.start_interval()
    return validated


@contextmanager
def judged_model(task: AnyTask, session: Session) -> Iterator[nn.Module]:
    """The model with its mean weights; if it is sharded, a whole copy of it."""
    if not session.is_sharded:
        with session.averager.applied(session.model):
            yield session.model
        return
    from regard.training.shards import whole  # imports the compiler of torch, for a second

    weights = {name: whole(tensor) for name, tensor in models.weights(session.model).items()}
    yield whole_model(task, session, weights)


def whole_model(task: AnyTask, session: Session, weights: Mapping[str, Tensor]) -> nn.Module:
    """A model with these weights that is not sharded: the session's own one, unless that is."""
    model = session.model
    if session.is_sharded:
        with generators_restored():
            model = models.with_lora(task.build(), task.recipe.train.lora_rank)
        model = model.to(next(session.model.parameters()).device)
    models.load_weights(model, weights)
    return model


def cost_of(recipe: Recipe, dev_loss: float, value: float | None) -> float:
    """What train.best_by says to be lowest."""
    if recipe.train.best_by == "loss":
        return dev_loss
    assert value is not None, "check refuses train.best_by = metric without train.validate_examples"
    return -value if better(recipe.metric) == "higher is better" else value


def best_validation(recipe: Recipe, validations: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The recorded validation with the best weights: of those with the lowest cost, that of the lowest dev loss."""
    metric = f"dev_{recipe.metric}"

    def key(entry: Mapping[str, Any]) -> tuple[float, float]:
        return cost_of(recipe, entry["dev_loss"], entry.get(metric)), entry["dev_loss"]

    return min(validations, key=key)


def update_of_weights(run: Run) -> int | None:
    """The update whose weights a run stores: that of the best validation, or of the last one if train.keep = last.

    None if no validation is recorded: a process may be killed after it has stored the weights.
    """
    recipe, metric = run.recipe(), f"dev_{run.recipe().metric}"
    validations = [entry for entry in run.metrics() if "update" in entry]
    if not validations:
        return None
    if recipe.train.keep == "last":
        return int(validations[-1]["update"])
    lacking = [entry for entry in validations if metric not in entry]
    if lacking and recipe.train.best_by == "metric":
        which = f"the validation of update {lacking[0]['update']:,} has no {metric}"
        raise CorruptError(f"{run.path / storage.METRICS} is damaged: {which}, which train.best_by needs")
    return int(best_validation(recipe, validations)["update"])


def check_best(recipe: Recipe) -> None:
    """Refuse a train.best_by that is not known, or whose metric would not be computed."""
    pick(dict.fromkeys(BEST_BY), recipe.train.best_by, "value of train.best_by")
    if recipe.train.best_by == "metric" and not recipe.train.validate_examples:
        raise RecipeError("train.best_by = metric needs train.validate_examples of at least 1, not 0")


def part_of(task: AnyTask, examples: Sequence[Example]) -> Sequence[Example]:
    """The dev examples that each validation predicts: at most train.validate_examples, and `CHARACTERS` of text.

    If several examples have one source, and all their targets are references, that is one prediction.
    """
    part = task.part(examples, task.recipe.train.validate_examples)
    if not part:
        return part
    sets = by_source(part) if task.takes_all(task.recipe.metric) else [[example] for example in part]
    sizes = accumulate(task.characters(same_source) for same_source in sets)
    kept = sets[: max(1, sum(size <= CHARACTERS for size in sizes))]
    return part if len(kept) == len(sets) else [example for same_source in kept for example in same_source]


class PartScored(NamedTuple):
    """The recipe's metric on a part of dev, and some of the outputs; by default, nothing was computed."""

    value: float | None = None
    samples: tuple[Sample, ...] = ()
    problem: str = ""  # why there is no value


def score(task: AnyTask, model: nn.Module, part: Sequence[Example]) -> PartScored:
    """Compute the recipe's metric on some examples, by greedy search, and some of the outputs.

    The random generators stay as they are, and the search takes the paths of `predict`. If memory does not suffice for
    it beside the training, or if the metric is too large for a number, there is no value, unless train.best_by needs
    one.
    """
    recipe = task.recipe
    greedy = replace(recipe.search, beam=1, temperature=0.0, max_extra=min(recipe.search.max_extra, MOST_EXTRA))
    try:
        with generators_restored(), capturable(False), torch.no_grad():
            scored = task.measure(model, part, recipe.metric, greedy)
            asked, answers = scored.asked, scored.answers
            if not answers:  # the metric is not one of outputs
                asked = task.probes(evenly(part, SAMPLES))
                answers = task.answer(model, [example.source for example in asked], greedy)
    except TooLargeError as error:
        if recipe.train.best_by == "metric":
            raise TooLargeError(f"{error}; or set train.best_by=loss, which needs no metric") from None
        return PartScored(problem=str(error))
    except (MemoryError, RuntimeError) as error:
        if not devices.out_of_memory(error) or recipe.train.best_by == "metric":
            raise
        return PartScored(problem=f"there is too little memory to compute {recipe.metric} beside the training")
    pairs = evenly(list(zip(asked, answers, strict=True)), SAMPLES)
    samples = tuple(Sample(example.source, example.target, answer.text) for example, answer in pairs)
    return PartScored(scored.measured.value, samples)


@torch.no_grad()
def evaluate(
    task: AnyTask, model: nn.Module, data: Encoded, stopper: Stopper, processes: Processes = ALONE
) -> tuple[float, Health | None]:
    """The mean loss per target token, in nats, and the health of the attention if the model has a map.

    Several processes share the batches, and all get the mean over all of them.
    """
    model.eval()
    device = next(model.parameters()).device
    total, tokens, maps, ends = 0.0, 0, [], True
    batches = sorted_batches(data.lengths(), task.recipe.train.batch_tokens)
    own = batches.take(range(processes.rank, len(batches), processes.size))
    for indices in counted(own, "validating", size=1):
        stopper.check()
        for batch, judged in _judge(task, model, task.collate(data, indices).to(device)):
            total += judged.loss.item()
            tokens += task.tokens(batch)
            if judged.attention is not None and judged.mask is not None:
                maps.append((judged.attention, judged.mask, batch.target.mask[:, 1:]))
                ends = judged.layout == TEXT
    total, tokens = processes.sum(total), processes.sum(tokens)
    return total / tokens, health(maps, ends=ends, processes=processes)


def _judge(task: AnyTask, model: nn.Module, batch: AnyBatched) -> list[tuple[AnyBatched, DevLoss]]:
    """The loss and attention of a batch; a batch that does not fit into memory is split in two, again if needed."""
    try:
        return [(batch, task.dev_loss(model, batch))]
    except (MemoryError, RuntimeError) as error:
        if not devices.out_of_memory(error):
            raise
    return [judged for half in halves(batch) for judged in _judge(task, model, half)]
