"""Records with named columns: CSV, JSONL and Parquet files, pairs and data frames; every problem has its sentence."""

import csv
import gzip
import io
import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data import records
from regard.data.needs import needs
from regard.data.records import PAIRS, Records
from regard.errors import DataError, MissingExtraError
from regard.recipe import Data, Limits

laws = settings(max_examples=60)
texts = st.text(alphabet='ab",;\n\t é\u2028\x00', max_size=6)
COLUMNS = ("english", "french")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)


def write(name, content):
    content = content if isinstance(content, bytes) else content.encode()
    Path(name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return name


def read(name, content, columns=COLUMNS, limits=records.LIMITS):
    return list(records.read(write(name, content), columns, limits).all_fields())


def refusal(name, content, columns=COLUMNS, limits=records.LIMITS):
    with pytest.raises(DataError) as error:
        read(name, content, columns, limits)
    return str(error.value)


@pytest.mark.parametrize("name", ["x.tsv", "x.TSV.gz"])
def test_quotes_in_a_tsv_file_are_part_of_the_text(name):
    lines = ['"Stop", he said\tx', 'a"b""\t"', '"open\tclosed"']
    rows = [tuple(line.split("\t")) for line in lines]
    assert read(name, "\n".join(["english\tfrench", *lines])) == rows


def test_tabs_between_quotes_of_a_tsv_file_separate_fields(monkeypatch):
    monkeypatch.setattr(records, "FIELDS", 3)
    content = 'english\tfrench\n"a\tb\tc\td\te"'
    assert refusal("x.tsv", content).startswith("x.tsv:2: a record of more than 3 fields")


@laws
@given(
    st.lists(st.tuples(texts, texts, texts), min_size=1),
    st.sampled_from(",;\t"),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["x.csv", "x.CSV", "x.csv.gz"]),
)
def test_csv_comes_back_as_it_was_written(rows, delimiter, end, name):
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("id", "french", "english"), *rows])
    assert read(name, file.getvalue()) == [(english, french) for _, french, english in rows]


@laws
@given(st.lists(st.tuples(texts, texts), min_size=1), st.booleans())
def test_jsonl_comes_back_as_it_was_written(rows, ascii_only):
    lines = [json.dumps({"english": one, "french": other}, ensure_ascii=ascii_only) for one, other in rows]
    assert read("x.jsonl", "\n\n".join(lines)) == rows


def test_a_quoted_field_holds_newlines_and_the_origin_is_the_first_line_of_a_record():
    content = '\ufeff\nenglish, french\n\n"a ""b""\n\nc",d\ne,"f\r\ng"\n\n,h\n'
    found = records.read(write("x.csv", content), COLUMNS)
    assert list(found.all_fields()) == [('a "b"\n\nc', "d"), ("e", "f\ng"), ("", "h")]
    assert [found.origin(index) for index in range(3)] == ["x.csv:4", "x.csv:7", "x.csv:10"]
    loaded = records.examples([found], lambda fields: (fields[0], fields[1]), "pair")
    assert [(example.source, example.target, example.origin) for example in loaded.examples] == [
        ('a "b"\n\nc', "d", "x.csv:4"),
        ("e", "f\ng", "x.csv:7"),
    ]
    assert loaded.dropped == 1


def test_values_of_json_become_texts():
    lines = ['{"text": "a", "label": 1}', '{"text": "b", "label": 0.5}', '{"text": "c", "label": true}']
    lines += ['{"text": "d", "label": null}', '{"text": "e", "label": NaN}']
    assert [label for _, label in read("x.jsonl", "\n".join(lines), ("text", "label"))] == ["1", "0.5", "true", "", ""]


