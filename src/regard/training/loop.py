"""The training loop, the same for all tasks: `train` starts a run, `resume` continues one."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from regard import device as devices
from regard import memory, models, plugins, storage
from regard import recipe as recipes
from regard.console import ProgressLog
from regard.data.batching import Batches, sorted_batches
from regard.data.records import DEV, PAIRS, Given
from regard.errors import CorruptError, DataError, NotFiniteError, RecipeError, StoppedError, pick
from regard.kernels.choose import capturable
from regard.recipe import Data, Recipe, Train
from regard.storage import Checkpoint, Run
from regard.storage.runs import resume_command
from regard.tasks import AnyTask, task_class, task_of
from regard.tasks.core import AnyBatched, DevLoss, Encoded, Examples
from regard.training import engine, environment
from regard.training.engine import SMALLER
from regard.training.engine.eager import halves
from regard.training.health import Health, health
from regard.training.schedules import SCHEDULES, learning_rate
from regard.training.session import Clock, Session
from regard.training.stopping import Stopper
from regard.types import Vocabulary

FLAT_AFTER = 1000  # updates after which flat attention is reported
KEPT = ("best", "last")  # values of train.keep: which weights are stored in the run


def train(
    recipe: Recipe | str | Path,
    *overrides: str,
    pairs: Any = None,
    dev: Any = None,
    runs: str | Path = "runs",
    quiet: bool = False,
) -> Run:
    """Train a model by a recipe, with `a.b=c` overrides, and store the run in a new directory under `runs`.

    `pairs` are examples to learn from, in place of the recipe's data: a list of (source, target), or a data frame, with
    `data.columns` if it has more columns; `dev` are those to validate on, otherwise a part of `pairs` is split off.
    Nothing is written until the recipe and all data have been checked.
    """
    if not isinstance(recipe, Recipe):
        recipe = recipes.load(recipe)
    recipe, given = _given(recipe, overrides, pairs, dev)
    origin = Run.open(recipe.train.start_from) if recipe.train.start_from else None
    with plugins.resolving(origin.needs() if origin else plugins.NO_NEEDS) as packages:
        check(recipe)
        kind = task_class(recipe.task)
    with Stopper().listening() as stopper, ProgressLog(quiet=quiet) as log:
        stopper.say = log.say
        examples = kind.examples(recipe, given)
        task = kind.learn(recipe, examples.train, None if recipe.train.new_vocabulary else origin)
        files = {storage.RECIPE: recipes.to_toml(recipe).encode(), storage.DATA: examples.digest()} | task.files()
        if packages:
            files[storage.PLUGINS] = plugins.to_json(packages)
        files[storage.ENVIRONMENT] = environment.to_json([{"update": 0} | environment.current(recipe.train)])
        data, dev = task.within_length(task.encode(examples.train)).without_texts(), task.encode(examples.dev)
        shapes = _shapes(task)
        memory.check_training(shapes, recipe.train, devices.choose_device(recipe.train.device))
        examples = examples.without_texts()  # frees their memory
        if origin is not None:
            _fitting(origin, task, shapes)
            files[storage.ORIGIN] = origin.origin()
        with stopper.deferred():
            run = Run.create(Path(runs), recipe.name, files)
            with _training(run) as locked:
                _learn(task, examples, data, dev, locked, log, stopper)
    return run


def resume(
    run: Run | str | Path, *, pairs: Any = None, dev: Any = None, exact: bool = False, quiet: bool = False
) -> Run:
    """Continue a run that was stopped or killed; the result is bit for bit that of an uninterrupted run.

    A run that was trained on `pairs` needs them again, and `dev` if it had them: a run does not store its data.
    Another version of torch or regard, another processor or GPU, or another number of threads may change the last bits.
    A message says so then; with `exact`, it is an error.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    recipe = run.recipe()
    with plugins.loading(run.needs()):
        check(recipe, stored=True)
    with Stopper().listening() as stopper, ProgressLog(quiet=quiet) as log, _training(run) as locked:
        stopper.say = log.say
        if run.finished():
            log.say(f"the run {run.path} is finished already")
            return run
        now = environment.current(recipe.train)
        changes = environment.describe_changes(run, now, exact=exact)
        task = task_class(recipe.task).restore(recipe, run.read)
        examples = task.examples(recipe, _given_again(run, recipe.data, pairs, dev))
        if examples.digest() != run.read(storage.DATA):
            names = ", ".join(recipe.data.train + recipe.data.dev) or f"the corpus {recipe.data.corpus}"
            raise DataError(
                f"the data of {run.path} has changed since its training began: {names}. "
                "Restore the old data to resume, or train a new run"
            )
        data, dev = task.within_length(task.encode(examples.train)).without_texts(), task.encode(examples.dev)
        memory.check_training(_shapes(task), recipe.train, devices.choose_device(recipe.train.device))
        examples = examples.without_texts()  # frees their memory
        with stopper.deferred():
            if changes:
                log.warn(changes)
                environment.record(locked, now, run.newest_update())
            _learn(task, examples, data, dev, locked, log, stopper)
    return run


