"""A reader of torch checkpoints that calls nothing: pickle's instructions are interpreted as data.

A pickle may name any function of any installed package and have it called. Here a name is only looked up in a table of
plain data: tensors, storages, ordered dictionaries, namespaces of settings. Any other name is refused before a single
instruction is interpreted, and no instruction can import or call anything.
"""

import io
import pickletools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import CorruptError, DataError, shown

LARGEST = 1 << 36  # bytes of all members of a checkpoint
MOST_STEPS = 50_000_000  # instructions of a pickle
STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
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
    """The attributes of a namespace."""


class _Mark:
    """Pickle's mark on the stack."""


MARK = _Mark()
TENSOR = Name("torch._utils", "_rebuild_tensor_v2")
PARAMETER = Name("torch._utils", "_rebuild_parameter")
EMPTY: dict[Name, Callable[[], Any]] = {
    Name("collections", "OrderedDict"): dict,
    Name("collections", "defaultdict"): dict,
    Name("collections", "Counter"): dict,
    Name("argparse", "Namespace"): Settings,
}
TYPES = {Name("torch", name) for name in STORAGES}
KNOWN = {TENSOR, PARAMETER, *EMPTY, *TYPES}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
NEW = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": set}
NUMBERS = ("BININT", "BININT1", "BININT2", "INT", "LONG1", "LONG4", "BINFLOAT")
TEXTS = ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES")
IGNORED = ("PROTO", "FRAME")


def load(path: Path) -> Any:
    """The content of a file that `torch.save` wrote: dictionaries, lists, numbers, texts and tensors."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > LARGEST:
                raise DataError(f"{path} is larger than {LARGEST:,} bytes when unpacked, so it is not read")
            main = [name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
            if len(main) != 1:
                raise DataError(f"{path} is no checkpoint of torch: it has no single data.pkl")
            return _Interpreter(path, archive, main[0].removesuffix("data.pkl")).run(archive.read(main[0]))
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        how = "checkpoints of torch before 1.6 are not zip files; save them again with a newer torch"
        raise DataError(f"{path} cannot be read as a checkpoint of torch: {shown(str(error))}; {how}") from error


class _Interpreter:
    """Runs the instructions of one pickle over a stack of plain values."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, prefix: str) -> None:
        self.path, self.archive, self.prefix = path, archive, prefix
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Tensor] = {}

    def run(self, content: bytes) -> Any:
        """Check all names, then interpret all instructions; returns the value at the end."""
        try:
            steps = [(step[0].name, step[1]) for step in pickletools.genops(io.BytesIO(content))]
        except Exception as error:
            raise CorruptError(f"{self.path} is damaged: {shown(str(error))}") from error
        if len(steps) > MOST_STEPS:
            raise DataError(f"{self.path} has more than {MOST_STEPS:,} instructions, so it is not read")
        for opcode, argument in steps:
            if opcode in ("GLOBAL", "INST"):
                self._known(Name(*str(argument).split(" ", 1)))
        try:
            for opcode, argument in steps:
                if opcode == "STOP":
                    return self.stack.pop()
                self._step(opcode, argument)
        except (IndexError, TypeError, ValueError, AttributeError, RuntimeError, KeyError) as error:
            raise CorruptError(f"{self.path} is damaged: {type(error).__name__} {shown(str(error))}") from error
        raise CorruptError(f"{self.path} is damaged: its pickle does not end")

    def _known(self, name: Name) -> Name:
        """The name, if it stands for plain data."""
        if name in KNOWN:
            return name
        allowed = ", ".join(sorted(map(str, KNOWN - TYPES)))
        raise DataError(
            f"{self.path} was not read: its pickle names {shown(str(name))}, which could run code; regard reads plain "
            f"data only ({allowed}, and storages of torch). Nothing was run"
        )

    def _step(self, opcode: str, argument: Any) -> None:
        """Interpret one instruction."""
        stack = self.stack
        if opcode in IGNORED:
            return
        if opcode in CONSTANTS:
            stack.append(CONSTANTS[opcode])
        elif opcode in NEW:
            stack.append(NEW[opcode]())
        elif opcode in NUMBERS or opcode in TEXTS:
            stack.append(argument)
        elif opcode == "MARK":
            stack.append(MARK)
        elif opcode in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif opcode == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif opcode in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif opcode == "GLOBAL":
            stack.append(self._known(Name(*argument.split(" ", 1))))
        elif opcode == "STACK_GLOBAL":
            name, module = stack.pop(), stack.pop()
            stack.append(self._known(Name(str(module), str(name))))
        elif opcode in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(opcode[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif opcode == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif opcode == "APPEND":
            value = stack.pop()
            stack[-1].append(value)
        elif opcode == "APPENDS":
            values = self._since_mark()
            stack[-1].extend(values)
        elif opcode == "SETITEM":
            value, key = stack.pop(), stack.pop()
            stack[-1][key] = value
        elif opcode == "SETITEMS":
            values = self._since_mark()
            stack[-1].update(zip(values[0::2], values[1::2], strict=True))
        elif opcode in ("REDUCE", "NEWOBJ"):
            arguments, name = stack.pop(), stack.pop()
            stack.append(self._made(name, arguments))
        elif opcode == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], Settings):
                stack[-1].update(state)
        elif opcode == "BINPERSID":
            stack.append(self._storage(stack.pop()))
        else:
            raise DataError(f"{self.path} was not read: its pickle uses {opcode}, which regard does not interpret")

    def _since_mark(self) -> list[Any]:
        """The values above the last mark, which are removed with it."""
        place = max(index for index, value in enumerate(self.stack) if value is MARK)
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values

    def _made(self, name: Any, arguments: tuple[Any, ...]) -> Any:
        """The plain value that a known name and its arguments stand for."""
        if name == TENSOR:
            storage, offset, size, stride, *_ = arguments
            return self._view(storage, offset, tuple(size), tuple(stride))
        if name == PARAMETER:
            return arguments[0]
        if name in EMPTY:
            made = EMPTY[name]()
            pairs = arguments[0] if arguments and isinstance(arguments[0], list | dict) else ()
            made.update(pairs)
            return made
        raise DataError(f"{self.path} was not read: its pickle calls {shown(str(name))}, which regard does not")

    def _storage(self, reference: Any) -> Tensor:
        """The numbers of a storage, from its member of the archive."""
        kind, name, key, _, count = reference
        if kind != "storage" or not isinstance(name, Name) or name not in TYPES or not str(key).isalnum():
            raise DataError(f"{self.path} was not read: its pickle refers to {shown(str(kind))}, which is no storage")
        if key not in self.storages:
            dtype = STORAGES[name.name]
            content = self.archive.read(f"{self.prefix}data/{key}")
            if len(content) != count * dtype.itemsize:
                raise CorruptError(f"{self.path} is damaged: the storage {key} has {len(content):,} bytes")
            self.storages[key] = (
                torch.frombuffer(bytearray(content), dtype=dtype) if count else torch.empty(0, dtype=dtype)
            )
        return self.storages[key]

    def _view(self, storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        """A tensor on a storage; it must lie inside."""
        last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if min(offset, *size, *stride, 0) < 0 or (0 not in size and last >= len(storage)):
            raise CorruptError(f"{self.path} is damaged: a tensor lies outside its storage")
        return storage.as_strided(size, stride, offset).clone()
