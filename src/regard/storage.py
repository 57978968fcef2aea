"""The only module that writes files: whole or not at all, and checked when they are read again.

A file is written beside its place, forced to the disk, and renamed into it; so is a folder of files. Whoever looks at
any instant, and whatever is killed at any instant, finds the old content or the new.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import plugins
from regard import recipe as recipes
from regard.errors import CorruptError, DataError, RecipeError, StorageError, did_you_mean

MANIFEST, RECIPE, METRICS, MODEL = "manifest.json", "recipe.toml", "metrics.jsonl", "model.safetensors"
DATA = "data.json"  # how a run knows again what it learned from
PLUGINS = "plugins.json"  # the entries of installed packages that a run uses; absent if it uses none
CHECKPOINTS, LOCK, PARTIAL, DAMAGED = "checkpoints", ".lock", ".partial", ".damaged"
REPLACED = f".replaced{PARTIAL}"  # ends the name of a folder while another takes its place
FORMAT = 1  # of the manifest
KEPT = 2  # checkpoints: the newest, and one to fall back on

Manifest = dict[str, list[str]]  # the SHA-256 a file may have; two only while it is being replaced


def write(path: Path, content: bytes) -> None:
    """Write a file whole."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    with _storing(path):
        try:
            _put(beside, content)
            os.replace(beside, path)
            _sync(path.parent)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


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
        for litter in path.parent.glob(f".{digest}.*{PARTIAL}"):  # of a killed process; a living one can do without
            litter.unlink(missing_ok=True)
    return content


@dataclass(frozen=True)
class Folder:
    """A folder of files that a manifest vouches for."""

    path: Path

    def read(self, name: str) -> bytes:
        """One file of the folder, if it is still what was written."""
        manifest = self._manifest()
        if name not in manifest:
            raise CorruptError(f"{self.path / name} is not in {MANIFEST}: the folder is not complete")
        try:
            content = _read(self.path / name)
        except FileNotFoundError:
            raise CorruptError(f"{self.path / name} is missing, though {MANIFEST} lists it") from None
        digest = _digest(content)
        if digest not in manifest[name] and digest not in self._manifest().get(name, []):  # was it replaced just now?
            raise CorruptError(
                f"{self.path / name} is damaged: its SHA-256 is not that of {MANIFEST}; "
                "copy the run again from where it came, or train it again"
            )
        return content

    def holds(self, name: str) -> bool:
        """Whether the manifest knows a file."""
        return name in self._manifest()

    def _manifest(self) -> Manifest:
        path = self.path / MANIFEST
        try:
            told = json.loads(_read(path))
            version, files = told["format"], told["files"]
        except FileNotFoundError:
            raise CorruptError(f"{path} is missing: the folder is not complete") from None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{path} is damaged: {error}") from error
        if version != FORMAT:
            raise CorruptError(f"{path} is of format {version!r}, and this regard reads {FORMAT}; take one that fits")
        if not isinstance(files, dict) or not all(isinstance(each, list) for each in files.values()):
            raise CorruptError(f"{path} is damaged: it does not list files")
        return files


