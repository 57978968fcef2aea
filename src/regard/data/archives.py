"""Reads files that other files name, such as recordings and pictures: from folders, or from plain tar files.

A table such as `set/pairs.tsv` may name the file `a.wav`. If there is a tar file of the same name beside the table,
`set/pairs.tar`, this is its member `a.wav`; otherwise it is `set/a.wav`, or a file that `find` finds. `full_name`
returns its **full name**, such as `set/pairs.tar/a.wav`, which `StoredFiles` reads without knowing the table.

Nothing is ever unpacked to disk, so the names in an archive cannot reach any other file.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from regard.data.files import LIMITS, check_limit, opened
from regard.data.paths import find, is_there
from regard.errors import DataError, did_you_mean, shown
from regard.recipe import Limits

BLOCK = 512  # bytes; headers and contents of a tar file begin at multiples of it
ENDING = ".tar"
SMALLER = "give a smaller file"  # advice for one that is too large
COMPARED = 1000  # names that a message compares with one that is not there
LONGEST_NAME = 4096  # bytes of the name of a member
LARGEST_EXTENSION = 2**20  # bytes of an extended header, which holds a long name and other attributes
FILES = (b"0", b"\0", b"7")  # types of members: regular files
EXTENDED, LONG_NAME = b"x", b"L"  # headers of the member that follows: of POSIX, and of GNU tar
SKIPPED = (b"g", b"K")  # headers with content that is not used: attributes of all members, long names of links
WITHOUT_CONTENT = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"5": "a folder",
    b"6": "a pipe",
}
PACKED = {b"\x1f\x8b": "gunzip", b"\xfd7zXZ\0": "unxz", b"BZh": "bunzip2", b"\x28\xb5\x2f\xfd": "unzstd"}


class Place(NamedTuple):
    """The place of a member's content in a tar file."""

    offset: int
    size: int


class Identity(NamedTuple):
    """What tells one state of a file from another."""

    device: int
    inode: int
    size: int
    modified: int

    @staticmethod
    def of(status: os.stat_result) -> "Identity":
        """The identity of the file with this status."""
        return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class _Header(NamedTuple):
    """A block of a tar file that describes what follows it."""

    name: str
    size: int
    kind: bytes


