"""Run directories: files with a manifest of their digests, metrics, checkpoints, and a lock while a process trains.

A run directory may come from anybody. Whatever it holds, nothing outside it is written or removed, nothing in it is
removed that regard did not make, and what does not fit is refused with a sentence.
"""

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import re
import secrets
import shlex
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from regard import plugins
from regard import recipe as recipes
from regard.errors import (
    MOST_LISTED,
    CorruptError,
    DataError,
    RecipeError,
    RegardError,
    StorageError,
    did_you_mean,
    shown,
)
from regard.storage import files, latest
from regard.storage.files import LARGEST_FILE, digest, numbered, read_errors, write_errors

MANIFEST, RECIPE, METRICS, MODEL = "manifest.json", "recipe.toml", "metrics.jsonl", "model.safetensors"
DATA = "data.json"  # digests of the training data, to notice if the data changes
PLUGINS = "plugins.json"  # the entries of installed packages that a run uses; absent if it uses none
ENVIRONMENT = "environment.json"  # what the run was trained with: versions, processor, GPU, threads
ORIGIN = "origin.json"  # digests of the weights that the run started from; absent if it did not
PROLONGED = "prolonged.json"  # the lengths that the run had before it was prolonged; absent if it never was
MEASURES = "measures.json"  # how far its maps may be trusted, as `regard measure` found; absent if it never ran
READING = "reading.json"  # from which layer and head links are read best, as `regard align` chose; absent if it did not
CARD = "README.md"  # the model card, written when a training ends; absent in runs of older versions
CHECKPOINTS, LOCK, DAMAGED = "checkpoints", ".lock", ".damaged"
FORMAT = 2  # of the manifest; manifests of format 1 have no id of the run and no digest of their own
KEPT_CHECKPOINTS = 2  # number of checkpoints: the newest, and an older one in case it is damaged
LARGEST_MANIFEST = 1 << 20  # bytes
LARGEST_LIST = 1 << 20  # bytes of the environments, the lengths of a prolonged run and the model card that are read
LARGEST_NEW_LIST = 1 << 16  # bytes of such a list that are written: then entries between the first and the newest go
LONGEST_LIST = 10_000  # entries of such a list that is read: 64 KiB hold far fewer
LISTED_GAP = 100  # bytes of the entry that counts those left out
LEFT_OUT = "left_out"  # key of an entry of such a list that counts those that were left out in its place
MOST_ENTRIES = 200_000  # of the metrics: one for each validation
VALIDATED = ("update", "dev_loss", "tokens_per_second")  # numbers that the entry of a validation has, among others
ENDED = ("train_seconds",)  # and the entry at the end
TEXTS = ("signature", "precision")  # all else in the metrics is a number
LARGEST_NUMBER = 1 << 63  # of whole numbers in the metrics
LONGEST_LINE = 1000  # letters of the sentence of a measurement
LARGEST_OWNER = 1 << 10  # bytes of a lock file
NAME = re.compile(r"\w[\w.+-]*")  # of runs, and of the files in them
LONGEST_NAME = 100  # bytes of the name of a run; most systems allow 255 for a name, and temporary names are longer
SET_ASIDE = re.compile(rf"{re.escape(DAMAGED)}(-[0-9]+)?$")  # the end of the name of what was set aside
DIGEST = re.compile(r"[0-9a-f]{64}")
ID = re.compile(r"[0-9a-f]{16}|")  # of a run; empty for those made before format 2

Json = TypeVar("Json")


class Manifest(NamedTuple):
    """The content of a manifest."""

    run: str  # the id of the run that the folder belongs to
    files: dict[str, list[str]]  # the valid SHA-256 digests of each file; two only while it is being replaced

    def to_json(self) -> bytes:
        """The manifest as JSON, with a digest over the rest of it."""
        content = {"format": FORMAT, "run": self.run, "files": self.files}
        return json.dumps(content | {"sha256": _digest_of(content)}, indent=1).encode() + b"\n"

    @staticmethod
    def of(content: bytes, path: Path) -> "Manifest":
        """Reads what `to_json` wrote, or a manifest of format 1; CorruptError if it is damaged."""
        stored = parse_json(content, dict, path)
        version = stored.get("format")
        checksum = stored.pop("sha256", None)
        if type(version) is not int or not 1 <= version <= FORMAT:
            how = f"this regard reads 1 to {FORMAT}; use a version that fits"
            raise CorruptError(f"{path} has format {shown(version)}, {how}")
        run, listed = stored.get("run", ""), stored.get("files")
        if version == FORMAT and checksum != _digest_of(stored):
            raise CorruptError(f"{path} is damaged: its SHA-256 is not the one it holds")
        if not isinstance(run, str) or not ID.fullmatch(run):
            raise CorruptError(f"{path} is damaged: it names no run")
        if not isinstance(listed, dict) or not all(NAME.fullmatch(name) for name in listed):
            raise CorruptError(f"{path} is damaged: it does not list files")
        for name, digests in listed.items():
            valid = isinstance(digests, list) and all(
                isinstance(text, str) and DIGEST.fullmatch(text) for text in digests
            )
            if not valid:
                raise CorruptError(f"{path} is damaged: it has no digest for {name}")
        return Manifest(run, listed)


