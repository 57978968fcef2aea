"""Hostile data files: bombs, giant lines, pipes, devices, changing files, odd archives; and the memory of real ones.

With REGARD_ATTACK=whole in the environment, the bombs and the corpus have their full sizes.
"""

import gzip
import json
import os
import random
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from regard.data import files, records
from regard.data.files import load
from regard.data.needs import how_to_fix, needs
from regard.data.records import Record, Records
from regard.errors import DataError
from regard.recipe import Data, Limits

WHOLE = os.environ.get("REGARD_ATTACK") == "whole"
MEGABYTE = 2**20
Count = Callable[[str, object], None]

# The highest memory so far, in megabytes; `ru_maxrss` would begin with that of the process that started this one.
PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM:"))
"""

# Reads each file as `regard data` does, and reports the message, the seconds and the growth of the peak in megabytes.
READ = """
import json, sys, time
from regard.data.needs import needs
from regard.recipe import Data, Limits
for name, limits in json.load(sys.stdin):
    before, start = peak(), time.process_time()
    [file] = needs(Data(train=(name,), limits=Limits(**limits)))
    print(json.dumps([file.problem, time.process_time() - start, peak() - before]))
"""

# Reads the columns of each file, and reports the message, the seconds and the growth of the peak in megabytes.
READ_COLUMNS = """
import json, sys, time
from importlib.util import find_spec
from regard.data import records
from regard.errors import DataError
from regard.recipe import Limits
if find_spec("pyarrow"):
    import pyarrow.parquet
for name, columns in json.load(sys.stdin):
    before, start, message = peak(), time.process_time(), ""
    try:
        records.read(name, columns)
    except DataError as error:
        message = str(error)
    print(json.dumps([message, time.process_time() - start, peak() - before]))
"""

# Prepares training as `regard train` does, up to the first batches, and reports the growth of the peak in megabytes.
PREPARE = """
import json, sys
from regard import recipe as recipes
from regard.data.batching import Batches
from regard.tasks import task_class
name, tokens = sys.argv[1:]
recipe = recipes.load("reverse", [f"data.train={name}", f"tokens.source={tokens}", f"tokens.target={tokens}"])
kind, before = task_class(recipe.task), peak()
examples = kind.examples(recipe)
task = kind.learn(recipe, examples.train)
examples.digest()
data = task.within_length(task.encode(examples.train)).without_texts()
examples = examples.without_texts()
batches = Batches(data.lengths(), recipe.train.batch_tokens, 1)
for update in range(3):
    task.collate(data, batches[update])
print(json.dumps([len(data.examples), peak() - before]))
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)
    yield
    for path in tmp_path.iterdir():  # full-size files would fill the disk
        path.unlink() if not path.is_dir() else path.rmdir()


