"""Reads records with named columns: CSV, TSV, JSONL and Parquet files, pairs or data frames given in Python."""

import csv
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from regard.console import counted
from regard.data.datasets import SavedDataset
from regard.data.files import FIELDS, LIMITS, Loaded, check_expansion, check_limit, how_to_convert, load, reading
from regard.data.parquet import open_parquet
from regard.data.paths import DATASET
from regard.data.store import LONG, Integers, Lines, Mapped, StoredExamples, Texts, joined, where
from regard.errors import DataError, RecipeError, did_you_mean, shown
from regard.recipe import Limits

PAIRS, DEV = "pairs given in Python", "dev pairs given in Python"  # in a recipe, in place of the names of files
DELIMITERS = ",;\t"  # of CSV files; the first with which the columns are found
TABBED = ".tsv"  # of files that have a header only if their first line names the columns that are to be read
LISTED = 20  # columns that a message names
VALUES = 100_000  # of a JSON object, with those in its lists and objects

STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?')  # of JSON

Fields = tuple[str, ...]
Given = Mapping[str, Any]  # what a program gave as `PAIRS` and `DEV`
NOTHING_GIVEN: Given = {}


class Record(NamedTuple):
    """The texts of one record in the columns that were asked for, and the number of its first line, from 1."""

    number: int
    fields: Sequence[str]


