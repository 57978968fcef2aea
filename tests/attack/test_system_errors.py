"""Errors of the operating system at any operation on files: one sentence, exit code 4, and nothing is lost."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from common import (
    KINDS,
    LATEST,
    MANIFEST,
    METRICS,
    MODEL,
    OPTIMIZER,
    WHOLE,
    commands,
    example,
    good_checkpoints,
    plant_foreign_files,
    sample,
    snapshot,
    train_arguments,
    trying,
)

from commands import Result

Count = Callable[[str, object], None]
SOME_KINDS = pytest.mark.parametrize("kind", ["recurrent", "subwords"])
ONE_KIND = pytest.mark.parametrize("kind", KINDS if WHOLE else ["transformer"])
ERRORS = {  # that Linux documents for each operation
    "open": ("ENOSPC", "EMFILE", "EACCES", "EIO"),
    "write": ("ENOSPC", "EIO"),
    "pwrite": ("ENOSPC", "EIO"),
    "ftruncate": ("EIO",),
    "fsync": ("EIO", "ENOSPC"),
    "close": ("EIO",),
    "rename": ("EIO", "ENOSPC", "EACCES"),
    "replace": ("EIO", "ENOSPC", "EACCES"),
    "mkdir": ("ENOSPC", "EACCES", "EIO"),
    "symlink": ("ENOSPC", "EACCES", "EIO"),
    "unlink": ("EIO", "EACCES"),
    "rmdir": ("EIO", "EACCES"),
    "read": ("EIO", "EMFILE", "EACCES"),
}


ALL = ("EIO", "ENOSPC", "EACCES", "EMFILE")
SOME_ERRORS = pytest.mark.parametrize("errors", [(error,) for error in ALL] if WHOLE else [ALL], ids="-".join)


def failures(operations: list[list[str]], errors: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Every operation, by its number, with each of the errors that it may have."""
    for number, (name, _) in enumerate(operations, 1):
        for error in ERRORS[name]:
            if error in errors:
                yield number, error


def assert_reported(result: Result) -> None:
    """Either the error did not matter, or there is one sentence with exit code 4."""
    result.assert_behaved(codes=(0, 4))
    sentences = [line for line in result.error.splitlines() if line.startswith("regard: ")]
    assert len(sentences) == (result.code == 4), result.error


@SOME_KINDS
@SOME_ERRORS
def test_an_error_at_every_operation_of_a_training(
    kind: str, errors: tuple[str, ...], tmp_path: Path, record_property: Count
) -> None:
    made = example(kind)

    def train(folder: Path, **options: Any) -> Result:
        environment = {"REGARD_CACHE": str(folder / "cache")}
        return commands()(*train_arguments(kind, folder), watched=str(folder), environment=environment, **options)

    operations = train(tmp_path / "whole").operations
    with trying("injected errors, new run", record_property) as tried:
        for number, error in sample(failures(operations, errors), 15):
            with tried(kind, number, operations[number - 1], error):
                folder = tmp_path / f"{number}-{error}"
                plant_foreign_files(folder)
                foreign = snapshot(folder)
                result = train(folder, fail={number: error})
                assert_reported(result)
                if (folder / kind).exists():
                    made.assert_ends_equal(folder / kind)
                else:
                    assert result.code == 4
                    result = train(folder)
                    assert result.code == 0, result.error
                    made.assert_equal(folder / kind)
                assert snapshot(folder, without=[folder / kind, folder / LATEST, folder / "cache"]) == foreign
                shutil.rmtree(folder)


@SOME_KINDS
@SOME_ERRORS
def test_an_error_at_every_operation_of_a_resumed_training(
    kind: str, errors: tuple[str, ...], tmp_path: Path, record_property: Count
) -> None:
    made = example(kind)
    run = made.copy_unfinished(tmp_path / "whole")
    operations = commands()("train", "--resume", run, watched=str(run.parent)).operations
    with trying("injected errors, resumed run", record_property) as tried:
        for number, error in sample(failures(operations, errors), 15):
            with tried(kind, number, operations[number - 1], error):
                run = made.copy_unfinished(tmp_path / f"{number}-{error}")
                foreign = snapshot(run.parent, without=[run])
                assert_reported(commands()("train", "--resume", run, watched=str(run.parent), fail={number: error}))
                assert good_checkpoints(run) or METRICS in (run / MANIFEST).read_text(encoding="utf-8")
                made.assert_ends_equal(run)
                assert snapshot(run.parent, without=[run]) == foreign
                shutil.rmtree(run.parent)


@ONE_KIND
def test_a_disk_that_is_full_and_stays_full(kind: str, tmp_path: Path, record_property: Count) -> None:
    """From an operation on, nothing can be written; files can still be removed."""
    made = example(kind)
    run = made.copy_unfinished(tmp_path / "whole")
    operations = commands()("train", "--resume", run, watched=str(run.parent)).operations
    writes = [number for number, (name, _) in enumerate(operations, 1) if name in ("write", "mkdir")]
    with trying("full disks, by injection", record_property) as tried:
        for number in sample(writes, 5):
            with tried(kind, number, operations[number - 1]):
                run = made.copy_unfinished(tmp_path / str(number))
                result = commands()("train", "--resume", run, watched=str(run.parent), full_from=number)
                assert_reported(result)
                assert result.code == 4
                assert "No space left on device" in result.error
                assert good_checkpoints(run)
                assert not list(run.rglob("*.partial"))
                made.assert_ends_equal(run)


@ONE_KIND
def test_files_that_may_not_grow(kind: str, tmp_path: Path, record_property: Count) -> None:
    """A limit of the operating system on the size of a file, which a write meets half-way."""
    made = example(kind)
    checkpoint = made.unfinished / "checkpoints" / "00000004"
    largest = max((checkpoint / name).stat().st_size for name in (MODEL, OPTIMIZER))
    with trying("full disks, by a limit on the size of files", record_property) as tried:
        for size in sample([largest * step // 40 for step in range(40)], 3):
            with tried(kind, size):
                run = made.copy_unfinished(tmp_path / str(size))
                foreign = snapshot(run.parent, without=[run])
                result = commands()("train", "--resume", run, limits={"FSIZE": size})
                assert_reported(result)
                assert result.code == 4
                assert good_checkpoints(run) == [2, 4]
                made.assert_ends_equal(run)
                assert snapshot(run.parent, without=[run]) == foreign


def test_few_open_files(tmp_path: Path, record_property: Count) -> None:
    """A limit of the operating system on the number of open files, for all that a training opens."""
    made = example("recurrent")
    codes = []
    with trying("limits on open files", record_property) as tried:
        for limit in [*sample(range(3, 23), 4), 23]:
            with tried(limit):
                run = made.copy_unfinished(tmp_path / str(limit))
                result = commands()("train", "--resume", run, limits={"NOFILE": limit})
                codes.append(result.code)
                result.assert_behaved(codes=(0, 2, 4))
                assert "Too many open files" in result.error or result.code == 0, result.error
                made.assert_ends_equal(run)
    assert 4 in codes
    assert codes[-1] == 0


@ONE_KIND
def test_short_writes_lose_nothing(kind: str, tmp_path: Path) -> None:
    made = example(kind)
    result = commands()(*train_arguments(kind, tmp_path), watched=str(tmp_path), short=True)
    assert result.code == 0, result.error
    made.assert_equal(tmp_path / kind)
