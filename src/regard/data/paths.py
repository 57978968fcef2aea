"""Where the data files are that a recipe names; this module is imported before torch is."""

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from regard.errors import DataError, did_you_mean

LARGE = 1_000_000  # bytes of files that take a while
PART = re.compile(r"(.*\.json)#(\w+)", re.DOTALL)  # the name of a file with parts, and the name of one of them
DATASET = "datasets:"  # before the folder of a dataset that `datasets` of Hugging Face saved
STATE, INFO = "state.json", "dataset_info.json"  # files that are in such a folder


def find(name: str) -> Path:
    """The path of the file of that name: as given, otherwise under $REGARD_DATA, otherwise under ./data.

    That of a saved dataset, `datasets:FOLDER`, is its state.json.
    """
    if name.startswith(DATASET):
        return _find_dataset(name)
    if not name:
        raise DataError("the name of a file is empty; name a file that is there")
    paths = _candidates(name)
    existing = [path for path in paths if os.path.exists(path)]
    for path in existing:
        if not os.path.isdir(path):
            return path
    if existing:
        raise DataError(f"{existing[0]} is a folder; name a file in it")
    tried = ", ".join(str(path) for path in paths)
    unset = "" if os.environ.get("REGARD_DATA") else " ($REGARD_DATA is not set)"
    suggestion = did_you_mean(Path(name).name, _files_beside(paths))
    raise DataError(f"cannot find {name}; looked for {tried}{unset}{suggestion}")


def _find_dataset(name: str) -> Path:
    folder = name.removeprefix(DATASET)
    paths = _candidates(folder)
    for path in paths:
        if (path / STATE).is_file():
            return path / STATE
        if splits := sorted(inner.parent.name for inner in path.glob(f"*/{STATE}")):
            raise DataError(f"{name} has the splits {', '.join(splits)}; name one, such as {DATASET}{path / splits[0]}")
    tried = ", ".join(map(str, paths))
    how = "give a folder that Dataset.save_to_disk has written: nothing is downloaded"
    raise DataError(f"cannot find {name}; looked for {STATE} in {tried}; {how}")


def expanded(names: Iterable[str]) -> tuple[str, ...]:
    """The names of files, with all that match in the place of a pattern such as `shards/*.tsv.gz`, sorted by name.

    A pattern is looked for where `find` looks, in the first folder that has a match. A file of just that name is taken.
    """
    return tuple(match for name in names for match in (_matches(name) if is_pattern(name) else [name]))


def is_pattern(name: str) -> bool:
    """Whether a name stands for all files that match it: it has `*`, `?` or `[`, and no file has just that name."""
    return glob.has_magic(name) and not is_there(name)


def _matches(pattern: str) -> list[str]:
    candidates = _candidates(pattern)
    for path in candidates:
        if matches := sorted(name for name in glob.glob(str(path), recursive=True) if os.path.isfile(name)):
            return matches
    tried = ", ".join(str(path) for path in candidates)
    raise DataError(f"no file matches {pattern}; looked for {tried}; name files that are there")


def part_of(name: str) -> str:
    """The part that a name such as `dataset_coco.json#train` means: `train`; empty if it means the whole file."""
    match = PART.fullmatch(name)
    return match[2] if match else ""


def is_there(name: str) -> bool:
    """Whether a file or folder of that name is where `find` looks."""
    return any(os.path.exists(path) for path in _candidates(name))


def are_large(names: Sequence[str]) -> bool:
    """Whether it takes a while to read these files; files that are missing are refused later."""
    try:
        return sum(os.path.getsize(find(name)) for name in expanded(names)) >= LARGE
    except (OSError, DataError, ValueError):
        return False


def _candidates(name: str) -> list[Path]:
    folders = ["", os.environ.get("REGARD_DATA", ""), "data"]
    file = PART.sub(r"\1", name)
    return list(dict.fromkeys(Path(folder, file) for folder in folders))  # an absolute name gives one path only


def _files_beside(paths: Sequence[Path]) -> list[str]:
    """The names of all files in the folders of these paths."""
    names: list[str] = []
    for path in paths:
        try:
            names += sorted(os.listdir(path.parent))
        except (OSError, ValueError):  # the folder does not exist, or its name is invalid: nothing to suggest
            continue
    return names
