"""The cache: results that take long to compute, such as trained tokenizers, kept between runs."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from regard.errors import CorruptError, StorageError
from regard.storage import files

LARGEST_RESULT = 1 << 30  # bytes of a cached result
_reading_only: ContextVar[bool] = ContextVar("_reading_only", default=False)


def home() -> Path:
    """The folder of the cache: $REGARD_CACHE, or `regard` in the folder of all caches."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("REGARD_CACHE") or os.path.join(caches, "regard"))


def write_to_cache(kind: str, name: str, content: bytes) -> Path:
    """Write a file to the cache folder, under a kind and a name; returns its path."""
    path = home() / kind / name
    with files.write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, content)
    return path


@contextlib.contextmanager
def reading_only() -> Iterator[None]:
    """In the block, nothing is written to the cache."""
    token = _reading_only.set(True)
    try:
        yield
    finally:
        _reading_only.reset(token)


def is_reading_only() -> bool:
    """Whether nothing may be written to the cache now."""
    return _reading_only.get()


def cached(kind: str, digest: str, make: Callable[[], bytes]) -> bytes:
    """The result of `make` from the cache, under a kind and a digest; called if the cache lacks it or is damaged.

    One process calls `make`; others that want the result wait, and read it then. If the cache cannot be written, or
    inside `reading_only()`, each calls `make`, and the result is returned all the same.
    """
    path = home() / kind / digest
    content = _read(path)
    if content is not None:
        return content
    if is_reading_only():
        return make()
    with _locked(path):
        content = _read(path)  # by another process meanwhile
        if content is not None:
            return content
        content = make()
        with contextlib.suppress(OSError, StorageError):
            files.write(path, files.digest(content).encode() + b"\n" + content, owner=digest)
            for leftover, _ in files.leftovers(path.parent, owner=digest):  # of killed processes
                files.remove_leftover(leftover)
        return content


def _read(path: Path) -> bytes | None:
    """A result in the cache; None if it is not there or damaged."""
    with contextlib.suppress(OSError, ValueError, StorageError, CorruptError):
        checksum, content = files.read(path, LARGEST_RESULT).split(b"\n", 1)
        if checksum == files.digest(content).encode():
            return content
    return None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """In the block, no other process computes the result of this path, if a lock can be written beside it."""
    lock = path.with_name(f".{path.name}.lock")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.locked(lock, os.O_RDWR | os.O_CREAT))
            stack.callback(lock.unlink, missing_ok=True)  # before it is unlocked: who waits for it makes a new one
        yield
