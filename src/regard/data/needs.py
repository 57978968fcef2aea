"""What a recipe learns from: which files it names, where they are, and how to mend what is missing."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data.files import find, load
from regard.errors import DataError
from regard.recipe import Data


class Need(NamedTuple):
    """One file that a recipe names."""

    part: str  # train, dev or test
    name: str  # as the recipe has it
    path: Path | None  # where it was found
    size: int  # bytes on disk
    lines: int  # of the text, unpacked
    problem: str  # why it cannot be used; empty where it can


def needs(data: Data) -> list[Need]:
    """The files of a recipe, part by part; an embedded corpus, which is generated, needs none."""
    parts = (("train", data.train), ("dev", data.dev), ("test", data.test))
    return [_need(part, name) for part, names in parts for name in names]


def _need(part: str, name: str) -> Need:
    path = None
    try:
        path = find(name)
        size = path.stat().st_size
        return Need(part, name, path, size, len(load(name)), "")
    except (DataError, OSError) as error:
        return Need(part, name, path, 0, 0, str(error))


def remedy(found: Sequence[Need]) -> str:
    """What to do about files that cannot be used; empty where all can."""
    missing = [need.name for need in found if need.path is None]
    broken = [need.problem for need in found if need.path is not None and need.problem]
    if missing:
        folder = os.environ.get("REGARD_DATA")
        where = f"$REGARD_DATA, which is {folder}" if folder else "a folder that you name in $REGARD_DATA"
        return f"{len(missing)} of {len(found)} files are missing; put {missing[0]} under {where}, or under ./data"
    return f"{len(broken)} of {len(found)} files cannot be used: {broken[0]}" if broken else ""
