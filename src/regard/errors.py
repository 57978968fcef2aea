"""Errors that a user can cause; each class has the exit code of the command line."""

import reprlib
import signal
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TypeVar

Entry = TypeVar("Entry")


class RegardError(Exception):
    """Base class of errors that users can fix; the message says what was given, what is allowed and how to fix it."""

    exit_code = 2


class RecipeError(RegardError):
    """A recipe, an override or an argument that cannot be used."""


class UnknownNameError(RecipeError):
    """A name that is in no table; the message lists the names there are."""

    def __init__(self, what: str, name: str, choices: Iterable[str]) -> None:
        choices = list(choices)
        super().__init__(f"unknown {what} {shown(name)}; choose from {', '.join(choices)}{did_you_mean(name, choices)}")
        self.what = what
        self.name = name


class DataError(RegardError):
    """Input that is missing, empty or not in the expected format."""


class MissingExtraError(RegardError):
    """An optional package is not installed; the message says how to install it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package}; install it with: {install_command(extra)}")


class NotFiniteError(RegardError):
    """A loss, a gradient or an output of the model is not finite (NaN or infinite)."""

    exit_code = 3


class StorageError(RegardError):
    """Files could not be read or written."""

    exit_code = 4


class CorruptError(RegardError):
    """A stored file or folder is damaged or incomplete."""

    exit_code = 5


class ResourceError(RegardError):
    """The machine has too few resources, for example too little memory."""

    exit_code = 6


class UnexpectedError(RegardError):
    """An exception that regard did not foresee: a mistake in regard, or in something that it uses."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h

    def __init__(self, doing: str, kind: str, number: str, details: str) -> None:
        how = "regard --debug COMMAND prints them; please report it with the number"
        super().__init__(f"{doing} met an unexpected error ({kind}, number {number}); {details}; {how}")


class StoppedError(RegardError):
    """The process received a signal to stop, such as SIGINT; the exit code is 128 plus the signal's number."""

    def __init__(self, number: int, saved: str = "nothing was written") -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; {saved}")
        self.number = number
        self.exit_code = 128 + number


class CallbackError(RegardError):
    """A callback of training raised an exception; the run is not damaged."""

    def __init__(self, method: str, update: int, error: Exception, state: str = "the run is not damaged") -> None:
        kind = f"{type(error).__name__}: {error}".rstrip(": ")
        super().__init__(f"the callback {method} failed at update {update:,} ({kind}); {state}")
        self.method, self.update, self.error = method, update, error
        self.exit_code = error.exit_code if isinstance(error, RegardError) else RegardError.exit_code


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra: of the released package, or in a clone."""
    return f"pip install 'regard[{extra}]', or in a clone: pip install -e '.[{extra}]'"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of an error message that suggests the most similar choice; empty if no choice is similar."""
    near = get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def pick(table: Mapping[str, Entry], name: str, what: str) -> Entry:
    """The table's entry of that name; an unknown name raises RecipeError with a list of all names."""
    if name not in table:
        raise UnknownNameError(what, name, table)
    return table[name]


class _Short(reprlib.Repr):
    """`repr` with limits on depth and length."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, 100, 100, 100

    def repr_int(self, x: int, level: int) -> str:
        """The digits of a number; Python refuses to convert more than 4,300 of them."""
        return super().repr_int(x, level) if x.bit_length() < 1000 else f"a number of {x.bit_length():,} bits"


def shown(value: object) -> str:
    """The value as it is shown in an error message: as by `repr`, but shortened if it is long or deep."""
    return _Short().repr(value)
