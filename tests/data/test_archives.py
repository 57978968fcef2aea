"""Tar files: members are found by name and read at their offsets; hostile archives are refused with a sentence."""

import gzip
import io
import lzma
import os
import random
import re
import tarfile
from pathlib import Path

import pytest

from regard.data.archives import Archive, StoredFiles, full_name
from regard.errors import DataError
from regard.recipe import Limits

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LONG = "folder/" + "x" * 90 + "/" + "y" * 60 + ".wav"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGARD_DATA", raising=False)


def info(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, **attributes: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    for attribute, value in attributes.items():
        setattr(member, attribute, value)
    return member


def pack(contents: list[tuple[tarfile.TarInfo, bytes]], style: str = "pax", name: str = "a.tar") -> str:
    with tarfile.open(name, "w", format=FORMATS[style]) as archive:
        for member, content in contents:
            archive.addfile(member, io.BytesIO(content))
    return name


def files(**contents: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(info(name, size=len(content)), content) for name, content in contents.items()]


def with_checksum(block: bytearray) -> bytes:
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def rewritten(position: int, field: bytes, name: str = "a.tar") -> str:
    """The archive `a` of one file, with a field of its header replaced."""
    content = bytearray(Path(pack(files(a=b"abc"), "ustar")).read_bytes())
    content[position : position + len(field)] = field
    content[:512] = with_checksum(content[:512])
    Path(name).write_bytes(content)
    return name


@pytest.mark.parametrize("style", FORMATS)
def test_members_of_all_formats_are_read_as_tarfile_reads_them(style: str) -> None:
    generator = random.Random(style)
    contents = {f"é{number}.wav": generator.randbytes(generator.randrange(2000)) for number in range(40)}
    contents |= {LONG: b"long", "folder/a.wav": b"inner", "zero": b""}
    archive = Archive(pack(files(**contents), style))
    assert {member: archive.read(member) for member in archive} == contents
    assert {member: archive.size(member) for member in archive} == {name: len(each) for name, each in contents.items()}
    assert len(archive) == len(contents)


def test_a_name_is_found_with_and_without_a_dot_before_it() -> None:
    archive = Archive(pack(files(**{"./a.wav": b"a", "b.wav": b"b"})))
    assert list(archive) == ["a.wav", "b.wav"]
    assert archive.read("a.wav") == archive.read("./a.wav") == b"a"
    assert archive.read("./b.wav") == b"b"
    assert "./b.wav" in archive
    assert "c.wav" not in archive


def test_the_size_of_an_extended_header_counts() -> None:
    member = info("large", size=5, pax_headers={"size": "5", "comment": "x" * 3000})
    assert Archive(pack([(member, b"12345"), *files(after=b"z")])).read("after") == b"z"


def test_a_binary_size_and_a_size_in_an_extended_header_are_read() -> None:
    assert Archive(rewritten(124, b"\x80" + (3).to_bytes(11, "big"))).read("a") == b"abc"
    pax = bytearray(Path(pack([(info("a", size=3, pax_headers={"size": "3"}), b"abc")])).read_bytes())
    pax[1024 + 124 : 1024 + 136] = b"0" * 11 + b"\0"  # the header itself says 0 bytes
    pax[1024:1536] = with_checksum(pax[1024:1536])
    Path("pax.tar").write_bytes(pax)
    assert Archive("pax.tar").read("a") == b"abc"


@pytest.mark.parametrize(
    ("kind", "noun"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (tarfile.DIRTYPE, "a folder"),
    ],
)
def test_links_devices_and_folders_are_left_out_and_asking_for_one_says_why(kind: bytes, noun: str) -> None:
    archive = Archive(pack([(info("b", kind, linkname="/etc/passwd"), b""), *files(a=b"1")]))
    assert list(archive) == ["a"]
    with pytest.raises(DataError, match=rf"^a\.tar: the member 'b' is {noun}, not a file; pack files themselves"):
        archive.read("b")


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "a/../../b", "//x"])
def test_absolute_names_and_parent_folders_are_left_out(name: str) -> None:
    archive = Archive(pack(files(**{name: b"1", "good": b"2"})))
    assert list(archive) == ["good"]
    with pytest.raises(DataError, match=r"has an absolute name, or one with '\.\.', which is not read; pack it"):
        archive.read(name)


def test_a_name_that_is_there_twice_is_refused_because_the_archive_is_ambiguous() -> None:
    twice = [*files(a=b"1", b=b"2"), *files(a=b"3"), *files(**{"./a": b"4"})]
    archive = Archive(pack(twice))
    assert list(archive) == ["b"]
    with pytest.raises(DataError, match=r"^a\.tar: the member 'a' is there twice; pack the archive again with each"):
        archive.read("a")


