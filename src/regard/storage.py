"""The only module that writes files: whole or not at all, and checked when they are read again."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import recipe as recipes
from regard.errors import CorruptError, DataError, RecipeError, StorageError, did_you_mean

MANIFEST, RECIPE, METRICS, MODEL = "manifest.json", "recipe.toml", "metrics.jsonl", "model.safetensors"


def write(path: Path, content: bytes) -> None:
    """Write a file whole: whoever looks at any instant finds the old content or the new."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with _storing(path):
        try:
            with open(beside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def cached(kind: str, digest: str, make: Callable[[], bytes]) -> bytes:
    """What `make` gives, made only once for a digest; a cache that cannot be written is done without."""
    home = os.environ.get("REGARD_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "regard"
    )
    path = Path(home) / kind / digest
    with contextlib.suppress(OSError, ValueError):
        sealed, content = path.read_bytes().split(b"\n", 1)
        if sealed == _digest(content).encode():
            return content
    content = make()
    with contextlib.suppress(OSError, StorageError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, _digest(content).encode() + b"\n" + content)
    return content


@dataclass(frozen=True)
class Run:
    """A run directory: recipe, tokenizers, weights, metrics, and a manifest that vouches for them."""

    path: Path

    @staticmethod
    def create(parent: Path, name: str) -> "Run":
        """A new directory NAME, or NAME-2, NAME-3, ... where that is taken; nothing is overwritten."""
        if not re.fullmatch(r"[\w][\w.+-]*", name):
            raise RecipeError(f"the name of a run is made of letters, digits, '.', '_', '+' and '-', not {name!r}")
        with _storing(parent / name):
            parent.mkdir(parents=True, exist_ok=True)
            number = 1
            while True:
                path = parent / (name if number == 1 else f"{name}-{number}")
                try:
                    path.mkdir()
                except FileExistsError:
                    number += 1
                else:
                    return Run(path)

    @staticmethod
    def open(path: str | Path) -> "Run":
        """An existing run."""
        path = Path(path)
        if not (path / MANIFEST).is_file():
            siblings = [str(each.parent) for each in path.parent.glob(f"*/{MANIFEST}")]
            why = "holds no finished run" if path.is_dir() else "is not there"
            raise DataError(f"the run {path} {why} (no {MANIFEST}){did_you_mean(str(path), siblings)}")
        return Run(path)

    def recipe(self) -> recipes.Recipe:
        """The recipe as it was run, every key written out."""
        return recipes.parse(self.read(RECIPE).decode(), str(self.path / RECIPE))

    def metrics(self) -> list[dict[str, Any]]:
        """What was measured while it learned, one entry a validation."""
        return [json.loads(line) for line in self.read(METRICS).decode().split("\n") if line]

    def record(self, entry: dict[str, Any]) -> None:
        """Add one entry to the metrics."""
        with _storing(self.path / METRICS), open(self.path / METRICS, "ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")

    def write(self, name: str, content: bytes) -> None:
        """Write one file of the run."""
        write(self.path / name, content)

    def seal(self) -> None:
        """Vouch for every file of the run with its size and SHA-256."""
        files = sorted(file for file in self.path.iterdir() if file.is_file() and not _unsealed(file.name))
        entries = {file.name: _entry(file.read_bytes()) for file in files}
        self.write(MANIFEST, json.dumps({"format": 1, "files": entries}, indent=1).encode() + b"\n")

    def read(self, name: str) -> bytes:
        """One file of the run, if it is still what was sealed."""
        entries = _manifest(self.path / MANIFEST)
        if name not in entries:
            raise CorruptError(f"{self.path / name} is not in {MANIFEST}; the run is incomplete: train it again")
        try:
            content = (self.path / name).read_bytes()
        except OSError as error:
            raise CorruptError(f"{self.path / name} cannot be read: {error.strerror or error}") from error
        if entries[name] != _entry(content):
            raise CorruptError(
                f"{self.path / name} is damaged: its size or SHA-256 is not that of {MANIFEST}; "
                "copy the run again from where it came, or train it again"
            )
        return content


def _manifest(path: Path) -> dict[str, Any]:
    try:
        entries = json.loads(path.read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{path} cannot be read: {error}; train the run again") from error
    if not isinstance(entries, dict):
        raise CorruptError(f"{path} does not list files; train the run again")
    return entries


def _unsealed(name: str) -> bool:
    return name == MANIFEST or name.endswith((".partial", ".svg", ".png"))


def _entry(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": _digest(content)}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _storing(path: Path) -> Iterator[None]:
    """Turn what the system says into a sentence."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
