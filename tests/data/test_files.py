"""Text files: lines end only at newlines, and every problem raises DataError with a clear message."""

import gzip
import os
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import files
from regard.data.files import load, pairs, read_lines, split, stream_stdin
from regard.data.paths import find
from regard.errors import DataError
from regard.recipe import Limits
from regard.types import Example

odd_characters = st.text(alphabet="ab \t\r\x0b\x0c\x1c\x85\u2028\u2029é⁇\ufeff")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)


def write(name, content):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"\na", ["", "a"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\nb\r", ["a\r", "b"]),
        (b"a\rb\n", ["a\rb"]),
        ("a\u2028b\x0bc\x85d\ne".encode(), ["a\u2028b\x0bc\x85d", "e"]),
        (b"\xef\xbb\xbfa\nb", ["a", "b"]),
        (b"\xef\xbb\xbf", []),
        ("a\n\ufeffb".encode(), ["a", "\ufeffb"]),
    ],
)
def test_lines_end_at_newlines_only(content, lines):
    assert read_lines([content], "x") == lines


@given(st.lists(odd_characters), st.sampled_from(["\n", "\r\n"]))
def test_lines_come_back_as_they_were_written(lines, end):
    written = [line.rstrip("\r") for line in lines]
    content = b"".join((line + end).encode() for line in ["first", *written])
    assert read_lines([content], "x") == ["first", *written]