class Records:
    """The texts of some columns of many records, in one buffer of bytes."""

    def __init__(self, name: str, width: int, content: bytearray, ends: Integers, numbers: Integers) -> None:
        self.name, self.width = name, width
        self._content, self._ends, self._numbers = content, ends.data, numbers.data

    @staticmethod
    def of(name: str, records: Iterable[Record], width: int, limits: Limits = LIMITS) -> "Records":
        """Stores records of `width` columns; DataError if they are larger than the limits allow, or not Unicode."""
        content, ends, numbers = bytearray(), array("Q", [0]), array(LONG)
        for number, fields in records:
            for field in fields:
                try:
                    content += field.encode()
                except UnicodeEncodeError:  # JSON may have one as an escape
                    raise DataError(f"{name}:{number}: half of a surrogate pair, which is no character") from None
                ends.append(len(content))
            numbers.append(number)
            check_limit(name, len(content), limits.file_bytes, "bytes, unpacked", "file_bytes")
            check_limit(name, len(numbers), limits.lines, "records", "lines")
        return Records(name, width, content, np.asarray(ends), np.asarray(numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    def fields(self, index: int) -> Fields:
        """The texts of the record at an index from 0."""
        bounds = self._ends[index * self.width : (index + 1) * self.width + 1].tolist()
        return tuple(self._content[start:end].decode() for start, end in pairwise(bounds))

    def origin(self, index: int) -> str:
        """The name of the file and the line of the record at an index from 0."""
        return f"{self.name}:{self._numbers[index]}"

    def all_fields(self) -> Mapped[Fields]:
        """The texts of each record."""
        return Mapped(np.arange(len(self), dtype=np.int32), self.fields)

    def examples(self, texts: Callable[[Fields], Texts]) -> StoredExamples:
        """An example for each record without a blank field; `texts` makes source and target from its fields."""
        complete = where(self.all_fields(), lambda fields: all(map(str.strip, fields)))
        return StoredExamples(complete, lambda index: texts(self.fields(index)), self.origin)


# from files to examples


def ending(name: str) -> str:
    """The ending of a file with named columns, such as .csv, without .gz, or `datasets:`; empty for any other file."""
    if name.startswith(DATASET):
        return DATASET
    suffix = Path(name.lower().removesuffix(".gz")).suffix
    return suffix if suffix in READERS else ""


def has_columns(name: str) -> bool:
    """Whether a name in a recipe is that of records with named columns."""
    return name in (PAIRS, DEV) or bool(ending(name))


def may_have_columns(name: str) -> bool:
    """Whether a file can have named columns, by its ending: beside those that always have them, a TSV file."""
    return bool(ending(name)) or _is_tabbed(name)


def is_table(name: str, columns: Sequence[str], limits: Limits = LIMITS) -> bool:
    """Whether a file is read by these named columns: by its ending, or as a TSV file whose first line has them all."""
    if ending(name) or not columns or not _is_tabbed(name):
        return bool(ending(name))
    return set(columns) <= set(column_names(name, limits))


def _is_tabbed(name: str) -> bool:
    return name.lower().removesuffix(".gz").endswith(TABBED)


def check_tables(names: Sequence[str], columns: Sequence[str], key: str, limits: Limits = LIMITS) -> None:
    """Raise RecipeError if `key` names columns, but none of the files has named columns."""
    if any(has_columns(name) or is_table(name, columns, limits) for name in names):
        return
    for name in filter(_is_tabbed, names):
        there = list_names(column_names(name, limits))
        how = f"name columns that are there, or leave {key} out if that line is no header"
        raise RecipeError(f"the first line of {name} is {there}, without {list_names(columns)}; {how}")
    how = next((how for name in names if (how := how_to_convert(name))), "leave it out")
    raise RecipeError(f"{key} is for files that end in {', '.join((*READERS, TABBED))}; {how}")


def read(name: str, columns: Sequence[str], limits: Limits = LIMITS) -> Records:
    """The records of a file in these columns."""
    if name in (PAIRS, DEV):
        raise DataError(f"the {name} are not stored in the run; write them to a file, and name that")
    if not may_have_columns(name):
        endings = ", ".join((*READERS, TABBED))
        raise DataError(f"{name} has no named columns; give a file that ends in {endings}, or .gz of one")
    reader = _dataset if name.startswith(DATASET) else READERS[ending(name)] if ending(name) else _csv
    return Records.of(name, reader(name, columns, limits), len(columns), limits)


def examples(parts: Sequence[Records], texts: Callable[[Fields], Texts], noun: str) -> Loaded:
    """The examples of all records, see `Records.examples`; DataError if there are none."""
    kept = [part.examples(texts) for part in parts]
    count, left = sum(map(len, parts)), sum(map(len, kept))
    if not left:
        names = " and ".join(part.name for part in parts)
        if not count:
            nothing = "no record follows the header" if _is_csv(parts[0].name) else "there are no records"
            raise DataError(f"{names}: {nothing}; give at least one {noun}")
        raise DataError(f"{names}: no {noun} is left, because all {count:,} have a blank field")
    return Loaded(joined(kept), count - left)


def source_of(fields: Sequence[str]) -> str:
    """The source of an example from one field, or from several with tabs between them."""
    return fields[0] if len(fields) == 1 else "\t".join(field.replace("\t", " ") for field in fields)


def column_names(name: str, limits: Limits = LIMITS) -> list[str]:
    """The columns of a file, for messages."""
    kind = ending(name)
    if kind == ".parquet":
        with open_parquet(name, limits) as file:
            return file.columns
    if kind == DATASET:
        return SavedDataset(name, limits).columns
    lines = load(name, limits)
    if _is_csv(name):
        return max((_header(name, lines, delimiter) for delimiter in _delimiters(name)), key=len)
    return next((list(_object(line, name)) for line in lines if line.strip()), [])


def list_names(names: Iterable[object]) -> str:
    """Names of columns for a message; of many, the first."""
    shown_names = [str(shown(name)) for name in names]
    more = f" and {len(shown_names) - LISTED:,} more" if len(shown_names) > LISTED else ""
    return ", ".join(shown_names[:LISTED]) + more


def _missing(where: str, column: str, there: Iterable[object]) -> DataError:
    names = list(there)
    similar = did_you_mean(column, [name for name in names if isinstance(name, str)])
    how = "name others with data.columns" + ("" if where.startswith((PAIRS, DEV)) else " (of a run: --columns)")
    return DataError(f"{where} has no column {shown(column)}; there are {list_names(names)}; {how}{similar}")


def _is_csv(name: str) -> bool:
    """Whether a file with named columns has them in a header."""
    return _is_tabbed(name) or ending(name) == ".csv"


def _delimiters(name: str) -> str:
    return "\t" if _is_tabbed(name) else DELIMITERS


def _quoting(name: str) -> Literal[0, 3]:
    """The meaning of quotes for `csv.reader`: in a TSV file, with or without a header, they are part of the text."""
    return csv.QUOTE_NONE if _is_tabbed(name) else csv.QUOTE_MINIMAL


def _csv(name: str, columns: Sequence[str], limits: Limits) -> Iterator[Record]:
    """The records of a CSV file with a header; a field in quotes may hold delimiters and newlines.

    A record of a TSV file is one line, and quotes are part of its texts.
    """
    lines = load(name, limits)
    before = csv.field_size_limit(limits.line_bytes)  # a setting of the whole process
    try:
        yield from _csv_records(name, lines, columns)
    finally:
        csv.field_size_limit(before)


def _csv_records(name: str, lines: Lines, columns: Sequence[str]) -> Iterator[Record]:
    headers = {delimiter: _header(name, lines, delimiter) for delimiter in _delimiters(name)}
    delimiter = next((mark for mark in headers if set(columns) <= set(headers[mark])), None)
    if delimiter is None:
        header = max(headers.values(), key=len)
        raise _missing(name, next(column for column in columns if column not in header), header)
    header = headers[delimiter]
    if repeated := [column for column in columns if header.count(column) > 1]:
        raise DataError(f"{name} has several columns {shown(repeated[0])}; rename all but one")
    places, is_header = [header.index(column) for column in columns], True
    bounded = _BoundedRecords(name, lines, delimiter)
    reader = csv.reader(bounded, delimiter=delimiter, quoting=_quoting(name), strict=True)
    while True:
        number = bounded.start_record()
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise DataError(f"{name}:{number}: this record is not valid CSV ({error}); check its quotes") from error
        if row is None:
            return
        if not is_header:
            if len(row) != len(header):
                raise DataError(f"{name}:{number}: {len(row):,} fields, but the header names {len(header):,} columns")
            yield Record(number, [row[place] for place in places])
        is_header = False


def _header(name: str, lines: Lines, delimiter: str) -> list[str]:
    """The names in the first line of a CSV file that is not blank."""
    try:
        bounded = _BoundedRecords(name, lines, delimiter)
        rows = csv.reader(bounded, delimiter=delimiter, quoting=_quoting(name), strict=True)
        return [name.strip() for name in next(rows, [])]
    except csv.Error:
        return []


class _BoundedRecords(Iterator[str]):
    """The lines of a CSV file for `csv.reader`, which would read a record of any number of fields; DataError at most.

    A record has at most one field more than delimiters. Only if these are many, those in quotes are told from others.
    """

    def __init__(self, name: str, lines: Lines, delimiter: str) -> None:
        self._name, self._lines, self._delimiter, self._next = name, lines, delimiter, 0
        rest = rf"[^{delimiter}\n]*+(?P<end>[{delimiter}\n]?)"
        self._quoted = re.compile(rf'[^"]*+(?:""[^"]*+)*+(?P<quote>"?){rest}')
        in_quotes = r'(?:(?P<start>")[^"]*+(?:""[^"]*+)*+(?P<quote>"?))?'
        start = r"(?P<start>)(?P<quote>)" if _quoting(name) == csv.QUOTE_NONE else in_quotes
        self._field = re.compile(start + rest)
        self.start_record()

    def start_record(self) -> int:
        """Count from 0 again, after blank lines; returns the number of the record's first line."""
        self._fields, self._in_quotes, self._most, self._pending = 0, False, 0, list[str]()
        self._next = self._lines.first_with_text(self._next)
        return self._next + 1

    def __next__(self) -> str:
        if self._next == len(self._lines):
            raise StopIteration
        line = self._lines.with_end(self._next).replace("\r\n", "\n")
        self._next += 1
        self._pending.append(line)
        self._most += line.count(self._delimiter)
        if self._most > FIELDS:
            self._count_fields("".join(self._pending))
            self._most, self._pending = self._fields, []
        return line

    def _count_fields(self, text: str) -> None:
        place = 0
        while place < len(text):
            match = (self._quoted if self._in_quotes else self._field).match(text, place)
            assert match is not None  # both match an empty text
            opened = self._in_quotes or bool(match.groupdict().get("start"))
            place, self._in_quotes = match.end(), opened and not match["quote"]
            self._fields += match["end"] == self._delimiter
            if self._fields >= FIELDS:
                raise DataError(f"{self._name}:{self._next}: a record of more than {FIELDS:,} fields; check its quotes")


def _jsonl(name: str, columns: Sequence[str], limits: Limits) -> Iterator[Record]:
    """The records of a JSONL file: one JSON object per line."""
    for number, line in enumerate(load(name, limits), start=1):
        if line.strip():
            origin = f"{name}:{number}"
            yield Record(number, _fields(_object(line, origin), columns, origin))


def _object(line: str, origin: str) -> dict[str, Any]:
    _check_values(line, origin)
    try:
        value = json.loads(line, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{origin}: not valid JSON ({shown(str(error))}); write one object per line") from error
    if not isinstance(value, dict):
        raise DataError(f"{origin}: {shown(value)} is not a JSON object; write one object per line")
    if len(value) > FIELDS:
        raise DataError(f"{origin}: an object of more than {FIELDS:,} keys; write those that you need")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values; ValueError if a key is there twice: readers differ on which one counts."""
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {shown(repeated)} is there several times")
    return values


def _check_values(line: str, origin: str) -> None:
    """Refuse a line of JSON with many values before they are made; marks in strings do not count."""
    if _marks(line, 0, len(line)) <= VALUES:
        return
    count = end = 0
    for number, string in enumerate(STRING.finditer(line)):
        count += _marks(line, end, string.start())
        end = string.end()
        if max(count, number // 2) > VALUES:  # a key and its value are two strings
            break
    else:
        if count + _marks(line, end, len(line)) <= VALUES:
            return
    raise DataError(f"{origin}: more than {VALUES:,} values in one line; write those that you need")


def _marks(line: str, start: int, end: int) -> int:
    """The number of commas and opening brackets: there is at most one value more."""
    return sum(line.count(mark, start, end) for mark in ",[{")


def _parquet(name: str, columns: Sequence[str], limits: Limits) -> Iterator[Record]:
    """The records of a Parquet file; their numbers are those of its rows."""
    with open_parquet(name, limits) as file:
        for column in columns:
            if any(path.startswith(f"{column}.") for path in file.leaves):
                kinds = f"{name}: the column {shown(column)} holds lists or records"
                raise DataError(f"{kinds}, expected texts or numbers; name a column of a record as RECORD.COLUMN")
            if column not in file.leaves:
                raise _missing(name, column, file.columns)
        unpacked = 0
        for number, record in enumerate(counted(file.records(columns), reading(name), file.rows), start=1):
            fields = _fields(record, columns, f"{name}:{number}")
            size = sum(map(len, fields)) + len(fields)  # one more for each, as if they were separated
            check_limit(f"{name}:{number}", size, limits.line_bytes, "characters", "line_bytes")
            unpacked += size
            check_expansion(name, unpacked, file.size, limits)
            yield Record(number, fields)


def _dataset(name: str, columns: Sequence[str], limits: Limits) -> Iterator[Record]:
    """The records of a dataset that `datasets` saved; their numbers are those of its rows."""
    saved = SavedDataset(name, limits)
    for column in columns:
        if column not in saved.columns and column.partition(".")[0] not in saved.columns:
            raise _missing(name, column, saved.columns)
    size = 0
    for number, record in enumerate(counted(saved.records(columns), reading(name)), start=1):
        fields = _fields(record, columns, f"{name}:{number}")
        size += sum(map(len, fields))
        check_limit(name, size, limits.file_bytes, "bytes, unpacked", "file_bytes")
        yield Record(number, fields)


def parquet_rows(name: str, limits: Limits = LIMITS) -> int:
    """The number of rows of a Parquet file."""
    with open_parquet(name, limits) as file:
        return file.rows


READERS: dict[str, Callable[[str, Sequence[str], Limits], Iterator[Record]]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}


# from values to texts


def _fields(record: Mapping[str, Any], columns: Sequence[str], origin: str) -> list[str]:
    """The texts of a record in these columns; `a.b` is the column b of the record in the column a."""
    fields = []
    for column in columns:
        value: Any = record
        for part in [column] if column in record else column.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise _missing(origin, column, record)
            value = value[part]
        fields.append(_text(value, column, origin))
    return fields


def _text(value: Any, column: object, origin: str) -> str:
    """The text of a value: of a number its digits, of a missing value none."""
    if isinstance(value, str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value).__name__ == "NAType":  # the missing value of pandas
        return ""
    if isinstance(value, int | float):  # also true and false
        return "" if value != value else json.dumps(value)
    raise DataError(f"{origin}: the column {shown(column)} holds {shown(value)}, expected a text or a number")


# from Python


def given(rows: Any, columns: Sequence[str], expected: Sequence[str], name: str) -> Records:
    """The records that a program gave: a data frame, or rows with one text for each of the `expected` columns.

    A data frame is anything with `columns` (pandas, polars) or `column_names` (Arrow, datasets), or a dictionary of
    columns. If it has more columns than expected, `columns` chooses some.
    """
    return Records.of(name, _given(rows, columns, expected, name), len(expected))


def _given(rows: Any, columns: Sequence[str], expected: Sequence[str], name: str) -> Iterator[Record]:
    there = list(rows) if isinstance(rows, Mapping) else getattr(rows, "column_names", getattr(rows, "columns", None))
    if isinstance(rows, str) or (there is None and not isinstance(rows, Iterable)):
        raise DataError(f"{name}: {shown(rows)}; give a list of ({', '.join(expected)}), or a data frame")
    if there is not None:
        yield from _of_frame(rows, list(there), columns, expected, name)
        return
    for number, row in enumerate(rows, start=1):
        origin = f"{name}:{number}"
        if isinstance(row, Mapping):
            yield Record(number, _fields(row, columns or expected, origin))
            continue
        fields = (row,) if isinstance(row, str) else row
        if not isinstance(fields, Sequence) or len(fields) != len(expected):
            raise DataError(f"{origin}: {shown(row)}, expected ({', '.join(expected)})")
        pairs = zip(fields, expected, strict=True)
        yield Record(number, [_text(value, column, origin) for value, column in pairs])


def _of_frame(
    frame: Any, there: Sequence[Any], columns: Sequence[str], expected: Sequence[str], name: str
) -> Iterator[Record]:
    if isinstance(frame, Mapping) and all(hasattr(split, "column_names") for split in frame.values()):
        raise DataError(f"{name}: several splits of a dataset; give one, such as pairs=dataset[{str(there[0])!r}]")
    chosen = columns or there
    if len(chosen) != len(expected):
        how = f"choose those of {' and '.join(expected)} with data.columns={','.join(map(str.upper, expected))}"
        raise DataError(f"{name}: the data frame has the columns {list_names(there)}; {how}")
    for column in chosen:
        if column not in there and str(column).partition(".")[0] not in there:
            raise _missing(f"{name}: the data frame", column, there)
    tops = [column if column in there else column.partition(".")[0] for column in chosen]
    labels = [getattr(getattr(frame, "features", {}).get(top), "names", None) for top in tops]  # of a class label
    for number, values in enumerate(zip(*(frame[top] for top in tops), strict=True), start=1):
        plain = [value.as_py() if hasattr(value, "as_py") else value for value in values]  # Arrow has values of its own
        origin, fields = f"{name}:{number}", []
        for column, top, value, named in zip(chosen, tops, plain, labels, strict=True):
            if named and isinstance(value, int):
                fields.append(named[value] if value >= 0 else "")  # -1 is that of a missing label
            else:
                fields += [_text(value, column, origin)] if top == column else _fields({top: value}, [column], origin)
        yield Record(number, fields)
