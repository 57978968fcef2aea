"""The training loop, the same for all tasks: `train` starts a run, `resume` continues one."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from regard import device as devices
from regard import memory, models, plugins, storage
from regard import recipe as recipes
from regard.console import ProgressLog
from regard.data.batching import Batches, sorted_batches
from regard.errors import CorruptError, DataError, NotFiniteError, RecipeError, StoppedError, pick
from regard.kernels.choose import capturable
from regard.recipe import Recipe, Train
from regard.storage import Checkpoint, Run
from regard.storage.runs import resume_command
from regard.tasks import AnyTask, task_class
from regard.tasks.core import AnyBatched, DevLoss, Encoded, Examples
from regard.training import engine, environment, prolonging
from regard.training.engine import SMALLER_BATCHES
from regard.training.engine.eager import halves
from regard.training.health import Health, health
from regard.training.schedules import SCHEDULES, learning_rate
from regard.training.session import Clock, Session
from regard.training.stopping import Stopper

FLAT_AFTER = 1000  # updates after which flat attention is reported
KEPT_WEIGHTS = ("best", "last")  # values of train.keep: which weights are stored in the run


def train(recipe: Recipe | str | Path, *overrides: str, runs: str | Path = "runs", quiet: bool = False) -> Run:
    """Train a model by a recipe, with `a.b=c` overrides, and store the run in a new directory under `runs`.

    Nothing is written until the recipe and all data have been checked.
    """
    if not isinstance(recipe, Recipe):
        recipe = recipes.load(recipe)
    for text in overrides:
        recipe = recipes.override(recipe, text)
    origin = Run.open(recipe.train.start_from) if recipe.train.start_from else None
    if origin and origin.path != Path(recipe.train.start_from):  # a link such as runs/latest: it will point to this run
        recipe = replace(recipe, train=replace(recipe.train, start_from=str(origin.path)))
    with plugins.resolving(origin.needs() if origin else plugins.NO_NEEDS) as packages:
        check(recipe)
        kind = task_class(recipe.task)
    with Stopper().listening() as stopper, ProgressLog(quiet=quiet) as log:
        stopper.say = log.say
        examples = kind.examples(recipe)
        task = kind.learn(recipe, examples.train, origin)
        files = {storage.RECIPE: recipes.to_toml(recipe).encode(), storage.DATA: examples.digest()} | task.files()
        if packages:
            files[storage.PLUGINS] = plugins.to_json(packages)
        files[storage.ENVIRONMENT] = environment.to_json([{"update": 0} | environment.current(recipe.train)])
        data, dev = task.within_length(task.encode(examples.train)).without_texts(), task.encode(examples.dev)
        shapes = _shapes(task)
        memory.check_training(shapes, recipe.train, devices.choose_device(recipe.train.device))
        examples = examples.without_texts()  # frees their memory
        if origin is not None:
            _fitting(origin, shapes)
            files[storage.ORIGIN] = origin.origin()
        with stopper.deferred():
            run = Run.create(Path(runs), recipe.name, files)
            older = Path(runs) / recipe.name
            notice = f"{older} exists; this run is {run.path}" if run.path != older else ""
            if notice:
                log.say(notice)
            with _training(run) as locked:
                _learn(task, examples, data, dev, locked, log, stopper)
            if notice:
                log.say(notice)
    return run


def resume(run: Run | str | Path, *overrides: str, exact: bool = False, quiet: bool = False) -> Run:
    """Continue a run that was stopped or killed; the result is bit for bit that of an uninterrupted run.

    The overrides `train.updates=N` and `train.patience=N` prolong or shorten it; a finished run can be prolonged, too.
    Its schedule is then the one of the new length, from the next update on.

    Another version of torch or regard, another processor or GPU, or another number of threads may change the last bits.
    A message says so then; with `exact`, it is an error.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    with plugins.loading(run.needs()):
        check(run.recipe(), stored=True)
    with Stopper().listening() as stopper, ProgressLog(quiet=quiet) as log, _training(run) as locked:
        stopper.say = log.say
        recipe = prolonging.prolonged_recipe(run, overrides)
        if run.finished() and recipe == run.recipe():
            log.say(f"the run {run.path} is finished already; to prolong it, add train.updates=NUMBER")
            return run
        now = environment.current(recipe.train)
        changes = environment.describe_changes(run, now, exact=exact)
        task = task_class(recipe.task).restore(recipe, run.read)
        examples = task.examples(recipe)
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