def _given(recipe: Recipe, overrides: Sequence[str], pairs: Any, dev: Any) -> tuple[Recipe, Given]:
    """The recipe with overrides, and examples given in Python, which it names in place of its files or corpus."""
    given = {name: rows for name, rows in ((PAIRS, pairs), (DEV, dev)) if rows is not None}
    if DEV in given and PAIRS not in given:
        raise RecipeError("dev is for a training on pairs; give pairs, too, or data.dev=FILE")
    if given:
        recipe = replace(recipe, data=replace(recipe.data, corpus="", train=(), dev=(), test=()))
    for text in overrides:
        recipe = recipes.override(recipe, text)
    data = recipe.data
    if given and (data.corpus or data.train or (DEV in given and data.dev)):
        raise RecipeError("examples are given as pairs or dev, and as a key of data, too; leave one of them out")
    if given:
        named = replace(data, train=(PAIRS,), dev=(DEV,) if DEV in given else data.dev)
        return replace(recipe, data=named), given
    return recipe, given


def _given_again(run: Run, data: Data, pairs: Any, dev: Any) -> Given:
    """The examples given in Python to resume a run; refuses those that its recipe does not name, and missing ones."""
    given = {name: rows for name, rows in ((PAIRS, pairs), (DEV, dev)) if rows is not None}
    if missing := {*data.train, *data.dev} & {PAIRS, DEV} - given.keys():
        dev_too = ", dev=..." if DEV in data.dev else ""
        how = f"give the same again, in Python: regard.resume({str(run.path)!r}, pairs=...{dev_too})"
        raise DataError(f"the run {run.path} does not store its {max(missing)}; {how}")
    if unused := given.keys() - {*data.train, *data.dev}:
        raise RecipeError(f"the run {run.path} was not trained on {max(unused)}; leave them out")
    return given


@contextmanager
def _training(run: Run) -> Iterator[Run]:
    """In the block, the run is locked; errors say what to do if memory runs out, or how to resume a stopped run."""
    try:
        with run.training() as locked, devices.explain_out_of_memory("training", SMALLER):
            yield locked
    except StoppedError as stopped:
        saved = f"{run.newest_update():,} updates are saved; go on with: {resume_command(run.path)}"
        raise StoppedError(stopped.number, saved) from None


def check(recipe: Recipe, *, stored: bool = False) -> None:
    """Refuse a recipe that cannot be trained, before any data is read or any file is written.

    The recipe of a `stored` run may have keys that its task ignores: they were not always refused.
    """
    task = task_class(recipe.task)
    task.check_metric(recipe.metric)
    pick(SCHEDULES, recipe.train.schedule, "schedule")
    if not stored:
        task.check_keys(recipe)
        task.check_columns(recipe.data)
    if recipe.train.new_vocabulary and not recipe.train.start_from:
        raise RecipeError("train.new_vocabulary is for train.start_from=RUN, which is not set; leave it out")
    task.check(recipe)
    pick(dict.fromkeys(devices.PRECISIONS), recipe.train.precision, "precision")
    pick(dict.fromkeys(KEPT), recipe.train.keep, "weights to keep")
    devices.choose_device(recipe.train.device)


def _shapes(task: AnyTask) -> nn.Module:
    """The model of a task on the meta device: only shapes, no memory for weights."""
    with torch.device("meta"):
        return task.build()


