"""Ray: a training by processes of a Ray cluster, which starts again if one is lost, and predictions by such processes.

All machines must have the folders of runs, data and cache under the same paths. Ray sends no usage statistics.
"""

import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

from regard.console import ProgressLog
from regard.data.encoding import encoded_by
from regard.data.remote import answer, from_table, to_table
from regard.data.store import groups
from regard.errors import LostProcessError, MissingExtraError, RecipeError, RegardError, StoppedError, quantity, shown
from regard.predict import load
from regard.recipe import Recipe
from regard.storage import METRICS, Run, make_folder
from regard.storage.cache import home
from regard.tasks import task_class
from regard.training import loop
from regard.training.callbacks import Callback, Updated
from regard.training.loop import describe_saved
from regard.training.processes import check_reward
from regard.training.stopping import Stopper
from regard.types import Prediction

ANSWER = 5.0  # seconds that a cluster may take to answer
LOOK = 1.0  # seconds between two looks at the metrics
LOCAL = "local"  # the address that starts Ray on this machine, for this command alone
RESTARTS = 3  # after processes were lost
GROUP = 4  # blocks of texts for each process that are in memory at a time
LOOK = 0.2  # seconds between two looks at the folder that ends a training
ENDING = 20.0  # seconds in which Ray notices that it has ended
OBJECT_STORE = 100 << 20  # bytes of memory for what local processes send each other
# Variables of Ray: no usage statistics, and on this machine alone only its loopback address.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_TRAIN_V2_ENABLED": "1"}
QUIET |= {"RAY_ENABLE_AUTO_CONNECT": "0"}  # and no call starts Ray again after it was shut down
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}


@contextmanager
def connected(address: str, processes: int) -> Iterator[Any]:
    """The module of Ray, connected to the cluster with this address; with `local`, one of so many processors.

    Inside another such block, the connection is the same.
    """
    os.environ.update(QUIET | (LOOPBACK if address == LOCAL else {}))
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray", "--ray") from None
    if ray.is_initialized():  # by the function that calls this one, for its data
        yield ray
        return
    options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if address == LOCAL:
        options |= {"num_cpus": processes, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    else:
        _check_answers(address)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, str(error)) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """RecipeError at once if nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # Ray knows what is wrong with it
        return
    try:
        socket.create_connection((host.rpartition("/")[2].strip("[]"), int(port)), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from error


def _no_cluster(address: str, reason: str) -> RecipeError:
    first = shown(reason.split("\n", 1)[0])
    return RecipeError(f"no Ray cluster answers at {shown(address)} ({first}); give HOST:PORT, or local")


def train_new(recipe: Recipe, runs: Path, address: str, processes: int, log: ProgressLog, *, quiet: bool) -> Run:
    """Create a run and train it with processes of a Ray cluster, which also encode data that go to a token store."""
    check_reward(recipe.train, processes)
    log.begin("starting Ray")
    with connected(address, processes) as ray:
        stored = task_class(recipe.task).are_stored(recipe)
        with encoded_by(partial(_replies, ray, processes)) if stored else nullcontext():
            run = loop.create(recipe, runs, processes, quiet=quiet)
        train(run, address, processes, (), log)
    return run


def _replies(
    ray: Any, processes: int, setup: Sequence[bytes], requests: Iterable[Sequence[bytes]]
) -> Iterator[list[bytes]]:
    """The replies to requests about blocks of lines, in order, by tasks of Ray Data; some at a time are in memory."""
    _set_up_data()
    for group in groups(requests, GROUP * processes):
        try:
            tasks = ray.data.from_arrow([*map(to_table, group)])
            replies = tasks.map_batches(answer, fn_args=(tuple(setup),), batch_size=None, batch_format="pyarrow")
            for table in replies.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield from from_table(table)
        except RegardError:
            raise
        except Exception as error:
            reason = shown(str(error).split("\n", 1)[0])
            how = "start again: what is encoded already is kept"
            raise LostProcessError(f"the encoding of the data on Ray has ended ({reason}); {how}") from error


def train(run: Run, address: str, processes: int, overrides: Sequence[str], log: ProgressLog) -> None:
    """Train a run, new or stopped, with processes of a Ray cluster.

    If some are lost, as many start again and go on from the last checkpoint.
    """
    settings = run.recipe().train
    check_reward(settings, processes)
    log.begin("starting Ray")
    with connected(address, processes) as ray, _stopping(ray, run):
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        on_gpu = settings.device != "cpu" and ray.cluster_resources().get("GPU", 0) >= processes
        work = {"run": str(run.path.resolve()), "overrides": list(overrides), "folder": os.getcwd()}
        work["cache"] = str(home().resolve())
        with tempfile.TemporaryDirectory(prefix=".ray-", dir=run.path.resolve().parent) as folder:
            stop = Path(folder) / "stop"
            make_trainer = partial(
                TorchTrainer,
                _train_with_others,
                train_loop_config=work | {"on_gpu": on_gpu, "stop": str(stop)},
                torch_config=TorchConfig(backend=_backend(on_gpu=on_gpu), timeout_s=settings.timeout),
                scaling_config=ScalingConfig(num_workers=processes, use_gpu=on_gpu),
                run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=0)),
            )
            log.say(f"training on Ray with {processes} processes; the numbers are in {run.path / METRICS}")
            with _shown(run, log), redirect_stdout(sys.stderr):  # Ray prints warnings there
                _fit(make_trainer, run, stop)


@contextmanager
def _stopping(ray: Any, run: Run) -> Iterator[None]:
    """In the block, a signal ends the processes on Ray at once; the error says what is saved."""
    try:
        with Stopper().listening():  # Ray has a handler of its own
            yield
    except StoppedError as stopped:
        ray.shutdown()  # first, so that none of them saves more
        raise StoppedError(stopped.number, describe_saved(run)) from None


@contextmanager
def _shown(run: Run, log: ProgressLog) -> Iterator[None]:
    """Show in the block how many updates the run has recorded; the process that trains it is elsewhere."""
    work, ended = log.begin("learning", run.recipe().train.updates), threading.Event()

    def show() -> None:
        seen = 0
        while not ended.wait(LOOK):
            with suppress(RegardError):  # while the metrics are being restored
                for entry in run.metrics()[seen:]:
                    if "update" in entry:
                        log.show(entry["update"])
                        log.say(f"update {entry['update']:,} of {work.total:,}: dev loss {entry['dev_loss']:.4f}")
                    seen += 1

    watcher = threading.Thread(target=show, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _backend(*, on_gpu: bool) -> str:
    return "cpu:gloo,cuda:nccl" if on_gpu else "gloo"


def _fit(make_trainer: Callable[[], Any], run: Run, stop: Path) -> None:
    """Train, and start again if processes are lost; any other error of regard in one of them is raised at once.

    Ray itself would start again after those, too: another start would end with the same error.
    """
    restarts = 0
    while failure := _failure(make_trainer, stop):
        errors: Mapping[int, Exception] = getattr(failure, "worker_failures", {})  # by rank
        own = [errors[rank] for rank in sorted(errors) if not isinstance(errors[rank], LostProcessError)]
        for error in own:
            if isinstance(error, RegardError):
                raise error
        if not errors or restarts == RESTARTS:  # without errors of processes, it is one of Ray itself
            reason = shown(_first_line((own or [*errors.values(), failure])[0]))
            why = f"the training on Ray has ended after {quantity(restarts, 'restart')} ({reason})"
            raise LostProcessError(f"{why}; {describe_saved(run)}") from failure
        restarts += 1


def _failure(make_trainer: Callable[[], Any], stop: Path) -> Exception | None:
    """Train in a thread, because signals reach only the main one; returns the error that ends it, if any does.

    If a signal ends the wait, the folder `stop` ends the training, and Ray has time to notice: it ends this process
    with exit code 1 if a thread still uses it while it shuts down.
    """
    outcomes: Queue[Exception | None] = Queue()

    def fit() -> None:
        try:
            make_trainer().fit()
        except Exception as error:
            outcomes.put(error)
        else:
            outcomes.put(None)

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    try:
        return outcomes.get()
    except StoppedError:
        make_folder(stop)
        thread.join(ENDING)
        raise


def _first_line(error: Exception) -> str:
    """The first line of an error's message, after the name of its class unless it is a sentence of regard."""
    line = str(error).split("\n", 1)[0]
    return line if isinstance(error, RegardError) else f"{type(error).__name__}: {line}".rstrip(": ")