def parse_json(content: bytes, kind: type[Json], path: Path | str) -> Json:
    """The value of a JSON text, of that type; CorruptError if it is none, or is nested too deeply."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path} is damaged: {shown(str(error))}") from error
    if not isinstance(value, kind):
        raise CorruptError(f"{path} is damaged: it does not hold a JSON {'object' if kind is dict else kind.__name__}")
    return value


def parse_metrics(content: bytes, path: Path) -> list[dict[str, Any]]:
    """The entries of metrics, an incomplete last line left out; CorruptError if training cannot have written them."""
    lines = content.split(b"\n")[:-1]
    if len(lines) > MOST_ENTRIES:
        raise CorruptError(f"{path} is damaged: it holds more than {MOST_ENTRIES:,} entries")
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        entry = parse_json(line, dict, path)
        required = VALIDATED if "update" in entry else ENDED
        if required is ENDED and number < len(lines):
            raise CorruptError(f"{path} is damaged: its line {number:,} is not of a validation")
        for name in (*required, *entry):
            if not _is_metric(name, entry.get(name), finite=name in required):
                raise CorruptError(f"{path} is damaged: in line {number:,}, {shown(name)} is {shown(entry.get(name))}")
        entries.append(entry)
    return entries


def _is_metric(name: str, value: object, *, finite: bool) -> bool:
    """Whether training can have recorded the value; if it is `finite`, results are computed from it."""
    if name in TEXTS:
        return isinstance(value, str)
    if name == "update":
        return type(value) is int and 0 < value < LARGEST_NUMBER
    if type(value) is int:
        return abs(value) < LARGEST_NUMBER
    return type(value) is float and (math.isfinite(value) or not finite)


@dataclass(frozen=True)
class Folder:
    """A folder of files with a manifest that lists their digests."""

    path: Path

    def read(self, name: str, most: int = LARGEST_FILE) -> bytes:
        """The content of a file of the folder, at most `most` bytes; CorruptError if it is not as in the manifest."""
        manifest = self.manifest().files
        if name not in manifest:
            raise CorruptError(f"{self.path / name} is not in {MANIFEST}: the folder is not complete")
        try:
            content = files.read(self.path / name, most)
        except FileNotFoundError:
            raise CorruptError(f"{self.path / name} is missing, though {MANIFEST} lists it") from None
        actual = digest(content)
        # The manifest is read again, because the file may have been replaced since the first time.
        if actual not in manifest[name] and actual not in self.manifest().files.get(name, []):
            raise CorruptError(
                f"{self.path / name} is damaged: its SHA-256 is not that of {MANIFEST}; "
                "copy the run again from where it came, or train it again"
            )
        return content

    def has_file(self, name: str) -> bool:
        """Whether the manifest lists a file of that name."""
        return name in self.manifest().files

    def manifest(self) -> Manifest:
        """The manifest of the folder."""
        path = self.path / MANIFEST
        try:
            return Manifest.of(files.read(path, LARGEST_MANIFEST), path)
        except FileNotFoundError:
            raise CorruptError(f"{path} is missing: the folder is not complete") from None


class Checkpoint(Folder):
    """The folder of a checkpoint, named by the number of its update; a name that is taken gets -2, -3 and so on."""

    NAME = re.compile("([0-9]{8,18})(-[0-9]{1,9})?")

    @property
    def update(self) -> int:
        """The number of updates that were done before it was saved."""
        return int(self.path.name.partition("-")[0])

    @property
    def number(self) -> int:
        """1, or the number after the dash: a higher one was saved later."""
        return int(self.path.name.partition("-")[2] or 1)

    def metrics(self) -> bytes:
        """The copy of the metrics; CorruptError if it holds anything but validations, each on a complete line."""
        return _validations(self.read(METRICS), self.path / METRICS)


@dataclass(frozen=True)
class Run(Folder):
    """A run directory: recipe, tokenizers, weights, metrics, checkpoints."""

    lock: int | None = field(default=None, compare=False)  # the handle of the lock file inside `training`

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @staticmethod
    def create(parent: Path, name: str, content: Mapping[str, bytes]) -> "Run":
        """Creates, atomically, a new directory NAME with these files; if it exists, NAME-2, NAME-3 and so on.

        The link `latest` beside it points to it then, unless something else has that name: see `latest_obstacle`.
        """
        check_name(name)
        new = secrets.token_hex(8)
        with write_errors(parent / name):
            parent.mkdir(parents=True, exist_ok=True)
            with _creation_lock(parent):
                for path in numbered(parent / name):
                    with contextlib.suppress(FileExistsError):
                        files.create_folder(path, _with_manifest(content, new), owner=f"new-{new}")
                        break
                latest.point_to(path, f"new-{new}", _is_run)
        return Run(path)

    def latest_obstacle(self) -> str:
        """A sentence if the link `latest` beside the run could not be made, because something else has its name."""
        return latest.describe_obstacle(self.path, _is_run)

    @staticmethod
    def at(path: Path) -> bool:
        """Whether a path is a run directory, or a link `latest` to one."""
        with read_errors(path):
            return (latest.resolve(path) / MANIFEST).is_file()

    @staticmethod
    def around(path: Path) -> Path | None:
        """The run directory that a path is in, or is itself; None if there is none. Links are followed."""
        real = Path(os.path.realpath(os.fspath(path).replace("\0", "")))
        return next((folder for folder in (real, *real.parents) if _is_run(folder)), None)

    @staticmethod
    def open(path: str | Path) -> "Run":
        """The run in an existing run directory; raises DataError if there is none.

        A name alone, such as `dates`, is looked for in the folder `runs`, too. A link `latest` is resolved once: the
        run stays the same if the link changes.
        """
        if not str(path):
            raise DataError("the name of a run is empty; name a run directory, such as runs/dates")
        named, path = Path(path), latest.resolve(Path(path))
        if not Run.at(path):
            with read_errors(path):
                raise DataError(_why_no_run(named, path))
        return Run(path)

    @property
    def id(self) -> str:
        """The random id of the run, which its checkpoints repeat; empty for runs made before manifests had one."""
        return self.manifest().run

    def own_paths(self) -> list[Path]:
        """The paths of all files that regard keeps in a run, those that are not there yet included."""
        names = {MANIFEST, RECIPE, METRICS, MODEL, DATA, PLUGINS, ENVIRONMENT, ORIGIN, PROLONGED, MEASURES, READING}
        names.add(LOCK)
        folders = [checkpoint.path for checkpoint in self.checkpoints()]
        inner = [folder / name for folder in folders for name in os.listdir(folder)]
        return [self.path / name for name in sorted(names | self.manifest().files.keys())] + inner

    def recipe(self) -> recipes.Recipe:
        """The recipe of the run, with every key; a recipe without a format number has format 1."""
        return recipes.parse(self.read(RECIPE), str(self.path / RECIPE), format=1)

    def needs(self) -> plugins.Needs:
        """The entries of installed packages that the run was trained with."""
        stored = parse_json(self.read(PLUGINS), dict, self.path / PLUGINS) if self.has_file(PLUGINS) else {}
        try:
            return plugins.Needs.of(str(self.path), stored)
        except (TypeError, ValueError) as error:
            raise CorruptError(f"{self.path / PLUGINS} is damaged: {shown(str(error))}") from error

    def environments(self) -> list[dict[str, Any]]:
        """What the parts of its training were computed with, in order; none for runs that did not record it."""
        return [entry for entry in self._read_list(ENVIRONMENT) if LEFT_OUT not in entry]

    def _read_list(self, name: str) -> list[dict[str, Any]]:
        """The JSON objects that a file lists; none if the run does not have it."""
        if not self.has_file(name):
            return []
        stored = parse_json(self.read(name, LARGEST_LIST), list, self.path / name)
        if not all(isinstance(entry, dict) for entry in stored):
            raise CorruptError(f"{self.path / name} is damaged: it does not list JSON objects")
        if len(stored) > LONGEST_LIST:
            raise CorruptError(f"{self.path / name} is damaged: it lists more than {LONGEST_LIST:,} entries")
        for count in (entry[LEFT_OUT] for entry in stored if LEFT_OUT in entry):
            if type(count) is not int or not 0 < count < LARGEST_NUMBER:
                raise CorruptError(f"{self.path / name} is damaged: {LEFT_OUT} is {shown(count)}")
        return stored

    def append_to_list(self, name: str, entry: Mapping[str, Any]) -> None:
        """Add an entry to a file that lists JSON objects; if it gets too long, entries after the first are left out."""
        self.replace(name, _bounded_list([*self._read_list(name), entry]))

    def origin(self) -> bytes:
        """JSON with the digests of the run's weights, to store in a run that starts from them."""
        return json.dumps(self.manifest().files.get(MODEL, [])).encode()

    def started_from(self, origin: "Run") -> bool:
        """Whether the weights of `origin` are those this run started from, if it recorded that."""
        return not self.has_file(ORIGIN) or self.read(ORIGIN) == origin.origin()

    def store_measures(self, content: bytes) -> None:
        """Store the JSON of a measurement: an object with a sentence as `line`, and the digests of the `weights`."""
        with self.training() as held:  # no other process may write the manifest meanwhile
            held.replace(MEASURES, content)

    def trust(self) -> str:
        """The sentence that says how far its maps may be trusted; empty if its present weights were not measured."""
        stored = self._of_present_weights(MEASURES, "regard measure")
        if stored is None:
            return ""
        line = stored.get("line")
        if not isinstance(line, str) or not line or len(line) > LONGEST_LINE:
            raise CorruptError(f"{self.path / MEASURES} is damaged: it has no sentence; run regard measure again")
        return line

    def store_reading(self, reading: Mapping[str, Any]) -> None:
        """Store from which layer and head links are read best; it counts as long as the weights are the same."""
        content = {"weights": self.manifest().files.get(MODEL, []), **reading}
        with self.training() as held:
            held.replace(READING, json.dumps(content, indent=1).encode() + b"\n")

    def reading(self) -> dict[str, Any] | None:
        """What `store_reading` stored; None if nothing was stored for its present weights."""
        return self._of_present_weights(READING, "regard align --heads --store")

    def _of_present_weights(self, name: str, command: str) -> dict[str, Any] | None:
        """The JSON object that the command stored, with the digests of its `weights`; None if the run has others."""
        if not self.has_file(name):
            return None
        stored = parse_json(self.read(name, LARGEST_LIST), dict, self.path / name)
        weights = stored.get("weights")
        if not isinstance(weights, list):
            raise CorruptError(
                f"{self.path / name} is damaged: it does not list the digests of the weights; run {command} again"
            )
        return stored if weights == self.manifest().files.get(MODEL) else None

    # One process at a time trains a run.

    @contextlib.contextmanager
    def training(self) -> Iterator["Run"]:
        """Lock the run, so that only one process trains it, and remove files that a killed process left behind.

        Yields the run with its lock. Its methods that write fail if the lock file is removed or replaced meanwhile.
        """
        with write_errors(self.path / LOCK):
            lock = self._lock()
        held = dataclasses.replace(self, lock=lock)
        try:  # the system releases the lock when this process ends, also if it is killed
            with write_errors(self.path):
                os.ftruncate(lock, 0)
                os.pwrite(lock, json.dumps(_this_process()).encode(), 0)
                held._clean_up()
            yield held
            held._remove_lock()
        except RegardError:
            with contextlib.suppress(RegardError):  # the first error is the one to report
                held._remove_lock()
            raise
        finally:
            os.close(lock)

    def _lock(self) -> int:
        """Locks the lock file; returns its handle."""
        path = self.path / LOCK
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | files.NO_LINKS, 0o666)
            try:
                if not stat.S_ISREG(os.fstat(lock).st_mode):
                    raise CorruptError(f"{path} is not a file; remove it, if no process trains this run")
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_nlink > 1:  # it has another name too, as in some backups, which stays as it is
                    path.unlink()
                if files.is_open_as(lock, path):  # else it was just removed, perhaps as the run was finished
                    return lock
                os.close(lock)
            except BaseException as error:
                owner = _owner(lock)
                os.close(lock)
                if isinstance(error, BlockingIOError):
                    raise DataError(f"the run {self.path} is being trained by {owner}; wait for it") from None
                raise

    def _remove_lock(self) -> None:
        """Remove the lock file of a finished run, if it is still the one that this process has locked."""
        if self.lock is not None and self.finished() and files.is_open_as(self.lock, self.path / LOCK):
            with write_errors(self.path):
                (self.path / LOCK).unlink(missing_ok=True)

    def _check_lock(self) -> None:
        """Raise StorageError if this process has locked the run, but the lock file is no longer the one it locked."""
        if self.lock is not None and not files.is_open_as(self.lock, self.path / LOCK):
            raise StorageError(
                f"{self.path / LOCK} was removed or replaced while this process trained the run, so another process "
                f"may train it too; nothing more was written. Go on with: {resume_command(self.path)}"
            )

    def _clean_up(self) -> None:
        """Remove partial files, and older checkpoints of a finished run; restore one whose replacement failed."""
        for folder in (self.path, self.path / CHECKPOINTS):
            for leftover, name in files.leftovers(folder, self.id) if self._is_own(folder) else ():
                if name and not os.path.lexists(folder / name):
                    os.rename(leftover, folder / name)
                else:
                    files.remove_leftover(leftover)
        if self.finished():
            self._remove_older_checkpoints()

    def _is_own(self, folder: Path) -> bool:
        """Whether the folder is there; CorruptError if it is a link, which may lead out of the run, or a file."""
        if folder == self.path or files.is_folder(folder):
            return True
        if os.path.lexists(folder):
            raise CorruptError(f"{folder} is a link or a file, not a folder; put the folder itself there")
        return False

    def replace(self, name: str, content: bytes) -> None:
        """Create or replace a file; until an old one is replaced, the manifest accepts its content and the new one.

        A new file is listed after it is written: whatever the manifest lists is always there.
        """
        manifest, new = self.manifest().files, digest(content)
        if name in manifest:
            self._write_manifest(manifest | {name: [*manifest[name], new]})
        else:
            with write_errors(self.path):
                self._check_lock()
        files.write(self.path / name, content, self.id)
        self._write_manifest(manifest | {name: [new]})

    def replace_own(self, name: str, content: bytes) -> None:
        """Create or replace a file, unless somebody else has put it there or changed it: then it is left alone."""
        try:
            present = files.read(self.path / name, LARGEST_LIST)
        except FileNotFoundError:
            present = content
        except (StorageError, CorruptError):  # such as a folder or a link
            return
        # One that is not listed yet may be of a process that was killed: it has the same content.
        if present == content or digest(present) in self.manifest().files.get(name, []):
            self.replace(name, content)

    def _write_manifest(self, listed: dict[str, list[str]]) -> None:
        with write_errors(self.path):
            self._check_lock()
        files.write(self.path / MANIFEST, Manifest(self.id, listed).to_json(), self.id)

    # Metrics: lines are appended during training, so the manifest lists the file only when training is finished. Until
    # then every checkpoint has a copy of what was recorded before it.

    def record(self, entry: Mapping[str, Any]) -> None:
        """Append one entry to the metrics."""
        with write_errors(self.path / METRICS):
            self._check_lock()
        files.append(self.path / METRICS, json.dumps(entry).encode() + b"\n", self.id)

    def metrics(self) -> list[dict[str, Any]]:
        """The metrics recorded during training, an incomplete last line left out; an imported run has only an end."""
        content = self.read(METRICS) if self.finished() else self._undamaged_metrics(self.own_checkpoints())
        entries = parse_metrics(content, self.path / METRICS)
        if self.finished() and (not entries or "update" in entries[-1]):
            raise CorruptError(f"{self.path / METRICS} is damaged: a finished run has an end, which it does not hold")
        return entries

    def metrics_size(self) -> int:
        """The number of bytes of metrics recorded so far."""
        return len(self._recorded())

    def _recorded(self) -> bytes:
        try:
            return files.read(self.path / METRICS)
        except FileNotFoundError:  # nothing was recorded yet
            return b""

    def _undamaged_metrics(self, checkpoints: list[Checkpoint]) -> bytes:
        """The metrics recorded so far; CorruptError if they do not begin with the newest copy in these checkpoints."""
        recorded = self._recorded()
        for checkpoint in checkpoints:
            with contextlib.suppress(CorruptError):
                copy = checkpoint.read(METRICS)
                break
        else:
            return recorded
        if not recorded.startswith(copy):
            how = f"to restore it from the newest checkpoint, go on with: {resume_command(self.path)}"
            raise CorruptError(f"{self.path / METRICS} is damaged; {how}")
        return recorded

    def restore_metrics(self, checkpoint: Checkpoint | None, size: int = 0) -> Path | None:
        """Set the metrics back to those of a checkpoint, or to none; what was recorded later is cut off.

        If the file does not begin with the metrics of the checkpoint, it is damaged and set aside; returns its new path
        then. `size` is their number of bytes, for checkpoints that were made before they had a copy.
        """
        recorded, aside = self._recorded(), None
        if checkpoint is not None and checkpoint.has_file(METRICS):
            wanted = checkpoint.metrics()
        elif len(recorded) < size:
            raise CorruptError(f"{self.path / METRICS} is damaged: {size:,} bytes were written, fewer are left")
        else:
            wanted = _validations(recorded[:size], self.path / METRICS)
        if recorded == wanted:
            return None
        if recorded and not recorded.startswith(wanted):
            aside = files.set_aside(self.path / METRICS, DAMAGED)
        files.write(self.path / METRICS, wanted, self.id)
        return aside

    def finish(self) -> None:
        """Mark the run as finished: add the metrics to the manifest, and keep only the newest checkpoint."""
        self._write_manifest(self.manifest().files | {METRICS: [digest(self._recorded())]})
        with write_errors(self.path):
            self._remove_older_checkpoints()

    def prolong(self, recipe: recipes.Recipe, update: int) -> None:
        """Mark the run as not finished, and replace its recipe; its old length is recorded with the updates done.

        After each step, the run can be resumed: by the old recipe, and from the last step on by the new one.
        """
        old = self.recipe().train
        length = {"update": update, "train.updates": old.updates, "train.patience": old.patience}
        is_listed = length in self._read_list(PROLONGED)  # if the process was killed before the last step
        self._write_manifest({name: digests for name, digests in self.manifest().files.items() if name != METRICS})
        if not is_listed:
            self.append_to_list(PROLONGED, length)
        self.replace(RECIPE, recipes.to_toml(recipe).encode())

    def finished(self) -> bool:
        """Whether training is finished."""
        return self.has_file(METRICS)

    # Checkpoints

    def save(
        self, update: int, content: Mapping[str, bytes], write_shards: Callable[[Path], None] | None = None
    ) -> None:
        """Write a checkpoint, with a copy of the metrics; keep only the newest KEPT_CHECKPOINTS of this run.

        A checkpoint of the same update is replaced. Anything else that has its name is left alone: it gets another.
        `write_shards` writes further files into the folder of the checkpoint, which has a temporary name then.
        """
        folder, run = self.path / CHECKPOINTS, self.id
        with write_errors(folder):
            self._check_lock()
            if not self._is_own(folder):
                os.mkdir(folder)
            own = self.own_checkpoints()
            metrics = self._undamaged_metrics(own)
            same = [checkpoint for checkpoint in own if checkpoint.update == update]
            replaced = [checkpoint.path for checkpoint in same if not _foreign_files(checkpoint)]
            free = (path for path in numbered(folder / f"{update:08}") if not os.path.lexists(path))
            path = replaced[0] if replaced else next(free)
            content = {**content, METRICS: metrics}
            if write_shards is None:
                files.replace_folder(path, _with_manifest(content, run), run)
            else:
                files.replace_folder(path, content, run, partial(_add_shards, write_shards, run))
            others = [checkpoint for checkpoint in own if checkpoint.path != path]
            for old in _newest_first([Checkpoint(path), *others])[KEPT_CHECKPOINTS:]:
                self._remove(old)

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints of this run, the newest first, and damaged ones, whose run is not known."""
        run = self.id
        return [checkpoint for checkpoint in self._numbered_folders() if _run_of(checkpoint) in (run, None)]

    def checkpoint(self, name: str) -> Checkpoint:
        """The checkpoint whose folder has this name."""
        return Checkpoint(self.path / CHECKPOINTS / name)

    def own_checkpoints(self) -> list[Checkpoint]:
        """The checkpoints whose manifest names this run, the newest first."""
        run = self.id
        return [checkpoint for checkpoint in self._numbered_folders() if _run_of(checkpoint) == run]

    def newest_update(self) -> int:
        """The update of the newest checkpoint; 0 if there is none."""
        return max((checkpoint.update for checkpoint in self.own_checkpoints()), default=0)

    def foreign_names(self) -> list[str]:
        """The names of all files and folders among the checkpoints that are no checkpoint of this run: left alone."""
        own = {checkpoint.path.name for checkpoint in self.checkpoints()}
        return [name for name in self._checkpoint_names() if name not in own and not SET_ASIDE.search(name)]

    def _numbered_folders(self) -> list[Checkpoint]:
        """The folders that have the name and a file of a checkpoint, the newest first."""
        folder = self.path / CHECKPOINTS
        paths = [folder / name for name in self._checkpoint_names() if Checkpoint.NAME.fullmatch(name)]
        folders = [Checkpoint(path) for path in paths if files.is_folder(path)]
        made = [checkpoint for checkpoint in folders if {MANIFEST, MODEL, METRICS} & set(os.listdir(checkpoint.path))]
        return _newest_first(made)

    def _checkpoint_names(self) -> list[str]:
        """The names of all files and folders among the checkpoints."""
        folder = self.path / CHECKPOINTS
        with read_errors(folder):
            return sorted(os.listdir(folder)) if self._is_own(folder) else []

    def set_aside(self, checkpoint: Checkpoint) -> Path:
        """Rename a damaged checkpoint, so that it is kept but no longer used; returns its new path."""
        return files.set_aside(checkpoint.path, DAMAGED)

    def _remove_older_checkpoints(self) -> None:
        """Remove all checkpoints of this run but the newest, which a finished run keeps so that it can be prolonged."""
        for checkpoint in self.own_checkpoints()[1:]:
            self._remove(checkpoint)

    def _remove(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint, unless somebody has put other files into it."""
        if not _foreign_files(checkpoint):
            files.remove_folder(checkpoint.path, self.id)