def test_a_column_may_be_within_another():
    line = '{"translation": {"en": "a", "fr": "b"}, "x.y": "c"}'
    assert read("x.jsonl", line, ("translation.en", "translation.fr", "x.y")) == [("a", "b", "c")]
    assert refusal("x.jsonl", line, ("translation.de",)) == (
        "x.jsonl:1 has no column 'translation.de'; there are 'translation', 'x.y'; "
        "name others with data.columns (of a run: --columns); did you mean 'translation'?"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "id,englisch,french\n1,a,b", "x.csv has no column 'english'; there are 'id', 'englisch', 'french'"),
        ("x.csv", "id;francais\n1;a", "x.csv has no column 'english'; there are 'id', 'francais'"),
        ("x.csv", "\n\n", "x.csv has no column 'english'; there are "),
        ("x.csv", "", "x.csv is empty; give a file with at least one line"),
        ("x.csv", "english,french\na,b\n\nc\n", "x.csv:4: 1 fields, but the header names 2 columns"),
        ("x.csv", 'english,french\na,b\n"c\n,d\ne,f', "x.csv:3: this record is not valid CSV (unexpected end of data)"),
        ("x.csv", 'english,french\n"a"b,c\n', "x.csv:2: this record is not valid CSV (',' expected after '\"')"),
        ("x.csv", "english,english,french\na,b,c", "x.csv has several columns 'english'; rename all but one"),
        ("x.csv", b"english,french\na,\xff", "x.csv:2:3: not valid UTF-8"),
        ("x.jsonl", '{"english": "a"}', "x.jsonl:1 has no column 'french'; there are 'english'"),
        ("x.jsonl", '\n{"english": "a"', "x.jsonl:2: not valid JSON ("),
        ("x.jsonl", '["a", "b"]', "x.jsonl:1: ['a', 'b'] is not a JSON object; write one object per line"),
        ("x.jsonl", "[" * 100_000, "x.jsonl:1: not valid JSON ("),
        ("x.jsonl", '{"english": ' + "1" * 5000 + "}", "x.jsonl:1: not valid JSON ("),
        ("x.jsonl", '{"english": ["a"], "french": "b"}', "x.jsonl:1: the column 'english' holds ['a'], expected a"),
        ("x.jsonl", '{"english": "\\ud800", "french": "b"}', "x.jsonl:1: half of a surrogate pair, which"),
        ("x.txt", "english\tfrench\na\tb", "x.txt has no named columns; give a file that ends in .csv, .jsonl"),
        ("x.tsv", "english,french\na,b", "x.tsv has no column 'english'; there are 'english,french'"),
        ("x.csv.gz", "id\n1", "x.csv.gz has no column 'english'; there are 'id'"),
    ],
)  # fmt: skip
def test_the_error_names_the_place_and_what_is_there(name, content, message):
    refused = refusal(name, content)
    assert refused.startswith(message)
    assert len(refused) < 300


def test_many_columns_are_not_all_named():
    header = ",".join(f"column{number}" for number in range(1000))
    assert re.fullmatch(r".*'column19' and 980 more; name others [^;]*(; did .*)?", refusal("x.csv", f"{header}\n"))


def test_the_limits_of_data_hold_for_records():
    assert "x.csv:2 has more than 30 bytes" in refusal(
        "x.csv", f"english,french\n{'a' * 40},b", limits=Limits(line_bytes=30)
    )
    many_lines = '"' + "a\n" * 40 + '",b'
    assert "field larger than field limit (30)" in refusal(
        "x.csv", f"english,french\n{many_lines}", limits=Limits(line_bytes=30)
    )
    assert "x.jsonl has more than 2 lines" in refusal("x.jsonl", "{}\n" * 3, limits=Limits(lines=2))
    before = csv.field_size_limit()
    assert read("x.csv", f"english,french\n{'a' * 200_000},b") == [("a" * 200_000, "b")]
    assert csv.field_size_limit() == before


def test_blank_records_are_dropped_and_all_of_them_refused():
    part = records.read(write("x.csv", "english,french\na,\n ,b\n"), COLUMNS)
    with pytest.raises(DataError, match=r"^x.csv: no sentence is left, because all 2 have a blank field$"):
        records.examples([part], lambda fields: (fields[0], fields[1]), "sentence")


def test_no_records_at_all_are_called_so():
    def refused(part):
        with pytest.raises(DataError) as error:
            records.examples([part], lambda fields: (fields[0], fields[1]), "sentence")
        return str(error.value)

    header = records.read(write("x.csv", "english,french\n"), COLUMNS)
    assert refused(header) == "x.csv: no record follows the header; give at least one sentence"
    blank = records.read(write("x.jsonl", "\n\n"), COLUMNS)
    assert refused(blank) == "x.jsonl: there are no records; give at least one sentence"
    nothing = records.given([], (), COLUMNS, PAIRS)
    assert refused(nothing) == "pairs given in Python: there are no records; give at least one sentence"


# Python


class Frame:
    """A data frame as pandas has it, reduced to what is used of it."""

    def __init__(self, **columns):
        self._columns, self.columns = columns, tuple(columns)

    def __getitem__(self, name):
        return iter(self._columns[name])


class NAType:
    """Stands for the missing value of pandas, which is neither true nor false."""

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


def rows_of(rows, columns=(), expected=("source", "target")):
    return list(records.given(rows, columns, expected, PAIRS).all_fields())


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([("a", "1"), ["b", 2], ("c", None)], ()),
        ((pair for pair in [("a", 1), ("b", 2), ("c", float("nan"))]), ()),
        (np.array([["a", "1"], ["b", "2"], ["c", ""]]).tolist(), ()),
        ([{"source": "a", "target": 1}, {"source": "b", "target": 2}, {"source": "c", "target": None}], ()),
        ([{"x": "a", "y": 1}, {"x": "b", "y": 2}, {"x": "c", "y": None}], ("x", "y")),
        (Frame(english=["a", "b", "c"], label=np.array([1, 2, 3]).astype(object) * np.array([1, 1, np.nan])), ()),
        (Frame(label=[np.int64(1), np.int64(2), NAType()], id=[7, 8, 9], text=["a", "b", "c"]), ("text", "label")),
        ({"text": ["a", "b", "c"], "label": [1, 2, None]}, ()),
    ],
)
def test_pairs_and_data_frames_give_the_same_records(rows, columns):
    found = rows_of(rows, columns)
    assert [source for source, _ in found] == ["a", "b", "c"]
    assert [target.removesuffix(".0") for _, target in found] == ["1", "2", ""]


