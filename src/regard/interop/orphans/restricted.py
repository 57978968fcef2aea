"""Readers of checkpoints that call nothing: of torch, whose pickles are interpreted as data, and of npz files.

A pickle may name any function of any installed package and have it called. Here a name is only looked up in a table of
plain data: tensors, storages, dictionaries, namespaces of settings. Any other name is refused, and no instruction can
import or call anything. Memory and time are bounded: by the size of the file, and by `MOST_STEPS` and `MOST_PICKLE`.

A pickle may put one tuple or list into itself many times, level by level: a short file then stands for a value without
end. So values are hashed, compared and printed only if they are texts or numbers.
"""

import io
import math
import pickletools
import struct
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from regard.errors import CorruptError, DataError, shown

MOST_PICKLE = 1 << 26  # bytes of a pickle, and of the directory of an archive
MOST_STEPS = 5_000_000  # instructions of a pickle, and entries that they copy
MOST_SHARED = 64  # bytes of all tensors for each byte of the file: several may be views of one storage
MOST_AXES = 64  # of a tensor
LARGEST_SIZE = 1 << 62  # and of its sizes and strides
LARGEST_KEY = 1 << 60  # of a dictionary, if it is a number: larger ones may be made to have equal hashes
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the first pickle of a file of torch before 1.6: a number
STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class Name(NamedTuple):
    """A name in a pickle, which is never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Settings(dict[str, Any]):
    """The attributes of a namespace, or of another object that holds nothing but settings."""


class Storage(NamedTuple):
    """The numbers of a storage, of which tensors are views."""

    numbers: Tensor


TENSOR = Name("torch._utils", "_rebuild_tensor_v2")
PARAMETER = Name("torch._utils", "_rebuild_parameter")
DICTIONARIES = {Name("collections", name) for name in ("OrderedDict", "defaultdict", "Counter")}
# Classes whose objects become `Settings`. OmegaConf's are what the settings of fairseq are made of.
OBJECTS = {
    Name("argparse", "Namespace"),
    *(Name("omegaconf.dictconfig", name) for name in ("DictConfig",)),
    *(Name("omegaconf.listconfig", name) for name in ("ListConfig",)),
    *(Name("omegaconf.base", name) for name in ("ContainerMetadata", "Metadata")),
    *(Name("omegaconf.nodes", f"{kind}Node") for kind in ("Any", "String", "Integer", "Float", "Boolean")),
}
BUILTINS = ("builtins", "__builtin__")
SETS = {Name(module, name) for module in BUILTINS for name in ("set", "frozenset")}  # become lists
TYPES = {Name("torch", name) for name in STORAGES}
# Types that settings hold as values; they are not called.
INERT = {
    Name("typing", "Any"),
    *(Name(module, name) for module in BUILTINS for name in ("dict", "list", "str", "int", "float", "bool")),
}
KNOWN = {TENSOR, PARAMETER, *DICTIONARIES, *SETS, *OBJECTS, *TYPES, *INERT}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
NEW = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
NUMBERS = ("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
TEXTS = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "SHORT_BINSTRING", "BINSTRING")
BYTES = ("SHORT_BINBYTES", "BINBYTES", "BINBYTES8")
IGNORED = ("PROTO", "FRAME")


def load(path: Path) -> Any:
    """The content of a file that `torch.save` wrote: dictionaries, lists, numbers, texts and tensors."""
    with _opened(path, "a checkpoint of torch") as file:
        if file.peek(len(LEGACY)).startswith(LEGACY):
            return _load_legacy(path, file)
        with _archive(path, file) as archive:
            return _load_archive(path, archive)


def load_npz(path: Path) -> dict[str, Tensor]:
    """The arrays of a file that `numpy.savez` or Marian wrote; numbers only, since others are pickles."""
    with _opened(path, "an npz file") as file, _archive(path, file) as archive:
        return {
            member.removesuffix(".npy"): _array(path, member, archive.read(member)) for member in archive.namelist()
        }


def _array(path: Path, name: str, content: bytes) -> Tensor:
    """The array of an npy file; its numbers must be as many as its header says."""
    file = io.BytesIO(content)
    header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(npy.read_magic(file))
    if header is None:
        raise DataError(f"{path} was not read: {shown(name)} has an unknown version")
    try:
        shape, by_columns, dtype = header(file)
    except MemoryError as error:  # of Python's parser, at an expression that is nested too deeply
        raise CorruptError(f"{path} is damaged: the header of {shown(name)} is nested too deeply") from error
    if dtype.hasobject or dtype.kind not in "iuf" or dtype.byteorder == ">":
        raise DataError(f"{path} was not read: {shown(name)} has the type {dtype}, and regard reads numbers only")
    if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise CorruptError(f"{path} is damaged: {shown(name)} has not as many numbers as it says")
    numbers = np.frombuffer(bytearray(content[file.tell() :]), dtype)
    return torch.from_numpy(numbers.reshape(shape, order="F" if by_columns else "C"))


@contextmanager
def _opened(path: Path, what: str) -> Iterator["_BoundedFile"]:
    """The file; what goes wrong while it is read becomes a sentence."""
    try:
        with _BoundedFile(path) as file:
            yield file
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, TypeError, KeyError, OSError) as error:
        raise DataError(f"{path} cannot be read as {what}: {shown(str(error))}") from error


def _archive(path: Path, file: "_BoundedFile") -> zipfile.ZipFile:
    """The archive of a file, whose members are no larger than the file."""
    archive = zipfile.ZipFile(file)
    file.most = None
    members = archive.infolist()
    if len({member.filename for member in members}) < len(members):
        raise DataError(f"{path} was not read: it has two members of one name")
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise DataError(f"{path} was not read: it is compressed, and checkpoints are not")
    if sum(member.file_size for member in members) > path.stat().st_size:
        raise DataError(f"{path} was not read: its members are larger than the file")
    return archive


class _BoundedFile(io.BufferedReader):
    """A file of which at most `most` bytes are read at once: the directory of an archive is read in one piece."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self.most: int | None = MOST_PICKLE

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes; DataError if they are more than `most`."""
        if self.most is not None and size is not None and size > self.most:
            raise DataError(f"{self.raw.name} has a directory of {size:,} bytes, more than {self.most:,}")  # type: ignore[attr-defined]
        return super().read(size)


def _load_archive(path: Path, archive: zipfile.ZipFile) -> Any:
    """The content of an archive as torch 1.6 and later write it: a pickle, and a member for each storage."""
    main = [name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(main) != 1:
        raise DataError(f"{path} is no checkpoint of torch: it has no single data.pkl")
    prefix = main[0].removesuffix("data.pkl")
    order = f"{prefix}byteorder"
    if order in archive.namelist() and archive.read(order) != b"little":
        raise DataError(f"{path} was not read: its numbers are big-endian; save it again on another machine")
    if (size := archive.getinfo(main[0]).file_size) > MOST_PICKLE:
        raise DataError(f"{path} was not read: its data.pkl has {size:,} bytes, more than {MOST_PICKLE:,}")
    with archive.open(main[0]) as pickle:
        return _Interpreter(path, _Members(path, archive, prefix)).run(io.BytesIO(pickle.read()))


def _load_legacy(path: Path, file: BinaryIO) -> Any:
    """The content of a file of torch before 1.6: five pickles one after another, then the storages."""
    numbers, pickles = _Appended(path), io.BytesIO(file.read(MOST_PICKLE))

    def following() -> Any:
        return _Interpreter(path, numbers).run(pickles)

    following()  # LEGACY
    following()  # a version
    machine = following()
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise DataError(f"{path} was not read: its numbers are big-endian; save it again on another machine")
    content, keys = following(), following()
    file.seek(pickles.tell())
    numbers.fill(file, keys)
    return content


class _Storages(ABC):
    """The storages of a checkpoint, by their keys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, Tensor] = {}

    def get(self, key: str, dtype: torch.dtype, count: int) -> Tensor:
        """The numbers of a storage; CorruptError if they are not of that type and count."""
        if key not in self.known:
            self.known[key] = self.read(key, dtype, count)
        if self.known[key].dtype != dtype or len(self.known[key]) != count:
            raise CorruptError(f"{self.path} is damaged: the storage {key} has two types or sizes")
        return self.known[key]

    @abstractmethod
    def read(self, key: str, dtype: torch.dtype, count: int) -> Tensor:
        """The numbers of a storage that is met for the first time."""