def test_a_file_of_another_format_is_named_and_not_to_be_converted():
    Path("map.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
    with pytest.raises(DataError, match=r"^map\.png is a PNG picture, and no text; give a file of texts$"):
        load("map.png")
    Path("words.txt").write_text("GIF89a is a format\n", encoding="utf-8")  # a text may begin like that
    assert list(load("words.txt")) == ["GIF89a is a format"]


@given(st.binary())
def test_any_bytes_give_one_line_per_newline_or_a_located_error(content):
    content = b"x" + content
    try:
        lines = read_lines([content], "some.txt")
    except DataError as error:
        pattern = r"some\.txt:(\d+):(\d+): not valid UTF-8 \(byte (0x..)\); "
        line, byte, value = (int(number, 0) for number in re.match(pattern, str(error)).groups())
        assert content.split(b"\n")[line - 1][byte - 1] == value
    else:
        assert len(lines) == content.count(b"\n") + (not content.endswith(b"\n"))


@given(st.binary(max_size=30).map(lambda content: content.replace(b"0", "é€😀".encode())), st.integers(1, 5))
def test_pieces_of_any_size_give_the_same_lines_or_the_same_error(content, size):
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    outcomes = []
    for parts in ([content], pieces):
        try:
            outcomes.append(list(read_lines(parts, "x")))
        except DataError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("limits", "content", "message"),
    [
        (Limits(file_bytes=5), b"a\nb\ncd", "x has more than 5 bytes, unpacked; split the file, or raise "),
        (Limits(lines=2), b"a\nb\nc", "x has more than 2 lines; split the file, or raise "),
        (Limits(lines=2), b"a\nb\nc\n", "x has more than 2 lines; split the file, or raise "),
        (Limits(line_bytes=3), b"ab\nabc\n", "x:2 has more than 3 bytes; split the file, or raise "),
        (Limits(line_bytes=3), b"ab\nab\nabcd", "x:3 has more than 3 bytes; split the file, or raise "),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_text_over_a_limit_is_refused(limits, content, message, size):
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    with pytest.raises(DataError, match=f"^{message}data.limits."):
        read_lines(pieces, "x", limits)
    most = Limits(file_bytes=10, lines=3, line_bytes=4)
    assert list(read_lines(pieces, "x", most)) == content.decode().split()


@pytest.fixture
def stdin(monkeypatch):
    """Writes bytes to stdin, which is a pipe; None closes it."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        yield lambda content: os.close(writing) if content is None else os.write(writing, content)


def test_lines_of_stdin_come_as_they_are_written_and_many_at_once_if_they_wait(stdin):
    batches = stream_stdin(most=3)
    stdin(b"\xef\xbb\xbfa\n")
    assert next(batches) == ["a"]
    stdin(b"\n")
    assert next(batches) == [""]
    stdin("é\r\nb\nc\nd\n\ufeffe\nf".encode())
    assert next(batches) == ["é", "b", "c"]
    assert next(batches) == ["d", "\ufeffe"]
    stdin(b"g\nh")
    assert next(batches) == ["fg"]
    stdin(None)
    assert list(batches) == [["h"]]


@pytest.mark.parametrize("count", [2, 3, 4, 6, 7])
@pytest.mark.parametrize("end", ["", "\n"])
def test_waiting_lines_come_in_full_batches(stdin, count, end):
    lines = [str(number) for number in range(count)]
    stdin(("\n".join(lines) + end).encode())
    stdin(None)
    assert list(stream_stdin(most=3)) == [lines[start : start + 3] for start in range(0, count, 3)]


def test_the_first_answers_to_a_long_stream_come_soon(stdin):
    stdin(b"a\n" * 1000)
    stdin(None)
    assert [len(batch) for batch in stream_stdin(most=500)] == [64, 256, 500, 180]


def test_errors_of_stdin_name_the_line(stdin, monkeypatch):
    batches = stream_stdin(most=2)
    stdin(b"a\nb\nc\nd\xff\n")
    assert next(batches) == ["a", "b"]
    with pytest.raises(DataError, match=r"^stdin:4:2: not valid UTF-8 \(byte 0xff\)"):
        next(batches)
    monkeypatch.setattr(files, "LIMITS", Limits(line_bytes=5))
    batches = stream_stdin(most=2)
    stdin(b"1234\n1234567")
    assert next(batches) == ["1234"]
    stdin(b"8\n")
    with pytest.raises(DataError, match=r"^stdin:2 has more than 5 bytes; split the file, or raise data.limits.line_"):
        next(batches)


@pytest.mark.parametrize(
    ("content", "prefix"),
    [
        (b"\xff", "a.txt:1:1: not valid UTF-8 (byte 0xff); "),
        (b"ok\nab\xc3\nx", "a.txt:2:3: not valid UTF-8 (byte 0xc3); "),
        ("é\né".encode() + b"\x80", "a.txt:2:3: not valid UTF-8 (byte 0x80); "),
        (b"\xef\xbb\xbfa\xfe", "a.txt:1:5: not valid UTF-8 (byte 0xfe); "),
    ],
)
def test_the_error_for_invalid_utf8_names_line_and_byte(content, prefix):
    with pytest.raises(DataError, match=r"^" + re.escape(prefix) + ".*UTF-8"):
        read_lines([content], "a.txt")


@pytest.mark.parametrize("encoding", ["UTF-16-LE", "UTF-16-BE", "UTF-32-LE", "UTF-32-BE"])
def test_a_file_with_another_byte_order_mark_gets_its_own_command(encoding):
    kind = encoding[:6]
    content = "\ufeffé\tb\n".encode(encoding)
    with pytest.raises(DataError, match=rf"; convert the file first, it is {kind}: iconv -f {kind} -t UTF-8$"):
        read_lines([content], "a.txt")
    with pytest.raises(DataError, match=r"; convert the file first, for example: iconv -f LATIN1 -t UTF-8$"):
        read_lines([b"a" + content], "a.txt")


def test_a_file_is_searched_as_given_then_in_regard_data_then_in_data(tmp_path, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "corpora"))
    write("data/x.txt", "third")
    assert load("x.txt") == ["third"]
    write("corpora/x.txt", "second")
    assert load("x.txt") == ["second"]
    write("x.txt", "first")
    assert load("x.txt") == ["first"]
    assert find(str(tmp_path / "data/x.txt")) == tmp_path / "data/x.txt"


def test_a_folder_does_not_hide_a_file_of_the_same_name_in_data():
    Path("x").mkdir()
    write("data/x", "here")
    assert load("x") == ["here"]


def test_the_error_for_a_missing_file_lists_the_paths_tried_and_a_similar_name(tmp_path, monkeypatch):
    write("corpora/pairs.tsv", "a\tb")
    with pytest.raises(DataError) as unset:
        find("pair.tsv")
    assert str(unset.value) == ("cannot find pair.tsv; looked for pair.tsv, data/pair.tsv ($REGARD_DATA is not set)")
    monkeypatch.setenv("REGARD_DATA", "corpora")
    with pytest.raises(DataError) as similar:
        find("pair.tsv")
    assert str(similar.value) == (
        "cannot find pair.tsv; looked for pair.tsv, corpora/pair.tsv, data/pair.tsv; did you mean 'pairs.tsv'?"
    )
    with pytest.raises(DataError, match=r"did you mean 'pairs\.tsv'"):
        find(str(tmp_path / "corpora/pears.tsv"))


@pytest.mark.parametrize("name", ["nul\0.txt", "x" * 5_000, "no/such/folder/x", "\ud800"])
def test_an_invalid_file_name_is_reported_as_not_found(name):
    with pytest.raises(DataError, match=r"^cannot find "):
        find(name)


def test_a_folder_or_an_empty_name_is_refused():
    Path("texts").mkdir()
    with pytest.raises(DataError, match=r"^texts is a folder; name a file in it$"):
        load("texts")
    with pytest.raises(DataError, match="the name of a file is empty"):
        load("")


def test_an_unreadable_file_is_refused(monkeypatch):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    write("x.txt", "a")
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataError, match=r"^x\.txt cannot be read \(Permission denied\); check"):
        load("x.txt")


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_refused(content):
    with pytest.raises(DataError, match=r"^x\.txt is empty; "):
        load(write("x.txt", content))


@pytest.mark.parametrize("name", ["x.txt.gz", "x.txt"])
def test_gzip_is_recognised_by_its_suffix_or_its_first_bytes(name):
    assert load(write(name, gzip.compress(b"a\nb\n"))) == ["a", "b"]


def test_a_truncated_gzip_file_is_refused():
    content = gzip.compress(b"a line\nanother line\n")
    for length in range(2, len(content)):
        with pytest.raises(DataError, match=r"^x\.gz is not a whole gzip file \("):
            load(write("x.gz", content[:length]))


@pytest.mark.parametrize("tail", [b"", b"\0", b"\0" * 600_000])
def test_gzip_members_may_follow_each_other_with_zeros_between(tail):
    members = [gzip.compress(text, mtime=0) for text in (b"a\nb", b"", b"c\n" * 300_000, b"\xc3", b"\xa9\n")]
    content = b"".join(member + tail for member in members)
    assert load(write("x.gz", content)) == gzip.decompress(content).decode().split()
    for garbage in (b"\x1f", b"x", b"\0x", members[0][:-1]):
        with pytest.raises(DataError, match=r"^x\.gz is not a whole gzip file \("):
            load(write("x.gz", content + garbage))


def test_a_damaged_gzip_file_is_refused():
    content = bytearray(gzip.compress(b"a line\nanother line\n" * 9))
    content[20] ^= 0xFF
    for damaged in (bytes(content), b"plain text\n"):
        with pytest.raises(DataError, match=r"^x\.gz is not a whole gzip file \("):
            load(write("x.gz", damaged))


def test_pairs_of_a_tsv_have_file_and_line_as_origin_and_blank_ones_are_dropped():
    name = write("pairs.tsv", "a\tb\n\n \t\u2003\nc d\te\r\nx\t \n\ty\n\t\t\nf\u2028g\th")
    assert pairs((name,)) == (
        [
            Example("a", "b", origin="pairs.tsv:1"),
            Example("c d", "e", origin="pairs.tsv:4"),
            Example("f\u2028g", "h", origin="pairs.tsv:8"),
        ],
        5,
    )


@pytest.mark.parametrize(("line", "count"), [("a b", "one field"), ("a\tb\tc", "3 fields"), ("a\tb\t", "3 fields")])
def test_a_line_without_two_fields_is_refused_with_its_number(line, count):
    name = write("pairs.tsv", "a\tb\n" * 6 + line + "\n")
    with pytest.raises(DataError) as error:
        pairs((name,))
    assert str(error.value) == f"pairs.tsv:7: {count}, expected two: source<TAB>target"


def test_parallel_texts_are_paired_line_by_line():
    names = (write("a.en", "one\n\nthree \u2028 3\nfour\tx"), write("b.de", "eins\nzwei\ndrei\nvier\n"))
    examples, dropped = pairs(names)
    assert [(example.source, example.target) for example in examples] == [
        ("one", "eins"),
        ("three \u2028 3", "drei"),
        ("four\tx", "vier"),
    ]
    assert [example.origin for example in examples] == ["a.en:1", "a.en:3", "a.en:4"]
    assert dropped == 1


def test_parallel_texts_must_have_equally_many_lines():
    names = (write("a.en", "x\n" * 1000), write("b.de", "x\n" * 999))
    with pytest.raises(DataError) as error:
        pairs(names)
    assert str(error.value) == "a.en has 1,000 lines, b.de 999; they must be parallel"


@pytest.mark.parametrize("names", [(), ("a", "b", "c")])
def test_pairs_need_one_or_two_files(names):
    with pytest.raises(DataError, match=f"^{len(names)} files given; give one TSV"):
        pairs(names)


def test_a_file_with_only_blank_pairs_is_refused():
    with pytest.raises(DataError, match=r"^x\.tsv: no pair is left, because all 2 "):
        pairs((write("x.tsv", "\n\ta\n"),))


def dev_by_dictionary(examples, seed):
    """The definition of the split, with a dictionary of all sources; stored runs resume by the parts that it gives."""
    wanted = min(1_000, max(1, round(len(examples) / 10)))
    by_source = {}
    for index, example in enumerate(examples):
        by_source.setdefault(example.source, []).append(index)
    groups = list(by_source.values())
    generator = random.Random(f"split {seed}")
    generator.shuffle(groups)
    chosen = set()
    for group in groups:
        if len(chosen) + len(group) <= wanted:
            chosen.update(group)
    if chosen:
        return chosen
    smallest = min(groups, key=len)
    if len(groups) > 1 and len(smallest) <= 1_000:
        return set(smallest)
    return set(generator.sample(range(len(examples)), wanted))


@given(st.lists(st.sampled_from("abcdefghijklmnop"), min_size=2, max_size=50), st.integers())
def test_a_split_is_that_of_its_definition(sources, seed):
    examples = [Example(source, str(index)) for index, source in enumerate(sources)]
    chosen = dev_by_dictionary(examples, seed)
    assert split(examples, seed).dev == [example for index, example in enumerate(examples) if index in chosen]


@given(st.lists(st.sampled_from("abcdefghijklmnop"), min_size=2, max_size=50), st.integers())
def test_a_split_keeps_all_examples_and_no_source_is_on_both_sides(sources, seed):
    examples = [Example(source, str(index)) for index, source in enumerate(sources)]
    train, dev = split(examples, seed)
    assert train
    assert dev
    assert sorted([*train, *dev], key=examples.index) == examples
    for part in (train, dev):
        assert part == sorted(part, key=examples.index)
    if len(set(sources)) > 1:
        assert not {example.source for example in train} & {example.source for example in dev}
    assert split(examples, seed) == (train, dev)


@pytest.mark.parametrize(("count", "expected"), [(2, 1), (14, 1), (100, 10), (9_990, 999), (30_000, 1_000)])
def test_the_dev_part_is_a_tenth_and_at_most_a_thousand(count, expected):
    examples = [Example(str(index), "x") for index in range(count)]
    assert len(split(examples, 7).dev) == expected
    assert count < 50 or split(examples, 7) != split(examples, 8)


def test_a_source_is_on_both_sides_only_if_one_would_be_empty_or_dev_too_large():
    same = [Example("a", str(index)) for index in range(30)]
    assert len(split(same, 1).dev) == 3
    two_large = [Example(str(index % 2), str(index)) for index in range(12_000)]
    assert len(split(two_large, 1).dev) == 1_000
    twins = [Example(str(index // 2), str(index)) for index in range(10)]
    assert len({example.source for example in split(twins, 1).dev}) == 1
    assert len(split(twins, 1).dev) == 2


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_examples_cannot_be_split(count):
    with pytest.raises(DataError, match=f"^no dev part can be split off {count} pairs; give at least two"):
        split([Example("a", "b")] * count, 1)


def test_many_gzip_members_with_little_text_are_refused_early(tmp_path: Path) -> None:
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b"") * 300_000)
    with pytest.raises(DataError, match="10,001 gzip members with little text in each"):
        load(str(tmp_path / "empty.gz"))
    member = gzip.compress(b"a\tb\n" * 200)
    (tmp_path / "many.gz").write_bytes(member * 12_000)
    assert len(load(str(tmp_path / "many.gz"), Limits(expansion=1000))) == 200 * 12_000


def test_a_file_with_a_header_alone_has_no_pair_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.tsv").write_text("text\tlabel\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"^x.tsv: no pair is left, because nothing follows its header$"):
        pairs(("x.tsv",), header=True)
