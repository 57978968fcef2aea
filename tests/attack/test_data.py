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
from pathlib import Path
from typing import Any

import pytest

from regard.data import files
from regard.data.files import load
from regard.data.needs import how_to_fix, needs
from regard.errors import DataError
from regard.recipe import Data, Limits

WHOLE = os.environ.get("REGARD_ATTACK") == "whole"
MEGABYTE = 2**20
Count = Callable[[str, object], None]

# Reads each file as `regard data` does, and reports the message, the seconds and the growth of the peak in megabytes.
READ = """
import json, resource, sys, time
from regard.data.needs import needs
from regard.recipe import Data, Limits
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
for name, limits in json.load(sys.stdin):
    before, start = peak(), time.process_time()
    [file] = needs(Data(train=(name,), limits=Limits(**limits)))
    print(json.dumps([file.problem, time.process_time() - start, peak() - before]))
"""

# Prepares training as `regard train` does, up to the first batches, and reports the growth of the peak in megabytes.
PREPARE = """
import json, resource, sys
from regard import recipe as recipes
from regard.data.batching import Batches
from regard.tasks import task_class
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
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
    command = [sys.executable, "-c", script, *arguments]
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
