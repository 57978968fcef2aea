"""Writes are atomic, runs are never overwritten, and damaged files are detected."""

import errno
import fcntl
import json
import os
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from regard import storage
from regard.errors import CorruptError, DataError, RecipeError, StorageError
from regard.recipe import Recipe, to_toml
from regard.storage import CHECKPOINTS, LOCK, MANIFEST, METRICS, MODEL, PROLONGED, RECIPE, Folder, Run, files
from regard.storage.runs import Manifest, resume_command

CREATED = {RECIPE: to_toml(Recipe()).encode(), "source.tokens": b"[1, 2, 3]", "target.tokens": b"[4, 5, 6]"}
WEIGHTS = bytes(range(256)) * 8
ENDED = {"exact_match": 0.5, "signature": "exact_match|n:2", "train_seconds": 1.5}  # the last entry of the metrics


def validated(update: int, **more: float) -> dict[str, float]:
    """An entry of the metrics, of a validation."""
    return {"update": update, "dev_loss": 0.5, "tokens_per_second": 9.0} | more


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A finished run with invented content."""
    run = Run.create(tmp_path, "mine", CREATED)
    with run.training():
        run.replace(MODEL, WEIGHTS)
        run.record(validated(2))
        run.save(2, {"state": b"2"})
        run.record(ENDED)
        run.finish()
    return run


@pytest.fixture
def young(tmp_path: Path) -> Run:
    """A new run, before any training."""
    return Run.create(tmp_path, "young", CREATED)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_failing_write_leaves_the_old_content_and_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "file"
    storage.write(path, b"old")
    monkeypatch.setattr(os, failing, disk_full)
    with pytest.raises(StorageError, match="file cannot be written: No space left on device") as caught:
        storage.write(path, b"new")
    assert caught.value.exit_code == 4
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_an_interrupted_write_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        storage.write(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_content_is_synced_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("replace"), replace(*paths))[1])
    storage.write(tmp_path / "file", b"new")
    assert order == ["fsync", "replace", "fsync"]  # first the content is synced, last the folder
    assert (tmp_path / "file").read_bytes() == b"new"


def test_writing_to_a_missing_folder_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"there is no folder .*nowhere; make it first: mkdir -p "):
        storage.write(tmp_path / "nowhere" / "file", b"new")


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    runs = [Run.create(tmp_path / "runs", "mine", CREATED) for _ in range(3)]
    assert [run.path.name for run in runs] == ["mine", "mine-2", "mine-3"]
    assert all(names(run.path) == sorted([*CREATED, MANIFEST]) for run in runs)
    assert names(tmp_path / "runs") == ["latest", "mine", "mine-2", "mine-3"]


def test_a_file_of_that_name_is_not_overwritten_either(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"precious")
    assert Run.create(tmp_path, "mine", CREATED).path.name == "mine-2"
    assert (tmp_path / "mine").read_bytes() == b"precious"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "/tmp/a", "a b", ".hidden", "-q", "a\n", "a\0", 101 * "a"]
)
def test_an_invalid_name_is_refused_and_nothing_is_created(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="the name of a run is made of"):
        Run.create(tmp_path / "runs", name, CREATED)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["mine", "2026-11.v1+x", "übung", "日付_2"])
def test_a_valid_name_is_used_as_given(tmp_path: Path, name: str) -> None:
    assert Run.create(tmp_path, name, CREATED).path == tmp_path / name


def test_a_file_in_place_of_the_runs_folder_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_bytes(b"precious")
    with pytest.raises(StorageError, match="cannot be written") as caught:
        Run.create(tmp_path / "runs", "mine", CREATED)
    assert caught.value.exit_code == 4
    assert (tmp_path / "runs").read_bytes() == b"precious"


@pytest.mark.parametrize("failing", ["mkdir", "write", "fsync", "rename"])
def test_creating_a_run_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(os, failing, disk_full)
    with pytest.raises(StorageError, match="mine cannot be written: No space left on device"):
        Run.create(tmp_path / "runs", "mine", CREATED)
    assert names(tmp_path / "runs") == []


def test_partial_runs_of_killed_processes_are_removed_and_use_up_no_name(tmp_path: Path) -> None:
    (tmp_path / f".mine.regard-new-{16 * '0'}-{16 * 'f'}.partial").mkdir()
    (tmp_path / f".mine.regard-new-{16 * '0'}-{16 * 'f'}.partial" / RECIPE).write_bytes(b"half")
    (tmp_path / f".latest.regard-new-{16 * '0'}-{16 * 'f'}.partial").symlink_to("mine")
    foreign = [".download.partial", ".mine.7.partial", ".mine.regard-new-x-y.partial"]
    for name in foreign:
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis").write_bytes(b"precious")
    assert Run.create(tmp_path, "mine", CREATED).path.name == "mine"
    assert names(tmp_path) == [*foreign, "latest", "mine"]
    assert all((tmp_path / name / "thesis").read_bytes() == b"precious" for name in foreign)


def test_a_run_is_created_even_if_folders_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", disk_full)
    assert Run.create(tmp_path, "mine", CREATED).read("source.tokens") == b"[1, 2, 3]"


def test_a_finished_run_can_be_opened_and_read(run: Run) -> None:
    opened = Run.open(run.path)
    assert opened.finished()
    assert names(run.path) == sorted([*CREATED, MODEL, METRICS, MANIFEST, CHECKPOINTS])  # no lock
    assert opened.read(MODEL) == WEIGHTS
    assert opened.recipe() == Recipe()
    assert opened.metrics() == [validated(2), ENDED]


FILES = [RECIPE, MODEL, METRICS, "source.tokens"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("position", [0, 0.5, 1], ids=["first", "middle", "last"])
def test_one_flipped_bit_is_detected(run: Run, name: str, position: float) -> None:
    content = bytearray((run.path / name).read_bytes())
    content[round(position * (len(content) - 1))] ^= 1
    (run.path / name).write_bytes(content)
    with pytest.raises(CorruptError, match=f"{name} is damaged") as caught:
        run.read(name)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_detected(run: Run, name: str) -> None:
    (run.path / name).write_bytes((run.path / name).read_bytes()[:-1])
    with pytest.raises(CorruptError, match=f"{name} is damaged"):
        run.read(name)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_detected(run: Run, name: str) -> None:
    (run.path / name).unlink()
    with pytest.raises(CorruptError, match=f"{name} is missing, though {MANIFEST} lists it"):
        run.read(name)


def test_swapped_files_are_detected(run: Run) -> None:
    source, target = run.path / "source.tokens", run.path / "target.tokens"
    source_content, target_content = source.read_bytes(), target.read_bytes()
    assert len(source_content) == len(target_content)
    source.write_bytes(target_content)
    target.write_bytes(source_content)
    for name in ("source.tokens", "target.tokens"):
        with pytest.raises(CorruptError, match=f"{name} is damaged"):
            run.read(name)


def test_a_file_that_is_not_in_the_manifest_is_not_read(run: Run) -> None:
    (run.path / "extra").write_bytes(b"extra")
    with pytest.raises(CorruptError, match=f"extra is not in {MANIFEST}"):
        run.read("extra")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b'{"files": {}}',
        b'{"format": 1}',
        b'{"format": 1, "files": []}',
        b'{"format": 1, "files": null}',
        b'{"format": 1, "files": {"model.safetensors": null}}',
        b'{"format": 2, "files": {}}',
    ],
)
def test_a_damaged_manifest_is_detected(run: Run, content: bytes) -> None:
    (run.path / MANIFEST).write_bytes(content)
    with pytest.raises(CorruptError, match=MANIFEST) as caught:
        run.read(MODEL)
    assert caught.value.exit_code == 5


def damaged(run: Run, name: str) -> bool:
    try:
        run.read(name)
    except CorruptError:
        return True
    return False


def test_any_flipped_bit_of_a_manifest_is_detected(run: Run) -> None:
    content = (run.path / MANIFEST).read_bytes()
    files = json.loads(content)["files"]
    for index in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[index] ^= 1 << bit
            (run.path / MANIFEST).write_bytes(flipped)
            detected = any(damaged(run, name) for name in files)
            assert detected, (index, bit)


def test_files_that_were_put_into_a_run_by_others_do_not_enter_the_manifest(run: Run) -> None:
    (run.path / "map.svg").write_bytes(b"x")
    with run.training():
        run.replace(MODEL, b"new")
    assert sorted(json.loads((run.path / MANIFEST).read_bytes())["files"]) == sorted([*FILES, "target.tokens"])


# Replace files, record metrics, save checkpoints


def test_a_file_is_readable_at_every_step_of_its_replacement(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    contents: list[bytes] = []
    real = files.write

    def write(path: Path, content: bytes, owner: str) -> None:
        contents.append(run.read(MODEL))
        real(path, content, owner)
        contents.append(run.read(MODEL))

    monkeypatch.setattr(files, "write", write)
    run.replace(MODEL, b"new")
    assert contents == [WEIGHTS] * 3 + [b"new"] * 3
    assert [len(digests) for digests in json.loads((run.path / MANIFEST).read_bytes())["files"].values()] == [1] * 5


def test_a_file_that_is_replaced_while_it_is_read_is_not_called_damaged(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Folder.manifest, []

    def manifest(self: Folder) -> Manifest:
        before = real(self)
        calls.append(1)
        if len(calls) == 1:
            run.replace(MODEL, b"new")  # also reads the manifest
        return before

    monkeypatch.setattr(Folder, "manifest", manifest)
    assert run.read(MODEL) == b"new"


def test_metrics_of_an_unfinished_run_are_its_complete_lines(young: Run) -> None:
    assert young.metrics() == []
    young.record(validated(1))
    size = young.metrics_size()
    young.record(validated(2))
    with open(young.path / METRICS, "ab") as file:
        file.write(b'{"upda')
    assert young.metrics() == [validated(1), validated(2)]
    assert young.restore_metrics(None, size) is None
    assert young.metrics() == [validated(1)]
    assert young.metrics_size() == size
    assert young.restore_metrics(None) is None
    assert young.metrics() == []
    with pytest.raises(CorruptError, match=f"{METRICS} is damaged"):
        young.restore_metrics(None, size)


def test_a_flipped_bit_in_the_metrics_of_an_unfinished_run_is_detected_and_undone(young: Run) -> None:
    young.record(validated(1, loss=0.5))
    young.save(1, {"state": b"1"})
    undamaged = (young.path / METRICS).read_bytes()
    young.record(validated(2))
    [checkpoint] = young.checkpoints()
    for index in range(len(undamaged)):
        flipped = bytearray((young.path / METRICS).read_bytes())
        flipped[index] ^= 1
        (young.path / METRICS).write_bytes(flipped)
        with pytest.raises(CorruptError, match=f"{METRICS} is damaged; to restore it"):
            young.metrics()
        aside = young.restore_metrics(checkpoint)
        assert aside is not None
        assert aside.read_bytes() == bytes(flipped)
        aside.unlink()
        assert (young.path / METRICS).read_bytes() == undamaged
    (young.path / METRICS).unlink()
    assert young.restore_metrics(checkpoint) is None
    assert young.metrics() == [validated(1, loss=0.5)]


def test_the_two_newest_checkpoints_are_kept(young: Run) -> None:
    for update in (4, 8, 12):
        young.save(update, {"state": str(update).encode()})
    assert [checkpoint.read("state") for checkpoint in young.checkpoints()] == [b"12", b"8"]
    assert names(young.path / CHECKPOINTS) == ["00000008", "00000012"]


def test_a_checkpoint_of_the_same_update_is_replaced(young: Run) -> None:
    for update, content in [(4, b"4"), (8, b"before validation"), (8, b"after it")]:
        young.save(update, {"state": content})
    assert [checkpoint.read("state") for checkpoint in young.checkpoints()] == [b"after it", b"4"]
    assert names(young.path / CHECKPOINTS) == ["00000004", "00000008"]


@pytest.mark.parametrize("failing", ["mkdir", "write", "fsync", "rename"])
def test_a_save_that_fails_leaves_the_older_checkpoint(
    young: Run, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    young.save(4, {"state": b"4"})
    with monkeypatch.context() as broken:
        broken.setattr(os, failing, disk_full)
        with pytest.raises(StorageError, match="checkpoints cannot be written: No space left on device") as caught:
            young.save(8, {"state": b"8"})
    assert caught.value.exit_code == 4
    assert [checkpoint.read("state") for checkpoint in young.checkpoints()] == [b"4"]
    assert names(young.path / CHECKPOINTS) == ["00000004"]


def test_a_checkpoint_that_is_set_aside_is_kept_but_not_used(young: Run) -> None:
    for content in (b"first", b"second"):
        for update in (4, 8):
            young.save(update, {"state": content})
        young.set_aside(young.checkpoints()[0])
    assert names(young.path / CHECKPOINTS) == ["00000004", "00000008.damaged", "00000008.damaged-2"]
    assert [checkpoint.path.name for checkpoint in young.checkpoints()] == ["00000004"]
    assert Folder(young.path / CHECKPOINTS / "00000008.damaged").read("state") == b"first"
    assert Folder(young.path / CHECKPOINTS / "00000008.damaged-2").read("state") == b"second"


def test_checkpoints_set_aside_stay_when_the_run_is_finished_and_cleaned_up(young: Run) -> None:
    for update in (4, 8):
        young.save(update, {"state": b"state"})
    young.set_aside(young.checkpoints()[0])
    young.record(validated(8))
    for _ in range(2):
        with young.training():
            young.finish()
        assert names(young.path / CHECKPOINTS) == ["00000004", "00000008.damaged"]
    assert names(young.path) == sorted([*CREATED, METRICS, MANIFEST, CHECKPOINTS])


def test_checkpoints_are_folders_named_by_number_and_sorted_by_it(young: Run) -> None:
    for update in (99_999_999, 100_000_000):
        young.save(update, {"state": b"state"})
    for name in ("00000001.damaged", "0000000x", "7", "1.txt"):
        (young.path / CHECKPOINTS / name).mkdir()
    assert [checkpoint.path.name for checkpoint in young.checkpoints()] == ["100000000", "99999999"]


def test_a_checkpoint_that_cannot_be_replaced_stays(young: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    young.save(4, {"state": b"before"})
    rename, calls = os.rename, []

    def second_fails(*paths: Path) -> None:
        calls.append(paths)
        rename(*paths) if len(calls) != 2 else disk_full()

    with monkeypatch.context() as broken:
        broken.setattr(os, "rename", second_fails)
        with pytest.raises(StorageError):
            young.save(4, {"state": b"after"})
    assert [checkpoint.read("state") for checkpoint in young.checkpoints()] == [b"before"]
    assert names(young.path / CHECKPOINTS) == ["00000004"]


def test_a_checkpoint_is_restored_if_the_process_was_killed_while_replacing_it(young: Run) -> None:
    young.save(4, {"state": b"before"})
    folder = young.path / CHECKPOINTS
    # as if killed between the two renames of `save`
    os.rename(folder / "00000004", folder / f".00000004.regard-{young.id}-replaced.partial")
    with young.training():
        assert [checkpoint.read("state") for checkpoint in young.checkpoints()] == [b"before"]
    assert names(folder) == ["00000004"]


UNREADABLE = pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO], ids=errno.errorcode.get)


@UNREADABLE
@pytest.mark.parametrize("name", [MODEL, MANIFEST, METRICS])
def test_a_file_that_cannot_be_read_is_not_called_damaged(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    unreadable(name, number, monkeypatch)
    with pytest.raises(StorageError, match=f"{name} cannot be read: {os.strerror(number)}; it may") as caught:
        run.metrics() if name == METRICS else run.read(MODEL)
    assert caught.value.exit_code == 4


@UNREADABLE
def test_a_checkpoint_folder_that_cannot_be_listed_is_not_taken_as_empty(
    young: Run, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    young.save(4, {"state": b"4"})

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, "listdir", refuse)
        broken.setattr(os, "scandir", refuse)
        with pytest.raises(StorageError, match=f"checkpoints cannot be read: {os.strerror(number)}"):
            young.checkpoints()
    assert names(young.path / CHECKPOINTS) == ["00000004"]


def unreadable(name: str, number: int, patch: pytest.MonkeyPatch) -> None:
    """Make reading files of that name fail with this error number."""
    real = os.open

    def refuse(path: Path, flags: int, *mode: int) -> int:
        if Path(path).name == name:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, flags, *mode)

    patch.setattr(os, "open", refuse)


# One process at a time trains a run


def test_two_processes_cannot_train_the_same_run(young: Run) -> None:
    with young.training():
        message = (
            rf"young is being trained by process {os.getpid()} on {socket.gethostname()}, since 20[-0-9: +]+; wait"
        )
        with pytest.raises(DataError, match=message) as caught, Run.open(young.path).training():
            pass
        assert caught.value.exit_code == 2
    with young.training():  # the lock was released at the end of the block
        pass


def test_training_removes_files_that_a_killed_process_left(young: Run) -> None:
    young.save(4, {"state": b"4"})
    own, other = f"regard-{young.id}-{16 * '0'}.partial", f"regard-{16 * 'a'}-{16 * '0'}.partial"
    foreign = [f".{MODEL}.{other}", ".download.partial"]
    for name in (f".{MODEL}.{own}", f".{MANIFEST}.{own}", *foreign):
        (young.path / name).write_bytes(b"half")
    for name in (f".00000008.{own}", f".00000008.{other}"):
        (young.path / CHECKPOINTS / name).mkdir()
        (young.path / CHECKPOINTS / name / "state").write_bytes(b"half")
    with young.training():
        assert names(young.path) == sorted([*CREATED, MANIFEST, LOCK, CHECKPOINTS, *foreign])
        assert names(young.path / CHECKPOINTS) == [f".00000008.{other}", "00000004"]


def test_a_finished_run_keeps_its_newest_checkpoint_alone(run: Run) -> None:
    run.save(4, {"state": b"4"})
    run.save(6, {"state": b"6"})  # as if killed before `finish` removed the older ones
    with run.training():
        pass
    assert names(run.path) == sorted([*CREATED, MODEL, METRICS, MANIFEST, CHECKPOINTS])
    assert names(run.path / CHECKPOINTS) == ["00000006"]


def test_a_finished_run_from_which_the_checkpoints_were_removed_is_as_good(run: Run) -> None:
    shutil.rmtree(run.path / CHECKPOINTS)
    with run.training() as locked:
        assert locked.finished()
    assert names(run.path) == sorted([*CREATED, MODEL, METRICS, MANIFEST])
    assert run.read(MODEL) == WEIGHTS


def test_a_run_that_was_prolonged_a_thousand_times_can_be_prolonged(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # for speed
    for updates in range(1001, 2001):
        run.prolong(replace(Recipe(), train=replace(Recipe().train, updates=updates)), updates - 1)
    listed = json.loads(run.read(PROLONGED))
    assert len(run.read(PROLONGED)) <= 1 << 16
    assert (listed[0]["update"], listed[-1]["update"]) == (1000, 1999)
    assert listed[1]["left_out"] + len(listed) - 1 == 1000
    assert run.recipe().train.updates == 2000


@pytest.mark.parametrize("count", ["1", None, True, 0, -1, 1 << 63, [1]])
def test_a_crafted_count_of_entries_left_out_is_refused(run: Run, count: object) -> None:
    run.replace(PROLONGED, json.dumps([{"left_out": count}]).encode())
    with pytest.raises(CorruptError, match=f"{PROLONGED} is damaged: left_out is"):
        run.append_to_list(PROLONGED, {"update": 1})


def test_a_prolonged_run_has_another_recipe_and_is_not_finished(run: Run) -> None:
    recipe = replace(Recipe(), train=replace(Recipe().train, updates=1007))
    for _ in range(2):  # the second time as if killed before the last step
        with run.training() as locked:
            locked.prolong(recipe, 1000)
        assert run.recipe() == recipe
        assert json.loads(run.read(PROLONGED)) == [{"update": 1000, "train.updates": 1000, "train.patience": 0}]
        assert not run.finished()
        assert (run.path / LOCK).exists()
        run.replace(RECIPE, CREATED[RECIPE])


def test_an_error_leaves_no_lock_in_a_finished_run(run: Run, young: Run) -> None:
    for each in (run, young):
        with pytest.raises(DataError, match="refused"), each.training():
            raise DataError("refused")
    assert not (run.path / LOCK).exists()
    assert (young.path / LOCK).exists()


def test_an_os_error_in_the_training_block_is_not_turned_into_a_storage_error(young: Run) -> None:
    with pytest.raises(BrokenPipeError), young.training():
        raise BrokenPipeError("the reader left")


def test_a_run_that_cannot_be_locked_is_a_storage_error(young: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", disk_full)
    with pytest.raises(StorageError, match=r"young/\.lock cannot be written"), young.training():
        pass


# Open runs


def test_opening_a_missing_run_suggests_a_similar_name(run: Run) -> None:
    with pytest.raises(DataError, match=r"is not there; did you mean '.*/mine'\?$") as caught:
        Run.open(run.path.parent / "mime")
    assert caught.value.exit_code == 2


def test_opening_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match=r"mine holds no run \(no manifest.json\)"):
        Run.open(tmp_path / "mine")


def test_an_unfinished_run_can_be_opened_but_has_no_model(young: Run) -> None:
    opened = Run.open(young.path)
    assert not opened.finished()
    assert opened.recipe() == Recipe()
    with pytest.raises(CorruptError, match=f"{MODEL} is not in {MANIFEST}"):
        opened.read(MODEL)


def test_opening_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"")
    with pytest.raises(DataError, match=r"mine is a file; name the folder of a run$"):
        Run.open(tmp_path / "mine")


# The cache


class Maker:
    """A function that returns its content and counts its calls."""

    def __init__(self, content: bytes = b"first\nsecond\n") -> None:
        self.content, self.calls = content, 0

    def __call__(self) -> bytes:
        self.calls += 1
        return self.content


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("content", [b"first\nsecond\n", b"", b"\n", bytes(range(256))])
def test_cached_content_is_computed_once(home: Path, content: bytes) -> None:
    make = Maker(content)
    assert [storage.cached("kind", "abc", make) for _ in range(3)] == [content] * 3
    assert make.calls == 1
    assert storage.cached("kind", "other", make) == content
    assert storage.cached("other", "abc", make) == content
    assert make.calls == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1] + b"?",
        lambda content: content[:-1],
        lambda content: b"0" + content[1:] if content[:1] != b"0" else b"1" + content[1:],
        lambda content: content.partition(b"\n")[0] + b"\n",
    ],
    ids=["flipped", "truncated", "checksum", "headonly"],
)
def test_a_damaged_cache_file_is_computed_again(home: Path, damage: object) -> None:
    make = Maker()
    storage.cached("kind", "abc", make)
    path = home / "kind" / "abc"
    undamaged = path.read_bytes()
    path.write_bytes(damage(undamaged))
    assert storage.cached("kind", "abc", make) == make.content
    assert make.calls == 2
    assert path.read_bytes() == undamaged


@pytest.mark.parametrize("content", [b"", b"no newline at all"])
def test_a_cache_file_without_a_checksum_is_computed_again(home: Path, content: bytes) -> None:
    make = Maker()
    storage.cached("kind", "abc", make)
    (home / "kind" / "abc").write_bytes(content)
    assert storage.cached("kind", "abc", make) == make.content
    assert make.calls == 2


def test_content_is_returned_even_if_the_cache_cannot_be_written(home: Path) -> None:
    home.write_bytes(b"a file, not a folder")
    make = Maker()
    assert [storage.cached("kind", "abc", make) for _ in range(2)] == [make.content] * 2
    assert make.calls == 2
    assert home.read_bytes() == b"a file, not a folder"


def test_partial_cache_files_of_killed_processes_are_removed(home: Path) -> None:
    (home / "kind").mkdir(parents=True)
    (home / "kind" / f".abc.regard-abc-{16 * '0'}.partial").write_bytes(b"half")
    storage.cached("kind", "abc", Maker())
    assert names(home / "kind") == ["abc"]


def test_content_is_returned_even_if_the_disk_is_full(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", disk_full)
    make = Maker()
    assert storage.cached("kind", "abc", make) == make.content
    assert list((home / "kind").iterdir()) == []


def test_one_of_several_that_want_a_result_computes_it(home: Path) -> None:
    """Threads stand for processes: a lock is of the open file."""
    make, begun = Maker(), Event()

    def slow() -> bytes:
        begun.set()
        time.sleep(0.3)
        return make()

    with ThreadPoolExecutor() as pool:
        first = pool.submit(storage.cached, "kind", "abc", slow)
        begun.wait()
        others = [pool.submit(storage.cached, "kind", "abc", slow) for _ in range(2)]
        storage.cached("kind", "other", Maker(b"other"))  # needs not wait
        assert not first.done()
        assert [job.result() for job in (first, *others)] == [make.content] * 3
    assert make.calls == 1
    assert names(home / "kind") == ["abc", "other"]


def test_a_result_that_failed_is_computed_by_who_waits_for_it(home: Path) -> None:
    begun = Event()

    def broken() -> bytes:
        begun.set()
        time.sleep(0.3)
        raise ValueError

    with ThreadPoolExecutor() as pool:
        failed = pool.submit(storage.cached, "kind", "abc", broken)
        begun.wait()
        assert pool.submit(storage.cached, "kind", "abc", Maker()).result() == Maker().content
        assert isinstance(failed.exception(), ValueError)
    assert names(home / "kind") == ["abc"]


def test_an_error_of_the_cached_function_is_raised(home: Path) -> None:
    def broken() -> bytes:
        raise OSError("its own error")

    with pytest.raises(OSError, match="its own error"):
        storage.cached("kind", "abc", broken)


# Files of other people, and links


def test_a_link_at_the_temporary_name_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "known")  # as if the random part could be guessed
    (tmp_path / ".map.svg.regard--known.partial").symlink_to(victim)
    with pytest.raises(StorageError, match="cannot be written: File exists"):
        storage.write(tmp_path / "map.svg", b"new")
    assert victim.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["link", "link to nowhere", "folder", "fifo"])
def test_what_is_not_a_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    path, victim = tmp_path / "map.svg", tmp_path / "victim"
    victim.write_bytes(b"precious")
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(victim if kind == "link" else tmp_path / "nowhere")
    before = os.lstat(path)
    with pytest.raises(StorageError, match=r"map.svg is there and is not a file \(a link, a folder or a device\)"):
        storage.write(path, b"new")
    assert os.path.samestat(os.lstat(path), before)
    assert victim.read_bytes() == b"precious"
    assert names(tmp_path) == ["map.svg", "victim"]


@pytest.mark.parametrize("kind", ["link", "folder", "fifo", "large"])
@pytest.mark.parametrize("name", [MODEL, MANIFEST, METRICS, RECIPE])
def test_a_file_of_a_run_that_is_not_a_file_of_the_right_size_is_refused(run: Run, name: str, kind: str) -> None:
    path = run.path / name
    content = path.read_bytes()
    path.unlink()
    if kind == "link":
        (run.path / "elsewhere").write_bytes(content)
        path.symlink_to("elsewhere")
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 1 << 40)  # takes no room on the disk
    with pytest.raises(CorruptError, match=rf"{name} (is a|has 1,099,511,627,776 bytes)"):
        run.read(name)
    with pytest.raises((CorruptError, DataError)):
        Run.open(run.path).metrics() if name == METRICS else Run.open(run.path).read(name)


@pytest.mark.parametrize("name", ["../victim", "/etc/passwd", "", ".", "a/b", "a\nb"])
def test_a_manifest_with_paths_is_refused(run: Run, name: str) -> None:
    (run.path / MANIFEST).write_bytes(Manifest(run.id, {name: [64 * "0"]}).to_json())
    with pytest.raises(CorruptError, match=f"{MANIFEST} is damaged: it does not list files"):
        run.read(name)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"format": ' + b"1" * 5000 + b"}", b'{"a":' * 50_000])
def test_a_nested_manifest_is_refused(run: Run, content: bytes) -> None:
    (run.path / MANIFEST).write_bytes(content)
    with pytest.raises(CorruptError, match=f"{MANIFEST} is damaged"):
        run.read(MODEL)


@pytest.mark.parametrize("name", [METRICS, LOCK, CHECKPOINTS])
def test_training_does_not_follow_links_out_of_a_run(young: Run, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "00000001").mkdir()
    (outside / "precious").write_bytes(b"precious")
    (young.path / name).symlink_to(outside if name == CHECKPOINTS else outside / "precious")

    def train() -> None:
        with young.training() as locked:
            locked.record(validated(1))
            locked.save(1, {"state": b"1"})

    with pytest.raises((CorruptError, StorageError), match=name):
        train()
    assert names(outside) == ["00000001", "precious"]
    assert (outside / "precious").read_bytes() == b"precious"


def test_checkpoints_of_other_runs_and_other_files_are_left_alone(young: Run, tmp_path: Path) -> None:
    other = Run.create(tmp_path, "other", CREATED)
    other.save(9, {"state": b"other"})
    young.save(4, {"state": b"4"})
    folder = young.path / CHECKPOINTS
    os.rename(other.path / CHECKPOINTS / "00000009", folder / "00000009")
    (folder / "00000009.bak").mkdir()
    (folder / "5notes.txt").write_bytes(b"notes")
    (folder / "00000005").write_bytes(b"a file")
    (folder / "00000006").symlink_to(folder / "00000009")
    foreign = ["00000005", "00000006", "00000009", "00000009.bak", "5notes.txt"]
    assert young.foreign_names() == foreign
    assert [checkpoint.update for checkpoint in young.checkpoints()] == [4]
    for update in (5, 9, 12):
        young.save(update, {"state": str(update).encode()})
    assert [checkpoint.path.name for checkpoint in young.checkpoints()] == ["00000012", "00000009-2"]
    assert [checkpoint.read("state") for checkpoint in young.checkpoints()] == [b"12", b"9"]
    assert young.newest_update() == 12
    young.record(validated(12))
    with young.training() as locked:
        locked.finish()
    assert names(folder) == sorted([*foreign, "00000012"])
    assert Folder(folder / "00000009").read("state") == b"other"


def test_a_checkpoint_with_a_foreign_file_in_it_is_not_removed(young: Run) -> None:
    for update in (1, 2, 3):
        young.save(update, {"state": b"state"})
        (young.path / CHECKPOINTS / "00000001" / "notes.txt").write_bytes(b"notes")
    assert names(young.path / CHECKPOINTS) == ["00000001", "00000002", "00000003"]


def test_a_checkpoint_with_a_foreign_file_in_it_is_not_replaced(young: Run) -> None:
    young.save(4, {"state": b"before"})
    (young.path / CHECKPOINTS / "00000004" / "notes.txt").write_bytes(b"notes")
    young.save(4, {"state": b"after"})
    assert (young.path / CHECKPOINTS / "00000004" / "notes.txt").read_bytes() == b"notes"
    assert [checkpoint.path.name for checkpoint in young.checkpoints()] == ["00000004-2", "00000004"]
    assert young.checkpoints()[0].read("state") == b"after"


def test_numbered_folders_of_others_are_named_and_push_out_no_checkpoint(young: Run) -> None:
    folder = young.path / CHECKPOINTS
    young.save(1, {"state": b"1"})
    for name in ("00000002", "90000000", "90000001"):
        (folder / name).mkdir()
        (folder / name / "thesis").write_bytes(b"precious")
    young.save(2, {"state": b"2"})
    assert young.foreign_names() == ["00000002", "90000000", "90000001"]
    assert [checkpoint.path.name for checkpoint in young.checkpoints()] == ["00000002-2", "00000001"]
    assert young.newest_update() == 2
    assert all((folder / name / "thesis").read_bytes() == b"precious" for name in young.foreign_names())


def test_damaged_checkpoints_push_out_no_good_one(young: Run) -> None:
    for update in (7, 8):
        young.save(update, {"state": b"damaged"})
    for checkpoint in young.checkpoints():
        (checkpoint.path / MANIFEST).write_bytes(b"{")
    young.save(3, {"state": b"3"})
    assert names(young.path / CHECKPOINTS) == ["00000003", "00000007", "00000008"]
    assert young.newest_update() == 3


@pytest.mark.parametrize("name", [LOCK, METRICS])
def test_hard_links_in_a_run_are_not_written_through(young: Run, tmp_path: Path, name: str) -> None:
    line = json.dumps(validated(1)).encode() + b"\n"
    (tmp_path / "backup").write_bytes(line)
    os.link(tmp_path / "backup", young.path / name)
    with young.training() as locked:
        locked.record(validated(2))
        locked.save(2, {"state": b"2"})
        with pytest.raises(DataError, match="is being trained by process"), Run.open(young.path).training():
            pass
    assert (tmp_path / "backup").read_bytes() == line
    assert young.metrics()[-1] == validated(2)


def test_a_file_of_others_at_a_temporary_name_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "known")
    (tmp_path / ".map.svg.regard--known.partial").write_bytes(b"precious")
    with pytest.raises(StorageError, match="File exists"):
        storage.write(tmp_path / "map.svg", b"new")
    assert (tmp_path / ".map.svg.regard--known.partial").read_bytes() == b"precious"
    (tmp_path / ".mine.regard-new-known-known.partial").mkdir()
    Run.create(tmp_path, "mine", CREATED)  # under another name, whose temporary one is free
    assert {".map.svg.regard--known.partial", ".mine.regard-new-known-known.partial"} < set(names(tmp_path))


def test_metrics_with_too_many_entries_are_refused(run: Run) -> None:
    (run.path / METRICS).write_bytes(b"{}\n" * 300_000)
    listed = run.manifest().files | {METRICS: [files.digest((run.path / METRICS).read_bytes())]}
    (run.path / MANIFEST).write_bytes(Manifest(run.id, listed).to_json())
    with pytest.raises(CorruptError, match="it holds more than 200,000 entries"):
        run.metrics()


def test_a_lock_that_is_a_fifo_is_refused(young: Run) -> None:
    os.mkfifo(young.path / LOCK)
    with pytest.raises(CorruptError, match=r"\.lock is not a file"), young.training():
        pass


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_that_is_removed_is_noticed_before_anything_more_is_written(young: Run, replaced: bool) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in young.path.rglob("*") if path.is_file() and path.name != LOCK}

    with young.training() as locked:
        locked.record(validated(1))
        locked.save(1, {"state": b"1"})
        before = contents()
        (young.path / LOCK).unlink()
        if replaced:
            (young.path / LOCK).touch()
        for write in (
            lambda: locked.save(2, {"state": b"2"}),
            lambda: locked.replace(MODEL, b"new"),
            lambda: locked.record(validated(2)),
            locked.finish,
        ):
            with pytest.raises(StorageError, match=r"\.lock was removed or replaced while .* Go on with: regard train"):
                write()
        assert contents() == before


def test_the_command_that_resumes_a_run_is_quoted(tmp_path: Path) -> None:
    assert resume_command(tmp_path / "a; rm x") == f"regard train --resume '{tmp_path}/a; rm x'"
