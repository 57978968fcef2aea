"""The training loop, the same for all tasks: `train` starts a run, `resume` continues one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard import device as devices
from regard import memory, models, plugins, storage
from regard import recipe as recipes
from regard.console import ProgressLog, announcement, current_log
from regard.data.batching import Batches
from regard.data.paths import are_large
from regard.data.records import DEV, NOTHING_GIVEN, PAIRS, Given
from regard.errors import CallbackError, CorruptError, DataError, RecipeError, StoppedError, pick
from regard.kernels.choose import capturable
from regard.recipe import Data, Recipe, Train
from regard.storage import Checkpoint, FollowedRun, Run
from regard.storage.runs import check_name, resume_command
from regard.tasks import AnyTask, task_class, task_of
from regard.tasks.core import Encoded, Examples
from regard.training import engine, environment, prolonging
from regard.training.callbacks import Callback, Callbacks, Ended, MetricsFile, Started, Updated, call
from regard.training.callbacks import check as check_callbacks
from regard.training.card import ModelCard
from regard.training.embeddings import start_embeddings
from regard.training.engine import SMALLER_BATCHES
from regard.training.overview import overview
from regard.training.processes import ALONE, PARALLEL, Processes, failing_together, joined, told_if_lost
from regard.training.report import Report
from regard.training.schedules import SCHEDULES, learning_rate
from regard.training.session import Clock, Session
from regard.training.stopping import Stopper
from regard.training.validation import check_best, part_of, validate, whole_model
from regard.types import Vocabulary

KEPT_WEIGHTS = ("best", "last")  # values of train.keep: which weights are stored in the run


def train(
    recipe: Recipe | str | Path,
    *overrides: str,
    pairs: Any = None,
    dev: Any = None,
    runs: str | Path = "runs",
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a model by a recipe, with `a.b=c` overrides, and store the run in a new directory under `runs`.

    `pairs` are examples to learn from, in place of the recipe's data: a list of (source, target), or a data frame, with
    `data.columns` if it has more columns; `dev` are those to validate on, otherwise a part of `pairs` is split off.
    Nothing is written until the recipe and all data have been checked. `callbacks` are told how training goes.
    """
    check_callbacks(callbacks)
    recipe, given = _given(recipe if isinstance(recipe, Recipe) else recipes.load(recipe), overrides, pairs, dev)
    recipe, origin, packages = _checked(recipe)
    with Stopper().listening() as stopper, joined(recipe.train) as processes, _log(processes, quiet=quiet) as log:
        stopper.say = log.say
        with stopper.deferred():
            with told_if_lost(processes, lambda: "nothing was written"), _preparing(stopper, processes):
                prepared = _prepare(recipe, origin, given, log)
                files = _files(prepared, origin, packages, processes.size)
            task, examples, data, dev_data, _, _ = prepared
            del prepared
            with told_if_lost(processes, lambda: "no updates are saved; start again"):
                run, notice = _created(Path(runs), recipe.name, files, processes, log)
            with _training(run, processes) as locked:
                _learn(task, examples, data, dev_data, locked, log, stopper, callbacks, processes)
            if notice:
                log.say(notice)
    return run


def create(recipe: Recipe, runs: Path, processes: int, *, quiet: bool = False) -> Run:
    """Check a recipe and its data as `train` does, and create the run, which so many processes will `resume`."""
    recipe, origin, packages = _checked(recipe)
    with Stopper().listening() as stopper, current_log(quiet=quiet) as log:
        stopper.say = log.say
        prepared = _prepare(recipe, origin, NOTHING_GIVEN, log)
        return _created(runs, recipe.name, _files(prepared, origin, packages, processes), ALONE, log)[0]


@contextmanager
def _preparing(stopper: Stopper, processes: Processes) -> Iterator[None]:
    """In the block, which changes nothing, signals stop at once; what stops one process stops all at its end."""
    with failing_together(processes), stopper.not_deferred():
        yield


def _checked(recipe: Recipe) -> tuple[Recipe, Run | None, Mapping[str, plugins.Package]]:
    """The recipe of a new run, the run that it starts from, and the installed packages that it uses."""
    origin = Run.open(recipe.train.start_from) if recipe.train.start_from else None
    if origin and origin.path != Path(recipe.train.start_from):  # a link such as runs/latest: it will point to this run
        recipe = replace(recipe, train=replace(recipe.train, start_from=str(origin.path)))
    with plugins.resolving(origin.needs() if origin else plugins.NO_NEEDS) as packages:
        check(recipe)
    return recipe, origin, packages