class FollowedRun(Run):
    """A run as it is seen by a process that trains it together with others: another one locks and writes it."""

    @contextlib.contextmanager
    def training(self) -> Iterator["FollowedRun"]:
        """The run itself."""
        yield self

    def replace(self, name: str, content: bytes) -> None:
        """Leave the file to the process that writes."""

    def record(self, entry: Mapping[str, Any]) -> None:
        """Leave the metrics to the process that writes."""

    def restore_metrics(self, checkpoint: Checkpoint | None, size: int = 0) -> Path | None:
        """Leave the metrics to the process that writes."""

    def prolong(self, recipe: recipes.Recipe, update: int) -> None:
        """Leave the recipe to the process that writes."""

    def save(
        self, update: int, content: Mapping[str, bytes], write_shards: Callable[[Path], None] | None = None
    ) -> None:
        """Leave the checkpoint to the process that writes; this one adds its shards, if there are any."""
        if write_shards is not None:
            write_shards(self.path)


def _add_shards(write_shards: Callable[[Path], None], run: str, folder: Path) -> None:
    """Let shards be written into the folder of a checkpoint, and add the manifest of all files."""
    write_shards(folder)
    digests = {name: [files.digest_of_file(folder / name)] for name in sorted(os.listdir(folder))}
    files.write(folder / MANIFEST, Manifest(run, digests).to_json(), run)