def _learn(
    task: AnyTask, examples: Examples, data: Encoded, dev: Encoded, run: Run, log: ProgressLog, stopper: Stopper
) -> None:
    """Train to the end, from the newest checkpoint if there is one, then compute the metric on dev."""
    recipe = task.recipe
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    torch.use_deterministic_algorithms(recipe.train.deterministic)
    torch.manual_seed(recipe.train.seed)
    with stopper.undoable():  # nothing is written yet
        model = task.build()
    start_notes = _start_from(task, model, run)
    device = devices.choose_device(recipe.train.device)
    session = Session.begin(model.to(device), recipe.train)
    overview = _overview(task, session.model, data, dev, len(examples.train))
    for line in (*examples.notes, *overview, *start_notes, f"run {run.path}"):
        log.say(line)
    _restore_newest(run, session, recipe.train, log)
    if run.strangers():
        names = ", ".join(run.strangers())
        log.warn(
            f"{run.path / storage.CHECKPOINTS} holds what is not a checkpoint of this run; it is left alone: {names}"
        )
    if start_notes:
        run.save(0, session.files())  # after this, the run it started from may be changed or deleted
    on_gpu = device.type == "cuda"  # then eager updates use the capturable paths too, which never wait for the GPU
    with devices.keep_freed_memory(), devices.current(device), capturable(on_gpu), stopper.signals_in_backward(model):
        fit(task, session, data, dev, run, log, stopper)
    seconds = session.clock.seconds()
    with stopper.at_once(), devices.current(device):
        models.load_weights(session.model, models.stored_weights(run, session.model))
        value, signature = task.measure(session.model, dev.examples, recipe.metric, recipe.search).measured
    _restore_metrics(run, run.own_checkpoints()[0], session, log)
    precision = devices.choose_precision(recipe.train.precision, device)
    run.record({recipe.metric: value, "signature": signature, "train_seconds": seconds, "precision": precision})
    run.finish()
    log.say(f"learned in {seconds:.1f} s; on dev: {value:.4f} ({signature})")


def _start_from(task: AnyTask, model: nn.Module, run: Run) -> list[str]:
    """Load the fitting weights of another run into a new model; returns what to report about it.

    If this run has a checkpoint, its training has begun already, and nothing is loaded.
    """
    path = task.recipe.train.start_from
    if not path or run.checkpoints():
        return []
    origin = Run.open(path)
    if not run.started_from(origin):
        raise DataError(
            f"the run {path}, which train.start_from names, has changed since the training of {run.path} began; "
            "restore it, or train a new run"
        )
    fitting, shared = _fitting(origin, task, model)
    model.load_state_dict(models.with_shared_rows(model, fitting, shared), strict=False)
    in_part = {name: rows for name, rows in shared.items() if name in fitting}
    note = f"taken from {path}: {len(fitting) - len(in_part):,} of the model's {len(models.weights(model)):,} tensors"
    if in_part:
        nouns = {name: vocabulary.noun for name, vocabulary in task.vocabularies().items()}
        counts = (f"{len(rows.own):,} of {rows.sizes[0]:,} {nouns[name]}" for name, rows in in_part.items())
        note += f"; of {len(in_part):,} more, the rows of {' and '.join(dict.fromkeys(counts))} that are in both"
    return [note]


def _fitting(origin: Run, task: AnyTask, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, models.SharedRows]]:
    """The weights of a run that fit those of the model; at least one must.

    Of tensors whose vocabularies are not the same in both, there are also the rows that both share.
    """
    own, stored = task.vocabularies(), _vocabularies(origin, task.recipe.train)
    shared = {
        name: models.SharedRows.of(own[name], stored[name])
        for name in own
        if name in stored and own[name] != stored[name]
    }
    fitting = models.fitting_weights(origin, model, shared)
    if not fitting:
        raise RecipeError(
            f"train.start_from: no tensor of {origin.path} has the name and shape of one of this model; "
            f"make [model] more like that of {origin.path / storage.RECIPE}"
        )
    return fitting, shared


def _vocabularies(origin: Run, settings: Train) -> dict[str, Vocabulary]:
    """The vocabularies of the tensors of a run; none if it needs a package that only it needs, and is not installed."""
    try:
        return task_of(origin).vocabularies()
    except RecipeError:
        if settings.new_vocabulary:
            raise
        return {}


def _restore_newest(run: Run, session: Session, settings: Train, log: ProgressLog) -> None:
    """Restore the session from the newest checkpoint that is not damaged; damaged ones are set aside.

    Without any checkpoint, training begins at update 0; if all are damaged, the error of the newest is raised.
    """
    damaged: list[tuple[Checkpoint, CorruptError]] = []
    for checkpoint in run.checkpoints():
        try:
            session.restore(checkpoint, settings)
        except CorruptError as error:
            damaged.append((checkpoint, error))
            continue
        for broken, why in damaged:
            aside = run.set_aside(broken)
            log.warn(f"{why}; it is set aside as {aside.name}; an older checkpoint is used instead")
        if session.progress.validated:
            models.stored_weights(run, session.model)  # the best so far; if damaged, this fails now and not at the end
        _restore_metrics(run, checkpoint, session, log)
        log.say(f"going on after update {session.progress.update:,}")
        return
    if damaged:
        raise damaged[0][1]
    run.restore_metrics(None)


def _restore_metrics(run: Run, checkpoint: Checkpoint, session: Session, log: ProgressLog) -> None:
    """Set the metrics back to those of a checkpoint; if they were damaged, a message says so."""
    if aside := run.restore_metrics(checkpoint, session.progress.metrics_size):
        log.warn(f"{run.path / storage.METRICS} was damaged and is restored; the damaged one is now {aside.name}")