def _log(processes: Processes, *, quiet: bool) -> AbstractContextManager[ProgressLog]:
    """The log that is open, or a new one; of several processes, only the first one reports."""
    return current_log(quiet=quiet) if processes.first else ProgressLog(quiet=True)


def _files(
    prepared: "Prepared", origin: Run | None, packages: Mapping[str, plugins.Package], processes: int
) -> dict[str, bytes]:
    """The first files of a run that so many processes will train."""
    task, recipe = prepared.task, prepared.task.recipe
    files = {storage.RECIPE: recipes.to_toml(recipe).encode(), storage.DATA: prepared.digest} | task.files()
    if packages:
        files[storage.PLUGINS] = plugins.to_json(packages)
    files[storage.ENVIRONMENT] = environment.to_json(environment.current(recipe.train, processes))
    if origin is not None:
        _fitting(origin, task, prepared.shapes)
        files[storage.ORIGIN] = origin.origin()
    return files


def _created(
    runs: Path, name: str, files: Mapping[str, bytes], processes: Processes, log: ProgressLog
) -> tuple[Run, str]:
    """The new run, which the first process creates and writes, and a notice if it has not the name of the recipe."""
    if not processes.first:
        return FollowedRun(Path(processes.broadcast(""))), ""
    run = Run.create(runs, name, files)
    processes.broadcast(str(run.path))
    older = runs / name
    notice = f"{older} exists; this run is {run.path}" if run.path != older else ""
    log.say(notice or f"run {run.path}")
    if obstacle := run.latest_obstacle():
        log.warn(obstacle)
    return run, notice


class Prepared(NamedTuple):
    """All that a new training needs, before anything is written."""

    task: AnyTask
    examples: Examples
    data: Encoded
    dev: Encoded
    shapes: nn.Module  # the model on the meta device
    digest: bytes  # of the examples


def _overridden(recipe: Recipe | str | Path, overrides: Sequence[str]) -> Recipe:
    """The recipe of that name, with the overrides."""
    return recipes.override_all(recipe if isinstance(recipe, Recipe) else recipes.load(recipe), overrides)


def _prepare(recipe: Recipe, origin: Run | None, given: Given, log: ProgressLog) -> Prepared:
    """Read and encode the data of a new training, and check that it fits into memory."""
    kind = task_class(recipe.task)
    examples = _read(kind, recipe, given, log)
    task = kind.learn(recipe, examples.train, None if recipe.train.new_vocabulary else origin)
    data, dev = _encode(task, examples)
    digest = examples.digest()  # known by now if the data were encoded block by block
    shapes = _shapes(task)
    start_embeddings(task, shapes)  # fails if the vectors do not fit
    _check_memory(shapes, recipe.train)
    return Prepared(task, examples.without_texts(), data, dev, shapes, digest)  # without texts: frees their memory


def _check_memory(shapes: nn.Module, settings: Train) -> None:
    """Raise ResourceError if there is too little memory; of what FSDP2 shards, that for a whole model is needed."""
    device = devices.choose_device(settings.device)
    if settings.parallel == "fsdp":
        memory.check_model(shapes, device)
    else:
        memory.check_training(shapes, settings, device)


def _encode(task: AnyTask, examples: Examples) -> tuple[Encoded, Encoded]:
    """The encoded training and dev examples; the former without texts, unless their targets are for a reward."""
    data = task.within_length(task.encode(examples.train))
    return data if task.recipe.train.reward else data.without_texts(), task.encode(examples.dev)


def _read(kind: type[AnyTask], recipe: Recipe, given: Given, log: ProgressLog) -> Examples:
    """Read the examples; a line says where they come from, before they are read if that takes a while."""
    if are_large(recipe.data.train):
        log.announce(announcement(recipe))
    examples = kind.examples(recipe, given)
    log.announce(announcement(recipe))
    return examples


class Preview(NamedTuple):
    """What a training would be."""

    examples: int  # to learn from
    dev: int
    parameters: int
    updates: int
    device: str
    memory: int  # bytes of weights, gradients, optimizer and averages