def _bounded_list(entries: Sequence[Mapping[str, Any]]) -> bytes:
    """JSON of at most LARGEST_NEW_LIST bytes: the first entry, the number of those left out, and the newest entries."""
    first, *newest = [entry for entry in entries if LEFT_OUT not in entry]
    room = LARGEST_NEW_LIST - _listed_size(first) - LISTED_GAP
    kept = 0
    for entry in reversed(newest):
        room -= _listed_size(entry)
        if room < 0 and kept:
            break
        kept += 1
    left_out: int = sum(entry.get(LEFT_OUT, 0) for entry in entries) + len(newest) - kept
    gap = [{LEFT_OUT: left_out}] if left_out else []
    return json.dumps([first, *gap, *newest[len(newest) - kept :]], indent=1).encode()


def _listed_size(entry: Mapping[str, Any]) -> int:
    """The most bytes that an entry takes in the JSON of a list."""
    return len(json.dumps([entry], indent=1))


def _validations(metrics: bytes, path: Path) -> bytes:
    """The metrics of a training that goes on: checked to be validations only, each on a complete line."""
    if not all("update" in entry for entry in parse_metrics(metrics, path)) or metrics[-1:] not in (b"", b"\n"):
        raise CorruptError(f"{path} is damaged: it does not end with a validation")
    return metrics