def _train_with_others(work: Mapping[str, Any]) -> None:
    """The work of one process: resume the run together with the others.

    An error ends this process alone, and Ray then ends the others, which may be waiting for it. Errors are pickled: of
    regard's, only those of two classes can be created again from their message.
    """
    import torch
    from ray.train.torch import get_device

    os.chdir(work["folder"])
    os.environ["REGARD_CACHE"] = work["cache"]
    if work["on_gpu"]:
        torch.cuda.set_device(get_device())
    try:
        loop.resume(work["run"], *work["overrides"], quiet=True, callbacks=[_EndAtFolder(Path(work["stop"]))])
    except LostProcessError:
        raise
    except RegardError as error:
        failure = RegardError(str(error))
        failure.exit_code = error.exit_code
        raise failure from None


class _EndAtFolder(Callback):
    """Ends the training with an error when a folder is there; what was computed since the last checkpoint is lost."""

    def __init__(self, path: Path) -> None:
        self.path, self._next_look = path, 0.0

    def on_update(self, event: Updated) -> None:
        """Look for the folder, now and then."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK
        if self.path.exists():
            raise RegardError("stopped by the command that started it")


def predict(
    run: Run, batches: Sequence[Sequence[str]], settings: Mapping[str, Any], address: str, processes: int
) -> Iterator[list[Prediction]]:
    """The predictions for batches of texts, in order, by processes that each load the run.

    `settings` are arguments of `Predictor.predict`; its `seed` is that of the first text.
    """
    if not batches:
        return
    with connected(address, processes) as ray:
        _set_up_data()
        begins = [sum(map(len, batches[:index])) for index in range(len(batches))]
        rows = [{"begin": begin, "texts": list(texts)} for begin, texts in zip(begins, batches, strict=True)]
        answers = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            Answers,
            fn_constructor_args=(str(run.path.resolve()), dict(settings), os.getcwd()),
            batch_size=1,
            batch_format="numpy",
            concurrency=min(processes, len(rows)),  # a process without a row would load the run for nothing
        )
        for row in answers.iter_rows():
            yield list(row["answers"])


def _set_up_data() -> None:
    """Let Ray Data keep the order, and print neither bars nor messages; its errors are raised."""
    from ray.data import DataContext

    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True


class Answers:
    """A process that has loaded a run and answers batches of texts."""

    def __init__(self, run: str, settings: dict[str, Any], folder: str) -> None:
        with suppress(OSError):  # a run needs no folder unless it names files of its own
            os.chdir(folder)
        self.predictor, self.settings = load(run), settings

    def __call__(self, rows: Mapping[str, Any]) -> dict[str, list[list[Prediction]]]:
        """The predictions for each row's texts."""
        seed = self.settings.get("seed", 0)
        return {
            "answers": [
                self.predictor.predict(list(texts), **{**self.settings, "seed": seed + int(begin)})
                for begin, texts in zip(rows["begin"], rows["texts"], strict=True)
            ]
        }