def preview(recipe: Recipe | str | Path, *overrides: str, quiet: bool = False) -> Preview:
    """Check a recipe and its data as `train` does, and report what would be trained; nothing is written."""
    recipe = _overridden(recipe, overrides)
    origin = Run.open(recipe.train.start_from) if recipe.train.start_from else None
    with plugins.resolving(origin.needs() if origin else plugins.NO_NEEDS):
        check(recipe)
    with Stopper().listening() as stopper, current_log(quiet=quiet) as log, storage.reading_only():
        stopper.say = log.say
        task, examples, data, dev, shapes, _ = _prepare(recipe, origin, NOTHING_GIVEN, log)
        start_notes = [] if origin is None else _describe_start(origin, task, shapes, *_fitting(origin, task, shapes))
        device = devices.choose_device(recipe.train.device)
        needed = memory.of_training(shapes, recipe.train)
        for line in (*examples.notes, *overview(task, shapes, device, data, dev, len(examples.train)), *start_notes):
            log.say(line)
        log.say(memory.describe(needed, device))
        log.say("the recipe and the data can be used; nothing was written")
    parameters = sum(parameter.numel() for parameter in shapes.parameters())
    return Preview(len(data.examples), len(dev.examples), parameters, recipe.train.updates, str(device), needed)


