"""The files that a recipe names are listed part by part, and the remedy names the first missing or unusable one."""

import os
from pathlib import Path

import pytest

from regard import recipe as recipes
from regard.data.needs import how_to_fix, needs
from regard.data.paths import find
from regard.recipe import Data

REAL = os.environ.get("REGARD_DATA", "")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)
    return tmp_path


def test_files_are_listed_in_the_order_train_dev_test(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty / "corpora").mkdir()
    (empty / "corpora" / "b").write_bytes(b"one\ntwo\n")
    monkeypatch.setenv("REGARD_DATA", "corpora")
    files = needs(Data(train=("a", "b"), dev=("b",), test=("c",)))
    assert [(file.part, file.name, bool(file.problem)) for file in files] == [
        ("train", "a", True),
        ("train", "b", False),
        ("dev", "b", False),
        ("test", "c", True),
    ]
    assert files[1][2:] == (Path("corpora/b"), 8, 2, "")
    assert how_to_fix(files) == (
        "2 of 4 files are missing; put a under $REGARD_DATA, which is corpora, or under ./data"
    )
    assert how_to_fix(files[1:3]) == ""


def test_a_generated_corpus_needs_no_file() -> None:
    assert needs(Data(corpus="dates")) == []
    assert how_to_fix([]) == ""


def test_an_empty_file_and_a_folder_cannot_be_used(empty: Path) -> None:
    (empty / "none").write_bytes(b"")
    (empty / "folder").mkdir()
    assert how_to_fix(needs(Data(train=("none",)))).startswith("1 of 1 files cannot be used: none is empty")
    [folder] = needs(Data(train=("folder",)))
    assert folder.problem == "folder is a folder; name a file in it"


@pytest.mark.skipif(not Path(REAL).is_absolute(), reason="$REGARD_DATA is not set")
@pytest.mark.parametrize("name", recipes.names())
def test_recipes_name_existing_files(name: str) -> None:
    data = recipes.load(name).data
    for file in (*data.train, *data.dev, *data.test):
        if Path(REAL, file).parent.is_dir():  # skips data that is generated or not installed
            assert find(file) == Path(REAL, file)
