"""A training that was stopped at any point and resumed ends with exactly the same weights as an uninterrupted one."""

import contextlib
import errno
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from regard import recipe as recipes
from regard import storage
from regard.errors import DataError, StoppedError, StorageError
from regard.recipe import Recipe
from regard.storage import Run
from regard.tasks import Transduce
from regard.training import environment, loop, resume, stopping, train, validation
from regard.training.engine import eager
from regard.training.session import OPTIMIZER
from regard.training.stopping import Stopper, answer_to

WALL_CLOCK = {"tokens_per_second", "seconds", "train_seconds"}
CHECKS = 15  # of a run: one before each of 8 updates, one for each of 2 dev batches of 3 validations, one at the end
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])

Outcome = tuple[object, ...]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A recipe with everything that has a state: dropout, sampling, averages of weights, accumulation, patience."""
    folder = tmp_path_factory.mktemp("pairs")
    generator = random.Random(7)
    for name, count in {"train.tsv": 40, "dev.tsv": 10}.items():
        words = ["".join(generator.choices("abcdef", k=generator.randint(2, 5))) for _ in range(count)]
        (folder / name).write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    data = ["name=tiny", f"data.train={folder}/train.tsv", f"data.dev={folder}/dev.tsv"]
    sizes = ["model.embedding=8", "model.encoder.dim=12", "model.decoder.dim=10", "model.attention.dim=6"]
    settings = ["train.updates=8", "train.validate=3", "train.batch_tokens=36", "train.threads=1", "train.device=cpu"]
    states = ["model.encoder.dropout=0.1", "train.ema=0.8", "train.average=2", "train.sampling=0.5"]
    more = ["train.accumulate=2", "train.patience=5", "train.schedule=linear", "train.warmup=3"]
    search = ["search.max_ratio=0", "search.max_extra=3"]
    return recipes.parse("", "tiny", [*data, *sizes, *settings, *states, *more, *search])


class Outcomes:
    """Outcomes of finished runs."""

    def of(self, run: Run) -> Outcome:
        """Weights, optimizer, averages, generator states and metrics, without metrics that depend on the clock."""
        assert sorted(each.name for each in run.path.iterdir()) == [
            "README.md",
            "checkpoints",
            "data.json",
            "environment.json",
            "manifest.json",
            "metrics.jsonl",
            "model.safetensors",
            "recipe.toml",
            "source.tokens",
            "target.tokens",
        ]
        [last] = run.own_checkpoints()
        entries = [{key: value for key, value in entry.items() if key not in WALL_CLOCK} for entry in run.metrics()]
        card = run.read(storage.CARD)
        return run.read(storage.MODEL), last.read(storage.MODEL), last.read(OPTIMIZER), entries, card


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return Outcomes()


@pytest.fixture(scope="module")
def uninterrupted(recipe: Recipe, outcomes: Outcomes, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of a run that was never stopped."""
    return outcomes.of(train(recipe, runs=tmp_path_factory.mktemp("whole"), quiet=True))


class CountingStopper(Stopper):
    """Counts its checks, and raises StoppedError at number `last`."""

    last = 0
    checks = 0

    def check(self) -> None:
        CountingStopper.checks += 1
        if CountingStopper.checks == CountingStopper.last:
            raise StoppedError(signal.SIGINT)
        super().check()


def contents(run: Run) -> dict[Path, bytes]:
    """The files of a run, except the lock, which names the last process that trained it."""
    paths = [path for path in run.path.rglob("*") if path.is_file() and path.name != storage.LOCK]
    return {path: path.read_bytes() for path in paths}


def stop_at(check: int, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CountingStopper, "last", check)
    patch.setattr(CountingStopper, "checks", 0)
    patch.setattr(loop, "Stopper", CountingStopper)


StopTraining = Callable[..., Run]


