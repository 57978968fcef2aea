"""Files of other people, in and beside a run: named and left alone; links are never written through."""

import itertools
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from common import (
    CHECKPOINTS,
    LATEST,
    LOCK,
    MANIFEST,
    METRICS,
    MODEL,
    OPTIMIZER,
    RECIPE,
    STATE,
    commands,
    example,
    good_checkpoints,
    sample,
    snapshot,
    train_arguments,
    trying,
)

from commands import Result

Count = Callable[[str, object], None]
KIND = "recurrent"
EAGER, RUN = "regard.training.engine.eager:learn_once", "regard.storage:Run"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of the unfinished run, beside files of other people."""
    return example(KIND).copy_unfinished(tmp_path / "runs")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of somebody else, with a file, and with folders that look like checkpoints and like temporary ones."""
    folder = tmp_path / "victim"
    for name in ("00000001", "00000009", ".00000004.7.partial", ".old.partial"):
        (folder / name).mkdir(parents=True)
        (folder / name / "thesis").write_bytes(b"years of work")
    (folder / "thesis").write_bytes(b"years of work")
    return folder


def resume(run: Path, **options: object) -> Result:
    return commands()("train", "--resume", run, **options)


# ---- beside a run

NAMES = (
    ".download.partial",
    f".{KIND}.partial",
    f".{KIND}.7.partial",
    f".{KIND}.abc.partial",
    ".x.old.partial",
    ".partial",
)


@pytest.mark.parametrize("command", ["train", "resume"])
def test_things_of_others_beside_a_run_stay(command: str, tmp_path: Path, run: Path) -> None:
    runs = run.parent
    for name in NAMES[1:]:
        (runs / name).mkdir()
        (runs / name / "thesis").write_bytes(b"years of work")
    (runs / f".{KIND}.8.partial").write_bytes(b"a file")
    before = snapshot(runs, without=[run])
    result = commands()(*train_arguments(KIND, runs)) if command == "train" else resume(run)
    assert result.code == 0, result.error
    assert snapshot(runs, without=[run, runs / f"{KIND}-2", runs / LATEST]) == before


def test_two_runs_created_at_once_have_two_names(tmp_path: Path) -> None:
    made = example(KIND)
    stopped = commands().start(*train_arguments(KIND, tmp_path), signals=[[f"{RUN}.training", 1, [signal.SIGSTOP]]])
    others = [commands().start(*train_arguments(KIND, tmp_path)) for _ in range(2)]
    results = [commands().wait(process) for process in others]
    os.kill(stopped, signal.SIGCONT)
    results.append(commands().wait(stopped))
    assert [result.code for result in results] == [0, 0, 0], [result.error for result in results]
    assert sorted(path.name for path in tmp_path.iterdir()) == [LATEST, KIND, f"{KIND}-2", f"{KIND}-3"]
    for path in tmp_path.iterdir():
        made.assert_equal(path)


# ---- in the folder of checkpoints


def stray_file(path: Path) -> None:
    path.write_bytes(b"notes")


def stray_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes").write_bytes(b"notes")


STRAYS: dict[str, Callable[[Path], None]] = {
    "00000009.bak": stray_folder,
    "00000009.old": stray_file,
    "5notes.txt": stray_file,
    "00000009": stray_folder,
    "00000010": stray_file,
    "00000011": lambda path: path.mkdir(),
    "00000012": lambda path: path.symlink_to("00000004"),
    "00000013": lambda path: os.mkfifo(path),
    "notes": stray_folder,
    ".notes.partial": stray_folder,
    ".00000008.notes.partial": stray_folder,
    "99999999999999999999999999": stray_folder,
    "\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668": stray_folder,  # eight digits, Arabic
    "00000009\x1b[2J": stray_folder,
}


def named(folder: Path, name: str) -> dict[str, object]:
    """All that is in a folder under a name, or under the name that damaged things are set aside by."""
    found = {path.replace(".damaged", "", 1): content for path, content in snapshot(folder).items()}
    return {path: content for path, content in found.items() if path == name or path.startswith(f"{name}/")}


