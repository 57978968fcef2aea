"""Runs that are killed, stopped, damaged or out of disk space lose nothing, and resume to exactly the same weights."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Command, Result, _environment
from regard.errors import CorruptError
from regard.storage import DATA, ENVIRONMENT, KEPT, MANIFEST, METRICS, MODEL, RECIPE, Run

INTERVAL = 4  # updates between two validations
WALL_CLOCK = {"tokens_per_second", "seconds", "train_seconds"}
TINY = (
    "name=tiny",
    "data.train=train.tsv",
    "data.dev=dev.tsv",
    "model.embedding=8",
    "model.encoder.dim=12",
    "model.encoder.dropout=0.1",
    "model.decoder.order=luong",
    "model.decoder.dim=10",
    "model.attention.dim=6",
    "train.updates=24",
    f"train.validate={INTERVAL}",
    "train.batch_tokens=40",
    "train.average=2",
    "train.threads=1",
    "train.device=cpu",
    "search.max_ratio=0",
    "search.max_extra=3",
)
NAMES = [DATA, ENVIRONMENT, MANIFEST, METRICS, MODEL, RECIPE, "source.tokens", "target.tokens"]
OPTIMIZER = "optimizer.safetensors"
FILES = [MODEL, OPTIMIZER, "state.json", MANIFEST]  # of a checkpoint

Outcome = tuple[object, ...]


class KillableCommands:
    """Runs `regard ARGUMENTS` in forks of a warm process; a command may be killed at a chosen point.

    The options are the keys of a task in killable_forks.py.
    """

    def __init__(self, folder: Path) -> None:
        self.seconds = 0.0  # CPU time of the last command
        self.streams = {name: folder / name for name in ("stdin", "stdout", "stderr")}
        self.streams["stdin"].write_bytes(b"")
        script = Path(__file__).with_name("killable_forks.py")
        pipe = subprocess.PIPE
        environment = _environment(threads=1)
        self.server = subprocess.Popen([sys.executable, script], stdin=pipe, stdout=pipe, env=environment, text=True)

    def send(self, task: dict[str, object]) -> None:
        self.server.stdin.write(json.dumps(task) + "\n")
        self.server.stdin.flush()

    def start(self, *arguments: object, folder: Path, **options: object) -> int:
        """Start a command; returns its process id."""
        task = {"arguments": list(map(str, arguments)), "folder": str(folder)} | options
        self.send(task | {name: str(path) for name, path in self.streams.items()})
        return int(self.server.stdout.readline())

    def end(self) -> Result:
        """Wait until the command ends; returns its result."""
        code, seconds = self.server.stdout.readline().split()
        self.seconds = float(seconds)
        return Result(
            int(code), self.streams["stdout"].read_bytes(), self.streams["stderr"].read_text(encoding="utf-8")
        )

    def __call__(self, *arguments: object, folder: Path, **options: object) -> Result:
        self.start(*arguments, folder=folder, **options)
        return self.end()


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with training and dev pairs."""
    folder = tmp_path_factory.mktemp("place")
    generator = random.Random(7)
    for name, count in {"train.tsv": 40, "dev.tsv": 10}.items():
        words = ["".join(generator.choices("abcdef", k=generator.randint(2, 5))) for _ in range(count)]
        (folder / name).write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def killable(data_folder: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableCommands]:
    commands = KillableCommands(tmp_path_factory.mktemp("streams"))
    with commands.server:
        data = [f"data.{part}={data_folder}/{part}.tsv" for part in ("train", "dev")]
        warm_up = ["reverse", *TINY, *data, "train.updates=2"]
        commands.send({"warm_up": warm_up, "runs": str(tmp_path_factory.mktemp("warm_up"))})
        assert commands.server.stdout.readline() == "warm\n"
        yield commands
        commands.server.stdin.close()