class _Members(_Storages):
    """Storages as members of an archive."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, prefix: str) -> None:
        super().__init__(path)
        self.archive, self.prefix = archive, prefix

    def read(self, key: str, dtype: torch.dtype, count: int) -> Tensor:
        """The numbers of a member."""
        content = self.archive.read(f"{self.prefix}data/{key}")
        if len(content) != count * dtype.itemsize:
            raise CorruptError(f"{self.path} is damaged: the storage {key} has {len(content):,} bytes")
        return torch.frombuffer(bytearray(content), dtype=dtype) if count else torch.empty(0, dtype=dtype)


class _Appended(_Storages):
    """Storages behind the pickles of a file: their numbers are known after the tensors that are views of them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.left = path.stat().st_size

    def read(self, key: str, dtype: torch.dtype, count: int) -> Tensor:
        """Room for the numbers, which `fill` reads."""
        self.left -= count * dtype.itemsize
        if self.left < 0:
            raise CorruptError(f"{self.path} is damaged: its storages are larger than the file")
        return torch.zeros(count, dtype=dtype)

    def fill(self, file: BinaryIO, keys: Any) -> None:
        """Read the numbers of all storages, in the order of the keys."""
        is_list = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
        if not is_list or sorted(keys) != sorted(self.known):
            raise CorruptError(f"{self.path} is damaged: its list of storages does not fit")
        for key in keys:
            numbers = self.known[key]
            (count,) = struct.unpack("<q", file.read(8).ljust(8, b"\0"))
            content = file.read(numbers.nbytes) if count == len(numbers) else b""
            if count != len(numbers) or len(content) != numbers.nbytes:
                raise CorruptError(f"{self.path} is damaged: the storage {key} has {len(content):,} bytes")
            if count:
                numbers.copy_(torch.frombuffer(bytearray(content), dtype=numbers.dtype))