@pytest.mark.parametrize("name", STRAYS, ids=ascii)
def test_a_stray_file_among_the_checkpoints_is_kept(name: str, run: Path, record_property: Count) -> None:
    """It is named if it could be taken for a checkpoint, and not used."""
    with trying("foreign files among the checkpoints", record_property) as tried, tried(name):
        STRAYS[name](run / CHECKPOINTS / name)
        before = named(run / CHECKPOINTS, name)
        result = resume(run)
        result.assert_behaved()
        assert named(run / CHECKPOINTS, name) == before
        assert result.code == 0, result.error
        assert "going on after update 4" in result.error
        if name[0].isdigit() and name.isascii():
            assert name.replace("\x1b", "") in result.error.replace("\x1b", ""), f"it is not named: {result.error}"
        example(KIND).assert_equal(run)


@pytest.fixture(scope="module")
def other_seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of update 5 of a run with another seed."""
    runs = tmp_path_factory.mktemp("other")
    stop = [[EAGER, 5, [signal.SIGTERM]]]
    assert commands()(*train_arguments(KIND, runs, "train.seed=5"), signals=stop).code == 143
    checkpoint = runs / KIND / CHECKPOINTS / "00000005"
    assert checkpoint.is_dir()
    return checkpoint


def test_the_checkpoint_of_another_run_is_named_and_left_alone(run: Path, other_seed: Path) -> None:
    shutil.copytree(other_seed, run / CHECKPOINTS / "00000005")
    before = {name: (other_seed / name).read_bytes() for name in (MODEL, OPTIMIZER, STATE, MANIFEST)}
    result = resume(run)
    assert result.code == 0, result.error
    assert "00000005" in result.error
    assert "going on after update 4" in result.error
    example(KIND).assert_equal(run)
    left = run / CHECKPOINTS / "00000005"
    assert {name: (left / name).read_bytes() for name in before} == before


def test_only_the_checkpoint_of_another_run(run: Path, other_seed: Path) -> None:
    shutil.rmtree(run / CHECKPOINTS / "00000002")
    shutil.rmtree(run / CHECKPOINTS / "00000004")
    shutil.copytree(other_seed, run / CHECKPOINTS / "00000005")
    result = resume(run)
    result.assert_behaved()
    assert "00000005" in result.error
    if result.code == 0:
        example(KIND).assert_equal(run)
    assert (run / CHECKPOINTS / "00000005" / MODEL).read_bytes() == (other_seed / MODEL).read_bytes()


# ---- links inside a run


def linked(path: Path, target: Path) -> None:
    """Put a link in the place of a file or folder, which is removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


INSIDE = [
    *(METRICS, LOCK, MODEL, MANIFEST, RECIPE, CHECKPOINTS, "data.json", "source.tokens"),
    *(
        f"{CHECKPOINTS}/00000004",
        f"{CHECKPOINTS}/00000006",
        f"{CHECKPOINTS}/00000002",
        f"{CHECKPOINTS}/00000004/{MODEL}",
    ),
    *(f".{MODEL}.7.partial", f"{CHECKPOINTS}/.00000006.7.partial", f"{CHECKPOINTS}/.00000004.replaced.partial"),
    *(f"{CHECKPOINTS}/00000004.damaged", f".{METRICS}.damaged", f"{METRICS}.damaged", f"{MODEL}.damaged"),
]
TARGETS = {"a file": "thesis", "a folder": ".", "nothing": "new"}


LINKS = [(state, name, target) for name in INSIDE for state in ("unfinished", "finished") for target in TARGETS]


def test_a_link_in_a_run_is_never_written_through(tmp_path: Path, victim: Path, record_property: Count) -> None:
    made = example(KIND)
    with trying("links in a run", record_property) as tried:
        for number, (state, name, target) in enumerate(sample(LINKS, 20)):
            copy = made.copy_unfinished if state == "unfinished" else made.copy_finished
            run = copy(tmp_path / str(number))
            if state == "finished" and name.startswith(f"{CHECKPOINTS}/"):
                (run / name).parent.mkdir(parents=True, exist_ok=True)
            with tried(state, name, target):
                linked(run / name, victim / TARGETS[target])
                before, beside = snapshot(victim), snapshot(run.parent, without=[run])
                result = resume(run)
                assert snapshot(victim) == before
                assert snapshot(run.parent, without=[run]) == beside
                result.assert_behaved()
                if result.code == 0 and state == "unfinished":
                    if (run / name).is_symlink():  # left alone
                        (run / name).unlink()
                    made.assert_equal(run)


