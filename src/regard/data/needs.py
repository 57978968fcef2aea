"""Finds the data files that a recipe names, and says how to fix missing or unusable ones."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from regard import recipe as recipes
from regard.data.archives import ENDING, Archive
from regard.data.datasets import SavedDataset
from regard.data.files import load
from regard.data.origins import ORIGINS
from regard.data.paths import DATASET, expanded, find
from regard.data.records import ending, parquet_rows
from regard.errors import DataError, MissingExtraError
from regard.recipe import Data, Limits, Recipe


class RequiredFile(NamedTuple):
    """A data file that a recipe names, with its path and size or the reason why it cannot be used."""

    part: str  # train, dev or test; files: an archive of pictures
    name: str  # as written in the recipe
    path: Path | None  # None if the file was not found
    size: int  # bytes on disk
    lines: int  # of the decompressed text; of a Parquet file, its rows; of an archive, its files
    problem: str  # why it cannot be used; empty if it can


def needs(data: Data) -> list[RequiredFile]:
    """The files that a recipe names for train, dev and test; none for an embedded corpus, which is generated."""
    parts = (("train", data.train), ("dev", data.dev), ("test", data.test))
    files = [_need(part, name, data.limits) for part, names in parts for name in _expanded(names)]
    archives = [name for name in data.pictures if name.endswith(ENDING)]
    return files + [_need("files", name, data.limits) for name in archives]


def _expanded(names: Sequence[str]) -> Iterator[str]:
    """The names of files; of a pattern, those that match, or itself if none does."""
    for name in names:
        try:
            yield from expanded([name])
        except DataError:
            yield name


def _need(part: str, name: str, limits: Limits) -> RequiredFile:
    path = None
    try:
        (name,) = expanded([name])
        path = find(name)
        size = path.stat().st_size
        return RequiredFile(part, name, path, size, _count(name, limits), "")
    except (DataError, MissingExtraError, OSError) as error:
        return RequiredFile(part, name, path, 0, 0, str(error))


def _count(name: str, limits: Limits) -> int:
    """The lines, rows or files in a file."""
    if name.endswith(ENDING):
        return len(Archive(name, limits))
    if name.startswith(DATASET):
        return SavedDataset(name, limits).rows()
    return parquet_rows(name, limits) if ending(name) == ".parquet" else len(load(name, limits))


def how_to_fix(files: Sequence[RequiredFile]) -> str:
    """A message on how to fix missing or unusable files; empty if all can be used."""
    missing = [need.name for need in files if need.path is None]
    problems = [need.problem for need in files if need.path is not None and need.problem]
    if missing:
        folder = os.environ.get("REGARD_DATA")
        where = f"$REGARD_DATA, which is {folder}" if folder else "a folder that you name in $REGARD_DATA"
        return f"{len(missing)} of {len(files)} files are missing; put {missing[0]} under {where}, or under ./data"
    return f"{len(problems)} of {len(files)} files cannot be used: {problems[0]}" if problems else ""


def check_found(recipe: Recipe, names: Iterable[str]) -> None:
    """Raise DataError if a file is missing; if its corpus is known, it names the command that says where it is from."""
    for name in names:
        try:
            for file in expanded([name]):
                find(file)
        except DataError as error:
            if Path(name).parent.name not in ORIGINS:
                raise
            end = "" if str(error).endswith("?") else ";"
            known = _recipe_with(recipe.name, Path(name).parent.name)
            raise DataError(f"{error}{end} `regard data {known}` says where the data comes from") from None


def _recipe_with(name: str, corpus: str) -> str:
    """The recipe of that name if it comes with regard, else the first one that reads the corpus: a run has any name."""
    if name in recipes.names():
        return name
    folders = {own: [Path(file).parent.name for file in recipes.load(own).data.train] for own in recipes.names()}
    return next((own for own, names in folders.items() if corpus in names), "RECIPE")
