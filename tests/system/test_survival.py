"""Killed at any instant, out of disk, damaged, stopped: nothing is lost, and resuming ends with the same bits."""

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

from conftest import Answer, Command, _environment
from regard.errors import CorruptError
from regard.storage import DATA, KEPT, MANIFEST, METRICS, MODEL, RECIPE, Run

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
NAMES = [DATA, MANIFEST, METRICS, MODEL, RECIPE, "source.tokens", "target.tokens"]
OPTIMIZER = "optimizer.safetensors"
FILES = [MODEL, OPTIMIZER, "state.json", MANIFEST]  # of a checkpoint

Outcome = tuple[object, ...]


class Mortals:
    """Runs `regard ARGUMENTS` in forks of a warm process, which may be killed."""

    def __init__(self, folder: Path) -> None:
        self.seconds = 0.0  # of the processor, that the last command took
        self.streams = {name: folder / name for name in ("stdin", "stdout", "stderr")}
        self.streams["stdin"].write_bytes(b"")
        script = Path(__file__).with_name("deaths.py")
        pipe = subprocess.PIPE
        environment = _environment(threads=1)
        self.server = subprocess.Popen([sys.executable, script], stdin=pipe, stdout=pipe, env=environment, text=True)

    def prediction(self, task: dict[str, object]) -> None:
        self.server.stdin.write(json.dumps(task) + "\n")
        self.server.stdin.flush()

    def start(self, *arguments: object, folder: Path, **fate: object) -> int:
        """Begin a command; gives its process."""
        task = {"arguments": list(map(str, arguments)), "folder": str(folder)} | fate
        self.prediction(task | {name: str(path) for name, path in self.streams.items()})
        return int(self.server.stdout.readline())

    def end(self) -> Answer:
        """How it ended."""
        code, seconds = self.server.stdout.readline().split()
        self.seconds = float(seconds)
        return Answer(
            int(code), self.streams["stdout"].read_bytes(), self.streams["stderr"].read_text(encoding="utf-8")
        )

    def __call__(self, *arguments: object, folder: Path, **fate: object) -> Answer:
        self.start(*arguments, folder=folder, **fate)
        return self.end()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs to learn from."""
    folder = tmp_path_factory.mktemp("place")
    generator = random.Random(7)
    for name, count in {"train.tsv": 40, "dev.tsv": 10}.items():
        words = ["".join(generator.choices("abcdef", k=generator.randint(2, 5))) for _ in range(count)]
        (folder / name).write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def mortals(place: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortals]:
    found = Mortals(tmp_path_factory.mktemp("streams"))
    with found.server:
        data = [f"data.{part}={place}/{part}.tsv" for part in ("train", "dev")]
        warm = ["reverse", *TINY, *data, "train.updates=2"]
        found.prediction({"warm": warm, "runs": str(tmp_path_factory.mktemp("warm"))})
        assert found.server.stdout.readline() == "warm\n"
        yield found
        found.server.stdin.close()


@pytest.fixture
def regard_train(mortals: Mortals, place: Path, tmp_path: Path) -> Callable[..., Answer]:
    """Trains in the place of the pairs, into the test's own folder."""

    def run(*arguments: object, **fate: object) -> Answer:
        return mortals("train", *arguments, "--runs", tmp_path / "runs", folder=place, **fate)

    return run


def outcome(run: Path, kept: Path) -> Outcome:
    """Weights, optimizer and metrics, but for the clock's."""
    metrics = Run.open(run).metrics()
    told = [{key: value for key, value in entry.items() if key not in WALL_CLOCK} for entry in metrics]
    return (run / MODEL).read_bytes(), (kept / MODEL).read_bytes(), (kept / OPTIMIZER).read_bytes(), told


def litter(*folders: Path) -> list[Path]:
    return [each for folder in folders for each in folder.rglob("*.partial")]