def fit(
    task: AnyTask, session: Session, data: Encoded, dev: Encoded, run: Run, log: ProgressLog, stopper: Stopper
) -> None:
    """Run updates and validations until train.updates or train.patience is reached, or a signal stops training.

    The weights with the lowest dev loss are stored in the run, or the last ones if train.keep = last.
    """
    settings, progress = task.recipe.train, session.progress
    session.clock = Clock()
    running = engine.choose(task, session, data)
    batches = Batches(data.lengths(), settings.batch_tokens, settings.seed, few_shapes=running.few_shapes)
    log.begin(settings.updates, progress.update)
    try:
        while True:
            if _due(settings, progress.update) and progress.validated < progress.update:
                running.collect()
                validate(task, session, dev, run, log, stopper)
                progress.metrics_size = run.metrics_size()
                run.save(progress.update, session.files())
            if progress.update == settings.updates:
                return
            if settings.patience and progress.waited >= settings.patience:
                log.say(f"stopping: the dev loss has not fallen for {progress.waited} validations")
                return
            stopper.check()
            running.update(batches, stopper)
            session.averager.after_update(session.model, judged=_due(settings, progress.update))
            log.advance(progress.total / max(1, progress.tokens), session.clock.rate(progress.tokens))
    except StoppedError:
        running.collect()
        if not stopper.hurried:  # after a second signal an update may be half done: the last checkpoint is used instead
            run.save(progress.update, session.files())
        raise


def validate(task: AnyTask, session: Session, dev: Encoded, run: Run, log: ProgressLog, stopper: Stopper) -> None:
    """Compute the dev loss, store the weights if they are the best so far or train.keep = last, and record metrics."""
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
    entry = {
        "update": progress.update,
        "loss": progress.total / progress.tokens,
        "dev_loss": dev_loss,
        "learning_rate": learning_rate(settings, progress.update),
        "tokens_per_second": session.clock.rate(progress.tokens),
        "seconds": session.clock.seconds(),
    }
    run.record(entry | (attention_health._asdict() if attention_health else {}))
    losses = f"update {progress.update:,}: loss {entry['loss']:.4f}, dev loss {dev_loss:.4f}"
    log.say(losses + (f", {attention_health.describe()}" if attention_health else ""))
    if attention_health and attention_health.flat() and progress.update >= FLAT_AFTER:
        log.say(f"attention still flat after {progress.update:,} updates: it may be of no use to this model yet")
    progress.waited = 0 if best else progress.waited + 1
    progress.lowest = min(progress.lowest, dev_loss)
    progress.validated, progress.total, progress.tokens = progress.update, 0.0, 0
    session.clock.start_interval()


@torch.no_grad()
def evaluate(task: AnyTask, model: nn.Module, data: Encoded, stopper: Stopper) -> tuple[float, Health | None]:
    """The mean loss per target token, in nats, and the health of the attention if the model has a map."""
    model.eval()
    device = next(model.parameters()).device
    total, tokens, maps = 0.0, 0, []
    for indices in sorted_batches(data.lengths(), task.recipe.train.batch_tokens):
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


def _due(settings: Train, update: int) -> bool:
    """Whether a validation follows this update."""
    return update % settings.validate == 0 or update == settings.updates


def _overview(task: AnyTask, model: nn.Module, data: Encoded, dev: Encoded, examples: int) -> Iterator[str]:
    """The lines printed before training: data, vocabulary, parameters, device, updates, precision.

    Precision: what `auto` chose, and that forced bfloat16 may be slow; nothing is printed for float32.
    """
    settings, noun = task.recipe.train, task.noun
    too_long = examples - len(data.examples)
    dropped = f" ({too_long:,} over {task.recipe.data.max_length} tokens dropped)" if too_long else ""
    yield f"{len(data.examples):,} {noun}s to learn from{dropped}, {len(dev.examples):,} dev {noun}s"
    yield from task.describe(data, dev)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    device = next(model.parameters()).device
    updates = f"{settings.updates:,} updates of at most {settings.batch_tokens * settings.accumulate:,} tokens"
    yield f"{parameters:,} parameters on {device}, {updates}"
    automatic = devices.choose_precision("auto", device)
    if settings.precision == "auto":
        rule = "train.precision=auto is bfloat16 on a GPU that computes in it, else float32"
        yield f"precision: {automatic} on {device} ({rule})"
    elif settings.precision == "bfloat16" != automatic:
        yield f"precision: bfloat16 on {device}, as forced; this may be slow, train.precision=auto is {automatic} here"