def test_metrics_that_are_a_link_to_the_real_metrics_are_not_appended_to(run: Path, victim: Path) -> None:
    """A link whose content fits would be appended to."""
    shutil.copy(run / METRICS, victim / METRICS)
    linked(run / METRICS, victim / METRICS)
    before = snapshot(victim)
    result = resume(run)
    result.assert_behaved()
    assert snapshot(victim) == before


def test_checkpoints_that_are_a_link_to_good_checkpoints_are_not_removed(run: Path, victim: Path) -> None:
    shutil.copytree(run / CHECKPOINTS, victim / CHECKPOINTS)
    linked(run / CHECKPOINTS, victim / CHECKPOINTS)
    before = snapshot(victim)
    result = resume(run)
    result.assert_behaved()
    assert snapshot(victim) == before


TEMPORARY = {  # the predictable names that a version before this one used, and the operation before it used them
    "weights": (f"{RUN}.replace", "{run}/.model.safetensors.{{pid}}.partial"),
    "manifest": (f"{RUN}.replace", "{run}/.manifest.json.{{pid}}.partial"),
    "checkpoint": (f"{RUN}.save", "{run}/checkpoints/.00000006.{{pid}}.partial"),
}


def test_a_link_at_a_temporary_name_is_never_written_through(
    tmp_path: Path, victim: Path, record_property: Count
) -> None:
    with trying("links at temporary names", record_property) as tried:
        for name, target in itertools.product(TEMPORARY, TARGETS):
            with tried(name, target):
                run = example(KIND).copy_unfinished(tmp_path / f"{name} {target}")
                place, path = TEMPORARY[name]
                before = snapshot(victim)
                result = resume(run, link=[place, 1, path.format(run=run), str(victim / TARGETS[target])])
                assert snapshot(victim) == before
                result.assert_behaved()
                if result.code:
                    result = resume(run)
                    assert result.code == 0, result.error
                for link in run.glob(".*.partial"):
                    assert link.is_symlink()  # it is not regard's
                    link.unlink()
                example(KIND).assert_equal(run)


@pytest.mark.parametrize("target", TARGETS)
def test_a_link_at_the_temporary_name_of_a_new_run(target: str, tmp_path: Path, victim: Path) -> None:
    runs = tmp_path / "new"
    runs.mkdir()
    before = snapshot(victim)
    path = f"{runs}/.{KIND}.{{pid}}.partial"
    result = commands()(*train_arguments(KIND, runs), link=[f"{RUN}.create", 1, path, str(victim / TARGETS[target])])
    assert snapshot(victim) == before
    assert result.code == 0, result.error
    example(KIND).assert_equal(runs / KIND)


def test_a_parent_that_is_a_link_is_followed(tmp_path: Path, run: Path) -> None:
    """Many people keep runs on another disk: the parent of a run may be a link, its content may not."""
    (tmp_path / "link").symlink_to(run.parent)
    before = snapshot(run.parent, without=[run])
    result = resume(tmp_path / "link" / KIND)
    assert result.code == 0, result.error
    example(KIND).assert_equal(run)
    assert snapshot(run.parent, without=[run]) == before


# ---- pictures


def test_look_writes_through_no_link(tmp_path: Path, victim: Path, record_property: Count) -> None:
    run = example(KIND).finished
    with trying("links at the names of pictures", record_property) as tried:
        for ending, name in itertools.product(
            ("svg", "html", "csv"), (".map.{ending}.{{pid}}.partial", "map.{ending}")
        ):
            with tried(ending, name):
                folder = tmp_path / f"{ending}{len(name)}"
                folder.mkdir()
                before = snapshot(victim)
                link = ["regard.storage:create", 1, f"{folder}/{name.format(ending=ending)}", str(victim / "thesis")]
                commands()("look", run, "abc", "-o", folder / f"map.{ending}", link=link).assert_behaved()
                assert snapshot(victim) == before


