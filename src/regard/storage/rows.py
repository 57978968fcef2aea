"""Rows of bytes of one size in a file of the cache, by key: computed once, memory-mapped, shared by processes."""

import contextlib
import fcntl
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.storage import files
from regard.storage.cache import home, is_reading_only

KEY = 32  # bytes of a key: a SHA-256
CHECKSUM = 4  # bytes of the CRC-32 of key and row, behind each row

Row = NDArray[np.uint8]


class CachedRows:
    """Rows of `size` bytes by key, in one file: each as key, row and checksum.

    Rows are only ever appended, so a killed process leaves at most an incomplete row at the end, which the next writer
    cuts off. A row whose checksum does not fit counts as missing; it is appended anew, and the last one counts. If the
    file cannot be written, or inside `reading_only()`, new rows stay in memory.
    """

    def __init__(self, kind: str, name: str, size: int) -> None:
        self.path: Path = home() / kind / name
        self.size = size
        self._record = KEY + size + CHECKSUM
        self._records: NDArray[np.uint8] = np.empty((0, self._record), np.uint8)
        self._places: dict[bytes, int] = {}
        self._checked: set[bytes] = set()
        self._memory: dict[bytes, bytes] = {}
        with contextlib.suppress(OSError):
            self._refresh()

    def get(self, key: bytes) -> Row | None:
        """The row of a key, mapped and not copied; None if it is missing or damaged."""
        if key in self._memory:
            return np.frombuffer(self._memory[key], np.uint8)
        if key not in self._places:
            return None
        record = self._records[self._places[key]]
        if not (record[:KEY].tobytes() == key and (key in self._checked or _is_whole(record))):
            del self._places[key]
            return None
        self._checked.add(key)
        return record[KEY:-CHECKSUM]

    @contextlib.contextmanager
    def adding(self) -> Iterator[Callable[[Mapping[bytes, bytes]], None]]:
        """Gives a function that adds rows; in the block, no other process adds any, and those of others are known.

        Processes that need the same rows, such as trainings that run side by side, so share the work.
        """
        with contextlib.ExitStack() as stack:
            handle = None
            with contextlib.suppress(OSError):
                if not is_reading_only():
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    handle = stack.enter_context(files.opened(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND))
                    fcntl.flock(handle, fcntl.LOCK_EX)
                    self._refresh()
            yield partial(self._add, handle)

    def _add(self, handle: int | None, rows: Mapping[bytes, bytes]) -> None:
        """Append rows to the file, or keep them in memory if that is not possible."""
        with contextlib.suppress(OSError):
            if handle is not None:
                self._append(handle, rows)
        self._memory |= {key: row for key, row in rows.items() if self.get(key) is None}

    def _append(self, handle: int, rows: Mapping[bytes, bytes]) -> None:
        os.ftruncate(handle, os.fstat(handle).st_size // self._record * self._record)  # without an incomplete row
        for key, row in rows.items():
            assert (len(key), len(row)) == (KEY, self.size)
            files.write_all(handle, key + row + _checksum(key + row))
        self._refresh()

    def _refresh(self) -> None:
        """Map the rows that were added since the last call."""
        with files.opened(self.path, os.O_RDONLY) as handle, os.fdopen(handle, "rb", closefd=False) as file:
            count, known = os.fstat(handle).st_size // self._record, len(self._records)
            if count <= known:
                return
            self._records = np.memmap(file, np.uint8, mode="r", shape=(count, self._record))
        for place in range(known, count):
            key = self._records[place, :KEY].tobytes()
            self._places[key] = place
            self._checked.discard(key)


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(CHECKSUM, "big")


def _is_whole(record: Row) -> bool:
    """Whether the checksum of a record is that of its key and row."""
    return record[-CHECKSUM:].tobytes() == _checksum(record[:-CHECKSUM].tobytes())
