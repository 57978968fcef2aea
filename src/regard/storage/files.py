"""Files and folders: written atomically under temporary names of regard's own, read with a limit, links refused.

A file is written under a temporary name in the same folder, synced to the disk and renamed; so is a folder of files. At
any time, also after the process was killed, there is either the complete old content or the complete new one. A
temporary name holds the id of the run that it belongs to and a random part; it must be free, so nothing that somebody
else has put there is written to, and only names with the right id are ever removed.
"""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import re
import secrets
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from regard.errors import CorruptError, StorageError

PARTIAL = ".partial"  # the end of every temporary name
REPLACED = "replaced"  # stands for the random part in the name of an old folder while a new one takes its place
STEM = 60  # characters of a file's name that its temporary name repeats, so that it is not too long for the system
LARGEST_FILE = 64 << 20  # bytes of a file that is read, unless a caller allows more
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)  # of file systems that have none
NO_LINKS = os.O_NOFOLLOW | os.O_CLOEXEC


def write(path: Path, content: bytes, owner: str = "") -> None:
    """Write a file atomically: it has the old content or the complete new one. A link or a device is refused.

    `owner` is the id of the run that the file belongs to.
    """
    check_place(path)
    _write_as(path, content, owner, os.replace)


def create(path: Path, content: bytes) -> None:
    """Write a new file atomically; StorageError if something has its name."""
    check_new(path)
    _write_as(path, content, "", _name_new)


def _write_as(path: Path, content: bytes, owner: str, give_name: Callable[[Path, Path], None]) -> None:
    """Write a file under a temporary name, and give it its name when it is complete."""
    partial = _temporary(path, owner)
    with write_errors(path):
        try:
            _write_synced(partial, content, os.O_EXCL)
            give_name(partial, path)
            sync_folder(path.parent)
        except FileExistsError:  # somebody else's file has the temporary name
            raise
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


class GrowingFile:
    """A file that is written piece by piece, atomically as by `write`: it gets its name at the end of the block.

    If the block or a write fails, what had the name stays.
    """

    def __init__(self, path: Path) -> None:
        check_place(path)
        self.path, self._partial = path, _temporary(path, "")

    def __enter__(self) -> "GrowingFile":
        with write_errors(self.path):
            self._handle = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS, 0o666)
        return self

    def write(self, content: bytes) -> None:
        """Append to the file."""
        with write_errors(self.path):
            write_all(self._handle, content)

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            with write_errors(self.path):
                if kind is None:
                    os.fsync(self._handle)
                    os.replace(self._partial, self.path)
                    sync_folder(self.path.parent)
        finally:
            os.close(self._handle)
            self._partial.unlink(missing_ok=True)


def _name_new(partial: Path, path: Path) -> None:
    """Give a complete file its name; unlike a renaming, a hard link never replaces what has the name."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise StorageError(_taken(path)) from None
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        check_new(path)
        os.rename(partial, path)
    else:
        partial.unlink()


def check_new(path: Path) -> None:
    """Raise StorageError if no new file can have this path: its folder is missing, or something has the name."""
    with write_errors(path):
        _check_folder(path)
        if not _is_free(path):
            raise StorageError(_taken(path))


def _taken(path: Path) -> str:
    return f"{path} is there already, and is not replaced; remove it, or choose another name"


def check_place(path: Path) -> None:
    """Raise StorageError if no file can have this path: its folder is missing, or something else has the name."""
    with write_errors(path):
        _check_folder(path)
        if not _is_free(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise StorageError(f"{path} is there and is not a file (a link, a folder or a device); choose another name")


def make_folder(path: Path) -> None:
    """Make a folder, and those that it is in, unless it is there."""
    with write_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def _check_folder(path: Path) -> None:
    """Raise an error if the folder of a file is missing, or is a file."""
    try:
        os.stat(os.path.join(path.parent, "."))
    except FileNotFoundError:
        how = f"make it first: mkdir -p {shlex.quote(str(path.parent))}"
        raise StorageError(f"{path} cannot be written: there is no folder {path.parent}; {how}") from None


def replace_link(path: Path, target: str, owner: str) -> None:
    """Let a symbolic link point to another target, atomically."""
    partial = _temporary(path, owner)
    os.symlink(target, partial)
    try:
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def append(path: Path, content: bytes, owner: str) -> None:
    """Append to a file, which is created if it is missing, and sync it to the disk; not atomic. A link is refused.

    A file that has another name too (a hard link, as in some backups) is replaced, so that the other stays as it is.
    """
    with write_errors(path):
        if not _is_free(path) and os.lstat(path).st_nlink > 1:
            write(path, read(path) + content, owner)
        else:
            _write_synced(path, content, os.O_APPEND)


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file of any size."""
    with opened(path, os.O_RDONLY) as handle, os.fdopen(handle, "rb", closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: Path, most: int = LARGEST_FILE) -> bytes:
    """The content of a file of at most `most` bytes.

    Raises FileNotFoundError if it is missing, CorruptError if it is too large or no file (a link, a folder, a device),
    and StorageError if it cannot be read now.
    """
    with read_errors(path):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | NO_LINKS)  # a FIFO without a writer does not wait
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
                raise CorruptError(
                    f"{path} is a link or a device, which regard does not read; put the file there"
                ) from error
            raise
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise CorruptError(f"{path} is a folder or a device, not a file; put the file there")
            if status.st_size > most:
                raise CorruptError(f"{path} has {status.st_size:,} bytes, more than the {most:,} it can need")
            with os.fdopen(handle, "rb", closefd=False) as file:
                return file.read(status.st_size)
        finally:
            os.close(handle)


