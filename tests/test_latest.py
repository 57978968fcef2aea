"""Names of runs: the link `latest` to the last one that was created, and names without the folder `runs`."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import regard
from regard.analysis.comparison import recipes_and_runs
from regard.errors import DataError
from regard.recipe import Recipe, load, to_toml
from regard.storage import RECIPE, Run

Capture = pytest.CaptureFixture[str]
CREATED = {RECIPE: to_toml(Recipe()).encode()}
TINY = ("data.size=50", "train.updates=1", "train.device=cpu", "model.encoder.dim=4", "model.decoder.dim=4")


def test_it_points_to_the_run_that_was_created_last(tmp_path: Path) -> None:
    for number, name in enumerate(["mine", "other", "mine"], 1):
        run = Run.create(tmp_path, name, CREATED)
        assert os.readlink(tmp_path / "latest") == run.path.name
        assert len(list(tmp_path.iterdir())) == number + 1  # no temporary link is left


def test_an_opened_run_has_the_path_of_its_real_folder_and_keeps_it(tmp_path: Path) -> None:
    first = Run.create(tmp_path, "mine", CREATED)
    opened = Run.open(tmp_path / "latest")
    Run.create(tmp_path, "mine", CREATED)
    assert opened.path == first.path
    assert opened.id == first.id


def test_latest_alone_is_that_of_the_folder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="the run runs/latest is not there"):
        Run.open("latest")
    assert not Run.at(Path("latest"))
    run = Run.create(Path("runs"), "mine", CREATED)
    assert Run.at(Path("latest"))
    assert Run.open("latest").path == run.path == Path("runs/mine")
    monkeypatch.chdir("runs")
    assert Run.open("latest").path == Path("mine")


def test_a_name_alone_is_that_of_a_run_in_the_folder_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run.create(Path("runs"), "mine", CREATED)
    assert Run.at(Path("mine"))
    assert Run.open("mine").path == run.path == Path("runs/mine")
    Path("mine").mkdir()  # whatever is here has the name
    assert not Run.at(Path("mine"))
    with pytest.raises(DataError, match=r"^the run mine holds no run .*; did you mean 'runs/mine'\?$"):
        Run.open("mine")
    Path("mine").rmdir()
    here = Run.create(Path(), "mine", CREATED)
    assert Run.open("mine").path == here.path == Path("mine")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mien", "the run mien is not there; did you mean 'mine'?"),
        ("runs/mien", "the run runs/mien is not there; did you mean 'runs/mine'?"),
        ("zzz", "the run zzz is not there; runs in runs: mine, other"),
        ("runs/zzz", "the run runs/zzz is not there; runs in runs: mine, other"),
        ("elsewhere/zzz", "the run elsewhere/zzz is not there"),
        ("runs", "runs is a folder of runs: mine, other; name one of them, such as runs/mine"),
        ("runs/mine/recipe.toml", "runs/mine/recipe.toml is a file; name the folder of a run: runs/mine"),
        ("notes.txt", "notes.txt is a file; name the folder of a run"),
    ],
)
def test_what_is_no_run_is_refused_with_the_runs_that_are_there(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in ("other", "mine"):
        Run.create(Path("runs"), each, CREATED)
    Path("notes.txt").write_text("notes", "utf-8")
    with pytest.raises(DataError) as caught:
        Run.open(name)
    assert str(caught.value) == message


def test_the_name_of_a_recipe_is_compared_as_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as the run of that name in runs/, which its training has made; a run directory here is meant itself."""
    monkeypatch.chdir(tmp_path)
    for name in ("copy", "mine"):
        regard.train("copy", *TINY, f"name={name}", quiet=True)
    (first, none), (second, run) = recipes_and_runs(["copy", "mine"])
    assert (first.data.size, none) == (load("copy").data.size, None)
    assert (second.data.size, run) == (50, Run(Path("runs/mine")))
    os.rename("runs/copy", "copy")
    assert recipes_and_runs(["copy"])[0][1] == Run(Path("copy"))


