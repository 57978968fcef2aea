"""The only module that writes files: writes are atomic, and files are checked when they are read.

A file is written under a temporary name in the same folder, synced to the disk and renamed; so is a folder of files. At
any time, also after the process was killed, there is either the complete old content or the complete new one.
"""

import contextlib
import fcntl
import hashlib
import itertools
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
DATA = "data.json"  # digests of the training data, to notice if the data changes
PLUGINS = "plugins.json"  # the entries of installed packages that a run uses; absent if it uses none
CHECKPOINTS, LOCK, PARTIAL, DAMAGED = "checkpoints", ".lock", ".partial", ".damaged"
REPLACED = f".replaced{PARTIAL}"  # suffix of an old folder's name while a new one takes its place
FORMAT = 1  # of the manifest
KEPT = 2  # number of checkpoints: the newest, and an older one in case it is damaged

Manifest = dict[str, list[str]]  # the valid SHA-256 digests of each file; two only while it is being replaced


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: it has the old content or the complete new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    with _write_errors(path):
        try:
            _write_synced(partial, content)
            os.replace(partial, path)
            _sync_folder(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def cached(kind: str, digest: str, make: Callable[[], bytes]) -> bytes:
    """The result of `make` from the cache, under a kind and a digest; called if the cache lacks it or is damaged.

    If the cache cannot be written, the result is returned all the same.
    """
    path = _cache_folder() / kind / digest
    with contextlib.suppress(OSError, ValueError):
        checksum, content = path.read_bytes().split(b"\n", 1)
        if checksum == _digest(content).encode():
            return content
    content = make()
    with contextlib.suppress(OSError, StorageError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, _digest(content).encode() + b"\n" + content)
        # Left by killed processes. A process that still writes one loses it, and goes on without the cache.
        for leftover in path.parent.glob(f".{digest}.*{PARTIAL}"):
            leftover.unlink(missing_ok=True)
    return content


def write_to_cache(kind: str, name: str, content: bytes) -> Path:
    """Write a file to the cache folder, under a kind and a name; returns its path."""
    path = _cache_folder() / kind / name
    with _write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write(path, content)
    return path


def _cache_folder() -> Path:
    """The folder for results that can be made again: $REGARD_CACHE, or regard under the user's cache folder."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("REGARD_CACHE") or os.path.join(caches, "regard"))


def numbered(path: Path) -> Iterator[Path]:
    """The path itself, then PATH-2, PATH-3 and so on: names to try for a new file or folder."""
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.name}-{number}")


@dataclass(frozen=True)
class Folder:
    """A folder of files with a manifest that lists their digests."""

    path: Path

    def read(self, name: str) -> bytes:
        """The content of a file of the folder; raises CorruptError if its digest is not the one in the manifest."""
        manifest = self._manifest()
        if name not in manifest:
            raise CorruptError(f"{self.path / name} is not in {MANIFEST}: the folder is not complete")
        try:
            content = _read(self.path / name)
        except FileNotFoundError:
            raise CorruptError(f"{self.path / name} is missing, though {MANIFEST} lists it") from None
        digest = _digest(content)
        # The manifest is read again, because the file may have been replaced since the first time.
        if digest not in manifest[name] and digest not in self._manifest().get(name, []):
            raise CorruptError(
                f"{self.path / name} is damaged: its SHA-256 is not that of {MANIFEST}; "
                "copy the run again from where it came, or train it again"
            )
        return content

    def has_file(self, name: str) -> bool:
        """Whether the manifest lists a file of that name."""
        return name in self._manifest()

    def _manifest(self) -> Manifest:
        path = self.path / MANIFEST
        try:
            content = json.loads(_read(path))
            version, files = content["format"], content["files"]
        except FileNotFoundError:
            raise CorruptError(f"{path} is missing: the folder is not complete") from None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{path} is damaged: {error}") from error
        if version != FORMAT:
            raise CorruptError(f"{path} has format {version!r}, this regard reads {FORMAT}; use a version that fits")
        if not isinstance(files, dict) or not all(isinstance(digests, list) for digests in files.values()):
            raise CorruptError(f"{path} is damaged: it does not list files")
        return files


@dataclass(frozen=True)
class Run(Folder):
    """A run directory: recipe, tokenizers, weights, metrics, checkpoints."""

    @staticmethod
    def create(parent: Path, name: str, files: Mapping[str, bytes]) -> "Run":
        """Creates, atomically, a new directory NAME with these files; if it exists, NAME-2, NAME-3 and so on."""
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise RecipeError(f"the name of a run is made of letters, digits, '.', '_', '+' and '-', not {name!r}")
        with _write_errors(parent / name):
            parent.mkdir(parents=True, exist_ok=True)
            with _creation_lock(parent):
                for path in numbered(parent / name):
                    if not path.exists():
                        with contextlib.suppress(FileExistsError):
                            _create_folder(path, files)
                            break
        return Run(path)

    @staticmethod
    def at(path: Path) -> bool:
        """Whether a path is a run directory."""
        with _read_errors(path):
            return (path / MANIFEST).is_file()

    @staticmethod
    def open(path: str | Path) -> "Run":
        """The run in an existing run directory; raises DataError if there is none."""
        if not str(path):
            raise DataError("the name of a run is empty; name a run directory, such as runs/dates")
        path = Path(path)
        if not Run.at(path):
            siblings = [str(manifest.parent) for manifest in path.parent.glob(f"*/{MANIFEST}")]
            why = f"holds no run (no {MANIFEST})" if path.is_dir() else "is not there"
            raise DataError(f"the run {path} {why}{did_you_mean(str(path), siblings)}")
        return Run(path)

    def recipe(self) -> recipes.Recipe:
        """The recipe of the run, with every key; a recipe without a format number has format 1."""
        return recipes.parse(self.read(RECIPE), str(self.path / RECIPE), format=1)

    def needs(self) -> plugins.Needs:
        """The entries of installed packages that the run was trained with."""
        return plugins.Needs.of(str(self.path), self.read(PLUGINS) if self.has_file(PLUGINS) else b"{}")

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Lock the run, so that only one process trains it, and remove files that a killed process left behind."""
        with _write_errors(self.path):
            lock = os.open(self.path / LOCK, os.O_WRONLY | os.O_CREAT, 0o666)
        try:  # the system releases the lock when this process ends, also if it is killed
            with _write_errors(self.path):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise DataError(f"the run {self.path} is being trained by another process; wait for it") from None
                self._clean_up()
            yield
            if self.finished():
                with _write_errors(self.path):
                    (self.path / LOCK).unlink(missing_ok=True)
        finally:
            os.close(lock)

    def _clean_up(self) -> None:
        """Remove partial files, and checkpoints of a finished run; restore a checkpoint whose replacement failed."""
        for replaced in (self.path / CHECKPOINTS).glob(f".*{REPLACED}"):
            path = replaced.with_name(replaced.name.removeprefix(".").removesuffix(REPLACED))
            if not path.exists():
                os.rename(replaced, path)
        for leftover in [*self.path.glob(f".*{PARTIAL}"), *(self.path / CHECKPOINTS).glob(f".*{PARTIAL}")]:
            _remove(leftover)
        if self.finished():
            self._remove_checkpoints()

    def replace(self, name: str, content: bytes) -> None:
        """Create or replace a file; until it is written, the manifest accepts the old content and the new one."""
        manifest, digest = self._manifest(), _digest(content)
        self._write_manifest(manifest | {name: [*manifest.get(name, []), digest]})
        write(self.path / name, content)
        self._write_manifest(manifest | {name: [digest]})

    def _write_manifest(self, manifest: Manifest) -> None:
        write(self.path / MANIFEST, _manifest_json(manifest))

    # Metrics: lines are appended during training, so the manifest lists the file only when training is finished.

    def record(self, entry: Mapping[str, Any]) -> None:
        """Append one entry to the metrics."""
        with _write_errors(self.path / METRICS):
            _write_synced(self.path / METRICS, json.dumps(entry).encode() + b"\n", os.O_APPEND)

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics recorded during training; an incomplete last line is left out."""
        content = self.read(METRICS) if self.has_file(METRICS) else self._recorded()
        return [json.loads(line) for line in content.split(b"\n")[:-1]]

    def metrics_size(self) -> int:
        """The number of bytes of metrics recorded so far."""
        return len(self._recorded())

    def _recorded(self) -> bytes:
        try:
            return _read(self.path / METRICS)
        except FileNotFoundError:  # nothing was recorded yet
            return b""

    def cut_metrics(self, size: int) -> None:
        """Truncate the metrics to the first `size` bytes."""
        recorded = self._recorded()
        if len(recorded) < size:
            raise CorruptError(f"{self.path / METRICS} is damaged: {size:,} bytes were written, fewer are left")
        if len(recorded) > size:
            write(self.path / METRICS, recorded[:size])

    def finish(self) -> None:
        """Mark the run as finished: add the metrics to the manifest and remove the checkpoints."""
        with _write_errors(self.path):
            self._write_manifest(self._manifest() | {METRICS: [_digest(_read(self.path / METRICS))]})
            self._remove_checkpoints()

    def finished(self) -> bool:
        """Whether training is finished."""
        return self.has_file(METRICS)

    # Checkpoints: one folder each, named by the number of the update.

    def save(self, update: int, files: Mapping[str, bytes]) -> None:
        """Write a checkpoint, replace one of the same update, and remove all but the newest KEPT checkpoints."""
        folder = self.path / CHECKPOINTS
        with _write_errors(folder):
            folder.mkdir(exist_ok=True)
            path = folder / f"{update:08}"
            with _partial_folder(path, files) as partial:
                with _moved_away(path):
                    os.rename(partial, path)
                _sync_folder(folder)
            for old in self.checkpoints()[KEPT:]:
                _remove(old.path)

    def checkpoints(self) -> list[Folder]:
        """All checkpoints, the newest first."""
        folder = self.path / CHECKPOINTS
        try:
            with _read_errors(folder):
                names = os.listdir(folder)  # not glob, which returns nothing if the folder cannot be read
        except FileNotFoundError:
            return []
        updates = (name for name in names if re.fullmatch("[0-9]{8,}", name))
        return [Folder(folder / name) for name in sorted(updates, key=int, reverse=True)]

    def set_aside(self, checkpoint: Folder) -> Path:
        """Rename a damaged checkpoint, so that it is kept but no longer used; returns its new path."""
        paths = numbered(checkpoint.path.with_name(f"{checkpoint.path.name}{DAMAGED}"))
        aside = next(path for path in paths if not os.path.lexists(path))
        with _write_errors(checkpoint.path):
            os.rename(checkpoint.path, aside)
            _sync_folder(aside.parent)
        return aside

    def _remove_checkpoints(self) -> None:
        """Remove all checkpoints, and their folder unless it holds damaged checkpoints that were set aside."""
        for checkpoint in self.checkpoints():
            _remove(checkpoint.path)
        with contextlib.suppress(FileNotFoundError):
            if not os.listdir(self.path / CHECKPOINTS):
                os.rmdir(self.path / CHECKPOINTS)


@contextlib.contextmanager
def _creation_lock(parent: Path) -> Iterator[None]:
    """Let one process at a time create folders in `parent`; removes partial folders that killed processes left."""
    with _opened(parent, os.O_RDONLY) as handle:
        with contextlib.suppress(OSError):  # some network file systems cannot lock folders: partial ones then stay
            fcntl.flock(handle, fcntl.LOCK_EX)
            for leftover in parent.glob(f".*{PARTIAL}"):
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)
        yield


def _write_synced(path: Path, content: bytes, mode: int = os.O_TRUNC) -> None:
    """Write a file, or append to it if `mode` is O_APPEND, and sync it to the disk; not atomic."""
    with _opened(path, os.O_WRONLY | os.O_CREAT | mode) as handle:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """Open a file or a folder, and close it after the block."""
    handle = os.open(path, flags, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)


def _create_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Create, atomically, a folder with files and their manifest; raises FileExistsError if it exists."""
    with _partial_folder(path, files) as partial:
        try:
            os.rename(partial, path)
        except OSError as error:
            if path.exists():
                raise FileExistsError(str(path)) from error
            raise
        _sync_folder(path.parent)


@contextlib.contextmanager
def _partial_folder(path: Path, files: Mapping[str, bytes]) -> Iterator[Path]:
    """Write a folder under a temporary name, to be renamed to `path` in the block; removed if that fails."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        os.mkdir(partial)
        for name, content in files.items():
            _write_synced(partial / name, content)
        _write_synced(partial / MANIFEST, _manifest_json({name: [_digest(content)] for name, content in files.items()}))
        _sync_folder(partial)
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _remove(path: Path) -> None:
    """Remove a file or a folder; a folder is renamed first, so that a half-removed one is never read as complete."""
    if path.is_dir():
        if not path.name.endswith(PARTIAL):
            path = path.rename(path.with_name(f".{path.name}.old{PARTIAL}"))
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _moved_away(path: Path) -> Iterator[None]:
    """Rename an existing folder, so that the block can use its path; remove it afterwards, or restore it on errors.

    If the process is killed in the block, the next process that trains the run restores it (`_clean_up`).
    """
    if not path.exists():
        yield
        return
    replaced = path.with_name(f".{path.name}{REPLACED}")
    os.rename(path, replaced)
    try:
        yield
    except BaseException:
        os.rename(replaced, path)
        raise
    shutil.rmtree(replaced)


def _sync_folder(folder: Path) -> None:
    """Sync a folder to the disk, so that a rename in it survives a power failure."""
    with _opened(folder, os.O_RDONLY) as handle:
        os.fsync(handle)


def _manifest_json(manifest: Manifest) -> bytes:
    return json.dumps({"format": FORMAT, "files": manifest}, indent=1).encode() + b"\n"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes:
    """The content of a file; raises FileNotFoundError if it is missing, StorageError if it cannot be read."""
    with _read_errors(path):
        return path.read_bytes()


@contextlib.contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Turn OSError into StorageError, except FileNotFoundError; a file that cannot be read now may be undamaged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        why = error.strerror or error
        raise StorageError(f"{path} cannot be read: {why}; it may be undamaged: try again later") from error


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turn OSError into StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