def test_a_sparse_member_is_not_read() -> None:
    member = info("a", size=3, pax_headers={"GNU.sparse.major": "1"})
    with pytest.raises(DataError, match="'a' is not stored as a plain file; pack the archive again"):
        Archive(pack([(member, b"abc")])).read("a")


def test_a_missing_member_gets_a_suggestion() -> None:
    with pytest.raises(DataError, match=r"^a\.tar has no member 'one.waw'; did you mean 'one\.wav'\?$"):
        Archive(pack(files(**{"one.wav": b"1"}))).read("one.waw")


@pytest.mark.parametrize(
    ("position", "field", "why"),
    [
        (124, b"77777777777\0", r"at byte 0: a member of 8,589,934,591 bytes goes beyond the end"),
        (124, b"\x80" + b"\xff" * 11, r"at byte 0: a member of [\d,]+ bytes goes beyond the end"),
        (124, b"\xff" * 12, "at byte 0: there is no header"),  # a negative number
        (124, b"-0000000001\0", "at byte 0: there is no header"),
        (124, b"9", "at byte 0: there is no header"),
        (0, b"\0" * 100, "at byte 0: a name has no bytes, or more than 4,096"),
    ],
)
def test_a_header_that_lies_is_refused(position: int, field: bytes, why: str) -> None:
    with pytest.raises(DataError, match=rf"^a\.tar is not a whole tar file \({why}\); fetch or pack it again$"):
        Archive(rewritten(position, field))


def test_huge_extended_headers_are_refused_before_they_are_read() -> None:
    for kind in (b"L", b"x"):
        header = bytearray(info("a", kind, size=2**30).tobuf(tarfile.USTAR_FORMAT))
        with open("huge.tar", "wb") as file:
            file.write(header)
            file.truncate(2**30 + 2**20)  # takes no room on disk
        with pytest.raises(DataError, match=r"^huge\.tar is not a whole tar file .* more than 1,048,576 bytes"):
            Archive("huge.tar")


@pytest.mark.parametrize(
    "records", [b"5 path=x\n", b"0 a=b\n", b"99999999 path=x\n", b"path=b\n", b"\xff" * 40, b"12 size=-12\n"]
)
def test_a_broken_extended_header_is_ignored(records: bytes) -> None:
    extended = info("x", b"x", size=len(records)).tobuf(tarfile.USTAR_FORMAT) + records.ljust(512, b"\0")
    Path("x.tar").write_bytes(extended + Path(pack(files(a=b"abc"))).read_bytes())
    assert Archive("x.tar").read("a") == b"abc"


def test_a_name_of_many_bytes_is_refused() -> None:
    with pytest.raises(DataError, match="a name has no bytes, or more than 4,096"):
        Archive(pack(files(**{"x" * 5000: b""})))


def test_more_members_or_bytes_than_the_limits_are_refused() -> None:
    name = pack(files(**{str(number): b"" for number in range(11)}))
    assert len(Archive(name, Limits(archive_members=11))) == 11
    with pytest.raises(DataError, match=r"more than 10 members; split the file, or raise data\.limits\.archive_me"):
        Archive(name, Limits(archive_members=10))
    with pytest.raises(DataError, match=r"more than 1,000 bytes; split the file, or raise data\.limits\.file_bytes"):
        Archive(name, Limits(file_bytes=1000))


def test_compressed_archives_are_refused_with_the_command_that_unpacks_them() -> None:
    content = Path(pack(files(a=b"abc"))).read_bytes()
    for packed, command in ((gzip.compress(content), "gunzip"), (lzma.compress(content), "unxz")):
        Path("b.tar").write_bytes(packed)
        with pytest.raises(DataError, match=rf"^b\.tar is compressed, .* unpack it first, .*: {command}$"):
            Archive("b.tar")


def test_what_is_no_archive_is_refused() -> None:
    Path("text.tar").write_text("a line\n" * 1000)
    Path("empty.tar").touch()
    Path("folder").mkdir()
    os.mkfifo("pipe.tar")
    for name, why in {
        "text.tar": r"is not a whole tar file \(at byte 0: there is no header\)",
        "empty.tar": "is empty; give a tar file",
        "pipe.tar": "is a pipe, not a file",
        "folder": "is a folder; name a file in it",
    }.items():
        with pytest.raises(DataError, match=f"^{re.escape(name)} {why}"):
            Archive(name)


def read_all(name: str) -> tuple[list[bytes], str]:
    """The contents of all members, and the message if the archive is refused."""
    try:
        archive = Archive(name)
        return [archive.read(member) for member in archive], ""
    except DataError as error:
        return [], str(error)


def test_an_archive_that_is_cut_gives_the_members_before_or_a_sentence() -> None:
    whole = Path(pack(files(a=b"1" * 700, b=b"2" * 10), "gnu")).read_bytes()
    for size in range(0, 3000, 37):
        Path("cut.tar").write_bytes(whole[:size])
        contents, problem = read_all("cut.tar")
        assert set(contents) <= {b"1" * 700, b"2" * 10}
        assert re.match(r"$|cut\.tar is (not a whole tar file|empty)", problem)