class _Interpreter:
    """Runs the instructions of one pickle over a stack of plain values."""

    def __init__(self, path: Path, storages: _Storages) -> None:
        self.path, self.storages = path, storages
        self.stacks: list[list[Any]] = [[]]  # a mark begins a new one
        self.memo: dict[int, Any] = {}
        self.steps = 0
        self.viewed = 0  # bytes of all tensors

    def run(self, pickle: io.BytesIO) -> Any:
        """Check all names that stand in instructions, then interpret these; returns the value at the end."""
        start = pickle.tell()
        for opcode, argument in self._instructions(pickle):
            if opcode in ("GLOBAL", "INST"):
                self._known(Name(*str(argument).split(" ", 1)))
        pickle.seek(start)
        self.steps = 0
        try:
            for opcode, argument in self._instructions(pickle):
                if opcode == "STOP":
                    return self.stacks[-1].pop()
                self._step(opcode, argument)
        except (IndexError, TypeError, ValueError, AttributeError, RuntimeError, KeyError, OverflowError) as error:
            raise CorruptError(f"{self.path} is damaged: {type(error).__name__} {shown(str(error))}") from error
        raise CorruptError(f"{self.path} is damaged: its pickle does not end")

    def _instructions(self, pickle: io.BytesIO) -> Iterator[tuple[str, Any]]:
        """The names and arguments of the instructions, up to STOP; CorruptError if they are none."""
        steps = pickletools.genops(pickle)
        while True:
            try:
                opcode, argument, _ = next(steps)
            except StopIteration:
                return
            except Exception as error:
                raise CorruptError(f"{self.path} is damaged: {shown(str(error))}") from error
            self._count(1)
            yield opcode.name, argument

    def _count(self, steps: int) -> None:
        """Count instructions, and entries that one of them copies; DataError if they are too many."""
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise DataError(f"{self.path} was not read: its pickle takes more than {MOST_STEPS:,} steps")

    def _known(self, name: Name) -> Name:
        """The name, if it stands for plain data."""
        name = Name(name.module, name.name)
        if name in KNOWN:
            return name
        raise DataError(
            f"{self.path} was not read: its pickle names {shown(str(name))}, which could run code; regard reads plain "
            "data only: tensors, numbers, texts, dictionaries, lists, sets and settings. Nothing was run"
        )

    def _step(self, opcode: str, argument: Any) -> None:
        """Interpret one instruction."""
        stack = self.stacks[-1]
        if opcode in IGNORED:
            return
        if opcode in CONSTANTS:
            stack.append(CONSTANTS[opcode])
        elif opcode in NEW:
            stack.append(NEW[opcode]())
        elif opcode in NUMBERS or opcode in TEXTS or opcode in BYTES:
            stack.append(argument)
        elif opcode == "MARK":
            self.stacks.append([])
        elif opcode == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif opcode in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif opcode in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif opcode == "GLOBAL":
            stack.append(self._known(Name(*argument.split(" ", 1))))
        elif opcode == "STACK_GLOBAL":
            name, module = stack.pop(), stack.pop()
            if not isinstance(module, str) or not isinstance(name, str):
                raise TypeError("a name is no text")
            stack.append(self._known(Name(module, name)))
        elif opcode in ("TUPLE1", "TUPLE2", "TUPLE3"):
            parts = [stack.pop() for _ in range(int(opcode[-1]))]
            stack.append(tuple(reversed(parts)))
        elif opcode in ("TUPLE", "LIST", "DICT"):
            values = self._since_mark()
            self.stacks[-1].append(_MADE[opcode](values))
        elif opcode in ("APPEND", "APPENDS"):
            values = [stack.pop()] if opcode == "APPEND" else self._since_mark()
            self._top(list).extend(values)
        elif opcode in ("SETITEM", "SETITEMS"):
            values = [stack.pop(), stack.pop()][::-1] if opcode == "SETITEM" else self._since_mark()
            self._top(dict).update(_pairs(values))
        elif opcode in ("REDUCE", "NEWOBJ"):
            arguments, name = stack.pop(), stack.pop()
            stack.append(self._made(name, arguments))
        elif opcode == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], Settings):
                if not isinstance(state, dict):
                    raise TypeError("the state of an object is no dictionary")
                self._count(len(state))
                stack[-1].update(state)
        elif opcode == "BINPERSID":
            stack.append(self._storage(stack.pop()))
        else:
            raise DataError(f"{self.path} was not read: its pickle uses {opcode}, which regard does not interpret")

    def _since_mark(self) -> list[Any]:
        """The values above the last mark, which are removed with it."""
        if len(self.stacks) < 2:
            raise ValueError("there is no mark")
        return self.stacks.pop()

    def _top(self, kind: type[Any]) -> Any:
        """The value on top of the stack, which must be of this kind."""
        value = self.stacks[-1][-1]
        if not isinstance(value, kind):
            raise TypeError(f"a {kind.__name__} is expected, not a {type(value).__name__}")
        return value

    def _made(self, name: Any, arguments: Any) -> Any:
        """The plain value that a known name and its arguments stand for."""
        if not isinstance(name, Name) or not isinstance(arguments, tuple):
            raise TypeError("a call of something that is no name")
        if name == TENSOR:
            return self._view(*arguments[:4])
        if name == PARAMETER:
            return arguments[0]
        if name in OBJECTS:
            return Settings()
        if name in SETS:
            entries = arguments[0] if arguments else []
            if not isinstance(entries, list | tuple):
                raise TypeError("a set is made of a list")
            self._count(len(entries))
            return [*entries]
        if name in DICTIONARIES:
            given = arguments[0] if arguments and isinstance(arguments[0], list | dict) else {}
            self._count(len(given))
            return dict(given) if isinstance(given, dict) else _pairs([part for pair in given for part in _pair(pair)])
        raise DataError(f"{self.path} was not read: its pickle calls {shown(str(name))}, which regard does not")

    def _storage(self, reference: Any) -> Storage:
        """The storage that a persistent id refers to."""
        if not isinstance(reference, tuple) or len(reference) not in (5, 6):
            raise DataError(f"{self.path} was not read: its pickle refers to something that is no storage")
        if not isinstance(reference[0], str) or reference[0] != "storage":
            raise DataError(f"{self.path} was not read: its pickle refers to something that is no storage")
        _, name, key, _, count, *view = reference
        is_type = isinstance(name, Name) and name in TYPES
        if not is_type or not isinstance(key, str) or not key.isalnum() or any(part is not None for part in view):
            raise DataError(f"{self.path} was not read: its pickle refers to something that is no storage")
        if type(count) is not int or count < 0:
            raise CorruptError(f"{self.path} is damaged: the storage {key} has no size")
        return Storage(self.storages.get(key, STORAGES[name.name], count))

    def _view(self, storage: Any, offset: Any, size: Any, stride: Any) -> Tensor:
        """A tensor on a storage; it must lie inside, and may not be larger."""
        if not isinstance(storage, Storage) or not isinstance(size, tuple) or not isinstance(stride, tuple):
            raise TypeError("a tensor needs a storage, sizes and strides")
        if max(len(size), len(stride)) > MOST_AXES:
            raise ValueError(f"a tensor has more than {MOST_AXES} axes")
        if any(type(number) is not int or not 0 <= number < LARGEST_SIZE for number in (offset, *size, *stride)):
            raise ValueError("sizes and strides of a tensor are whole numbers")
        room, count, last = len(storage.numbers), 1, offset
        for length, step in zip(size, stride, strict=True):
            count, last = count * length, last + (length - 1) * step
        if not count:
            return storage.numbers.new_empty(size)
        if last >= room or count > room:
            raise CorruptError(f"{self.path} is damaged: a tensor lies outside its storage")
        self.viewed += count * storage.numbers.itemsize
        if self.viewed > MOST_SHARED * self.path.stat().st_size:
            raise DataError(f"{self.path} was not read: its tensors are views of the same numbers, too many times")
        return storage.numbers.as_strided(size, stride, offset)


def _pair(pair: Any) -> tuple[Any, Any]:
    """A key and a value, as a list or a tuple holds them."""
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise TypeError("a dictionary is made of pairs")
    return pair[0], pair[1]


def _pairs(values: list[Any]) -> dict[Any, Any]:
    """A dictionary of keys and values that alternate."""
    return {_key(key): value for key, value in zip(values[0::2], values[1::2], strict=True)}


def _key(key: Any) -> Any:
    """A key of a dictionary: a text or a number. Those of deep tuples take Python's stack, and others may be slow."""
    if isinstance(key, str | bool) or key is None or (isinstance(key, int) and abs(key) < LARGEST_KEY):
        return key
    raise TypeError(f"the key of a dictionary is a {type(key).__name__}")


_MADE: dict[str, Any] = {"TUPLE": tuple, "LIST": list, "DICT": _pairs}