def test_texts_alone_are_records_of_one_column():
    assert rows_of(["a", "b"], expected=("text",)) == [("a",), ("b",)]
    assert rows_of({"text": ["a", "b"]}, expected=("text",)) == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([("a", "b"), ("c",)], (), "pairs given in Python:2: ('c',), expected (source, target)"),
        (["ab", "cd"], (), "pairs given in Python:1: 'ab', expected (source, target)"),
        ([3], (), "pairs given in Python:1: 3, expected (source, target)"),
        ("ab", (), "pairs given in Python: 'ab'; give a list of (source, target), or a data frame"),
        (7, (), "pairs given in Python: 7; give a list of (source, target), or a data frame"),
        ([("a", b"b")], (), "pairs given in Python:1: the column 'target' holds b'b', expected a text or a number"),
        ([("a", "\ud800")], (), "pairs given in Python:1: half of a surrogate pair, which is no character"),
        ([{"source": "a"}], (),
         "pairs given in Python:1 has no column 'target'; there are 'source'; name others with data.columns"),
        (Frame(a=["x"], b=["y"], c=["z"]), (), "pairs given in Python: the data frame has the columns 'a', 'b', 'c'; "
         "choose those of source and target with data.columns=SOURCE,TARGET"),
        (Frame(a=["x"], b=["y"]), ("a", "d"),
         "pairs given in Python: the data frame has no column 'd'; there are 'a', 'b'; "
         "name others with data.columns"),
    ],
)  # fmt: skip
def test_what_is_no_pair_is_refused(rows, columns, message):
    with pytest.raises(DataError) as error:
        rows_of(rows, columns)
    assert str(error.value) == message


# Parquet


@pytest.mark.skipif(bool(find_spec("pyarrow")), reason="pyarrow is installed")
def test_parquet_without_pyarrow_says_what_to_install():
    write("x.parquet", b"PAR1")
    with pytest.raises(
        MissingExtraError, match=r"^reading the Parquet file x.parquet needs the package pyarrow; install"
    ):
        records.read("x.parquet", COLUMNS)
    [file] = needs(Data(train=("x.parquet",)))
    assert "pip install 'regard[parquet]'" in file.problem


@pytest.mark.skipif(not find_spec("pyarrow"), reason="pyarrow is not installed")
def test_parquet_files_and_arrow_tables_are_read(tmp_path):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table(
        {
            "english": ["a", "b", None],
            "label": pyarrow.array([1, 2, None]),
            "kind": pyarrow.array(["x", "y", "x"]).dictionary_encode(),
            "translation": [{"fr": "c"}, {"fr": "d"}, {"fr": "e"}],
        }
    )
    parquet.write_table(table, "x.parquet", row_group_size=2)
    columns = ("english", "label", "kind", "translation.fr")
    expected = [("a", "1", "x", "c"), ("b", "2", "y", "d"), ("", "", "x", "e")]
    found = records.read("x.parquet", columns)
    assert list(found.all_fields()) == expected
    assert found.origin(2) == "x.parquet:3"
    assert rows_of(table, ("english", "label")) == [fields[:2] for fields in expected]
    assert records.column_names("x.parquet") == ["english", "label", "kind", "translation"]
    [file] = needs(Data(train=("x.parquet",)))
    assert (file.lines, file.problem) == (3, "")
    with pytest.raises(DataError, match=r"^x.parquet has no column 'englisch'; there are 'english', .*; did you mean"):
        records.read("x.parquet", ("englisch",))
    with pytest.raises(DataError, match=r"^x.parquet has more than 2 records; split the file, or raise data.limits"):
        records.read("x.parquet", ("english",), Limits(lines=2))
    whole = Path("x.parquet").read_bytes()
    for broken in (whole[:-8], b"PAR1" + whole[40:], b"", b"not parquet"):
        write("y.parquet", broken)
        with pytest.raises(DataError, match=r"^y.parquet is not a whole Parquet file \("):
            records.read("y.parquet", ("english",))
    (tmp_path / "z.parquet").mkdir()
    with pytest.raises(DataError, match=r"^z.parquet is a folder"):
        records.read("z.parquet", ("english",))


def test_records_know_their_number():
    assert len(Records.of("x", [records.Record(1, ["a", "b"]), records.Record(5, ["c", ""])], 2)) == 2