def _is_run(path: Path) -> bool:
    """Whether a path is a run directory of regard's own: a folder, and no link, with a manifest that lists a recipe."""
    try:
        return files.is_folder(path) and Folder(path).has_file(RECIPE)
    except (StorageError, CorruptError):
        return False


def check_name(name: str) -> None:
    """Raise RecipeError if a new run cannot have this name."""
    if not NAME.fullmatch(name) or len(name.encode()) > LONGEST_NAME:
        letters = f"letters, digits, '.', '_', '+' and '-', at most {LONGEST_NAME} bytes"
        raise RecipeError(f"the name of a run is made of {letters}, not {shown(name)}")


def _why_no_run(named: Path, path: Path) -> str:
    """Why there is no run at a path, which was given as `named`, and which runs there are instead."""
    if path.is_file():
        around = next((folder for folder in path.parents if Run.at(folder)), None)
        return f"{path} is a file; name the folder of a run" + (f": {around}" if around else "")
    if inside := _runs_in(path):
        return f"{path} is a folder of runs: {_names(inside)}; name one of them, such as {inside[0]}"
    why, siblings = f"holds no run (no {MANIFEST})" if path.is_dir() else "is not there", _runs_in(path.parent)
    if named.name == latest.LATEST != path.name:
        return (
            f"{path.with_name(latest.LATEST)} points to {path}, which {why}; runs there: {_names(siblings) or 'none'}"
        )
    folder, near = path.parent, did_you_mean(str(path), map(str, siblings))
    if latest.is_name(path) and not near and (in_runs := _runs_in(latest.RUNS)):
        folder, siblings = latest.RUNS, in_runs
        same = folder / path if folder / path in siblings else None  # beside something else that has this name
        near = f"; did you mean '{same}'?" if same else did_you_mean(str(path), [run.name for run in siblings])
    others = f"; runs in {folder}: {_names(siblings)}" if siblings else ""
    return f"the run {path} {why}{near or others}"