class Archive:
    """The files in a plain tar file, by name; a file is read at its offset, without those before it.

    The headers are read once. Links, devices, folders, absolute names, names with `..` and names that occur twice are
    left out, and to ask for one raises DataError with the reason. `./a.wav` is the same name as `a.wav`.
    """

    def __init__(self, name: str, limits: Limits = LIMITS) -> None:
        self.name = name
        self._places: dict[str, Place] = {}
        self._left_out: dict[str, str] = {}  # reasons by name
        with opened(name) as (handle, status):
            self._identity = Identity.of(status)
            check_limit(name, status.st_size, limits.file_bytes, "bytes", "file_bytes")
            self._check_signature(os.pread(handle, BLOCK, 0))
            for member, place, problem in self._members(handle, status.st_size):
                self._add(member, place, problem)
                count = len(self._places) + len(self._left_out)
                check_limit(name, count, limits.archive_members, "members", "archive_members")

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, member: str) -> bool:
        return _plain(member) in self._places

    def size(self, member: str) -> int:
        """The size of a file in bytes."""
        return self._place(member).size

    def read(self, member: str) -> bytes:
        """The content of a file; DataError if the archive is not the one whose headers were read."""
        offset, size = self._place(member)
        with opened(self.name) as (handle, status):
            if Identity.of(status) != self._identity:
                raise DataError(f"{self.name} has changed since its headers were read; start again")
            content = _pread(handle, size, offset)
        if len(content) < size:
            raise self._broken(offset, f"{shown(member)} ends too early")
        return content

    def _place(self, member: str) -> Place:
        name = _plain(member)
        if name in self._left_out:
            raise DataError(f"{self.name}: the member {shown(name)} {self._left_out[name]}")
        if name not in self._places:
            similar = did_you_mean(name, islice(self._places, COMPARED))
            raise DataError(f"{self.name} has no member {shown(name)}{similar}")
        return self._places[name]

    def _add(self, member: str, place: Place, problem: str) -> None:
        name = _plain(member)
        if name in self._left_out:
            return
        if member.startswith("/") or ".." in member.split("/"):
            problem = "has an absolute name, or one with '..', which is not read; pack it with a relative name"
        elif name in self._places:
            problem = "is there twice; pack the archive again with each name once"
        if problem:
            self._places.pop(name, None)
            self._left_out[name] = problem
        else:
            self._places[name] = place

    def _check_signature(self, start: bytes) -> None:
        if not start:
            raise DataError(f"{self.name} is empty; give a tar file")
        for signature, command in PACKED.items():
            if start.startswith(signature):
                how = f"unpack it first, for example with: {command}"
                raise DataError(f"{self.name} is compressed, and members are read only from a plain tar file; {how}")

    def _members(self, handle: int, size: int) -> Iterator[tuple[str, Place, str]]:
        """Name and place of each member, and why it cannot be read; empty if it can."""
        offset, extension = 0, _NO_EXTENSION
        while offset < size:
            block = os.pread(handle, BLOCK, offset)
            if not any(block):
                return  # blocks of zeros end an archive
            header = self._header(block, offset)
            begin = offset + BLOCK
            length = header.size
            if header.kind in WITHOUT_CONTENT:
                length = 0  # the size of a link is that of the file it points to
            elif extension.size is not None and header.kind in FILES:
                length = extension.size
            if begin + length > size:
                raise self._broken(offset, f"a member of {length:,} bytes goes beyond the end")
            offset = begin + -(-length // BLOCK) * BLOCK
            if header.kind in (EXTENDED, LONG_NAME):
                extension = extension.update(header.kind, self._extension(handle, Place(begin, length)))
            elif header.kind not in SKIPPED:
                name = extension.name or header.name
                if not name or len(os.fsencode(name)) > LONGEST_NAME:
                    raise self._broken(begin - BLOCK, f"a name has no bytes, or more than {LONGEST_NAME:,}")
                yield name, Place(begin, length), _problem(header.kind, extension)
                extension = _NO_EXTENSION

    def _header(self, block: bytes, offset: int) -> _Header:
        try:
            if len(block) < BLOCK or not _is_sum(block, _number(block[148:156])):
                raise ValueError("no header")
            size = _number(block[124:136])
        except ValueError:
            raise self._broken(offset, "there is no header") from None
        name, prefix = block[:100], block[345:500] if block[257:263] == b"ustar\0" else b""
        parts = [os.fsdecode(part.partition(b"\0")[0]) for part in (prefix, name)]
        return _Header("/".join(filter(None, parts)), size, block[156:157])

    def _extension(self, handle: int, place: Place) -> bytes:
        if place.size > LARGEST_EXTENSION:
            raise self._broken(place.offset, f"a header has more than {LARGEST_EXTENSION:,} bytes")
        return _pread(handle, place.size, place.offset)

    def _broken(self, offset: int, why: str) -> DataError:
        return DataError(f"{self.name} is not a whole tar file (at byte {offset:,}: {why}); fetch or pack it again")


class _Extension(NamedTuple):
    """Attributes of the next member that its own header has no room for."""

    name: str = ""
    size: int | None = None
    is_sparse: bool = False

    def update(self, kind: bytes, content: bytes) -> "_Extension":
        """The attributes, with those of a further header."""
        if kind == LONG_NAME:
            return self._replace(name=os.fsdecode(content.partition(b"\0")[0]))
        extension = self
        for key, value in _records(content):
            if key == b"path":
                extension = extension._replace(name=os.fsdecode(value.partition(b"\0")[0]))
            elif key == b"size" and value.isdigit() and len(value) < 20:
                extension = extension._replace(size=int(value))
            elif key.startswith(b"GNU.sparse."):
                extension = extension._replace(is_sparse=True)
        return extension


_NO_EXTENSION = _Extension()


def _records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of an extended header: records of `LENGTH KEY=VALUE`; the rest of a broken one is ignored."""
    start = 0
    while start < len(content):
        digits = content[start : start + 8].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record = content[start : start + length]
        if not record.endswith(b"\n") or not len(digits) < length == len(record):
            return
        key, _, value = record[len(digits) + 1 : -1].partition(b"=")
        yield key, value
        start += length


def _problem(kind: bytes, extension: _Extension) -> str:
    """Why a member of this type cannot be read; empty if it can."""
    if kind in WITHOUT_CONTENT:
        return f"is {WITHOUT_CONTENT[kind]}, not a file; pack files themselves, for example with: tar --dereference"
    if kind not in FILES or extension.is_sparse:
        return "is not stored as a plain file; pack the archive again, for example without: tar --sparse"
    return ""


def _number(field: bytes) -> int:
    """The number in a field of a header: octal digits, or after 0x80 a binary number."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.strip(b" \0")
    if digits and not set(digits) <= set(b"01234567"):
        raise ValueError("not a number")
    return int(digits or b"0", 8)


def _is_sum(block: bytes, number: int) -> bool:
    """Whether this is the checksum of a header: the sum of its bytes, with spaces in place of the checksum."""
    return sum(block) - sum(block[148:156]) + 8 * ord(" ") == number


def _plain(name: str) -> str:
    """A name without `.` and doubled slashes."""
    return str(PurePosixPath(name))


def _pread(handle: int, size: int, offset: int) -> bytes:
    """The bytes at an offset; fewer only at the end of the file."""
    pieces: list[bytes] = []
    while size and (piece := os.pread(handle, size, offset)):
        pieces.append(piece)
        offset, size = offset + len(piece), size - len(piece)
    return b"".join(pieces)


# names and files


def full_name(name: str, table: str) -> str:
    """The full name of a file that a table, such as `pairs.tsv`, names; see the description of this module.

    It does not look into archives: a member that is missing is noticed when it is read.
    """
    path = Path(table.removesuffix(".gz"))
    archive, beside = str(path.with_suffix(ENDING)), str(path.parent / name)
    if is_there(archive) and not name.startswith("/"):
        return f"{archive}/{name}"
    return beside if is_there(beside) else name


class StoredFiles:
    """Reads files and members of tar files by their full names; the headers of an archive are read once."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._archives: dict[str, Archive] = {}

    def read(self, name: str, most: int, key: str) -> bytes:
        """The content of a file; DataError if it has more than `most` bytes, the value of `data.limits.KEY`."""
        archive, member = self._split(name)
        if not archive:
            with opened(name) as (handle, status):
                check_limit(name, status.st_size, most, "bytes", key, SMALLER)
                return _pread(handle, status.st_size, 0)
        if archive not in self._archives:
            self._archives[archive] = Archive(archive, self.limits)
        check_limit(name, self._archives[archive].size(member), most, "bytes", key, SMALLER)
        return self._archives[archive].read(member)

    def _split(self, name: str) -> tuple[str, str]:
        """The names of archive and member; of a name outside archives, two empty texts."""
        if ENDING + "/" not in name or is_there(name):
            return "", ""
        parts = name.split("/")
        for count in range(1, len(parts)):
            archive = "/".join(parts[:count])
            if archive.endswith(ENDING) and _is_file(archive):
                return archive, "/".join(parts[count:])
        return "", ""


def _is_file(name: str) -> bool:
    """Whether `find` finds something of that name that is not a folder."""
    try:
        return bool(find(name))
    except DataError:
        return False


class Places:
    """Folders and tar files in which files are looked for by their names, in this order; those not there are skipped.

    The headers of all archives are read when the first file is looked for.
    """

    def __init__(self, names: Sequence[str], limits: Limits = LIMITS) -> None:
        self.names, self.limits = names, limits
        self._found: dict[str, str] = {}

    def full_name(self, name: str) -> str:
        """The full name of a file; empty if it is in none of the places."""
        if name not in self._found:
            self._found[name] = next(filter(None, (look(name) for look in self._lookups)), "")
        return self._found[name]

    @cached_property
    def _lookups(self) -> list[Callable[[str], str]]:
        """For each place, a function that gives the full name of a file in it, or an empty text."""
        return [self._lookup(name) for name in self.names if is_there(name)]

    def _lookup(self, place: str) -> Callable[[str], str]:
        if place.endswith(ENDING):
            members = _members_by_name(place, self.limits)
            return lambda name: members.get(_plain(name), "")
        return lambda name: f"{place}/{name}" if is_there(f"{place}/{name}") else ""


def _members_by_name(name: str, limits: Limits) -> dict[str, str]:
    """The full names of an archive's members, by their names, and by their names without folders if these differ."""
    archive = Archive(name, limits)
    counts = Counter(PurePosixPath(member).name for member in archive)
    short = {PurePosixPath(member).name: member for member in archive}
    members = {base: member for base, member in short.items() if counts[base] == 1} | {key: key for key in archive}
    return {key: f"{name}/{member}" for key, member in members.items()}
