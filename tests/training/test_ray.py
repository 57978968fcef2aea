"""Ray on this machine: a training that loses a process goes on, and its curve is that of an undisturbed run."""

import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from commands import SOURCES, shared_commands, user_environment
from regard import cli, storage
from regard import recipe as recipes
from regard.cli import core
from regard.console import ProgressLog
from regard.data import encoding, files, shards
from regard.errors import CorruptError, LostProcessError, MissingExtraError, RegardError, StoppedError
from regard.storage import Run
from regard.training import clusters, loop
from regard.training.clusters import GROUP, connected
from together import curve, together

LIMIT = 150.0  # seconds; Ray takes half a minute to start on a busy machine
SETTINGS = (
    *("model.embedding=8", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=6"),
    *("data.train=train.tsv", "data.dev=dev.tsv", "train.updates=60", "train.validate=10", "train.batch_tokens=60"),
    *(
        "train.accumulate=4",
        "train.device=cpu",
        "train.validate_examples=3",
        "search.max_ratio=0",
        "search.max_extra=3",
    ),
    *("model.decoder.dropout=0.2", "train.timeout=60"),
)
REWARDED = ("data.train=train.tsv", "train.reward=exact_match", "train.keep=last")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs to learn from and pairs for dev, and a run that two processes have trained without Ray."""
    path, generator = tmp_path_factory.mktemp("ray"), random.Random(1)
    words = ["".join(generator.choices("abcde", k=generator.randint(2, 9))) for _ in range(200)]
    for name, part in (("train.tsv", words[7:]), ("dev.tsv", words[:7])):
        (path / name).write_text("".join(f"{word}\t{word[::-1]}\n" for word in part))
    (path / "texts").write_text("".join(f"{word}\n" for word in words))
    for result in together(2, ["train", "reverse", "name=undisturbed", *SETTINGS], path, float64=False):
        assert result.code == 0, result.error
    return path


@contextmanager
def command(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command of regard, in a process group of its own, which is killed at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", *arguments],
        cwd=folder,
        env=user_environment() | {"PYTHONPATH": str(SOURCES)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_training_is_stopped_goes_on_loses_a_process_and_ends_with_the_bits_of_an_undisturbed_one(
    folder: Path,
) -> None:
    pytest.importorskip("ray")
    run, ray = folder / "runs/disturbed", ["--ray", "local", "--processes", "2", "--json"]
    arguments = ["train", "reverse", "name=disturbed", *SETTINGS, "data.store_from=0", *ray]  # the other is in memory
    with command(*arguments, folder=folder) as process:
        wait_for_checkpoint(run, process)
        process.terminate()
        out, error = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (128 + signal.SIGTERM, ""), error
    saved = Run(run).newest_update()
    how = f"{saved} updates are saved; go on with: regard train --resume runs/disturbed"
    assert error.splitlines()[-1] == f"regard: stopped by SIGTERM; {how}"
    with command("train", "--resume", "runs/disturbed", *ray, folder=folder) as process:
        first = wait_for_checkpoint(run, process, after=saved)
        (other,) = workers_of(process.pid) - {first}
        os.kill(other, signal.SIGKILL)
        out, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error
    assert json.loads(out)["run"] == "runs/disturbed"
    assert curve(run) == curve(folder / "runs/undisturbed")
    assert Run(run).read(storage.MODEL) == Run(folder / "runs/undisturbed").read(storage.MODEL)
    assert [path.name for path in run.parent.glob(".ray-*")] == []


def test_an_error_of_one_process_ends_the_training_at_once_with_its_sentence(folder: Path) -> None:
    pytest.importorskip("ray")
    trained = ["train", "reverse", "name=damaged", *SETTINGS, "train.updates=10", "train.timeout=600", "-q"]
    assert shared_commands()(*trained, folder=folder, limit=60).code == 0
    (checkpoint,) = (folder / "runs/damaged/checkpoints").iterdir()
    (checkpoint / "state.json").write_text("x")
    resume = ["train", "--resume", "runs/damaged", "train.updates=20"]
    alone = shared_commands()(*resume, folder=folder)
    with command(*resume, "--ray", "local", "--processes", "2", folder=folder) as process:
        _, error = process.communicate(timeout=LIMIT)  # the other process waits for this one, up to train.timeout
    assert process.returncode == alone.code == CorruptError.exit_code, error
    assert error.splitlines()[-1].replace(f"{folder}/", "") == alone.error.splitlines()[-1]


class EndedTrainer:
    """In place of a trainer of Ray: each time it starts, the processes have ended with these errors, by rank."""

    def __init__(self, *errors: dict[int, Exception]) -> None:
        self.errors, self.starts = errors, 0

    def fit(self) -> None:
        """Raise Ray's error about that of the processes, unless there is none."""
        self.starts += 1
        if errors := self.errors[min(self.starts, len(self.errors)) - 1]:
            failure = RuntimeError("Training failed due to worker errors:\nand more")
            failure.worker_failures = errors
            raise failure


def test_ray_starts_again_after_a_lost_process_and_not_after_an_error_of_regard(tmp_path: Path) -> None:
    lost, killed = LostProcessError("another process has ended"), RuntimeError("the actor died\nand more")
    trainer = EndedTrainer({0: lost, 1: killed}, {})
    clusters._fit(lambda: trainer, Run(tmp_path), tmp_path / "stop")
    assert trainer.starts == 2
    damaged = RegardError("a file is damaged")
    damaged.exit_code = 5
    trainer = EndedTrainer({0: lost, 1: pickle.loads(pickle.dumps(damaged))})
    with pytest.raises(RegardError, match="a file is damaged") as caught:
        clusters._fit(lambda: trainer, Run(tmp_path), tmp_path / "stop")
    assert (caught.value.exit_code, trainer.starts) == (5, 1)


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ({0: LostProcessError("another process has ended"), 1: KeyError("x")}, """KeyError: 'x'"""),
        ({0: LostProcessError("another process has ended")}, "another process has ended"),
    ],
)
def test_a_training_that_always_loses_processes_ends_with_the_error_of_one(
    errors: dict[int, Exception], reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(clusters, "describe_saved", lambda run: "3 updates are saved")
    trainer = EndedTrainer(errors)
    with pytest.raises(LostProcessError) as caught:
        clusters._fit(lambda: trainer, Run(tmp_path), tmp_path / "stop")
    assert str(caught.value) == f"the training on Ray has ended after 3 restarts ({reason!r}); 3 updates are saved"
    assert trainer.starts == 4


def test_a_signal_ends_the_training_before_the_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, ended = tmp_path / "stop", []
    ending = clusters._EndAtFolder(stop)
    monkeypatch.setattr(clusters, "LOOK", 0.0)

    def fit() -> None:
        for _ in range(2000):
            try:
                ending.on_update(Mock())
            except RegardError as error:
                ended.append(str(error))
                raise
            time.sleep(0.005)

    monkeypatch.setattr(clusters, "Queue", lambda: Mock(get=Mock(side_effect=StoppedError(signal.SIGTERM, "saved"))))
    with pytest.raises(StoppedError):
        clusters._fit(lambda: Mock(fit=fit), Run(tmp_path), stop)
    assert ended == ["stopped by the command that started it"]


def workers_of(command: int) -> set[int]:
    """The processes that train for a command, which has started Ray."""
    lines = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True).stdout.splitlines()
    processes = [(int(line.split()[0]), int(line.split()[1]), line) for line in lines]
    parents = {number: parent for number, parent, _ in processes}
    return {n for n, parent, line in processes if "RayTrainWorker" in line and parents.get(parent) == command}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Ray with two processors, started by this process, for all tests that need no command of their own."""
    pytest.importorskip("ray")
    with connected("local", 2):
        yield


@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray, in this process
def test_tasks_of_ray_write_the_store_that_worker_processes_write(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for owner, name, value in ((shards, "SIZE", 300), (files, "PIECE", 100), (shards, "FRESH", 0)):
        monkeypatch.setattr(owner, name, value)
    monkeypatch.setattr(encoding, "cores", lambda: 2)
    monkeypatch.setattr(clusters, "train", Mock())
    recipe, log = recipes.load("reverse", ["name=stored", "data.store_from=0", *SETTINGS]), ProgressLog(quiet=True)
    written = {}
    for how in ("workers", "ray"):
        monkeypatch.setenv("REGARD_CACHE", str(cache := folder / f"cache-{how}"))
        if how == "workers":
            loop.create(recipe, folder / "runs", 2, quiet=True)
        else:
            monkeypatch.setattr(encoding, "Worker", None)  # none is started
            clusters.train_new(recipe, folder / "runs", "local", 2, log, quiet=True)
        written[how] = {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    kinds = {name.split("/")[0] for name in written["ray"]}
    assert kinds == {"checksums", "digests", "scans", "tokenizers", "tokens"}
    (journal,) = (content for name, content in written["ray"].items() if name.endswith("/journal"))
    assert journal.count(b"\n") > 2 * GROUP  # several groups of blocks, for two processes
    assert written["ray"] == written["workers"]


def test_a_task_of_ray_imports_no_torch() -> None:
    code = "import sys, regard.data.remote; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], env=user_environment() | {"PYTHONPATH": str(SOURCES)}).returncode
        == 0
    )
    assert clusters.answer.__module__ == "regard.data.remote"


def test_an_encoding_that_fails_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(clusters, "_set_up_data", lambda: None)
    ray = Mock()
    ray.data.from_arrow.side_effect = RuntimeError("no machine is left\nand more")
    with pytest.raises(LostProcessError, match=r"has ended \('no machine is left'\); start again: what is encoded"):
        next(clusters._replies(ray, 2, [b"setup"], [[b"request"]]))


@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray, in this process
def test_predictions_of_two_processes_are_those_of_one_in_the_same_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(core, "CHUNK", 60)  # so that there are four batches
    outputs = []
    for how in ({}, {"ray": "local", "processes": 2}):
        cli.predict("runs/undisturbed", ["texts"], search=["temperature=1"], as_json=True, **how)
        outputs.append(capfdbinary.readouterr().out)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 200


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str], after: int = 0) -> int:
    """Wait until a run in training has a new checkpoint; returns the process that trains it."""
    end = time.monotonic() + LIMIT
    while max(int(path.name) for path in [Path("0"), *run.glob("checkpoints/0*")]) <= after:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no checkpoint"
        time.sleep(0.02)
    return int(json.loads((run / storage.LOCK).read_text())["process"])


def test_a_sweep_loses_a_process_is_stopped_and_goes_on_without_ray_and_a_run_that_fails_stops_no_other(
    folder: Path,
) -> None:
    pytest.importorskip("ray")
    settings = (*SETTINGS, "train.updates=150", "train.accumulate=2", "train.warmup=0")
    grid = ["sweep", "reverse", *settings, "train.learning_rate=[0.005,1e37]", "--jobs", "2", "--json"]
    run, failing = folder / "runs/reverse+learning_rate-0.005", folder / "runs/reverse+learning_rate-1e37"
    with command(*grid, "--ray", "local", folder=folder) as process:
        first = wait_for_checkpoint(run, process)
        os.kill(first, signal.SIGKILL)
        saved = Run(run).newest_update()
        assert wait_for_checkpoint(run, process, after=saved) != first
        process.terminate()
        out, error = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (128 + signal.SIGTERM, ""), error
    assert re.search(r"1 of 2: reverse learning_rate=1e37 failed: update \d+: .* lower train.learning_rate", error)
    assert "0 of 2 runs finished, the others go on from their last validation; the same command goes on" in error
    ended = shared_commands()(*grid, folder=folder, limit=LIMIT)
    assert ended.code == 2, ended.error
    entry, failed = map(json.loads, ended.lines)
    assert (entry["name"], entry["run"]) == ("reverse learning_rate=0.005", "runs/reverse+learning_rate-0.005")
    assert re.match(r"update \d+: .* lower train.learning_rate", failed["failed"])
    whole = ["train", "reverse", "name=whole", *settings, "train.learning_rate=0.005", "-q"]
    assert shared_commands()(*whole, folder=folder, limit=60).code == 0
    assert curve(run) == curve(folder / "runs/whole")
    assert Run(run).read(storage.MODEL) == Run(folder / "runs/whole").read(storage.MODEL)
    assert set(run.parent.glob("reverse+*")) == {run, failing}


def test_a_missing_package_and_wrong_options_are_said_in_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"needs the package ray; install it with: pip install 'regard\[ray\]'"):
        clusters.train_new(recipes.load("reverse"), folder / "runs", "local", 2, ProgressLog(quiet=True), quiet=True)
    for arguments, words in {
        ("train", "reverse", "--processes", "2"): "torchrun --standalone --nproc-per-node 2 -m regard train",
        ("train", "reverse", "--ray", ""): "--ray needs the address of a Ray cluster",
        ("train", "reverse", "--ray", "127.0.0.1:1"): "no Ray cluster answers at '127.0.0.1:1' (",
        ("train", "reverse", "--ray", "local", "--dry-run"): "--ray takes no --dry-run",
        ("train", "reverse", *REWARDED, "--ray", "local", "--processes", "2"): "train.reward is for one process, not 2",
        ("predict", "runs/undisturbed", "texts", "--processes", "2"): "--processes is for --ray",
        ("sweep", "reverse", "train.seed=[1,2]", "--ray", ""): "--ray needs the address of a Ray cluster",
    }.items():
        result = shared_commands()(*arguments, folder=folder)
        assert result.code == 2
        assert words in result.error
    assert not (folder / "runs/reverse").exists()