@pytest.fixture
def stop_training(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StopTraining:
    """Trains a run until the stopper raises at this check; returns the unfinished run."""

    def run(check: int, *overrides: str) -> Run:
        with monkeypatch.context() as patch:
            stop_at(check, patch)
            with pytest.raises(StoppedError):
                train(reduce(recipes.override, overrides, recipe), runs=tmp_path, quiet=True)
        return Run.open(max(tmp_path.iterdir()))  # tiny, or the last of tiny, tiny-2, ...

    return run


AssertResumes = Callable[..., None]


@pytest.fixture
def assert_resumes(outcomes: Outcomes, uninterrupted: Outcome, tmp_path: Path) -> AssertResumes:
    """Resumes the run of the test; it must end as the one that was never stopped."""

    def check(run: Run | Path = tmp_path / "tiny") -> None:
        assert outcomes.of(resume(run, quiet=True)) == uninterrupted

    return check


def on_call(number: int, owner: Any, name: str, act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Call `act` just before the n-th call of a function."""
    real, calls = getattr(owner, name), []

    def called(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == number:
            act()
        return real(*arguments, **named)

    patch.setattr(owner, name, called)


def test_training_twice_gives_the_same_outcome(
    recipe: Recipe, outcomes: Outcomes, uninterrupted: Outcome, tmp_path: Path
) -> None:
    assert outcomes.of(train(recipe, runs=tmp_path, quiet=True)) == uninterrupted


@pytest.mark.parametrize("check", range(1, CHECKS + 1))
def test_a_run_stopped_at_any_check_resumes_to_the_same_outcome(
    stop_training: StopTraining, assert_resumes: AssertResumes, check: int
) -> None:
    run = stop_training(check)
    assert not run.finished()
    assert_resumes(run)


def test_a_run_has_no_more_checks_than_are_tested(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(0, monkeypatch)
    train(recipe, runs=tmp_path, quiet=True)
    assert CountingStopper.checks == CHECKS


def test_a_run_stopped_many_times_resumes_to_the_same_outcome(
    stop_training: StopTraining, outcomes: Outcomes, uninterrupted: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = 0
    run = stop_training(3)
    with monkeypatch.context() as patch:
        while not run.finished():
            times += 1
            # One check later each time: a stopped validation is repeated from its start, so it needs more checks.
            stop_at(3 + times, patch)
            try:
                resume(run, quiet=True)
            except StoppedError:
                continue
    assert times > 3
    assert outcomes.of(run) == uninterrupted


@SIGNALS
@pytest.mark.parametrize("place", ["learn_once", "evaluate"])
def test_a_signal_while_learning_or_validating(
    assert_resumes: AssertResumes,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    number: signal.Signals,
) -> None:
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        on_call(2, eager if place == "learn_once" else validation, place, lambda: signal.raise_signal(number), patch)
        with pytest.raises(StoppedError) as caught:
            train(recipe, runs=tmp_path, quiet=True)
    assert caught.value.exit_code == 128 + number
    saved = 2 if place == "learn_once" else 6
    how = f"{saved} updates are saved; go on with: regard train --resume {tmp_path / 'tiny'}"
    assert str(caught.value) == f"stopped by {number.name}; {how}"
    assert signal.getsignal(number) == before
    assert_resumes()


def slow_down(owner: Any, name: str, call: int, patch: pytest.MonkeyPatch) -> list[float]:
    """Let the n-th call of a function take 20 seconds; SIGINT is sent 0.1 seconds after it began to wait."""
    real, calls, sent = getattr(owner, name), [], []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    def called(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        calls.append(1)
        if len(calls) == call:
            threading.Timer(0.1, send).start()
            for _ in range(2000):
                time.sleep(0.01)
        return result

    patch.setattr(owner, name, called)
    return sent


@pytest.mark.parametrize(
    ("name", "call", "saved", "hard_attention"),
    [("loss", 10, 4, False), ("loss", 10, 4, True), ("dev_loss", 3, 6, False)],
    ids=["update", "REINFORCE", "validation"],
)
def test_a_slow_update_is_abandoned_within_two_seconds_and_nothing_is_lost(
    recipe: Recipe,
    outcomes: Outcomes,
    uninterrupted: Outcome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    call: int,
    saved: int,
    hard_attention: bool,
) -> None:
    if hard_attention:  # computing the loss changes the baseline of REINFORCE, before the optimizer step
        recipe = recipes.override(recipes.override(recipe, "model.attention.normalizer=hard"), "train.sampling=0")
        uninterrupted = outcomes.of(train(recipe, runs=tmp_path / "whole", quiet=True))
    with monkeypatch.context() as patch:
        sent = slow_down(Transduce, name, call, patch)
        with pytest.raises(StoppedError, match=f"stopped by SIGINT; {saved} updates are saved; go on with"):
            train(recipe, runs=tmp_path)
    assert time.monotonic() - sent[0] < 2
    assert answer_to(signal.SIGINT) in capsys.readouterr().err
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert outcomes.of(resume(tmp_path / "tiny", quiet=True)) == uninterrupted


def test_an_optimizer_step_is_not_abandoned_because_it_cannot_be_undone(
    assert_resumes: AssertResumes, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "GRACE", 0.05)
    monkeypatch.setattr(stopping, "RETRY", 0.01)

    def step(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        for _ in range(30):
            time.sleep(0.01)
        return real(*arguments)

    real = torch.optim.AdamW.step
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", step)
        with pytest.raises(StoppedError, match="1 updates are saved"):
            train(recipe, runs=tmp_path, quiet=True)
    assert_resumes()


def test_signals_are_handled_in_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters: list[Any] = []
    monkeypatch.setattr(stopping, "_hear", parameters.append)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 3))
    with Stopper().signals_in_backward(model):
        model(torch.ones(1, 256)).sum().backward()
    assert [id(parameter) for parameter in parameters] == [id(model[0].weight)]
    model(torch.ones(1, 256)).sum().backward()
    assert len(parameters) == 1

    def refuse(_: Any) -> None:
        raise StoppedError(signal.SIGINT)

    monkeypatch.setattr(stopping, "_hear", refuse)
    with pytest.raises(StoppedError), Stopper().signals_in_backward(model):
        model(torch.ones(1, 256)).sum().backward()


@SIGNALS
@pytest.mark.parametrize("deferred", [False, True])
def test_a_signal_while_an_object_is_finalized_stops_all_the_same(number: signal.Signals, deferred: bool) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(number)  # Python ignores an error that is raised here

    def work(stopper: Stopper) -> None:
        with stopper.listening(), stopper.deferred() if deferred else contextlib.nullcontext(), stopper.undoable():
            Finalized()
            time.sleep(3)
        pytest.fail("the signal was lost")

    with pytest.raises(StoppedError) as caught:
        work(Stopper())
    assert caught.value.number == number


@SIGNALS
def test_a_signal_during_the_last_decoding_stops_at_once(
    assert_resumes: AssertResumes,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    with monkeypatch.context() as patch:

        def stop_after_two_predictions() -> None:
            on_call(3, Transduce, "prediction", lambda: signal.raise_signal(number), patch)

        on_call(1, loop, "_measure", stop_after_two_predictions, patch)
        with pytest.raises(StoppedError, match="8 updates are saved; go on with: regard train --resume"):
            train(recipe, runs=tmp_path, quiet=True)
    assert_resumes()


@SIGNALS
@pytest.mark.parametrize("place", ["examples", "learn", "encode"])
def test_a_signal_while_data_are_prepared_leaves_no_files(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: signal.Signals
) -> None:
    def raise_signal(*_: Any) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(Transduce, place, raise_signal)
    with pytest.raises(StoppedError, match=f"stopped by {number.name}; nothing was written") as caught:
        train(recipe, runs=tmp_path / "runs", quiet=True)
    assert caught.value.exit_code == 128 + number
    assert not (tmp_path / "runs").exists()


def test_a_signal_while_data_are_prepared_again_says_what_is_saved(
    stop_training: StopTraining, assert_resumes: AssertResumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stop_training(5)
    with monkeypatch.context() as patch:
        on_call(1, Transduce, "encode", lambda: signal.raise_signal(signal.SIGINT), patch)
        with pytest.raises(StoppedError, match="3 updates are saved; go on with"):
            resume(run, quiet=True)
    assert_resumes(run)


def test_a_signal_while_the_run_is_created_says_how_to_go_on(
    assert_resumes: AssertResumes, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        on_call(1, storage.files, "create_folder", lambda: signal.raise_signal(signal.SIGINT), patch)
        with pytest.raises(StoppedError, match="0 updates are saved; go on with"):
            train(recipe, runs=tmp_path, quiet=True)
    assert_resumes()


def test_a_signal_while_the_run_is_finished_is_ignored(
    recipe: Recipe, outcomes: Outcomes, uninterrupted: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_call(1, Run, "finish", lambda: signal.raise_signal(signal.SIGINT), monkeypatch)
    assert outcomes.of(train(recipe, runs=tmp_path, quiet=True)) == uninterrupted


@pytest.mark.parametrize(
    ("owner", "name", "call", "saved"),
    [(torch.optim.AdamW, "step", 5, 3), (validation, "evaluate", 2, 3), (Run, "record", 2, 3), (Run, "save", 2, 3)],
    ids=["update", "validation", "record", "save"],
)
def test_a_second_signal_stops_at_once_and_saves_nothing_incomplete(
    assert_resumes: AssertResumes,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    call: int,
    saved: int,
) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it went on")

    with monkeypatch.context() as patch:
        on_call(call, owner, name, twice, patch)
        with pytest.raises(StoppedError, match=f"stopped by SIGINT; {saved} updates are saved") as caught:
            train(recipe, runs=tmp_path, quiet=True)
    assert caught.value.exit_code == 130
    assert_resumes()


def test_resuming_a_finished_run_changes_nothing(
    recipe: Recipe, outcomes: Outcomes, uninterrupted: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(recipe, runs=tmp_path, quiet=True)
    before = contents(run)
    assert resume(run).path == run.path
    assert "tiny is finished already; to prolong it, add train.updates=NUMBER" in capsys.readouterr().err
    assert contents(run) == before
    assert not (run.path / storage.LOCK).exists()
    assert outcomes.of(run) == uninterrupted


@pytest.mark.parametrize(
    "call",
    [1, 7, 10, 27, 31, 33],  # of 33: in replace, record, save, the model card, the last record, finish
)
def test_a_disk_that_cannot_sync_is_a_storage_error_and_nothing_is_lost(
    stop_training: StopTraining, assert_resumes: AssertResumes, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    run = stop_training(5)
    [checkpoint] = run.checkpoints()

    def broken() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        on_call(call, os, "fsync", broken, patch)
        with pytest.raises(StorageError, match="cannot be written: Input/output error") as caught:
            resume(run, quiet=True)
    assert caught.value.exit_code == 4
    assert run.checkpoints()
    for saved in run.checkpoints():
        assert saved.read(OPTIMIZER)
    assert checkpoint.path.name == "00000003"
    assert_resumes(run)


def test_changed_data_are_refused_and_nothing_is_lost(
    stop_training: StopTraining, assert_resumes: AssertResumes, recipe: Recipe
) -> None:
    run = stop_training(6)
    files_before = contents(run)
    for name in (*recipe.data.train, *recipe.data.dev):
        content = Path(name).read_bytes()
        Path(name).write_bytes(content.replace(b"a", b"e", 1))
        with pytest.raises(DataError, match=r"has changed since its training began: .*train.tsv, .*dev.tsv\. Restore"):
            resume(run, quiet=True)
        Path(name).write_bytes(content)
    assert contents(run) == files_before
    assert_resumes(run)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", [storage.MODEL, OPTIMIZER, storage.MANIFEST])
def test_a_checkpoint_that_cannot_be_read_is_an_error_and_is_not_removed(
    stop_training: StopTraining, assert_resumes: AssertResumes, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    run = stop_training(12)
    newest, _ = run.checkpoints()
    files_before = contents(run)
    real = os.open

    def refuse(path: Path, *arguments: int, **named: int) -> int:
        if Path(path) == newest.path / name:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StorageError, match=f"{name} cannot be read: {os.strerror(number)}"):
            resume(run, quiet=True)
    assert contents(run) == files_before
    assert_resumes(run)


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: content.replace(b"loss", b"lost", 1)])
def test_damaged_metrics_are_set_aside_and_restored(
    stop_training: StopTraining,
    outcomes: Outcomes,
    uninterrupted: Outcome,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[bytes], bytes],
) -> None:
    run = stop_training(8)
    path = run.path / storage.METRICS
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    resume(run, quiet=True)
    assert (
        "metrics.jsonl was damaged and is restored; the damaged one is now metrics.jsonl.damaged"
        in capsys.readouterr().err
    )
    aside = path.with_name("metrics.jsonl.damaged")
    assert aside.read_bytes() == damaged
    aside.unlink()
    assert outcomes.of(run) == uninterrupted


def test_a_checkpoint_of_another_run_is_named_and_left_alone(
    stop_training: StopTraining, outcomes: Outcomes, uninterrupted: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    other, run = stop_training(12, "train.seed=2"), stop_training(6)
    foreign, _ = other.checkpoints()
    assert foreign.update > run.newest_update()
    aside = run.path / storage.CHECKPOINTS / foreign.path.name
    os.rename(foreign.path, aside)
    before = contents(other), {path: path.read_bytes() for path in aside.iterdir()}
    resume(run, quiet=True)
    assert f"is not a checkpoint of this run; it is left alone: {aside.name}" in capsys.readouterr().err
    assert (contents(other), {path: path.read_bytes() for path in aside.iterdir()}) == before
    assert outcomes.of(run) == uninterrupted


@pytest.mark.parametrize("exact", [False, True])
def test_another_environment_is_named_and_recorded_or_refused(
    stop_training: StopTraining,
    recipe: Recipe,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    exact: bool,
) -> None:
    run = stop_training(6)
    [first] = run.environments()
    assert first == {"update": 0} | environment.current(recipe.train)
    assert first["threads"] == 1
    monkeypatch.setattr(environment, "__version__", "9.9")
    before = contents(run)
    if exact:
        with pytest.raises(
            DataError, match=r"tiny was trained with regard '0.1.0', now '9.9'. --exact resumes a run only"
        ):
            resume(run, exact=True, quiet=True)
        assert contents(run) == before
        return
    resume(run, quiet=True)
    message = (
        "was trained with regard '0.1.0', now '9.9': the last bits of the weights may not be those of an uninterrupted"
    )
    assert message in capsys.readouterr().err
    assert run.environments() == [first, first | {"update": 3, "regard": "9.9"}]
    environment.record(run, environment.current(recipe.train), 4)
    assert len(run.environments()) == 2  # only what is new is added


def test_a_thousand_changes_of_machine_keep_the_run_readable(
    stop_training: StopTraining, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stop_training(6)
    [first] = run.environments()
    now = environment.current(recipe.train)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # for speed
    for number in range(1000):
        environment.record(run, now | {"processor": f"processor {number}"}, 3)
    stored = run.environments()
    assert stored[0] == first
    newest = [f"processor {number}" for number in range(1000)][1 - len(stored) :]
    assert [entry["processor"] for entry in stored[1:]] == newest
    listed = json.loads(run.read(storage.ENVIRONMENT))
    assert listed[1] == {"left_out": 1001 - len(stored)}
    assert len(stored) > 100
    assert len(run.read(storage.ENVIRONMENT)) <= 1 << 16
    with pytest.raises(DataError, match="--exact resumes a run only in the environment it was trained in"):
        resume(run, exact=True, quiet=True)
    assert resume(run, quiet=True).finished()


def test_a_longer_list_of_environments_of_an_older_version_is_read(stop_training: StopTraining) -> None:
    run = stop_training(6)
    [first] = run.environments()
    many = [first | {"processor": f"processor {number}"} for number in range(1000)]
    run.replace(storage.ENVIRONMENT, json.dumps(many, indent=1).encode())
    assert len(run.read(storage.ENVIRONMENT)) > 1 << 16
    assert run.environments() == many
    assert resume(run, quiet=True).finished()
    assert run.environments()[0] == many[0]
    assert run.environments()[-1]["processor"] == first["processor"]
    assert len(run.read(storage.ENVIRONMENT)) <= 1 << 16


def test_definitions_in_place_of_fast_paths_are_another_environment(
    stop_training: StopTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stop_training(6)
    monkeypatch.setattr(environment, "are_definitions_only", lambda: not run.environments()[0]["definitions_only"])
    with pytest.raises(DataError, match="definitions_only"):
        resume(run, exact=True, quiet=True)


def test_a_checkpoint_that_is_not_finite_is_set_aside_and_the_older_one_used(
    stop_training: StopTraining, outcomes: Outcomes, uninterrupted: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stop_training(12)
    newest, _ = run.checkpoints()
    weights = load_tensors(newest.read(storage.MODEL))
    next(iter(weights.values())).view(-1)[0] = float("nan")
    content = {name: newest.read(name) for name in newest.manifest().files} | {storage.MODEL: save_tensors(weights)}
    content.pop(storage.METRICS)
    run.save(newest.update, content)
    resume(run, quiet=True)
    assert "holds NaN or infinite numbers" in capsys.readouterr().err
    assert outcomes.of(run) == uninterrupted


def test_messages_that_cannot_be_printed_do_not_end_training(
    recipe: Recipe, outcomes: Outcomes, uninterrupted: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        run = train(recipe, runs=tmp_path)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert outcomes.of(run) == uninterrupted


def test_the_same_environment_is_exact(stop_training: StopTraining) -> None:
    run = stop_training(6)
    resume(run, exact=True, quiet=True)
    assert len(run.environments()) == 1


def test_a_run_from_before_split_seed_keeps_its_dev_part(recipe: Recipe, tmp_path: Path) -> None:
    split = ("data.dev=", "train.seed=3", "data.split_seed=3")
    run = train(reduce(recipes.override, split, recipe), runs=tmp_path, quiet=True)
    lines = (
        run.read(storage.RECIPE)
        .decode()
        .replace(f"format = {recipes.FORMAT}\n", "format = 3\n")
        .splitlines(keepends=True)
    )
    run.replace(storage.RECIPE, "".join(line for line in lines if "split_seed" not in line).encode())
    assert run.recipe().data.split_seed == 3
    resume(run, "train.updates=9", quiet=True)  # which refuses other data than before
    assert run.finished()
    assert "split_seed = 3" in run.read(storage.RECIPE).decode()


def test_the_answer_to_a_signal_is_in_the_words_of_who_sent_it() -> None:
    assert answer_to(signal.SIGINT) == "stopping; Ctrl-C once more stops at once"
    assert answer_to(signal.SIGTERM) == "stopping; a signal once more stops at once"