def resume(
    run: Run | str | Path,
    *overrides: str,
    pairs: Any = None,
    dev: Any = None,
    exact: bool = False,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Continue a run that was stopped or killed; the result is bit for bit that of an uninterrupted run.

    The overrides `train.updates=N` and `train.patience=N` prolong or shorten it; a finished run can be prolonged, too.
    Its schedule is then the one of the new length, from the next update on.

    A run that was trained on `pairs` needs them again, and `dev` if it had them: a run does not store its data.
    Another version of torch or regard, another processor or GPU, or another number of threads may change the last bits.
    A message says so then; with `exact`, it is an error. `callbacks` are told how training goes on.
    """
    check_callbacks(callbacks)
    run = run if isinstance(run, Run) else Run.open(run)
    with plugins.loading(run.needs()):
        check(run.recipe(), stored=True)
    with (
        Stopper().listening() as stopper,
        joined(run.recipe().train) as processes,
        _log(processes, quiet=quiet) as log,
        _training(run if processes.first else FollowedRun(run.path), processes) as locked,
    ):
        stopper.say = log.say
        with stopper.deferred():
            with _preparing(stopper, processes):  # all read the run before the first one changes it
                recipe = prolonging.prolonged_recipe(run, overrides)
                is_done = run.finished() and recipe == run.recipe()
            if is_done:
                log.say(f"the run {run.path} is finished already; to prolong it, add train.updates=NUMBER")
                return run if processes.first else locked
            with _preparing(stopper, processes):
                now = environment.current(recipe.train, processes.size)
                changes = environment.describe_changes(run, now, exact=exact)
                task, examples, data, dev_data = _prepare_again(run, recipe, pairs, dev, log)
            if changes and processes.first:
                log.warn(changes)
                environment.record(locked, now, run.newest_update())
            log.say(f"run {run.path}")
            _learn(task, examples, data, dev_data, locked, log, stopper, callbacks, processes)
    return run if processes.first else locked


def _given(recipe: Recipe, overrides: Sequence[str], pairs: Any, dev: Any) -> tuple[Recipe, Given]:
    """The recipe with overrides, and examples given in Python, which it names in place of its files or corpus."""
    given = {name: rows for name, rows in ((PAIRS, pairs), (DEV, dev)) if rows is not None}
    if DEV in given and PAIRS not in given:
        raise RecipeError("dev is for a training on pairs; give pairs, too, or data.dev=FILE")
    if given:
        recipe = replace(recipe, data=replace(recipe.data, corpus="", train=(), dev=(), test=()))
    recipe = _overridden(recipe, overrides)
    data = recipe.data
    if given and (data.corpus or data.train or (DEV in given and data.dev)):
        raise RecipeError("examples are given as pairs or dev, and as a key of data, too; leave one of them out")
    if given:
        named = replace(data, train=(PAIRS,), dev=(DEV,) if DEV in given else data.dev)
        return replace(recipe, data=named), given
    return recipe, given


def _prepare_again(
    run: Run, recipe: Recipe, pairs: Any, dev: Any, log: ProgressLog
) -> tuple[AnyTask, Examples, Encoded, Encoded]:
    """The task of a run and its data, which must be those of its training; its memory is checked, too."""
    task = task_class(recipe.task).restore(recipe, run.read)
    if run.has_file(storage.ORIGIN):
        run.read(storage.ORIGIN)  # a checkpoint makes it needless, but a run with a damaged file is refused
    examples = _read(type(task), recipe, _given_again(run, recipe.data, pairs, dev), log)
    if examples.digest() != run.read(storage.DATA):
        names = ", ".join(recipe.data.train + recipe.data.dev) or f"the corpus {recipe.data.corpus}"
        raise DataError(
            f"the data of {run.path} has changed since its training began: {names}. "
            "Restore the old data to resume, or train a new run"
        )
    encoded = _encode(task, examples)
    _check_memory(_shapes(task), recipe.train)
    return task, examples.without_texts(), *encoded  # without texts: frees their memory


def _given_again(run: Run, data: Data, pairs: Any, dev: Any) -> Given:
    """The examples given in Python to resume a run; refuses those that its recipe does not name, and missing ones."""
    given = {name: rows for name, rows in ((PAIRS, pairs), (DEV, dev)) if rows is not None}
    if missing := {*data.train, *data.dev} & {PAIRS, DEV} - given.keys():
        how = f"give the same again, in Python: {how_to_resume(run)}"
        raise DataError(f"the run {run.path} does not store its {max(missing)}; {how}")
    if unused := given.keys() - {*data.train, *data.dev}:
        raise RecipeError(f"the run {run.path} was not trained on {max(unused)}; leave them out")
    return given


@contextmanager
def _training(run: Run, processes: Processes) -> Iterator[Run]:
    """In the block, the run is locked; errors say what to do if memory runs out, or how to resume a stopped run."""
    try:
        with (
            run.training() as locked,
            devices.explain_out_of_memory("training", SMALLER_BATCHES),
            told_if_lost(processes, lambda: describe_saved(run)),
        ):
            yield locked
    except StoppedError as stopped:
        unchanged = f"{run.path} is finished, as it was before"  # it was to be prolonged
        raise StoppedError(stopped.number, unchanged if run.finished() else describe_saved(run)) from None
    except CallbackError as failed:
        state = "the run is finished all the same" if run.finished() else describe_saved(run)
        raise CallbackError(failed.method, failed.update, failed.error, state) from failed.error


def describe_saved(run: Run) -> str:
    """The end of an error message about a run that can be resumed."""
    return f"{run.newest_update():,} updates are saved; go on with: {how_to_resume(run)}"


def how_to_resume(run: Run) -> str:
    """The command that resumes a run; for one that was trained on pairs given in Python, the call."""
    data = run.recipe().data
    if PAIRS not in data.train:
        return resume_command(run.path)
    return f"regard.resume({str(run.path)!r}, pairs=...{', dev=...' if DEV in data.dev else ''})"


def check(recipe: Recipe, *, stored: bool = False) -> None:
    """Refuse a recipe that cannot be trained, before any data is read or any file is written.

    The recipe of a `stored` run may have keys that its task ignores: they were not always refused.
    """
    task = task_class(recipe.task)
    task.check_metric(recipe.metric)
    pick(SCHEDULES, recipe.train.schedule, "schedule")
    if not stored:
        check_name(recipe.name)
        task.check_keys(recipe)
        task.check_columns(recipe)
    if recipe.train.new_vocabulary and not recipe.train.start_from:
        raise RecipeError("train.new_vocabulary is for train.start_from=RUN, which is not set; leave it out")
    if recipe.train.lora_rank and not recipe.train.start_from:
        raise RecipeError("train.lora_rank is for train.start_from=RUN, which is not set; leave it out")
    if recipe.model.embedding_from and recipe.train.start_from and not stored:
        raise RecipeError(
            "model.embedding_from and train.start_from both say how embeddings begin; leave one of them out"
        )
    task.check(recipe)
    pick(dict.fromkeys(devices.PRECISIONS), recipe.train.precision, "precision")
    pick(dict.fromkeys(KEPT_WEIGHTS), recipe.train.keep, "weights to keep")
    pick(dict.fromkeys(PARALLEL), recipe.train.parallel, "value of train.parallel")
    if recipe.train.parallel == "fsdp" and (recipe.train.ema or recipe.train.average > 1):
        raise RecipeError("train.parallel=fsdp shards no averages of weights; leave out train.ema and train.average")
    if recipe.train.parallel != "auto" and recipe.train.reward:
        raise RecipeError("train.reward is for one process; leave out train.parallel")
    check_best(recipe)
    devices.choose_device(recipe.train.device)


def _shapes(task: AnyTask) -> nn.Module:
    """The model of a task on the meta device: only shapes, no memory for weights."""
    with devices.only_shapes():
        return models.with_lora(task.build(), task.recipe.train.lora_rank)


def _learn(
    task: AnyTask,
    examples: Examples,
    data: Encoded,
    dev: Encoded,
    run: Run,
    log: ProgressLog,
    stopper: Stopper,
    users: Sequence[Callback],
    processes: Processes,
) -> None:
    """Train to the end, from the newest checkpoint if there is one, then compute the metric on dev."""
    recipe = task.recipe
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    torch.use_deterministic_algorithms(recipe.train.deterministic)
    torch.manual_seed(recipe.train.seed)
    with stopper.undoable():  # nothing is written yet
        model = models.with_lora(task.build(), recipe.train.lora_rank)
    start_notes = [*([] if run.checkpoints() else start_embeddings(task, model)), *_start_from(task, model, run)]
    device = devices.choose_device(recipe.train.device)
    losses = _distributed(task, model.to(device), processes)
    session = Session.begin(model, recipe.train, processes, losses)
    stopper.together = processes.size > 1
    lines = overview(task, session.model, device, data, dev, len(examples.train))
    for line in (*examples.notes, *lines, *start_notes):
        log.say(line)
    _restore_newest(run, session, recipe, log)
    if processes.first and run.foreign_names():
        names = ", ".join(run.foreign_names())
        log.warn(
            f"{run.path / storage.CHECKPOINTS} holds what is not a checkpoint of this run; it is left alone: {names}"
        )
    if start_notes:
        _save(run, session)  # after this, the run it started from may be changed or deleted
    own = [ModelCard(run, task), MetricsFile(run), Report(log)]
    callbacks = Callbacks(own, users) if processes.first else Callbacks([])
    on_gpu = device.type == "cuda"  # then eager updates use the capturable paths too, which never wait for the GPU
    with _told_if_it_fails(callbacks, run, session, recipe.metric):
        call(callbacks.start, _started(run, recipe, session))
        with (
            devices.keep_freed_memory(),
            devices.current(device),
            capturable(on_gpu),
            stopper.signals_in_backward(model),
        ):
            fit(task, session, data, dev, run, callbacks, stopper)
        if not processes.first:
            return
        ended = _measure(task, session, dev, run, stopper)
    _restore_metrics(run, run.own_checkpoints()[0], session, log)
    call(callbacks.end, ended)


def _distributed(task: AnyTask, model: nn.Module, processes: Processes) -> nn.Module | None:
    """What computes the losses if there are several processes; with train.parallel = fsdp it shards the model."""
    if processes is ALONE:
        return None
    from regard.training.engine.distributed import Losses, shard  # imports the compiler of torch, for a second

    losses = Losses(task, model)
    if task.recipe.train.parallel == "fsdp":
        shard(losses, processes)
    return losses


def _started(run: Run, recipe: Recipe, session: Session) -> Started:
    """The event of the start."""
    parameters = sum(parameter.numel() for parameter in session.model.parameters())
    device = str(next(session.model.parameters()).device)
    return Started(run, recipe, session.progress.update, recipe.train.updates, parameters, device)


@contextmanager
def _told_if_it_fails(callbacks: Callbacks, run: Run, session: Session, metric: str) -> Iterator[None]:
    """If training is stopped or fails in the block, callbacks are told that it has ended; the error goes on."""
    try:
        yield
    except BaseException:
        ended = Ended(run, False, session.progress.update, session.clock.seconds(), metric)
        for listener in callbacks.end:
            with suppress(Exception):  # the first error is the one to report
                listener(ended)
        raise


def _measure(task: AnyTask, session: Session, dev: Encoded, run: Run, stopper: Stopper) -> Ended:
    """Compute the metric of the stored weights on all of dev."""
    recipe, seconds, device = task.recipe, session.clock.seconds(), next(session.model.parameters()).device
    with stopper.at_once(), devices.current(device):
        model = whole_model(task, session, models.stored_weights(run, session.model))
        value, signature = task.measure(model, dev.examples, recipe.metric, recipe.search).measured
    precision = devices.choose_precision(recipe.train.precision, device)
    examples = len(dev.examples)
    return Ended(run, True, session.progress.update, seconds, recipe.metric, value, signature, precision, examples)


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
    return _describe_start(origin, task, model, fitting, shared)


def _describe_start(
    origin: Run,
    task: AnyTask,
    model: nn.Module,
    fitting: Mapping[str, Tensor],
    shared: Mapping[str, models.SharedRows],
) -> list[str]:
    """The lines about the weights that are taken from another run, and a warning if they are less than half."""
    in_part, tensors = {name: rows for name, rows in shared.items() if name in fitting}, len(models.weights(model))
    note = f"taken from {origin.path}: {len(fitting) - len(in_part):,} of the model's {tensors:,} tensors"
    if in_part:
        nouns = {name: vocabulary.noun for name, vocabulary in task.vocabularies().items()}
        counts = (f"{len(rows.own):,} of {rows.sizes[0]:,} {nouns[name]}" for name, rows in in_part.items())
        note += f"; of {len(in_part):,} more, the rows of {' and '.join(dict.fromkeys(counts))} that are in both"
    if len(fitting) >= tensors / 2:
        return [note]
    how = f"make [model] more like that of {origin.path / storage.RECIPE}"
    return [note, f"warning: most of the model begins with new weights; if that is not meant, {how}"]


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


def _restore_newest(run: Run, session: Session, recipe: Recipe, log: ProgressLog) -> None:
    """Restore the session from the newest checkpoint that is not damaged; damaged ones are set aside.

    Without any checkpoint, training begins at update 0; if all are damaged, the error of the newest is raised. If the
    run is prolonged, it gets its new recipe then, and not before: a finished run that cannot go on stays finished.
    """
    if not session.processes.first:
        if name := session.processes.broadcast(""):
            _restore_with_others(run.checkpoint(name), session, recipe)
        return
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
        session.processes.broadcast(checkpoint.path.name)
        if session.is_sharded:
            session.load_shards(checkpoint)
        log.say(f"going on after update {session.progress.update:,}")
        return
    if damaged:
        raise damaged[0][1]
    _prolong(run, recipe, 0, log)
    run.restore_metrics(None)
    session.processes.broadcast("")


def _restore_with_others(checkpoint: Checkpoint, session: Session, recipe: Recipe) -> None:
    """Restore the session from the checkpoint that the first process has chosen and checked."""
    session.restore(checkpoint, recipe.train)
    if session.is_sharded:
        session.load_shards(checkpoint)


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
    task: AnyTask, session: Session, data: Encoded, dev: Encoded, run: Run, callbacks: Callbacks, stopper: Stopper
) -> None:
    """Run updates and validations until train.updates or train.patience is reached, or a signal stops training.

    The weights of the best validation (train.best_by) are stored in the run, or the last ones if train.keep = last.
    """
    settings, progress = task.recipe.train, session.progress
    session.clock = Clock(before=progress.seconds, interval_before=progress.interval)
    running = engine.choose(task, session, data)
    few, mixture = running.few_shapes, task.mixture(data)
    batches = Batches(data.lengths(), settings.batch_tokens, settings.seed, few_shapes=few, mixture=mixture)
    part = part_of(task, dev.examples)
    try:
        while True:
            if _due(settings, progress.update) and progress.validated < progress.update:
                running.collect()
                call(callbacks.validation, validate(task, session, dev, part, run, stopper))
                _save(run, session)
            if progress.update == settings.updates:
                break
            if settings.patience and progress.waited >= settings.patience:
                break
            stopper.check_all(session.processes)
            running.update(batches, stopper)
            session.average(judged=_due(settings, progress.update))
            call(callbacks.update, _updated(settings, session))
    except (StoppedError, CallbackError) as error:
        running.collect()
        # After a second signal an update may be half done: the last checkpoint is used instead. So it is if a callback
        # fails, of which other processes do not know.
        alone = isinstance(error, CallbackError) and session.processes.size > 1
        if not stopper.hurried and not alone:
            _save(run, session)
            session.processes.wait_for_all()
        raise
    running.end()


def _save(run: Run, session: Session) -> None:
    """Save a checkpoint."""
    progress, clock = session.progress, session.clock
    progress.metrics_size = run.metrics_size()
    progress.seconds, progress.interval = clock.seconds(), clock.interval_seconds()
    run.save(progress.update, session.files(), session.write_shards if session.is_sharded else None)


def _updated(settings: Train, session: Session) -> Updated:
    """The event of an update, with what was read from the device already."""
    progress, rate = session.progress, session.clock.rate(session.progress.tokens)
    current = learning_rate(settings, progress.update)
    loss, norm, seconds = progress.mean_loss(), progress.mean_norm(), session.clock.seconds()
    return Updated(progress.update, settings.updates, loss, norm, current, rate, seconds, progress.mean_reward())


def _due(settings: Train, update: int) -> bool:
    """Whether a validation follows this update."""
    return update % settings.validate == 0 or update == settings.updates
