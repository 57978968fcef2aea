"""Arrays in files of the cache that grow block by block: checked, memory-mapped, continued after a kill."""

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.storage import files
from regard.storage.cache import home, is_reading_only

JOURNAL = "journal"
PIECE = 1 << 20  # bytes that are checked at a time
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)  # a cache that cannot be written is not used

Array = NDArray[Any]
Blocks = Sequence[Mapping[str, Any]]  # of each block: the number of its items, and size and CRC-32 of its part of files


class CachedArrays:
    """Arrays of these types under a kind and a name, each in a file of its own.

    A journal has a line for each block with the checksums of its part of every file, and a last line once all blocks
    are there. A killed process leaves at most a block that is not in the journal, which the next one cuts off.
    """

    def __init__(self, kind: str, name: str, types: Mapping[str, str]) -> None:
        self.path: Path = home() / kind / name
        self.types = types

    def load(self, check: Callable[[Blocks], Iterable[Mapping[str, Any]]] = iter) -> dict[str, Array] | None:
        """The arrays, mapped into memory after their checksums are compared; None if they are missing or not complete.

        `check` wraps the blocks as they are checked, to show progress. Raises ValueError if a file is damaged.
        """
        try:
            with files.opened(self.path / JOURNAL, os.O_RDONLY) as handle:
                blocks, is_complete = _read_journal(handle)
        except OSError:
            return None
        if not is_complete:
            return None
        if self._whole(check(blocks)) < len(blocks):
            raise ValueError("a checksum differs")
        try:
            return {name: self._map(name, blocks) for name in self.types}
        except OSError:  # another process has removed them since
            return None

    def _map(self, name: str, blocks: Blocks) -> Array:
        size = sum(block["parts"][name][0] for block in blocks) // np.dtype(self.types[name]).itemsize
        if not size:
            return np.empty(0, self.types[name])
        with files.opened(self.path / name, os.O_RDONLY) as handle, os.fdopen(handle, "rb", closefd=False) as file:
            mapped = np.memmap(file, self.types[name], mode="r", shape=(size,))
        return mapped.view(np.ndarray)  # slices of a memmap are slow

    def _whole(self, blocks: Iterable[Mapping[str, Any]]) -> int:
        """The number of blocks from the first on whose checksums fit."""
        count = 0
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            handles = {name: stack.enter_context(files.opened(self.path / name, os.O_RDONLY)) for name in self.types}
            for block in blocks:
                if any(not _fits(handles[name], *block["parts"][name]) for name in self.types):
                    break
                count += 1
        return count

    def remove(self) -> None:
        """Remove all files, such as damaged ones; who has mapped them still has them."""
        for name in (JOURNAL, *self.types):
            with contextlib.suppress(OSError):
                os.unlink(self.path / name)

    @contextlib.contextmanager
    def writing(self) -> Iterator["Writing"]:
        """In the block, no other process writes these arrays; what a killed one has written is kept.

        If the cache cannot be written, or inside `reading_only()`, the blocks are collected in memory.
        """
        with contextlib.ExitStack() as stack:
            try:
                if is_reading_only():
                    raise PermissionError(errno.EPERM, "nothing is written")
                self.path.mkdir(parents=True, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT
                journal = stack.enter_context(files.locked(self.path / JOURNAL, flags))
                handles = {name: stack.enter_context(files.opened(self.path / name, flags)) for name in self.types}
            except OSError as error:
                if error.errno not in NOT_WRITABLE:
                    with files.write_errors(self.path):
                        raise
                yield Writing(self, [], None, {}, is_complete=False)
                return
            with files.write_errors(self.path):
                blocks, is_complete = _read_journal(journal)
                if not is_complete:
                    blocks = blocks[: self._whole(blocks)]
                    os.ftruncate(journal, sum(len(_line(block)) for block in blocks))
                    os.lseek(journal, 0, os.SEEK_END)
                    for name, handle in handles.items():
                        os.ftruncate(handle, sum(block["parts"][name][0] for block in blocks))
                        os.lseek(handle, 0, os.SEEK_END)
            yield Writing(self, [block["items"] for block in blocks], journal, handles, is_complete=is_complete)


class Writing:
    """Appends blocks to arrays; `done` has the number of items of each block that is there already."""

    def __init__(
        self,
        arrays: CachedArrays,
        done: list[int],
        journal: int | None,
        handles: Mapping[str, int],
        *,
        is_complete: bool,
    ) -> None:
        self.done, self.is_complete = done, is_complete
        self._arrays, self._journal, self._handles = arrays, journal, handles
        self._memory: dict[str, list[Array]] = {name: [] for name in arrays.types}

    def append(self, items: int, contents: Mapping[str, bytes]) -> None:
        """Append a block of so many items: the bytes of each array."""
        if self._journal is None:
            for name, content in contents.items():
                self._memory[name].append(np.frombuffer(content, self._arrays.types[name]))
            return
        with files.write_errors(self._arrays.path):
            for name, content in contents.items():
                files.write_all(self._handles[name], content)
            parts = {name: [len(content), zlib.crc32(content)] for name, content in contents.items()}
            files.write_all(self._journal, _line({"items": items, "parts": parts}))

    def finish(self) -> dict[str, Array] | None:
        """All blocks are there: the arrays, if they are in memory; otherwise `load` gives them from now on."""
        if self._journal is None:
            return {
                name: np.concatenate([np.empty(0, self._arrays.types[name]), *blocks])
                for name, blocks in self._memory.items()
            }
        with files.write_errors(self._arrays.path):
            if self.is_complete:
                return None
            for handle in self._handles.values():
                os.fsync(handle)
            files.write_all(self._journal, _line({"end": True}))
            os.fsync(self._journal)
            files.sync_folder(self._arrays.path)
        return None


def _line(record: Mapping[str, Any]) -> bytes:
    """A line of a journal: a checksum, and the record as JSON."""
    content = json.dumps(record).encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _read_journal(handle: int) -> tuple[Blocks, bool]:
    """The records of the blocks up to the first damaged one, and whether all blocks are there."""
    os.lseek(handle, 0, os.SEEK_SET)
    with os.fdopen(handle, "rb", closefd=False) as file:
        lines = file.read().split(b"\n")
    blocks: list[Mapping[str, Any]] = []
    for line in lines[:-1]:
        checksum, _, content = line.partition(b" ")
        if checksum != b"%08x" % zlib.crc32(content):
            break
        record = json.loads(content)
        if "end" in record:
            return blocks, True
        blocks.append(record)
    return blocks, False


def _fits(handle: int, size: int, checksum: int) -> bool:
    """Whether the next bytes of a file have this checksum."""
    found, left = 0, size
    while left and (piece := os.read(handle, min(left, PIECE))):
        found, left = zlib.crc32(piece, found), left - len(piece)
    return not left and found == checksum