@pytest.fixture
def regard_train(killable: KillableCommands, data_folder: Path, tmp_path: Path) -> Callable[..., Result]:
    """Runs `regard train` in the folder of the data; runs are written into the test's own folder."""

    def train(*arguments: object, **options: object) -> Result:
        return killable("train", *arguments, "--runs", tmp_path / "runs", folder=data_folder, **options)

    return train


def outcome(run: Path, last_checkpoint: Path) -> Outcome:
    """Weights, optimizer and metrics of a finished run, without metrics that depend on the clock."""
    metrics = Run.open(run).metrics()
    entries = [{key: value for key, value in entry.items() if key not in WALL_CLOCK} for entry in metrics]
    return (
        (run / MODEL).read_bytes(),
        (last_checkpoint / MODEL).read_bytes(),
        (last_checkpoint / OPTIMIZER).read_bytes(),
        entries,
    )


def partial_files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.partial"))


@pytest.fixture(scope="module")
def undisturbed(
    killable: KillableCommands, data_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Outcome, float]:
    """The outcome of a run that was never interrupted, and its CPU seconds."""
    folder = tmp_path_factory.mktemp("whole")
    result = killable(
        "train", "reverse", *TINY, "--runs", folder, folder=data_folder, copy_last_to=str(folder / "kept")
    )
    assert result.code == 0, result.error
    return outcome(folder / "tiny", folder / "kept"), killable.seconds