def test_a_link_to_a_run_that_was_removed_names_it_and_is_left_alone(tmp_path: Path) -> None:
    """Nobody knows whose it is: it may be a link of somebody else's whose folder is away for a while."""
    run = Run.create(tmp_path, "mine", CREATED)
    os.rename(run.path, tmp_path / "renamed")
    with pytest.raises(DataError, match=r"/latest points to .*/mine, which is not there; runs there: renamed$"):
        Run.open(tmp_path / "latest")
    other = Run.create(tmp_path, "other", CREATED)
    assert os.readlink(tmp_path / "latest") == "mine"
    assert "latest is a link to mine, which is not a run there: it is left alone" in other.latest_obstacle()
    (tmp_path / "latest").unlink()
    assert Run.create(tmp_path, "other", CREATED).path == Run.open(tmp_path / "latest").path
    again = Run.create(tmp_path, "mine", CREATED)
    assert again.path == Run.open(tmp_path / "latest").path
    assert not again.latest_obstacle()


FOREIGN: dict[str, Callable[[Path], None]] = {
    "a file": lambda path: path.write_bytes(b"precious"),
    "a folder": lambda path: path.mkdir(),
    "a link out of the folder": lambda path: path.symlink_to("../elsewhere"),
    "an absolute link": lambda path: path.symlink_to("/"),
    "a link to the parent": lambda path: path.symlink_to(".."),
    "a link to nothing": lambda path: path.symlink_to("thesis"),
    "a link to itself": lambda path: path.symlink_to("latest"),
    "a link to a file": lambda path: (path.with_name("thesis").write_bytes(b"precious"), path.symlink_to("thesis")),
    "a link to a folder": lambda path: (path.with_name("thesis").mkdir(), path.symlink_to("thesis")),
    "a link to a folder with a manifest of others": lambda path: _link_to_an_application(path),
    "a link to a link": lambda path: _link_to_a_link(path),
}


def _link_to_an_application(path: Path) -> None:
    path.with_name("thesis").mkdir()
    path.with_name("thesis").joinpath("manifest.json").write_text('{"name": "thesis", "icons": []}', encoding="utf-8")
    path.symlink_to("thesis")


def _link_to_a_link(path: Path) -> None:
    Run.create(path.parent / "elsewhere", "mine", CREATED)
    path.with_name("thesis").symlink_to("elsewhere/mine")
    path.symlink_to("thesis")


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_others_have_called_latest_is_left_alone(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "latest"
    FOREIGN[kind](path)
    before, names = path.lstat(), os.listdir(tmp_path)
    run = Run.create(tmp_path, "mine", CREATED)
    after = path.lstat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert sorted(os.listdir(tmp_path)) == sorted([*names, run.path.name])
    assert f"{path} is " in run.latest_obstacle()
    if kind not in ("a link to a folder with a manifest of others", "a link to a link"):
        assert not Run.at(path)


def test_a_link_to_itself_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("latest")
    assert not Run.at(tmp_path / "latest")
    with pytest.raises(DataError, match="latest is not there"):
        Run.open(tmp_path / "latest")


def test_a_training_says_that_the_link_of_somebody_else_is_left_alone(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "latest").symlink_to("thesis")
    run = regard.train("copy", *TINY, runs=tmp_path, quiet=True)
    assert run.finished()
    sentence = "latest is a link to thesis, which is not a run there: it is left alone, and does not name this run"
    assert sentence in capsys.readouterr().err
    assert os.readlink(tmp_path / "latest") == "thesis"


def test_a_run_may_be_called_latest(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "latest", CREATED)
    other = Run.create(tmp_path, "mine", CREATED)
    assert Run.open(tmp_path / "latest").path == run.path != other.path
    assert Run.create(tmp_path, "latest", CREATED).path.name == "latest-2"


@pytest.mark.parametrize("failing", ["symlink", "replace"])
def test_a_file_system_without_links_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    if failing == "replace":
        Run.create(tmp_path, "first", CREATED)
    before = sorted(os.listdir(tmp_path))

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, failing, refuse)
    run = Run.create(tmp_path, "mine", CREATED)
    assert run.recipe() == Recipe()
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "mine"])