# ---- a run that starts from another


def test_a_run_that_starts_from_another_is_bound_to_its_weights(tmp_path: Path) -> None:
    """Killed before its first checkpoint, it needs the other run again."""
    origin, kept = tmp_path / "origin", commands().folder / "origin" / KIND
    shutil.copytree(kept, origin)
    stop = [[f"{RUN}.save", 1, [signal.SIGKILL]]]
    assert commands()(*train_arguments("continued", tmp_path, f"train.start_from={origin}"), signals=stop).code == -9
    shutil.rmtree(origin)
    shutil.copytree(example(KIND).finished, origin)  # weights of the same shapes
    result = resume(tmp_path / "continued")
    assert result.code == 2, result.error
    assert f"{origin}, which train.start_from names, has changed" in result.error
    shutil.rmtree(origin)
    shutil.copytree(kept, origin)
    assert resume(tmp_path / "continued").code == 0
    assert (tmp_path / "continued" / MODEL).read_bytes() == (example("continued").finished / MODEL).read_bytes()


# ---- two at once


def stopped_trainer(run: Path) -> int:
    """Start a trainer, which stops itself in its third update and keeps the lock; returns its process id."""
    process = commands().start("train", "--resume", run, signals=[[EAGER, 1, [signal.SIGSTOP]]])
    while Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "T":
        pass
    return process


def test_a_second_trainer_is_told_who_holds_the_run(run: Path) -> None:
    process = stopped_trainer(run)
    before = snapshot(run)
    result = resume(run)
    assert snapshot(run) == before
    os.kill(process, signal.SIGCONT)
    assert commands().wait(process).code == 0
    example(KIND).assert_equal(run)
    assert result.code == 2
    assert result.error.count("\n") == 1
    assert str(process) in result.error
    assert socket.gethostname() in result.error
    assert "since" in result.error


def test_the_lock_of_a_dead_holder_does_not_count(run: Path) -> None:
    process = stopped_trainer(run)
    os.kill(process, signal.SIGKILL)
    assert commands().wait(process).code == -signal.SIGKILL
    assert (run / LOCK).exists()
    example(KIND).assert_ends_equal(run)


@pytest.mark.parametrize("place", [EAGER, "regard.training.validation:evaluate"])
def test_a_lock_that_is_removed_under_its_holder_is_noticed_before_the_next_save(place: str, run: Path) -> None:
    before = {update: snapshot(run / CHECKPOINTS / f"{update:08}") for update in good_checkpoints(run)}
    result = resume(run, remove=[place, 1, str(run / LOCK)])
    result.assert_behaved()
    assert result.code != 0, "it trained on without a lock"
    assert LOCK in result.error
    assert {update: snapshot(run / CHECKPOINTS / f"{update:08}") for update in good_checkpoints(run)} == before
    example(KIND).assert_ends_equal(run)


def test_two_trainers_after_the_lock_was_removed(run: Path) -> None:
    """The first trainer stops before it saves; the second one goes on alone."""
    process = stopped_trainer(run)
    (run / LOCK).unlink()
    second = resume(run)
    assert second.code == 0, second.error
    finished = snapshot(run)
    os.kill(process, signal.SIGCONT)
    first = commands().wait(process)
    first.assert_behaved()
    assert first.code != 0
    assert snapshot(run) == finished
    example(KIND).assert_equal(run)


@pytest.mark.parametrize("name", [METRICS, MODEL, CHECKPOINTS, MANIFEST])
def test_files_that_disappear_while_a_run_is_trained(name: str, run: Path, tmp_path: Path) -> None:
    process = stopped_trainer(run)
    (run / name).rename(tmp_path / "moved")
    os.kill(process, signal.SIGCONT)
    result = commands().wait(process)
    result.assert_behaved()
    if result.code == 0 and name != CHECKPOINTS:
        example(KIND).assert_equal(run)