@pytest.fixture(scope="module")
def whole(mortals: Mortals, place: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, float]:
    """The end of a run that nobody disturbed, and the seconds of the processor it took."""
    folder = tmp_path_factory.mktemp("whole")
    said = mortals("train", "reverse", *TINY, "--runs", folder, folder=place, keep=str(folder / "kept"))
    assert said.code == 0, said.error
    return outcome(folder / "tiny", folder / "kept"), mortals.seconds


@pytest.fixture(scope="module")
def killed(mortals: Mortals, place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its last interval."""
    runs = tmp_path_factory.mktemp("killed")
    act = ["learn_once", 22, [signal.SIGKILL]]
    assert mortals("train", "reverse", *TINY, "--runs", runs, folder=place, act=act).code == -signal.SIGKILL
    assert checkpoints(runs / "tiny") == [20, 16]
    return runs / "tiny"


@pytest.fixture
def copy(killed: Path, tmp_path: Path) -> Path:
    """That run once more, to be done with as one likes."""
    return shutil.copytree(killed, tmp_path / "runs" / "tiny")


def checkpoints(run: Path) -> list[int]:
    return [int(each.path.name) for each in Run.open(run).checkpoints()]


def resumed(mortals: Mortals, place: Path, run: Path) -> Outcome:
    """The end of a run after it was resumed; it is as tidy as one that was never stopped."""
    kept = run.parent.parent / "kept"
    said = mortals("train", "--resume", run, folder=place, keep=str(kept))
    assert said.code == 0, said.error
    assert sorted(each.name for each in run.iterdir()) == NAMES
    return outcome(run, kept)


# Killed


SHARES = [random.Random(f"kill {number}").uniform(0.02, 0.98) for number in range(30)]  # of a training's time
INSTANTS = [*SHARES[:12], *(pytest.param(share, marks=pytest.mark.slow) for share in SHARES[12:])]


@pytest.mark.parametrize("share", INSTANTS)
def test_killed_at_a_random_instant(
    mortals: Mortals, place: Path, tmp_path: Path, whole: tuple[Outcome, float], share: float
) -> None:
    expected, seconds = whole
    runs, cache, kept = tmp_path / "runs", tmp_path / "cache", tmp_path / "kept"
    arguments = ("train", "reverse", *TINY, "--runs", runs)
    code = mortals(*arguments, folder=place, cache=str(cache), keep=str(kept), after=share * seconds).code
    assert code in (0, -signal.SIGKILL)  # it may have been quicker than the other was
    if not (runs / "tiny").exists():  # killed before anything was written
        assert mortals(*arguments, folder=place, cache=str(cache), keep=str(kept)).code == 0
        assert outcome(runs / "tiny", kept) == expected
    else:
        run = Run.open(runs / "tiny")
        if not run.finished() and run.metrics():
            assert max(checkpoints(run.path), default=0) >= run.metrics()[-1].get("update", 24) - INTERVAL
        assert resumed(mortals, place, run.path) == expected
    assert litter(tmp_path) == []
    assert [each.name for each in runs.iterdir()] == ["tiny"]


def survives(run: Path) -> None:
    """Whatever happened, a run can be opened, and all that is vouched for reads well."""
    opened = Run.open(run)
    for name in json.loads((run / MANIFEST).read_bytes())["files"]:
        opened.read(name)
    assert opened.finished() or opened.checkpoints()
    for checkpoint in opened.checkpoints():
        for name in json.loads((checkpoint.path / MANIFEST).read_bytes())["files"]:
            checkpoint.read(name)
    assert len(opened.checkpoints()) <= KEPT + 1


EVERY = pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])  # third operation, or all


@EVERY
def test_killed_at_every_operation_of_a_save(
    mortals: Mortals, place: Path, killed: Path, tmp_path: Path, whole: tuple[Outcome, float], every: int
) -> None:
    """One replacing of the weights, one record, one checkpoint, the last record, the finish."""
    operation = 0
    while True:
        operation += every
        folder = tmp_path / str(operation)
        run = shutil.copytree(killed, folder / "runs" / "tiny")
        die = ["validate", 1, operation]
        code = mortals("train", "--resume", run, folder=place, die=die, keep=str(folder / "kept")).code
        survives(run)
        if code == 0:  # there are no more operations
            break
        assert code == -signal.SIGKILL
        assert resumed(mortals, place, run) == whole[0], operation
        assert litter(folder) == []
        shutil.rmtree(folder)
    assert operation > 80


def test_killed_at_every_operation_before_the_first_update(mortals: Mortals, place: Path, tmp_path: Path) -> None:
    """The cache of the tokenizers, the folder of the run, its lock."""
    operation, weights = 0, set()
    arguments = ("train", "reverse", *TINY, "train.updates=1")
    while True:
        operation += 1
        folder = tmp_path / str(operation)
        runs, fate = folder / "runs", {"cache": str(folder / "cache"), "keep": str(folder / "kept")}
        die = ["check", 1, operation]
        act = ["_restore_newest", 1, [signal.SIGKILL]]  # the operations thereafter are those of a save
        code = mortals(*arguments, "--runs", runs, folder=place, die=die, act=act, **fate).code
        assert code == -signal.SIGKILL
        done = (runs / "tiny" / ".lock").exists()
        again = ("train", "--resume", runs / "tiny") if (runs / "tiny").exists() else (*arguments, "--runs", runs)
        said = mortals(*again, folder=place, **fate)
        assert said.code == 0, said.error
        assert litter(folder) == []
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
    mortals: Mortals,
    regard_train: Command,
    place: Path,
    tmp_path: Path,
    whole: tuple[Outcome, float],
    where: str,
    call: int,
    saved: int,
    number: signal.Signals,
) -> None:
    said = regard_train("reverse", *TINY, act=[where, call, [number]])
    assert said.code == 128 + number
    assert said.out == b""
    run = tmp_path / "runs" / "tiny"
    how = f"go on with: regard train --resume {run}"
    assert said.error.endswith(f"\nregard: stopped by {number.name}; {saved} updates are saved; {how}\n")
    assert checkpoints(run)[0] == saved
    assert resumed(mortals, place, run) == whole[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_data_are_prepared(regard_train: Command, tmp_path: Path, number: signal.Signals) -> None:
    said = regard_train("reverse", *TINY, act=["ProgressLog", 1, [number]])
    assert said.code == 128 + number
    assert said.error == f"regard: stopped by {number.name}; nothing was written\n"
    assert not (tmp_path / "runs").exists()


def test_a_second_signal_stops_at_once(
    mortals: Mortals, regard_train: Command, place: Path, tmp_path: Path, whole: tuple[Outcome, float]
) -> None:
    said = regard_train("reverse", *TINY, "-q", act=["learn_once", 7, [signal.SIGTERM, signal.SIGINT]])
    assert said.code == 130
    run = tmp_path / "runs" / "tiny"
    how = f"go on with: regard train --resume {run}"
    assert said.error == f"regard: stopped by SIGINT; 4 updates are saved; {how}\n"
    assert resumed(mortals, place, run) == whole[0]


# Two at once


def test_two_trainers_on_one_run_are_refused(
    mortals: Mortals, regard: Command, place: Path, copy: Path, whole: tuple[Outcome, float]
) -> None:
    act = ["learn_once", 1, [signal.SIGSTOP]]
    process = mortals.start("train", "--resume", copy, folder=place, act=act)
    while Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    before = {each.name: each.read_bytes() for each in copy.iterdir() if each.is_file()}
    said = regard("train", "--resume", copy, folder=place)
    assert said.code == 2
    assert said.error == f"regard: the run {copy} is being trained by another process; wait for it\n"
    assert {each.name: each.read_bytes() for each in copy.iterdir() if each.is_file()} == before
    os.kill(process, signal.SIGKILL)
    assert mortals.end().code == -signal.SIGKILL
    assert resumed(mortals, place, copy) == whole[0]  # the lock went with its holder


def test_training_never_overwrites_an_unfinished_run(regard_train: Command, copy: Path) -> None:
    before = {each: each.read_bytes() for each in copy.rglob("*") if each.is_file()}
    said = regard_train("reverse", *TINY, "train.updates=1", "-q")
    assert said.lines == [str(copy.with_name("tiny-2"))]
    assert {each: each.read_bytes() for each in copy.rglob("*") if each.is_file()} == before


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder]
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command to make a small disk with")
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(disk: Path, room: int) -> Path:
    """A file that leaves only so many bytes."""
    path = disk / "ballast"
    left = os.statvfs(disk)
    path.write_bytes(bytes(left.f_bavail * left.f_frsize - room))
    return path


@pytest.mark.parametrize("pages", [0, 1, 3, 8, 14])
def test_a_full_disk_while_saving(
    mortals: Mortals, place: Path, killed: Path, small_disk: Path, whole: tuple[Outcome, float], pages: int
) -> None:
    run = shutil.copytree(killed, small_disk / "runs" / "tiny")
    ballast = fill(small_disk, pages * 4096)
    said = mortals("train", "--resume", run, "-q", folder=place)
    assert said.code == 4, said.error
    assert said.error.count("\n") == 1
    assert "cannot be written: No space left on device" in said.error
    assert checkpoints(run) == [20, 16]
    survives(run)
    assert litter(small_disk) == []
    ballast.unlink()
    kept = place / f"kept-{pages}"
    assert mortals("train", "--resume", run, folder=place, keep=str(kept)).code == 0
    assert outcome(run, kept) == whole[0]


def test_a_full_disk_while_the_run_is_created(mortals: Mortals, place: Path, small_disk: Path) -> None:
    fill(small_disk, 4096)
    said = mortals("train", "reverse", *TINY, "-q", "--runs", small_disk / "runs", folder=place)
    assert said.code == 4
    assert "tiny cannot be written: No space left on device" in said.error
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
    mortals: Mortals, place: Path, copy: Path, whole: tuple[Outcome, float], damage: str
) -> None:
    newest, older = (each.path for each in Run.open(copy).checkpoints())
    hurt, named = DAMAGE[damage]
    hurt(newest, older)
    kept = copy.parent.parent / "kept"
    said = mortals("train", "--resume", copy, "-q", folder=place, keep=str(kept))
    if damage == "a file of the older one":  # then both are damaged
        assert said.code == 5
        assert f"{newest / named} is damaged" in said.error
        return
    assert said.code == 0, said.error
    [notice] = said.error.splitlines()  # even where quiet was asked for
    assert str(newest) in notice
    assert named in notice
    assert notice.endswith(f"; it is set aside as {newest.name}.damaged; an older checkpoint is used instead")
    assert [each.name for each in newest.parent.iterdir()] == [f"{newest.name}.damaged"]  # kept, though it is finished
    assert outcome(copy, kept) == whole[0]


def test_without_a_good_checkpoint_it_exits_with_5(mortals: Mortals, place: Path, copy: Path) -> None:
    newest, older = (each.path for each in Run.open(copy).checkpoints())
    flip(newest / MODEL)
    truncate(older / OPTIMIZER)
    before = {each: each.read_bytes() for each in copy.rglob("*") if each.is_file()}
    said = mortals("train", "--resume", copy, "-q", folder=place)
    assert said.code == 5
    assert said.error.startswith(f"regard: {newest / MODEL} is damaged")
    assert {each: each.read_bytes() for each in copy.rglob("*") if each.is_file()} == before


def test_damaged_weights_are_named_by_predict_and_resume(mortals: Mortals, place: Path, copy: Path) -> None:
    assert mortals("predict", copy, "--text", "abc", folder=place).code == 0  # an unfinished run answers too
    flip(copy / MODEL)
    for command in (("predict", copy, "--text", "abc"), ("train", "--resume", copy, "-q")):
        said = mortals(*command, folder=place)
        assert said.code == 5
        assert said.out == b""
        assert said.error.startswith(f"regard: {copy / MODEL} is damaged")
    with pytest.raises(CorruptError):
        Run.open(copy).read(MODEL)