def _runs_in(folder: Path) -> list[Path]:
    """The run directories in a folder, sorted by name; without links `latest`."""
    runs = (manifest.parent for manifest in folder.glob(f"*/{MANIFEST}"))
    return sorted(run for run in runs if run.name != latest.LATEST or not run.is_symlink())


def _names(runs: Sequence[Path]) -> str:
    """The names of runs; of many, the first ones."""
    return ", ".join([run.name for run in runs[:MOST_LISTED]] + ["..."] * (len(runs) > MOST_LISTED))


def _newest_first(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    return sorted(checkpoints, key=lambda checkpoint: (checkpoint.update, checkpoint.number), reverse=True)


def _foreign_files(checkpoint: Checkpoint) -> set[str]:
    """The names of files in a checkpoint that its manifest does not list, which somebody else has put there."""
    return set(os.listdir(checkpoint.path)) - {MANIFEST, *checkpoint.manifest().files}


def _run_of(checkpoint: Checkpoint) -> str | None:
    """The id of the run that a checkpoint belongs to; None if its manifest is damaged."""
    try:
        return checkpoint.manifest().run
    except CorruptError:
        return None


def _with_manifest(content: Mapping[str, bytes], run: str) -> dict[str, bytes]:
    """The files of a folder, and their manifest as the last one."""
    return {**content, MANIFEST: Manifest(run, {name: [digest(data)] for name, data in content.items()}).to_json()}


@contextlib.contextmanager
def _creation_lock(parent: Path) -> Iterator[None]:
    """Let one process at a time create runs in `parent`; removes partial ones of this user's killed processes."""
    with files.opened(parent.resolve(), os.O_RDONLY) as handle:
        with contextlib.suppress(OSError):  # some network file systems cannot lock folders: partial runs then stay
            fcntl.flock(handle, fcntl.LOCK_EX)
            for leftover in _partial_runs(parent):
                files.remove_leftover(leftover)
        yield


def _partial_runs(parent: Path) -> Iterator[Path]:
    """Folders of runs, and links `latest`, of this user that have a temporary name of `Run.create`."""
    pattern = re.compile(rf"\..+\.regard-new-[0-9a-f]{{16}}-[0-9a-f]{{16}}{re.escape(files.PARTIAL)}")
    for path in [parent / name for name in os.listdir(parent) if pattern.fullmatch(name)]:
        if (files.is_folder(path) or path.is_symlink()) and os.lstat(path).st_uid == os.geteuid():
            yield path


def _this_process() -> dict[str, Any]:
    """The host, the number and the start of training of this process, for the lock file."""
    return {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}


def _owner(lock: int) -> str:
    """The process that holds a lock file, in words."""
    try:
        owner = json.loads(os.pread(lock, LARGEST_OWNER, 0))
        host, process, since = (str(owner[key])[:80] for key in ("host", "process", "since"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # written by an older version, or damaged
        return "another process"
    return f"process {process} on {host}, since {since}"


def resume_command(path: Path) -> str:
    """The command that resumes a run, quoted for a shell."""
    return f"regard train --resume {shlex.quote(str(path))}"


def _digest_of(content: Mapping[str, Any]) -> str:
    return digest(json.dumps(content, sort_keys=True).encode())