def run(script: str, *arguments: str, stdin: Any = None) -> list[Any]:
    """The lines of JSON that a script prints in a process of its own."""
    command = [sys.executable, "-c", PEAK + script, *arguments]
    done = subprocess.run(command, input=json.dumps(stdin), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def pack(name: str, piece: bytes, times: int) -> str:
    """Writes a gzip file of one piece, many times, without holding its content."""
    packer = zlib.compressobj(9 if WHOLE else 1, wbits=31)
    Path(name).write_bytes(b"".join([*(packer.compress(piece) for _ in range(times)), packer.flush()]))
    return name


def sparse(name: str, size: int) -> str:
    """Writes a file of zeros that takes no room on the disk."""
    with open(name, "wb") as file:
        file.truncate(size)
    return name


def repeat(name: str, piece: bytes, times: int) -> str:
    with open(name, "wb") as file:
        for _ in range(times):
            file.write(piece)
    return name


def test_a_bomb_costs_little_memory_and_time_and_the_message_names_the_key(record_property: Count) -> None:
    size = 1024 if WHOLE else 32  # megabytes
    few = {} if WHOLE else {"lines": 1_000_000}
    cases: list[tuple[str, dict[str, int], str]] = [
        (pack("zeros.gz", bytes(MEGABYTE), size), {}, "expansion"),
        (pack("lines.gz", b"\n" * MEGABYTE, size), {}, "lines" if WHOLE else "expansion"),
        (pack("pairs", b"a\tb\n" * (MEGABYTE // 4), size), {}, "expansion"),
        (repeat("newlines", b"\n" * MEGABYTE, 512 if WHOLE else 8), few, "lines"),
        (sparse("one_line", 1024 * MEGABYTE), {}, "line_bytes"),
        (sparse("endless", 10**13), {}, "file_bytes"),
    ]
    record_property("bombs and giant lines", len(cases))
    outcomes = run(READ, stdin=[(name, limits) for name, limits, _ in cases])
    for (name, _, key), (message, seconds, growth) in zip(cases, outcomes, strict=True):
        assert message.startswith(name), message
        assert f"data.limits.{key}" in message
        assert "\n" not in message
        assert seconds < 10, name
        assert growth < 400, name


Case = tuple[str, tuple[str, ...], str]  # a file, its columns, and a part of the message


def check_refusals(cases: list[Case], most: float) -> None:
    """Each file is refused with its message, in at most two seconds, and with little memory (in megabytes)."""
    outcomes = run(READ_COLUMNS, stdin=[case[:2] for case in cases])
    for (name, _, part), (message, seconds, growth) in zip(cases, outcomes, strict=True):
        assert message.startswith(name), (name, message)
        assert part in message
        assert len(message) < 400
        assert "\n" not in message
        assert seconds < 2, (name, seconds)
        assert growth < most, (name, growth)


def test_a_record_of_many_fields_is_refused_before_they_are_made(record_property: Count) -> None:
    size = 50_000_000 if WHOLE else 10_000_000  # bytes
    column, pair = ("a",), ("a", "b")
    many_keys = "{" + ",".join(f'"k{number}":1' for number in range(size // 12)) + "}"
    contents = {
        "commas.csv": (b"," * size, column, "a record of more than 10,000 fields"),
        "names.csv": (b"ab;" * (size // 3), column, "a record of more than 10,000 fields"),
        "quoted.csv": (b'"a""",' * (size // 6), column, "a record of more than 10,000 fields"),
        "literal.csv": (b'a",' + b"," * size, column, "a record of more than 10,000 fields"),
        "lines.csv": (
            b'a,b\n"' + b'x\n",y,"' * (size // 8),
            pair,
            "lines.csv:5003: a record of more than 10,000 fields",
        ),
        "row.csv": (b"a,b\n1,2\n" + b"1," * (size // 2), pair, "row.csv:3: a record of more than 10,000 fields"),
        "keys.jsonl": (many_keys.encode(), column, "more than 100,000 values in one line"),
        "repeated.jsonl": (b'{"a":1' + b',"a":1' * 50_000 + b"}", column, "the key 'a' is there several times"),
        "some.jsonl": (
            many_keys[:150_000].rpartition(",")[0].encode() + b"}",
            column,
            "object of more than 10,000 keys",
        ),
        "lists.jsonl": (b'{"a":[' + b"[]," * (size // 3) + b"1]}", column, "more than 100,000 values in one line"),
        "strings.jsonl": (b'{"a":"' + b"," * 200_000 + b'"' + b'""' * (size // 2), column, "more than 100,000 values"),
    }
    record_property("records of many fields", len(contents))
    for name, (content, _, _) in contents.items():
        Path(name).write_bytes(content)
    check_refusals([(name, columns, part) for name, (_, columns, part) in contents.items()], size / MEGABYTE * 8)


def test_many_delimiters_in_quotes_and_many_commas_in_a_string_are_text() -> None:
    text = 'a ""b"", c;\n' * 30_000
    Path("x.csv").write_text(f'x,y\n"{text}",1\n2,"{text}"\n', newline="")
    expected = text.replace('""', '"')
    assert list(records.read("x.csv", ("x", "y")).all_fields()) == [(expected, "1"), ("2", expected)]
    Path("x.jsonl").write_text(json.dumps({"x": expected * 5, "y": list(range(90_000))}))
    assert list(records.read("x.jsonl", ("x",)).all_fields()) == [(expected * 5,)]


# Parquet: files that no writer makes are put together here, in Thrift's compact protocol


needs_pyarrow = pytest.mark.skipif(not find_spec("pyarrow"), reason="pyarrow is not installed")
INTEGER, LONG_INTEGER, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12


def unsigned(number: int) -> bytes:
    head = bytearray()
    while number > 127:
        head.append(number & 127 | 128)
        number >>= 7
    return bytes([*head, number])


def structure(**fields: tuple[int, Any]) -> bytes:
    """A structure of fields such as `f3=(BINARY, b"name")`: the number of a field is in its name."""
    content, before = b"", 0
    for name, (kind, value) in fields.items():
        number = int(name[1:])
        content += bytes([(number - before) << 4 | kind])
        before = number
        if kind in (INTEGER, LONG_INTEGER):
            content += unsigned(value << 1)
        elif kind == LIST:
            inner, items = value
            content += bytes([0xF0 | inner]) + unsigned(len(items)) + b"".join(items)
        else:
            content += value if kind == STRUCT else unsigned(len(value)) + value
    return content + b"\0"


def element(name: bytes, children: int = 0) -> bytes:
    """A part of a schema: a record of so many columns, or an optional column of texts."""
    if children:
        return structure(f3=(INTEGER, 1), f4=(BINARY, name), f5=(INTEGER, children))
    return structure(f1=(INTEGER, 6), f3=(INTEGER, 1), f4=(BINARY, name), f6=(INTEGER, 0))


def column_chunk(page: bytes, rows: int, codec: int) -> bytes:
    numbers = {"f5": rows, "f6": 100, "f7": len(page), "f9": 4}
    metadata = structure(
        f1=(INTEGER, 6),
        f2=(LIST, (INTEGER, [b"\0", b"\x06"])),
        f3=(LIST, (BINARY, [b"\x01a"])),
        f4=(INTEGER, codec),
        **{name: (LONG_INTEGER, number) for name, number in numbers.items()},
    )
    return structure(f2=(LONG_INTEGER, 4), f3=(STRUCT, metadata))


def page_of(content: bytes, values: int, unpacked: int, kind: int = 0) -> bytes:
    inner = structure(f1=(INTEGER, values), f2=(INTEGER, 0), f3=(INTEGER, 3), f4=(INTEGER, 3))
    sizes = {"f1": kind, "f2": unpacked, "f3": len(content)}
    header = {name: (INTEGER, size) for name, size in sizes.items()} | {"f7" if kind == 2 else "f5": (STRUCT, inner)}
    return structure(**header) + content


def parquet_file(
    name: str,
    schema: list[bytes],
    page: bytes = b"",
    rows: int = 1,
    *,
    groups: int = 1,
    chunks: int = 1,
    codec: int = 0,
) -> str:
    group = structure(
        f1=(LIST, (STRUCT, [column_chunk(page, rows, codec)] * chunks)),
        f2=(LONG_INTEGER, 100),
        f3=(LONG_INTEGER, rows),
    )
    footer = structure(
        f1=(INTEGER, 1), f2=(LIST, (STRUCT, schema)), f3=(LONG_INTEGER, rows), f4=(LIST, (STRUCT, [group] * groups))
    )
    Path(name).write_bytes(b"PAR1" + page + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    return name


@needs_pyarrow
def test_a_parquet_bomb_costs_little_memory_and_time_and_the_message_names_the_key(record_property: Count) -> None:
    import pyarrow
    from pyarrow import parquet

    size = 1024 if WHOLE else 250  # megabytes
    long, one = "a" * MEGABYTE, [element(b"r", 1), element(b"a")]
    zeros = gzip.compress(bytes(size * MEGABYTE), 1)
    indices = pyarrow.array([0] * 20 * size, pyarrow.int32())
    repeated = pyarrow.table({"a": pyarrow.DictionaryArray.from_arrays(indices, [long])})
    parquet.write_table(repeated, "repeated.parquet", store_schema=False)
    parquet.write_table(pyarrow.table({"a": [long * size]}), "cell.parquet", use_dictionary=False, compression="zstd")
    parquet.write_table(pyarrow.table({"a": pyarrow.nulls(20_000_000, pyarrow.string())}), "nulls.parquet")
    parquet.write_table(pyarrow.table({"a": [[long] * 100]}), "lists.parquet")
    parquet.write_table(pyarrow.table({"a": pyarrow.nulls(3, pyarrow.binary(MEGABYTE))}), "blocks.parquet")
    broken = "is not a whole Parquet file"
    files: dict[str, str] = {
        "repeated.parquet": "data.limits.expansion",
        "cell.parquet": "data.limits.line_bytes",
        "nulls.parquet": "data.limits.expansion",
        "lists.parquet": "the column 'a' holds lists or records, expected texts or numbers",
        "blocks.parquet": "the column 'a' holds blocks of bytes, expected texts or numbers",
        parquet_file("page", one, page_of(zeros, 1, size * MEGABYTE), codec=2): "data.limits.line_bytes",
        parquet_file("size", one, page_of(b"", 1, 2**31 - 1)): "data.limits.line_bytes",
        parquet_file("beyond", one, page_of(b"", 1, 2**32 + 1)): broken,
        parquet_file("rows", one, page_of(b"", 2**31 - 1, 9), 2**31 - 1): "data.limits.lines",
        parquet_file("values", one, page_of(b"", 2**31 - 1, 9)): f"{broken} ('a column has 2,147,483,647 values",
        parquet_file("dictionary", one, page_of(b"", 2**31 - 1, 9, kind=2)): f"{broken} ('a dictionary has more",
        parquet_file("tiny", one, page_of(b"", 0, 0) * 20_000): "pages with little data in each",
        parquet_file("wide", [element(b"r", 20_000), *[element(b"a")] * 20_000]): "more than 10,000 columns",
        parquet_file("deep", [element(b"a", 1)] * 5_000 + [element(b"a")]): "more than 100 deep",
        parquet_file("footer", one, groups=100, chunks=9_000): "has a footer of ",
        parquet_file("repeated_field", one, b"\x15\0\x15\x02\x05\x04\x02\0"): broken,
    }
    for name in list(files):
        if not name.endswith(".parquet"):
            os.rename(name, f"{name}.parquet")
    record_property("Parquet bombs", len(files))
    check_refusals([(f"{name.removesuffix('.parquet')}.parquet", ("a",), part) for name, part in files.items()], 400)


@needs_pyarrow
def test_a_parquet_file_made_here_is_read_and_a_damaged_one_is_read_or_refused(record_property: Count) -> None:
    content = b"\x02\0\0\0\x04\x01" + b"\x03\0\0\0abc" * 2  # two values are there
    os.rename(parquet_file("x", [element(b"r", 1), element(b"a")], page_of(content, 2, len(content)), 2), "x.parquet")
    assert list(records.read("x.parquet", ("a",)).all_fields()) == [("abc",), ("abc",)]
    generator, count, whole = random.Random(5), 400, Path("x.parquet").read_bytes()
    record_property("damaged Parquet files", count)
    for _ in range(count):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        Path("x.parquet").write_bytes(damaged)
        with suppress(DataError):
            records.read("x.parquet", ("a",))


@needs_pyarrow
def test_a_parquet_file_is_a_regular_file_that_does_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow
    from pyarrow import parquet

    os.mkfifo("pipe.parquet")
    with pytest.raises(DataError, match=r"^pipe\.parquet is a pipe, not a file"):
        records.read("pipe.parquet", ("a",))
    os.symlink("/dev/zero", "device.parquet")
    with pytest.raises(DataError, match=r"^device\.parquet is a device, not a file"):
        records.column_names("device.parquet")
    parquet.write_table(pyarrow.table({"a": ["b"] * 5}), "x.parquet")
    real = Records.of

    def touch(name: str, found: Iterator[Record], width: int, limits: Limits) -> Records:
        first = next(found)
        os.utime("x.parquet", ns=(0, 1))
        return real(name, chain([first], found), width, limits)

    monkeypatch.setattr(Records, "of", touch)
    with pytest.raises(DataError, match=r"^x\.parquet changed while it was read; wait until it is written"):
        records.read("x.parquet", ("a",))


@needs_pyarrow
def test_only_the_named_columns_of_a_parquet_file_are_read() -> None:
    import pyarrow
    from pyarrow import parquet

    long = "a" * MEGABYTE
    table = {"a": ["b"] * 300, "bomb": [long] * 300, "c": [{"d": "e", "bomb": long}] * 300}
    parquet.write_table(pyarrow.table(table), "x.parquet")
    assert list(records.read("x.parquet", ("a", "c.d")).all_fields()) == [("b", "e")] * 300
    with pytest.raises(DataError, match=r"data\.limits\.expansion"):
        records.read("x.parquet", ("a", "c.bomb"))
    with pytest.raises(DataError, match=r"^x\.parquet: the column 'c' holds lists or records, expected"):
        records.read("x.parquet", ("a", "c"))


def test_a_gzip_file_may_unpack_to_16_megabytes_and_to_its_size_times_the_limit() -> None:
    small = pack("small.gz", b"ab\n" * 1000, 5000)
    assert len(load(small)) == 5_000_000
    line = random.Random(1).randbytes(30_000).hex().encode() + b"\n"  # too long to be found again by gzip
    packed = pack("packed.gz", line, 300)
    assert files.SMALL_CONTENT < len(line) * 300 < os.path.getsize(packed) * 5
    assert len(load(packed)) == 300
    with pytest.raises(
        DataError, match=r"^packed\.gz unpacks to more than 1 times its size, as decompression bombs do"
    ):
        load(packed, Limits(expansion=1))


def test_pipes_devices_sockets_and_folders_are_refused_at_once(record_property: Count) -> None:
    record_property("pipes, devices, sockets and folders as data", 4)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for name, kind in {"pipe": "a pipe", "socket": "a socket", "/dev/zero": "a device"}.items():
            with pytest.raises(DataError, match=rf"^{name} is {kind}, not a file; write its content to a file, or"):
                load(name)
            assert f"{name} is {kind}" in how_to_fix(needs(Data(train=(name,))))
    Path("folder").mkdir()
    with pytest.raises(DataError, match=r"^folder is a folder; name a file in it$"):
        load("folder")


def test_a_pipe_that_takes_the_place_of_a_file_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").write_text("a\n")
    status = os.stat("file")
    os.unlink("file")
    os.mkfifo("file")
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda path: status)
        with pytest.raises(DataError, match=r"^file is a pipe, not a file"):
            load("file")


def test_a_process_substitution_is_refused_because_it_is_a_pipe() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(DataError, match=rf"^/dev/fd/{reading} is a pipe, not a file; .* or give - if the command"):
            load(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("name", ["x", "x.gz"])
@pytest.mark.parametrize("change", ["grow", "shrink", "overwrite"])
def test_a_file_that_changes_while_it_is_read_is_noticed(
    monkeypatch: pytest.MonkeyPatch, record_property: Count, name: str, change: str
) -> None:
    record_property("files that change while they are read", 1)
    content = b"a line\n" * 100_000
    Path(name).write_bytes(gzip.compress(content) if name == "x.gz" else content)
    size, real = os.path.getsize(name), os.read

    def read(handle: int, count: int) -> bytes:
        piece = real(handle, count)
        if not piece:
            with open(name, "r+b") as file:
                file.seek(0, os.SEEK_END)
                if change == "overwrite":
                    file.seek(3)
                if change == "shrink":
                    file.truncate(size // 2)
                else:
                    file.write(b"b")
            os.utime(name, ns=(0, 1)) if change == "overwrite" else None  # clocks may be coarse
        return piece

    monkeypatch.setattr(os, "read", read)
    with pytest.raises(DataError, match=rf"^{name} changed while it was read; wait until it is written"):
        load(name)


def test_an_archive_is_read_as_the_gzip_module_reads_it_or_refused(record_property: Count) -> None:
    generator, count = random.Random(3), 400
    record_property("damaged archives", count)
    whole = gzip.compress(b"a line\nanother\n" * 40, mtime=0) + gzip.compress(b"third\n", mtime=0) + b"\0" * 3
    for _ in range(count):
        content = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            content[generator.randrange(len(content))] = generator.randrange(256)
        content = content[: generator.choice([len(content), generator.randrange(len(content))])]
        Path("x.gz").write_bytes(content)
        try:
            lines = load("x.gz")
        except DataError as error:
            message = str(error)
        else:
            message = "x.gz"
            assert list(lines) == gzip.decompress(content).decode().split("\n")[:-1]
        assert message.startswith("x.gz")


@pytest.mark.parametrize("tokens", ["word", *(["sentencepiece"] if WHOLE else [])])
def test_two_million_pairs_take_at_most_500_megabytes(tokens: str) -> None:
    count = 2_000_000 if WHOLE else 30_000
    generator = random.Random(1)
    words = ["".join(generator.choices("etaoinshrdlu", k=generator.randint(2, 8))) for _ in range(10_000)]
    with open("pairs.tsv", "w", encoding="utf-8") as file:
        for _ in range(count):
            sides = (" ".join(generator.choices(words, k=generator.randint(6, 18))) for _ in range(2))
            file.write("\t".join(sides) + "\n")
    [[examples, growth]] = run(PREPARE, "pairs.tsv", tokens)
    assert examples == count - 1000
    assert growth < (500 if WHOLE else 18)  # with lists of Python objects: 2,000 and 35
