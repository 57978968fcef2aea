"""Reads what `datasets` of Hugging Face saved in a folder (`save_to_disk`), by pyarrow, within limits.

The folder has Arrow streams, and JSON that names them and their labels. Nothing is downloaded, and no code of a dataset
runs. Compressed streams are refused before they are unpacked: `datasets` writes none.
"""

import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.data.files import FIELDS, check_limit, opened
from regard.data.paths import INFO, STATE, find
from regard.errors import DataError, MissingExtraError, shown
from regard.recipe import Limits

LARGEST_JSON = 2**24  # bytes
ROWS = 1000  # that are converted at a time
COMPRESSION = 3  # the field of a record batch in the header of its message
UNREADABLE = (
    *(OSError, ValueError, ArithmeticError, NotImplementedError, KeyError, IndexError, TypeError, MemoryError),
    *(AttributeError, RecursionError, StopIteration, struct.error),
)


class SavedDataset:
    """The columns of a dataset that was saved in a folder, its rows, and the names of its labels."""

    def __init__(self, name: str, limits: Limits) -> None:
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("pyarrow", "parquet", f"reading the dataset {name}") from error
        self.name, self._limits, self._folder = name, limits, find(name).parent
        with self._refused():
            self._files = [str(file["filename"]) for file in self._json(STATE)["_data_files"]]
            if not self._files or any(Path(file).name != file for file in self._files):
                raise ValueError(f"{STATE} names no files of the folder")
            features = self._json(INFO).get("features") or {}
            self._labels = {
                column: list(map(str, feature["names"]))
                for column, feature in features.items()
                if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel"
            }
            with self._messages(self._files[0]) as (schema, _):
                self.columns: list[str] = schema.names

    def records(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The values of each row in these columns; `a.b` is in the record of the column a. Labels are their names."""
        import pyarrow.ipc

        rows = 0
        for file in self._files:
            with self._messages(file) as (schema, messages):
                tops = list(dict.fromkeys(_top(column, schema.names) for column in columns))
                for column in columns:
                    self._check_type(schema, column)
                for message in messages:
                    batch = pyarrow.ipc.read_record_batch(message, schema).select(tops)
                    rows += batch.num_rows
                    check_limit(self.name, rows, self._limits.lines, "records", "lines")
                    batch.validate(full=True)
                    for start in range(0, batch.num_rows, ROWS):
                        yield from map(self._with_labels, batch.slice(start, ROWS).to_pylist())

    def rows(self) -> int:
        """The number of rows."""
        return sum(1 for _ in self.records(self.columns[:1]))

    def _with_labels(self, record: dict[str, Any]) -> dict[str, Any]:
        for column in self._labels.keys() & record.keys():
            number = record[column]  # -1 is that of a missing label
            record[column] = None if number is None or number < 0 else self._labels[column][number]
        return record

    def _check_type(self, schema: Any, column: str) -> None:
        """Refuse what is neither text nor number: of lists, one value may take any amount of memory."""
        from pyarrow import types

        top = _top(column, schema.names)
        kind, rest = schema.field(top).type, column[len(top) + 1 :]
        for part in rest.split(".") if rest else []:
            if not types.is_struct(kind) or kind.get_field_index(part) < 0:
                raise DataError(f"{self.name}: the column {shown(top)} has no {shown(rest)}; it holds {kind}")
            kind = kind.field(part).type
        plain = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
        if not any(is_kind(kind) for is_kind in plain):
            how = " (name a column of a record as RECORD.COLUMN)" if types.is_struct(kind) else ""
            raise DataError(f"{self.name}: the column {shown(column)} holds {kind}, expected texts or numbers{how}")

    @contextmanager
    def _messages(self, file: str) -> Iterator[tuple[Any, Iterator[Any]]]:
        """The schema of an Arrow stream, and its batches as they are stored."""
        import pyarrow.ipc

        with opened(str(self._folder / file)) as (handle, status), self._refused():
            check_limit(self.name, status.st_size, self._limits.file_bytes, "bytes", "file_bytes")
            reader = pyarrow.ipc.MessageReader.open_stream(os.fdopen(handle, "rb", closefd=False))
            schema = pyarrow.ipc.read_schema(reader.read_next_message())
            if len(schema.names) > FIELDS:
                raise DataError(f"{self.name} has more than {FIELDS:,} columns; save those that you need")
            yield schema, self._batches(reader)

    def _batches(self, reader: Any) -> Iterator[Any]:
        while True:
            try:
                message = reader.read_next_message()
            except StopIteration:
                return
            if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
                raise ValueError("it holds what datasets does not write")
            yield message

    def _json(self, file: str) -> dict[str, Any]:
        with opened(str(self._folder / file)) as (handle, status), self._refused():
            check_limit(f"{self.name}/{file}", status.st_size, LARGEST_JSON, "bytes", "file_bytes")
            content = json.loads(os.pread(handle, LARGEST_JSON, 0))
        if not isinstance(content, dict):
            raise ValueError(f"{file} is no object")
        return content

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Turns errors of pyarrow and of damaged JSON into a DataError."""
        try:
            yield
        except UNREADABLE as error:
            reason, how = shown(str(error) or type(error).__name__), "save it again with save_to_disk"
            raise DataError(f"{self.name} is not a whole dataset ({reason}); {how}") from error


def _top(column: str, names: Sequence[str]) -> str:
    """The column of the dataset that a column is, or is a part of."""
    return column if column in names else column.partition(".")[0]


def _is_compressed(header: bytes) -> bool:
    """Whether the record batch of a message's header (a flatbuffer) is compressed."""

    def table(place: int) -> int:
        return place + int(struct.unpack_from("<I", header, place)[0])

    def field(of: int, number: int) -> int:
        """The place of a field of a table; 0 if it is not set."""
        fields = of - int(struct.unpack_from("<i", header, of)[0])
        size = struct.unpack_from("<H", header, fields)[0]
        offset = struct.unpack_from("<H", header, fields + 4 + 2 * number)[0] if 4 + 2 * number < size else 0
        return of + int(offset) if offset else 0

    batch = table(field(table(0), 2))  # a message has: version, type of its header, header
    return field(batch, COMPRESSION) != 0