@dataclass(frozen=True)
class Run(Folder):
    """A run directory: recipe, tokenizers, weights, metrics, checkpoints."""

    @staticmethod
    def create(parent: Path, name: str, files: Mapping[str, bytes]) -> "Run":
        """A new directory NAME with these files, or NAME-2, NAME-3, ... where that is taken; whole or not at all."""
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise RecipeError(f"the name of a run is made of letters, digits, '.', '_', '+' and '-', not {name!r}")
        with _storing(parent / name):
            parent.mkdir(parents=True, exist_ok=True)
            with _making(parent):
                number = 1
                while True:
                    path = parent / (name if number == 1 else f"{name}-{number}")
                    if not path.exists():
                        with contextlib.suppress(FileExistsError):
                            _put_folder(path, files)
                            return Run(path)
                    number += 1

    @staticmethod
    def at(path: Path) -> bool:
        """Whether a path is a run directory."""
        with _reading(path):
            return (path / MANIFEST).is_file()

    @staticmethod
    def open(path: str | Path) -> "Run":
        """An existing run."""
        if not str(path):
            raise DataError("the name of a run is empty; name a run directory, such as runs/dates")
        path = Path(path)
        if not Run.at(path):
            siblings = [str(each.parent) for each in path.parent.glob(f"*/{MANIFEST}")]
            why = f"holds no run (no {MANIFEST})" if path.is_dir() else "is not there"
            raise DataError(f"the run {path} {why}{did_you_mean(str(path), siblings)}")
        return Run(path)

    def recipe(self) -> recipes.Recipe:
        """The recipe as it was run, every key written out; one that names no format is of the first."""
        return recipes.parse(self.read(RECIPE).decode(), str(self.path / RECIPE), format=1)

    def needs(self) -> plugins.Needs:
        """The entries of installed packages that the run was trained with."""
        return plugins.Needs.of(str(self.path), self.read(PLUGINS) if self.holds(PLUGINS) else b"{}")

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Hold the run for one trainer alone, and sweep up what a killed one left behind."""
        with _storing(self.path):
            lock = os.open(self.path / LOCK, os.O_WRONLY | os.O_CREAT, 0o666)
        try:  # the system lets go of the lock when this process ends, however it ends
            with _storing(self.path):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise DataError(f"the run {self.path} is being trained by another process; wait for it") from None
                self._sweep()
            yield
            if self.finished():
                with _storing(self.path):
                    (self.path / LOCK).unlink(missing_ok=True)
        finally:
            os.close(lock)

    def _sweep(self) -> None:
        """Remove what no living process needs; a checkpoint that was about to be replaced gets its name back."""
        for waiting in (self.path / CHECKPOINTS).glob(f".*{REPLACED}"):
            path = waiting.with_name(waiting.name.removeprefix(".").removesuffix(REPLACED))
            if not path.exists():
                os.rename(waiting, path)
        litter = [*self.path.glob(f".*{PARTIAL}"), *(self.path / CHECKPOINTS).glob(f".*{PARTIAL}")]
        for each in litter:
            _remove(each)
        if self.finished():
            self._remove_checkpoints()

    def replace(self, name: str, content: bytes) -> None:
        """Write a file anew; until it is there, the manifest vouches for the old and the new one."""
        manifest, digest = self._manifest(), _digest(content)
        self._vouch(manifest | {name: [*manifest.get(name, []), digest]})
        write(self.path / name, content)
        self._vouch(manifest | {name: [digest]})

    def _vouch(self, manifest: Manifest) -> None:
        write(self.path / MANIFEST, _told(manifest))

    # metrics: lines are added while training goes on, so the manifest vouches for them only when it is over

    def record(self, entry: Mapping[str, Any]) -> None:
        """Add one entry to the metrics."""
        with _storing(self.path / METRICS):
            handle = os.open(self.path / METRICS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            _write_all(handle, json.dumps(entry).encode() + b"\n")

    def metrics(self) -> list[dict[str, Any]]:
        """What was measured while it learned; a line that is not whole yet is left out."""
        content = self.read(METRICS) if self.holds(METRICS) else self._recorded()
        return [json.loads(line) for line in content.split(b"\n")[:-1]]

    def metrics_size(self) -> int:
        """The bytes recorded so far."""
        return len(self._recorded())

    def _recorded(self) -> bytes:
        try:
            return _read(self.path / METRICS)
        except FileNotFoundError:  # nothing was recorded yet
            return b""

    def cut_metrics(self, size: int) -> None:
        """Forget what was recorded after the first `size` bytes."""
        recorded = self._recorded()
        if len(recorded) < size:
            raise CorruptError(f"{self.path / METRICS} is damaged: {size:,} bytes were written, fewer are left")
        if len(recorded) > size:
            write(self.path / METRICS, recorded[:size])

    def finish(self) -> None:
        """Vouch for the metrics too: the run is complete, and its checkpoints have served."""
        with _storing(self.path):
            self._vouch(self._manifest() | {METRICS: [_digest(_read(self.path / METRICS))]})
            self._remove_checkpoints()

    def finished(self) -> bool:
        """Whether training came to its end."""
        return self.holds(METRICS)

    # checkpoints: folders of their own, named by their update

    def save(self, update: int, files: Mapping[str, bytes]) -> None:
        """Keep a checkpoint, and the one before it; one of the same update is replaced."""
        folder = self.path / CHECKPOINTS
        with _storing(folder):
            folder.mkdir(exist_ok=True)
            path = folder / f"{update:08}"
            with _beside(path, files) as beside:
                with _out_of_the_way(path):
                    os.rename(beside, path)
                _sync(folder)
            for old in self.checkpoints()[KEPT:]:
                _remove(old.path)

    def checkpoints(self) -> list[Folder]:
        """All checkpoints, the newest first."""
        folder = self.path / CHECKPOINTS
        try:
            with _reading(folder):
                names = os.listdir(folder)  # and not glob, which takes a folder that cannot be read for an empty one
        except FileNotFoundError:
            return []
        updates = (name for name in names if re.fullmatch("[0-9]{8,}", name))
        return [Folder(folder / name) for name in sorted(updates, key=int, reverse=True)]

    def set_aside(self, checkpoint: Folder) -> Path:
        """Give a damaged checkpoint a name under which it is kept, and is a checkpoint no more."""
        aside, number = checkpoint.path.with_name(f"{checkpoint.path.name}{DAMAGED}"), 1
        while os.path.lexists(aside):
            number += 1
            aside = checkpoint.path.with_name(f"{checkpoint.path.name}{DAMAGED}-{number}")
        with _storing(checkpoint.path):
            os.rename(checkpoint.path, aside)
            _sync(aside.parent)
        return aside

    def _remove_checkpoints(self) -> None:
        """Remove all checkpoints, and their folder unless something was set aside in it."""
        for checkpoint in self.checkpoints():
            _remove(checkpoint.path)
        with contextlib.suppress(FileNotFoundError):
            if not os.listdir(self.path / CHECKPOINTS):
                os.rmdir(self.path / CHECKPOINTS)


@contextlib.contextmanager
def _making(parent: Path) -> Iterator[None]:
    """One maker of folders at a time: what stands half made was left by one that was killed, and is swept up."""
    handle = os.open(parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems lock no folders: the litter stays there
            fcntl.flock(handle, fcntl.LOCK_EX)
            for litter in parent.glob(f".*{PARTIAL}"):
                if litter.is_dir():
                    shutil.rmtree(litter, ignore_errors=True)
        yield
    finally:
        os.close(handle)


def _put(path: Path, content: bytes) -> None:
    """A new file, forced to the disk."""
    _write_all(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), content)


def _write_all(handle: int, content: bytes) -> None:
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _put_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """A new folder with all its files and their manifest, or FileExistsError."""
    with _beside(path, files) as beside:
        try:
            os.rename(beside, path)
        except OSError as error:
            if path.exists():
                raise FileExistsError(str(path)) from error
            raise
        _sync(path.parent)


@contextlib.contextmanager
def _beside(path: Path, files: Mapping[str, bytes]) -> Iterator[Path]:
    """The folder that is to become `path`, with all its files and their manifest, forced to the disk."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        os.mkdir(beside)
        for name, content in files.items():
            _put(beside / name, content)
        _put(beside / MANIFEST, _told({name: [_digest(content)] for name, content in files.items()}))
        _sync(beside)
        yield beside
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _remove(path: Path) -> None:
    """Remove a file or a folder; a folder first loses its name, so that half of it is never taken for the whole."""
    if path.is_dir():
        if not path.name.endswith(PARTIAL):
            os.rename(path, _old(path))
            path = _old(path)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _out_of_the_way(path: Path) -> Iterator[None]:
    """Let a folder that is there give its name to another in the block; it is removed after it, or gets it back.

    If the process is killed in the block, the next trainer gives the name back (`_sweep`).
    """
    if not path.exists():
        yield
        return
    waiting = path.with_name(f".{path.name}{REPLACED}")
    os.rename(path, waiting)
    try:
        yield
    except BaseException:
        os.rename(waiting, path)
        raise
    shutil.rmtree(waiting)


def _old(path: Path) -> Path:
    """The name under which a folder waits to be removed."""
    return path.with_name(f".{path.name}.old{PARTIAL}")


def _sync(folder: Path) -> None:
    """Make a rename last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _told(manifest: Manifest) -> bytes:
    return json.dumps({"format": FORMAT, "files": manifest}, indent=1).encode() + b"\n"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes:
    """The content of a file: FileNotFoundError if it is missing, StorageError if it cannot be read."""
    with _reading(path):
        return path.read_bytes()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what the system says into a sentence, unless nothing is there: what cannot be read now is not damaged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        why = error.strerror or error
        raise StorageError(f"{path} cannot be read: {why}; it may well be whole: try again when it can be") from error


@contextlib.contextmanager
def _storing(path: Path) -> Iterator[None]:
    """Turn what the system says into a sentence."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
