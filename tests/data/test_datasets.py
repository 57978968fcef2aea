"""Datasets of Hugging Face: objects in Python, and folders that were saved, which may be damaged or hostile."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import regard
from regard import recipe as recipes
from regard.data import records
from regard.data.datasets import SavedDataset
from regard.data.files import LIMITS
from regard.data.needs import needs
from regard.errors import DataError, MissingExtraError
from regard.recipe import Limits
from regard.storage import DATA

WORDS = ["abc", "bcde", "cdefg", "fedcba", "hgfedcb", "xyz", "zyx", "yy", "ab", "ba"]
COLUMNS = {
    "from": WORDS,
    "to": [word[::-1] for word in WORDS],
    "both": [{"en": word, "de": word.upper()} for word in WORDS],
    "label": [number % 3 - 1 for number in range(len(WORDS))],  # -1: missing
    "list": [[word] for word in WORDS],
}
FEATURES = {"from": {"dtype": "string", "_type": "Value"}, "label": {"names": ["bad", "good"], "_type": "ClassLabel"}}


def save(folder: Path, columns: dict[str, Any] = COLUMNS, files: int = 2, **options: Any) -> str:
    """Write a folder as `Dataset.save_to_disk` of datasets 5.2 does; returns its name in a recipe."""
    folder.mkdir(parents=True)
    table = pa.table(columns)
    names = [f"data-{number:05}-of-{files:05}.arrow" for number in range(files)]
    size = -(-table.num_rows // files)
    for number, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema, **options) as stream:
            stream.write_table(table.slice(number * size, size), max_chunksize=3)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "5", "_split": None}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}), encoding="utf-8")
    return f"datasets:{folder}"


def texts(name: str, *columns: str, limits: Limits = LIMITS) -> list[tuple[str, ...]]:
    return list(records.read(name, columns, limits).all_fields())


def test_a_saved_dataset_is_read_by_its_columns(tmp_path: Path) -> None:
    name = save(tmp_path / "saved")
    assert texts(name, "from", "to") == [(word, word[::-1]) for word in WORDS]
    assert texts(name, "both.de", "both.en") == [(word.upper(), word) for word in WORDS]
    labels = ["", "bad", "good"]
    assert texts(name, "label") == [(labels[number % 3],) for number in range(len(WORDS))]
    assert records.read(name, ["from"]).origin(4) == f"{name}:5"


def test_it_trains_as_the_pairs_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "there/saved")
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "there"))
    sizes = ["model.embedding=8", "model.encoder.dim=8", "model.decoder.dim=8", "train.updates=2", "train.device=cpu"]
    small = [*sizes, "search.max_ratio=0", "data.corpus="]
    recipe = recipes.load("reverse", [*small, "data.train=datasets:saved", "data.columns=from,to"])
    of_saved = regard.train(recipe, runs=tmp_path, quiet=True)
    pairs = list(zip(COLUMNS["from"], COLUMNS["to"], strict=True))
    of_pairs = regard.train(recipes.load("reverse", small), pairs=pairs, runs=tmp_path, quiet=True)
    assert of_saved.read(DATA) == of_pairs.read(DATA)
    (need,) = needs(recipe.data)
    assert (need.problem, need.lines) == ("", len(WORDS))


def test_datasets_of_the_package_are_read_saved_and_as_objects(tmp_path: Path) -> None:
    package = pytest.importorskip("datasets")
    features = package.Features(
        {
            "from": package.Value("string"),
            "both": {language: package.Value("string") for language in ("en", "de")},
            "label": package.ClassLabel(names=["bad", "good"]),
        }
    )
    labels = [number % 2 for number in range(len(WORDS))]
    content = {"from": WORDS, "both": COLUMNS["both"], "label": labels}
    dataset = package.Dataset.from_dict(content, features=features)
    dataset.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    package.DatasetDict({"train": dataset, "test": dataset.select([2, 1])}).save_to_disk(str(tmp_path / "splits"))
    columns = ["both.de", "label"]
    expected = [(word.upper(), ("bad", "good")[label]) for word, label in zip(WORDS, labels, strict=True)]
    assert texts(f"datasets:{tmp_path}/saved", *columns) == expected
    assert texts(f"datasets:{tmp_path}/splits/test", *columns) == [expected[2], expected[1]]
    given = records.given(dataset, columns, ["source", "target"], records.PAIRS)
    assert list(given.all_fields()) == expected


class Dataset:
    """Has what `datasets.Dataset` has."""

    def __init__(self) -> None:
        self.column_names = list(COLUMNS)
        self.features = {"label": SimpleNamespace(names=["bad", "good"]), "from": SimpleNamespace(dtype="string")}

    def __getitem__(self, name: str) -> Any:
        return iter(COLUMNS[name])


def test_a_dataset_in_python_is_a_data_frame_with_labels_and_records() -> None:
    rows = records.given(Dataset(), ["both.en", "label"], ["source", "target"], records.PAIRS)
    labels = ["", "bad", "good"]
    assert list(rows.all_fields()) == [(word, labels[number % 3]) for number, word in enumerate(WORDS)]
    splits = {"train": Dataset(), "validation": Dataset()}
    with pytest.raises(DataError, match=r"^pairs given in Python: several splits of a dataset; give one"):
        records.given(splits, [], ["source", "target"], records.PAIRS)


# what is refused


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (
            "form",
            r"datasets:\S+ has no column 'form'; there are 'from', 'to', .*; did you mean 'from'\?",
        ),
        ("list", r"the column 'list' holds list<.*>, expected texts or numbers$"),
        ("both", r"the column 'both' holds struct<.*>, expected texts or numbers \(name a column of a record as"),
        ("both.fr", r"the column 'both' has no 'fr'; it holds struct<"),
    ],
)
def test_columns_that_are_no_texts_are_refused(tmp_path: Path, column: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        texts(save(tmp_path / "saved"), column)


def test_folders_that_are_no_datasets_are_refused(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        save(tmp_path / "several" / split)
    with pytest.raises(DataError, match=r"^datasets:\S+several has the splits train, validation; name one, such as "):
        texts(f"datasets:{tmp_path}/several", "from")
    with pytest.raises(DataError, match=r"^cannot find datasets:none; looked for state\.json in .* is downloaded$"):
        texts("datasets:none", "from")


def cut(folder: Path) -> None:
    file = folder / "data-00001-of-00002.arrow"
    file.write_bytes(file.read_bytes()[:-150])


def junk(folder: Path) -> None:
    (folder / "data-00000-of-00002.arrow").write_bytes(b"\xff\xff\xff\xff" + bytes(range(256)) * 4)


def elsewhere(folder: Path) -> None:
    (folder / "state.json").write_text('{"_data_files": [{"filename": "../saved/data-00000-of-00002.arrow"}]}')


def no_json(folder: Path) -> None:
    (folder / "state.json").write_text("[" * 100_000)


def wrong_label(folder: Path) -> None:
    (folder / "dataset_info.json").write_text('{"features": {"label": {"names": ["bad"], "_type": "ClassLabel"}}}')


@pytest.mark.parametrize("damage", [cut, junk, elsewhere, no_json, wrong_label])
def test_a_damaged_dataset_is_a_sentence(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    name = save(tmp_path / "saved")
    damage(tmp_path / "saved")
    with pytest.raises(DataError, match=r"^datasets:\S+ is not a whole dataset \(.*\); save it again with "):
        texts(name, "from", "label")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_stream_is_refused_before_it_is_unpacked(tmp_path: Path, codec: str) -> None:
    bomb = {"from": ["x" * 1_000_000] * 30}
    name = save(tmp_path / "saved", bomb, files=1, options=pa.ipc.IpcWriteOptions(compression=codec))
    with pytest.raises(DataError, match="it holds what datasets does not write"):
        texts(name, "from")
    shutil.rmtree(tmp_path / "saved")
    assert len(texts(save(tmp_path / "saved", bomb, files=1), "from")) == 30


def test_the_limits_of_the_recipe_hold(tmp_path: Path) -> None:
    name = save(tmp_path / "saved")
    for limits, sentence in ((Limits(lines=9), "more than 9 records"), (Limits(file_bytes=100), "bytes")):
        with pytest.raises(DataError, match=sentence):
            texts(name, "from", limits=limits)


def test_without_pyarrow_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = save(tmp_path / "saved")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"^reading the dataset datasets:.*pip install 'regard\[parquet\]'"):
        SavedDataset(name, Limits())
