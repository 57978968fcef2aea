"""Files are written whole or not at all, runs are never overwritten, and damage is noticed."""

import errno
import json
import os
from pathlib import Path

import pytest

from regard import storage
from regard.errors import CorruptError, DataError, RecipeError, StorageError
from regard.recipe import Recipe, to_toml
from regard.storage import MANIFEST, METRICS, MODEL, RECIPE, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A sealed run with made-up content."""
    run = Run.create(tmp_path, "mine")
    run.write(RECIPE, to_toml(Recipe()).encode())
    run.write(MODEL, bytes(range(256)) * 8)
    run.write("source.tokens", b"[1, 2, 3]")
    run.write("target.tokens", b"[4, 5, 6]")
    run.record({"update": 1})
    run.record({"update": 2})
    run.seal()
    return run


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_failing_write_leaves_the_old_content_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "file"
    storage.write(path, b"old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(StorageError, match="file cannot be written: No space left on device") as caught:
        storage.write(path, b"new")
    assert caught.value.exit_code == 4
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_an_interrupted_write_leaves_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        storage.write(tmp_path / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_content_is_synced_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("replace"), replace(*paths))[1])
    storage.write(tmp_path / "file", b"new")
    assert order == ["fsync", "replace", "fsync"]  # the content, its name, the folder that holds the name
    assert (tmp_path / "file").read_bytes() == b"new"


def test_writing_where_no_folder_is_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written: No such file or directory"):
        storage.write(tmp_path / "nowhere" / "file", b"new")


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    runs = [Run.create(tmp_path / "runs", "mine") for _ in range(3)]
    assert [run.path.name for run in runs] == ["mine", "mine-2", "mine-3"]
    assert all(run.path.is_dir() for run in runs)


def test_a_file_of_that_name_is_not_overwritten_either(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"precious")
    assert Run.create(tmp_path, "mine").path.name == "mine-2"
    assert (tmp_path / "mine").read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/tmp/a", "a b", ".hidden", "-q", "a\n", "a\0"])
def test_a_bad_name_is_refused_and_nothing_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match="the name of a run is made of"):
        Run.create(tmp_path / "runs", name)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["mine", "2026-11.v1+x", "übung", "日付_2"])
def test_a_good_name_is_kept(tmp_path: Path, name: str) -> None:
    assert Run.create(tmp_path, name).path == tmp_path / name


def test_a_file_in_place_of_the_runs_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").write_bytes(b"precious")
    with pytest.raises(StorageError, match="cannot be written") as caught:
        Run.create(tmp_path / "runs", "mine")
    assert caught.value.exit_code == 4
    assert (tmp_path / "runs").read_bytes() == b"precious"


def test_what_was_sealed_is_read(run: Run) -> None:
    again = Run.open(run.path)
    assert again.read(MODEL) == bytes(range(256)) * 8
    assert again.recipe() == Recipe()
    assert again.metrics() == [{"update": 1}, {"update": 2}]


FILES = [RECIPE, MODEL, METRICS, "source.tokens"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0, 0.5, 1], ids=["first", "middle", "last"])
def test_one_flipped_bit_is_noticed(run: Run, name: str, place: float) -> None:
    content = bytearray((run.path / name).read_bytes())
    content[round(place * (len(content) - 1))] ^= 1
    (run.path / name).write_bytes(content)
    with pytest.raises(CorruptError, match=f"{name} is damaged") as caught:
        run.read(name)
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_noticed(run: Run, name: str) -> None:
    (run.path / name).write_bytes((run.path / name).read_bytes()[:-1])
    with pytest.raises(CorruptError, match=f"{name} is damaged"):
        run.read(name)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed(run: Run, name: str) -> None:
    (run.path / name).unlink()
    with pytest.raises(CorruptError, match=f"{name} cannot be read: No such file"):
        run.read(name)


def test_swapped_files_are_noticed(run: Run) -> None:
    first, second = run.path / "source.tokens", run.path / "target.tokens"
    one, other = first.read_bytes(), second.read_bytes()
    assert len(one) == len(other)
    first.write_bytes(other)
    second.write_bytes(one)
    for name in ("source.tokens", "target.tokens"):
        with pytest.raises(CorruptError, match=f"{name} is damaged"):
            run.read(name)


def test_a_file_nobody_vouches_for_is_not_read(run: Run) -> None:
    (run.path / "extra").write_bytes(b"extra")
    with pytest.raises(CorruptError, match=f"extra is not in {MANIFEST}"):
        run.read("extra")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b"7", b"null", b"{}", b'{"files": []}', b'{"files": null}'],
)
def test_a_damaged_manifest_is_noticed(run: Run, content: bytes) -> None:
    (run.path / MANIFEST).write_bytes(content)
    with pytest.raises(CorruptError, match=MANIFEST) as caught:
        run.read(MODEL)
    assert caught.value.exit_code == 5


def test_any_change_of_a_manifest_entry_is_noticed(run: Run) -> None:
    manifest = json.loads((run.path / MANIFEST).read_bytes())
    for entry in ({"bytes": 1}, {"sha256": "0" * 64}):
        changed = {"files": manifest["files"] | {MODEL: manifest["files"][MODEL] | entry}}
        (run.path / MANIFEST).write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(CorruptError, match=f"{MODEL} is damaged"):
            run.read(MODEL)


def test_pictures_and_leftovers_are_not_sealed(run: Run) -> None:
    for name in ("map.svg", "map.png", f".{MODEL}.7.partial"):
        (run.path / name).write_bytes(b"x")
    run.seal()
    assert sorted(json.loads((run.path / MANIFEST).read_bytes())["files"]) == sorted([*FILES, "target.tokens"])


def test_opening_what_is_not_there_suggests_the_near_one(run: Run) -> None:
    with pytest.raises(DataError, match=r"is not there .*did you mean '.*/mine'\?$") as caught:
        Run.open(run.path.parent / "mime")
    assert caught.value.exit_code == 2


def test_opening_an_unfinished_run_says_so(tmp_path: Path) -> None:
    Run.create(tmp_path, "mine")
    with pytest.raises(DataError, match="mine holds no finished run"):
        Run.open(tmp_path / "mine")


def test_opening_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"")
    with pytest.raises(DataError, match="mine is not there"):
        Run.open(tmp_path / "mine")


class Maker:
    """Counts how often it was asked."""

    def __init__(self, content: bytes = b"first\nsecond\n") -> None:
        self.content, self.asked = content, 0

    def __call__(self) -> bytes:
        self.asked += 1
        return self.content


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("content", [b"first\nsecond\n", b"", b"\n", bytes(range(256))])
def test_what_is_cached_is_made_once(home: Path, content: bytes) -> None:
    make = Maker(content)
    assert [storage.cached("kind", "abc", make) for _ in range(3)] == [content] * 3
    assert make.asked == 1
    assert storage.cached("kind", "other", make) == content
    assert storage.cached("other", "abc", make) == content
    assert make.asked == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1] + b"?",
        lambda content: content[:-1],
        lambda content: b"0" + content[1:] if content[:1] != b"0" else b"1" + content[1:],
        lambda content: content.partition(b"\n")[0] + b"\n",
    ],
    ids=["flipped", "truncated", "seal", "headonly"],
)
def test_damage_in_the_cache_is_mended(home: Path, damage: object) -> None:
    make = Maker()
    storage.cached("kind", "abc", make)
    path = home / "kind" / "abc"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert storage.cached("kind", "abc", make) == make.content
    assert make.asked == 2
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"", b"no newline at all"])
def test_a_cache_file_without_its_first_line_is_mended(home: Path, content: bytes) -> None:
    make = Maker()
    storage.cached("kind", "abc", make)
    (home / "kind" / "abc").write_bytes(content)
    assert storage.cached("kind", "abc", make) == make.content
    assert make.asked == 2


def test_a_cache_that_cannot_be_written_is_done_without(home: Path) -> None:
    home.write_bytes(b"a file, not a folder")
    make = Maker()
    assert [storage.cached("kind", "abc", make) for _ in range(2)] == [make.content] * 2
    assert make.asked == 2
    assert home.read_bytes() == b"a file, not a folder"


def test_a_full_disk_under_the_cache_is_done_without(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    make = Maker()
    assert storage.cached("kind", "abc", make) == make.content
    assert list((home / "kind").iterdir()) == []


def test_what_making_raises_is_not_swallowed(home: Path) -> None:
    def broken() -> bytes:
        raise OSError("the maker's own")

    with pytest.raises(OSError, match="the maker's own"):
        storage.cached("kind", "abc", broken)