def test_any_damage_gives_members_or_a_sentence() -> None:
    generator = random.Random(5)
    whole = Path(pack([*files(a=b"1" * 700), *files(**{LONG: b"2"})])).read_bytes()[:5120]
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(generator.randrange(1, 6)):
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        Path("damaged.tar").write_bytes(damaged)
        _, problem = read_all("damaged.tar")
        assert re.match(r"$|damaged\.tar", problem)


def change(name: str, how: str) -> None:
    if how == "grow":
        with open(name, "ab") as file:
            file.write(b"\0" * 512)
    elif how == "touch":
        os.utime(name, ns=(0, 1))
    else:
        os.rename(name, "other")
        Path(name).write_bytes(Path("other").read_bytes())
        os.utime(name, ns=(0, os.stat("other").st_mtime_ns))


@pytest.mark.parametrize("how", ["grow", "touch", "replace"])
def test_an_archive_that_has_changed_is_noticed(how: str) -> None:
    archive = Archive(pack(files(a=b"abc")))
    assert archive.read("a") == b"abc"
    change("a.tar", how)
    with pytest.raises(DataError, match=r"^a\.tar has changed since its headers were read; start again$"):
        archive.read("a")


def test_an_archive_that_changes_while_its_headers_are_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    name, real = pack(files(a=b"abc")), os.pread

    def pread(handle: int, size: int, offset: int) -> bytes:
        if offset >= 1024:
            os.utime(name, ns=(0, 1))
        return real(handle, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(DataError, match=r"^a\.tar changed while it was read"):
        Archive(name)


def test_short_reads_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    archive, real = Archive(pack(files(a=b"0123456789"))), os.pread
    monkeypatch.setattr(os, "pread", lambda handle, size, offset: real(handle, min(size, 3), offset))
    assert archive.read("a") == b"0123456789"


# names and files


def read(name: str, **limits: int) -> bytes:
    return StoredFiles(Limits(**limits)).read(name, 100, "recording_bytes")


def test_a_table_names_members_of_the_archive_beside_it_or_files_beside_it(tmp_path: Path) -> None:
    Path("set").mkdir()
    Path("set/b.wav").write_bytes(b"file b")
    Path("c.wav").write_bytes(b"file c")
    pack(files(**{"a.wav": b"member a", "b.wav": b"member b"}), name="set/train.tar")
    assert full_name("a.wav", "set/train.tsv") == full_name("a.wav", "set/train.tsv.gz") == "set/train.tar/a.wav"
    assert full_name("b.wav", "set/dev.tsv") == "set/b.wav"
    assert full_name("c.wav", "set/dev.tsv") == "c.wav"
    assert full_name(f"{tmp_path}/c.wav", "set/train.tsv") == f"{tmp_path}/c.wav"
    assert read("set/train.tar/a.wav") == b"member a"
    assert read("set/train.tar/b.wav") == b"member b"
    assert read("set/b.wav") == b"file b"
    with pytest.raises(DataError, match=r"^set/train\.tar has no member 'c\.wav'"):
        read("set/train.tar/c.wav")


def test_archives_are_found_under_the_folder_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("home/an4").mkdir(parents=True)
    pack(files(**{"a.wav": b"1"}), name="home/an4/train.tar")
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "home"))
    assert full_name("a.wav", "an4/train.tsv") == "an4/train.tar/a.wav"
    assert read("an4/train.tar/a.wav") == b"1"


def test_a_folder_whose_name_ends_like_an_archive_is_a_folder() -> None:
    Path("x.tar").mkdir()
    Path("x.tar/a.wav").write_bytes(b"1")
    assert read("x.tar/a.wav") == b"1"
    with pytest.raises(DataError, match=r"^cannot find x\.tar/b\.wav"):
        read("x.tar/b.wav")


def test_the_headers_of_an_archive_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    name, stored = pack(files(a=b"1", b=b"2")), StoredFiles()
    assert stored.read(f"{name}/a", 9, "recording_bytes") == b"1"
    monkeypatch.setattr(Archive, "_members", None)
    assert stored.read(f"{name}/b", 9, "recording_bytes") == b"2"


def test_large_files_and_members_are_refused_before_they_are_read() -> None:
    Path("large").write_bytes(b"1" * 101)
    pack(files(large=b"1" * 101))
    for name in ("large", "a.tar/large"):
        with pytest.raises(DataError, match=rf"^{name} has more than 100 bytes; .* raise data\.limits\.recording_byt"):
            read(name)


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "a.tar/", "a.tar/b\0", "/dev/zero", "/dev/null/a"])
def test_odd_names_get_a_sentence(name: str) -> None:
    pack(files(a=b"1"))
    with pytest.raises(DataError):
        read(name)