def numbered(path: Path) -> Iterator[Path]:
    """The path itself, then PATH-2, PATH-3 and so on: names to try for a new file or folder."""
    yield path
    for number in itertools.count(2):
        yield path.with_name(f"{path.name}-{number}")


def set_aside(path: Path, ending: str) -> Path:
    """Rename a file or a folder to a free name with that ending; returns the new path."""
    aside = next(filter(_is_free, numbered(path.with_name(f"{path.name}{ending}"))))
    with write_errors(path):
        os.rename(path, aside)
        sync_folder(path.parent)
    return aside


def _is_free(path: Path) -> bool:
    """Whether nothing has this name, not even a link to nowhere."""
    return not os.path.lexists(path)


def is_folder(path: Path) -> bool:
    """Whether the path is a folder, and not a link to one."""
    with read_errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return stat.S_ISDIR(os.lstat(path).st_mode)
    return False


def is_open_as(handle: int, path: Path) -> bool:
    """Whether a handle is of the file that has this path now."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


# Temporary names


def _temporary(path: Path, owner: str, part: str = "") -> Path:
    """A temporary name for a path; `part` stands in place of the random part."""
    return path.with_name(f".{path.name[:STEM]}.regard-{owner}-{part or secrets.token_hex(8)}{PARTIAL}")


def leftovers(folder: Path, owner: str) -> Iterator[tuple[Path, str]]:
    """The temporary names of a run in a folder, which a killed process left; with each the name that it stood for.

    The name is empty for what was never complete or was being removed; it is given for an old folder whose replacement
    was not finished.
    """
    pattern = re.compile(rf"\.(.+)\.regard-{re.escape(owner)}-(?:[0-9a-f]{{16}}|({REPLACED})){re.escape(PARTIAL)}")
    for name in sorted(os.listdir(folder)):
        if match := pattern.fullmatch(name):
            yield folder / name, match[1] if match[2] else ""


# Folders


def create_folder(path: Path, files: Mapping[str, bytes], owner: str) -> None:
    """Create, atomically, a folder with these files; raises FileExistsError if something has its name."""
    with _partial_folder(path, files, owner) as partial:
        if not _is_free(path):
            raise FileExistsError(str(path))
        os.rename(partial, path)
        sync_folder(path.parent)


def replace_folder(
    path: Path, files: Mapping[str, bytes], owner: str, complete: Callable[[Path], None] = lambda folder: None
) -> None:
    """Create a folder with these files in place of an old one of that name, if there is one.

    `complete` may add files to the new folder before it gets its name. If the process is killed in between, the old one
    has a temporary name, see `leftovers`.
    """
    with _partial_folder(path, files, owner) as partial:
        complete(partial)
        replaced = None if _is_free(path) else _temporary(path, owner, REPLACED)
        if replaced is not None:
            os.rename(path, replaced)
        try:
            os.rename(partial, path)
        except BaseException:
            if replaced is not None:
                os.rename(replaced, path)
            raise
        sync_folder(path.parent)
    if replaced is not None:
        _remove_files(replaced)


@contextlib.contextmanager
def _partial_folder(path: Path, files: Mapping[str, bytes], owner: str) -> Iterator[Path]:
    """Write a folder under a temporary name, to be renamed to `path` in the block; removed if that fails."""
    partial = _temporary(path, owner)
    os.mkdir(partial)
    try:
        for name, content in files.items():
            _write_synced(partial / name, content, os.O_EXCL)
        sync_folder(partial)
        yield partial
    except BaseException:
        with contextlib.suppress(OSError):
            _remove_files(partial)
        raise


def remove_folder(path: Path, owner: str) -> None:
    """Remove a folder of files; it is renamed first, so that a half-removed one is never read as complete."""
    _remove_files(path.rename(_temporary(path, owner)))


def remove_leftover(path: Path) -> None:
    """Remove a file or a folder that has a temporary name of regard's own."""
    if is_folder(path):
        _remove_files(path)
    else:
        path.unlink(missing_ok=True)


def _remove_files(folder: Path) -> None:
    """Remove a folder with its files; one that holds folders, which regard never makes there, stays with those."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as handle:
        for name in os.listdir(handle):
            with contextlib.suppress(IsADirectoryError, PermissionError):  # the second on macOS
                os.unlink(name, dir_fd=handle)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


# The system's calls


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Open a file or a folder, but no link, and close it after the block."""
    handle = os.open(path, flags | NO_LINKS, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(path: Path, flags: int) -> Iterator[int]:
    """Open a file as `opened` does, when no other process has it locked; another one may have removed it meanwhile."""
    while True:
        with opened(path, flags) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if is_open_as(handle, path):
                yield handle
                return


def _write_synced(path: Path, content: bytes, mode: int) -> None:
    """Write a new file (`mode` O_EXCL), or append to one (O_APPEND), and sync it to the disk; not atomic."""
    with opened(path, os.O_WRONLY | os.O_CREAT | mode) as handle:
        write_all(handle, content)
        os.fsync(handle)


def write_all(handle: int, content: bytes) -> None:
    """Write the whole content; a single call of the system may write less."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(handle, rest) :]


def sync_folder(folder: Path) -> None:
    """Sync a folder to the disk, so that a rename in it survives a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(content: bytes) -> str:
    """The SHA-256 of a content, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn OSError into StorageError, except FileNotFoundError; a file that cannot be read now may be undamaged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        later = "" if error.errno == errno.ENAMETOOLONG else "; it may be undamaged: try again later"
        raise StorageError(f"{path} cannot be read: {_reason(error)}{later}") from error


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn OSError into StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    """The system's words for an error; those for a link where none is followed would mislead."""
    return "it is a link, which regard does not follow" if error.errno == errno.ELOOP else error.strerror or str(error)