@contextmanager
def _training(run: Run) -> Iterator[Run]:
    """In the block, the run is locked; errors say what to do if memory runs out, or how to resume a stopped run."""
    try:
        with run.training() as locked, devices.explain_out_of_memory("training", SMALLER_BATCHES):
            yield locked
    except StoppedError as stopped:
        saved = f"{run.newest_update():,} updates are saved; go on with: {resume_command(run.path)}"
        unchanged = f"{run.path} is finished, as it was before"  # it was to be prolonged
        raise StoppedError(stopped.number, unchanged if run.finished() else saved) from None


def check(recipe: Recipe, *, stored: bool = False) -> None:
    """Refuse a recipe that cannot be trained, before any data is read or any file is written.

    The recipe of a `stored` run may have keys that its task ignores: they were not always refused.
    """
    task = task_class(recipe.task)
    task.check_metric(recipe.metric)
    pick(SCHEDULES, recipe.train.schedule, "schedule")
    if not stored:
        task.check_keys(recipe)
    task.check(recipe)
    pick(dict.fromkeys(devices.PRECISIONS), recipe.train.precision, "precision")
    pick(dict.fromkeys(KEPT_WEIGHTS), recipe.train.keep, "weights to keep")
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
    start_notes = _start_from(recipe.train.start_from, model, run)
    device = devices.choose_device(recipe.train.device)
    session = Session.begin(model.to(device), recipe.train)
    overview = _overview(task, session.model, data, dev, len(examples.train))
    for line in (*examples.notes, *overview, *start_notes, f"run {run.path}"):
        log.say(line)
    _restore_newest(run, session, recipe, log)
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


def _start_from(path: str, model: nn.Module, run: Run) -> list[str]:
    """Load the fitting weights of another run into a new model; returns what to report about it.

    If this run has a checkpoint, its training has begun already, and nothing is loaded.
    """
    if not path or run.checkpoints():
        return []
    origin = Run.open(path)
    if not run.started_from(origin):
        raise DataError(
            f"the run {path}, which train.start_from names, has changed since the training of {run.path} began; "
            "restore it, or train a new run"
        )
    fitting = _fitting(origin, model)
    model.load_state_dict(fitting, strict=False)
    return [f"taken from {path}: {len(fitting):,} of the model's {len(models.weights(model)):,} tensors"]


def _fitting(origin: Run, model: nn.Module) -> dict[str, Tensor]:
    """The weights of a run that have the name, shape and type of a weight of the model; at least one must."""
    fitting = models.fitting_weights(origin, model)
    if not fitting:
        raise RecipeError(
            f"train.start_from: no tensor of {origin.path} has the name and shape of one of this model; "
            f"make [model] more like that of {origin.path / storage.RECIPE}"
        )
    return fitting


def _restore_newest(run: Run, session: Session, recipe: Recipe, log: ProgressLog) -> None:
    """Restore the session from the newest checkpoint that is not damaged; damaged ones are set aside.

    Without any checkpoint, training begins at update 0; if all are damaged, the error of the newest is raised. If the
    run is prolonged, it gets its new recipe then, and not before: a finished run that cannot go on stays finished.
    """
    damaged: list[tuple[Checkpoint, CorruptError]] = []
    for checkpoint in run.checkpoints():
        try:
            session.restore(checkpoint, recipe.train)
        except CorruptError as error:
            damaged.append((checkpoint, error))
            continue
        if session.progress.validated:
            models.stored_weights(run, session.model)  # the best so far; if damaged, this fails now and not at the end
        _prolong(run, recipe, session.progress.update, log)
        for broken, why in damaged:
            aside = run.set_aside(broken)
            log.warn(f"{why}; it is set aside as {aside.name}; an older checkpoint is used instead")
        _restore_metrics(run, checkpoint, session, log)
        log.say(f"going on after update {session.progress.update:,}")
        return
    if damaged:
        raise damaged[0][1]
    _prolong(run, recipe, 0, log)
    run.restore_metrics(None)


def _prolong(run: Run, recipe: Recipe, done: int, log: ProgressLog) -> None:
    """Store the recipe of a run that goes on after `done` updates, if it is another one than before."""
    before = run.recipe()
    if recipe != before:
        for line in prolonging.changes(recipe.train, before.train, done):
            log.say(line)
        run.prolong(recipe, done)


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
            session.average(judged=_due(settings, progress.update))
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