@pytest.fixture(scope="module")
def killed(killable: KillableCommands, data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed between its last two validations."""
    runs = tmp_path_factory.mktemp("killed")
    signals = ["learn_once", 22, [signal.SIGKILL]]
    assert (
        killable("train", "reverse", *TINY, "--runs", runs, folder=data_folder, signals=signals).code == -signal.SIGKILL
    )
    assert checkpoints(runs / "tiny") == [20, 16]
    return runs / "tiny"


@pytest.fixture
def killed_copy(killed: Path, tmp_path: Path) -> Path:
    """A copy of the killed run, which the test may change."""
    return shutil.copytree(killed, tmp_path / "runs" / "tiny")


def checkpoints(run: Path) -> list[int]:
    return [int(each.path.name) for each in Run.open(run).checkpoints()]


def resumed(killable: KillableCommands, data_folder: Path, run: Path) -> Outcome:
    """Resume a run; returns its outcome. Its folder has the same files as that of an uninterrupted run."""
    last_checkpoint = run.parent.parent / "kept"
    result = killable("train", "--resume", run, folder=data_folder, copy_last_to=str(last_checkpoint))
    assert result.code == 0, result.error
    assert sorted(each.name for each in run.iterdir()) == NAMES
    return outcome(run, last_checkpoint)


# Killed


SHARES = [random.Random(f"kill {number}").uniform(0.02, 0.98) for number in range(30)]  # of the CPU time of a run
INSTANTS = [*SHARES[:12], *(pytest.param(share, marks=pytest.mark.slow) for share in SHARES[12:])]


@pytest.mark.parametrize("share", INSTANTS)
def test_killed_at_a_random_instant(
    killable: KillableCommands, data_folder: Path, tmp_path: Path, undisturbed: tuple[Outcome, float], share: float
) -> None:
    expected, seconds = undisturbed
    runs, cache, last_checkpoint = tmp_path / "runs", tmp_path / "cache", tmp_path / "kept"
    arguments = ("train", "reverse", *TINY, "--runs", runs)
    code = killable(
        *arguments, folder=data_folder, cache=str(cache), copy_last_to=str(last_checkpoint), kill_after=share * seconds
    ).code
    assert code in (0, -signal.SIGKILL)  # 0 if it was faster than the undisturbed run
    if not (runs / "tiny").exists():  # killed before anything was written
        assert killable(*arguments, folder=data_folder, cache=str(cache), copy_last_to=str(last_checkpoint)).code == 0
        assert outcome(runs / "tiny", last_checkpoint) == expected
    else:
        run = Run.open(runs / "tiny")
        if not run.finished() and run.metrics():
            assert max(checkpoints(run.path), default=0) >= run.metrics()[-1].get("update", 24) - INTERVAL
        assert resumed(killable, data_folder, run.path) == expected
    assert partial_files(tmp_path) == []
    assert [each.name for each in runs.iterdir()] == ["tiny"]


def assert_readable(run: Path) -> None:
    """A run can be opened, and every file that a manifest lists can be read."""
    opened = Run.open(run)
    for name in json.loads((run / MANIFEST).read_bytes())["files"]:
        opened.read(name)
    assert opened.finished() or opened.checkpoints()
    for checkpoint in opened.checkpoints():
        for name in json.loads((checkpoint.path / MANIFEST).read_bytes())["files"]:
            checkpoint.read(name)
    assert len(opened.checkpoints()) <= KEPT + 1


STRIDES = pytest.mark.parametrize(
    "stride", [3, pytest.param(1, marks=pytest.mark.slow)]
)  # every third operation, or every one


@STRIDES
def test_killed_at_every_operation_of_a_save(
    killable: KillableCommands,
    data_folder: Path,
    killed: Path,
    tmp_path: Path,
    undisturbed: tuple[Outcome, float],
    stride: int,
) -> None:
    """The operations replace the weights, record metrics, save a checkpoint and finish the run."""
    operation = 0
    while True:
        operation += stride
        folder = tmp_path / str(operation)
        run = shutil.copytree(killed, folder / "runs" / "tiny")
        kill_at = ["validate", 1, operation]
        code = killable(
            "train", "--resume", run, folder=data_folder, kill_at=kill_at, copy_last_to=str(folder / "kept")
        ).code
        assert_readable(run)
        if code == 0:  # there are no more operations
            break
        assert code == -signal.SIGKILL
        assert resumed(killable, data_folder, run) == undisturbed[0], operation
        assert partial_files(folder) == []
        shutil.rmtree(folder)
    assert operation > 80


def test_killed_at_every_operation_before_the_first_update(
    killable: KillableCommands, data_folder: Path, tmp_path: Path
) -> None:
    """The operations write the cache of the tokenizers, the folder of the run and its lock."""
    operation, weights = 0, set()
    arguments = ("train", "reverse", *TINY, "train.updates=1")
    while True:
        operation += 1
        folder = tmp_path / str(operation)
        runs, options = folder / "runs", {"cache": str(folder / "cache"), "copy_last_to": str(folder / "kept")}
        kill_at = ["check", 1, operation]
        signals = ["_restore_newest", 1, [signal.SIGKILL]]  # later operations belong to a save
        code = killable(
            *arguments, "--runs", runs, folder=data_folder, kill_at=kill_at, signals=signals, **options
        ).code
        assert code == -signal.SIGKILL
        done = (runs / "tiny" / ".lock").exists()
        again = ("train", "--resume", runs / "tiny") if (runs / "tiny").exists() else (*arguments, "--runs", runs)
        result = killable(*again, folder=data_folder, **options)
        assert result.code == 0, result.error
        assert partial_files(folder) == []
        assert [each.name for each in runs.iterdir()] == ["tiny"]
        assert sorted(each.name for each in (runs / "tiny").iterdir()) == NAMES
        weights.add((runs / "tiny" / MODEL).read_bytes())
        shutil.rmtree(folder)
        if done:
            break
    assert len(weights) == 1
    assert operation > 40


# Stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("where", "call", "saved"), [("learn_once", 6, 6), ("evaluate", 3, 12)])
def test_stopped_while_learning_or_validating(
    killable: KillableCommands,
    regard_train: Command,
    data_folder: Path,
    tmp_path: Path,
    undisturbed: tuple[Outcome, float],
    where: str,
    call: int,
    saved: int,
    number: signal.Signals,
) -> None:
    result = regard_train("reverse", *TINY, signals=[where, call, [number]])
    assert result.code == 128 + number
    assert result.out == b""
    run = tmp_path / "runs" / "tiny"
    how = f"go on with: regard train --resume {run}"
    assert result.error.endswith(f"\nregard: stopped by {number.name}; {saved} updates are saved; {how}\n")
    assert checkpoints(run)[0] == saved
    assert resumed(killable, data_folder, run) == undisturbed[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_data_are_prepared(regard_train: Command, tmp_path: Path, number: signal.Signals) -> None:
    result = regard_train("reverse", *TINY, signals=["ProgressLog", 1, [number]])
    assert result.code == 128 + number
    assert result.error == f"regard: stopped by {number.name}; nothing was written\n"
    assert not (tmp_path / "runs").exists()


def test_a_second_signal_stops_at_once(
    killable: KillableCommands,
    regard_train: Command,
    data_folder: Path,
    tmp_path: Path,
    undisturbed: tuple[Outcome, float],
) -> None:
    result = regard_train("reverse", *TINY, "-q", signals=["learn_once", 7, [signal.SIGTERM, signal.SIGINT]])
    assert result.code == 130
    run = tmp_path / "runs" / "tiny"
    how = f"go on with: regard train --resume {run}"
    assert result.error == f"regard: stopped by SIGINT; 4 updates are saved; {how}\n"
    assert resumed(killable, data_folder, run) == undisturbed[0]


# Two at once


def test_two_trainers_on_one_run_are_refused(
    killable: KillableCommands,
    regard: Command,
    data_folder: Path,
    killed_copy: Path,
    undisturbed: tuple[Outcome, float],
) -> None:
    signals = ["learn_once", 1, [signal.SIGSTOP]]
    process = killable.start("train", "--resume", killed_copy, folder=data_folder, signals=signals)
    while Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    before = {each.name: each.read_bytes() for each in killed_copy.iterdir() if each.is_file()}
    result = regard("train", "--resume", killed_copy, folder=data_folder)
    assert result.code == 2
    assert result.error == f"regard: the run {killed_copy} is being trained by another process; wait for it\n"
    assert {each.name: each.read_bytes() for each in killed_copy.iterdir() if each.is_file()} == before
    os.kill(process, signal.SIGKILL)
    assert killable.end().code == -signal.SIGKILL
    assert resumed(killable, data_folder, killed_copy) == undisturbed[0]  # the lock ended with the process that held it


def test_training_never_overwrites_an_unfinished_run(regard_train: Command, killed_copy: Path) -> None:
    before = {each: each.read_bytes() for each in killed_copy.rglob("*") if each.is_file()}
    result = regard_train("reverse", *TINY, "train.updates=1", "-q")
    assert result.lines == [str(killed_copy.with_name("tiny-2"))]
    assert {each: each.read_bytes() for each in killed_copy.rglob("*") if each.is_file()} == before


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder]
        mount = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command to make a small disk with")
    if mount.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk: Path, room: int) -> Path:
    """Write a file that leaves only `room` bytes free."""
    path = disk / "filler"
    left = os.statvfs(disk)
    path.write_bytes(bytes(left.f_bavail * left.f_frsize - room))
    return path


@pytest.mark.parametrize("pages", [0, 1, 3, 8, 14])
def test_a_full_disk_while_saving(
    killable: KillableCommands,
    data_folder: Path,
    killed: Path,
    small_disk: Path,
    undisturbed: tuple[Outcome, float],
    pages: int,
) -> None:
    run = shutil.copytree(killed, small_disk / "runs" / "tiny")
    filler = fill(small_disk, pages * 4096)
    result = killable("train", "--resume", run, "-q", folder=data_folder)
    assert result.code == 4, result.error
    assert result.error.count("\n") == 1
    assert "cannot be written: No space left on device" in result.error
    assert checkpoints(run) == [20, 16]
    assert_readable(run)
    assert partial_files(small_disk) == []
    filler.unlink()
    last_checkpoint = data_folder / f"kept-{pages}"
    assert killable("train", "--resume", run, folder=data_folder, copy_last_to=str(last_checkpoint)).code == 0
    assert outcome(run, last_checkpoint) == undisturbed[0]


def test_a_full_disk_while_the_run_is_created(killable: KillableCommands, data_folder: Path, small_disk: Path) -> None:
    fill(small_disk, 4096)
    result = killable("train", "reverse", *TINY, "-q", "--runs", small_disk / "runs", folder=data_folder)
    assert result.code == 4
    assert "tiny cannot be written: No space left on device" in result.error
    assert list((small_disk / "runs").iterdir()) == []


# Damage


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


DAMAGE: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    **{f"a flipped bit in {name}": (lambda new, old, name=name: flip(new / name), name) for name in FILES[:3]},
    **{f"{name} cut short": (lambda new, old, name=name: truncate(new / name), name) for name in FILES[:3]},
    "a manifest cut in two": (lambda new, old: (new / MANIFEST).write_bytes(b'{"format": 1, "fil'), MANIFEST),
    "a missing file": (lambda new, old: (new / OPTIMIZER).unlink(), OPTIMIZER),
    "files swapped": (lambda new, old: swap(new / MODEL, new / OPTIMIZER), MODEL),
    "a file of the older one": (lambda new, old: swap(new / "state.json", old / "state.json"), "state.json"),
    "the older one's name": (lambda new, old: (shutil.rmtree(new), shutil.copytree(old, new)), "holds update 16"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_older_one_used(
    killable: KillableCommands, data_folder: Path, killed_copy: Path, undisturbed: tuple[Outcome, float], damage: str
) -> None:
    newest, older = (each.path for each in Run.open(killed_copy).checkpoints())
    damage_files, named = DAMAGE[damage]
    damage_files(newest, older)
    last_checkpoint = killed_copy.parent.parent / "kept"
    result = killable("train", "--resume", killed_copy, "-q", folder=data_folder, copy_last_to=str(last_checkpoint))
    if damage == "a file of the older one":  # then both checkpoints are damaged
        assert result.code == 5
        assert f"{newest / named} is damaged" in result.error
        return
    assert result.code == 0, result.error
    [notice] = result.error.splitlines()  # printed even with -q
    assert str(newest) in notice
    assert named in notice
    assert notice.endswith(f"; it is set aside as {newest.name}.damaged; an older checkpoint is used instead")
    assert [each.name for each in newest.parent.iterdir()] == [
        f"{newest.name}.damaged"
    ]  # not removed, although the run is finished
    assert outcome(killed_copy, last_checkpoint) == undisturbed[0]


def test_without_a_good_checkpoint_it_exits_with_5(
    killable: KillableCommands, data_folder: Path, killed_copy: Path
) -> None:
    newest, older = (each.path for each in Run.open(killed_copy).checkpoints())
    flip(newest / MODEL)
    truncate(older / OPTIMIZER)
    before = {each: each.read_bytes() for each in killed_copy.rglob("*") if each.is_file()}
    result = killable("train", "--resume", killed_copy, "-q", folder=data_folder)
    assert result.code == 5
    assert result.error.startswith(f"regard: {newest / MODEL} is damaged")
    assert {each: each.read_bytes() for each in killed_copy.rglob("*") if each.is_file()} == before


def test_damaged_weights_are_named_by_predict_and_resume(
    killable: KillableCommands, data_folder: Path, killed_copy: Path
) -> None:
    assert (
        killable("predict", killed_copy, "--text", "abc", folder=data_folder).code == 0
    )  # an unfinished run answers too
    flip(killed_copy / MODEL)
    for command in (("predict", killed_copy, "--text", "abc"), ("train", "--resume", killed_copy, "-q")):
        result = killable(*command, folder=data_folder)
        assert result.code == 5
        assert result.out == b""
        assert result.error.startswith(f"regard: {killed_copy / MODEL} is damaged")
    with pytest.raises(CorruptError):
        Run.open(killed_copy).read(MODEL)
