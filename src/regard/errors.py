"""Errors that a user can cause; each class has the exit code of the command line."""

import re
import reprlib
import signal
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TypeVar

Entry = TypeVar("Entry")

MOST_LISTED = 12  # names that a message lists; of a longer table, it names the command that does
MOST_SUGGESTED = 3  # names that a message suggests
SIMILARITY = 0.6  # of a suggested name, from 0 to 1
SHORTEST_BEGINNING = 3  # letters of a name's beginning that stands for it
# The arguments of `regard list` for nouns that do not simply get an s.
LISTS = {"corpus": "corpora", "positions": "positions", "reader of letters": "letters", "table": ""}
UNCHANGED = ("series",)  # nouns whose plural is the same
# Names of values that papers and other toolkits use, and what regard calls them, by the noun of the table.
HINTS = {
    "score": {
        "bahdanau": "Bahdanau's score is additive; Luong's are dot, general and concat",
        "luong": "Luong's scores are dot, general, concat and location; Bahdanau's is additive",
        "vaswani": "Vaswani's score is scaled_dot",
        "graves": "Graves's score is cosine",
        "mlp": "a score with one hidden layer is additive, or concat",
        "bilinear": "bilinear scores are general, and multiplicative with a limited rank",
        "dot_product": "dot products are dot, and scaled_dot, which divides by the root of the width",
    }
}


class RegardError(Exception):
    """Base class of errors that users can fix; the message says what was given, what is allowed and how to fix it."""

    exit_code = 2
    is_reported: bool | None = None  # whether another process of a training prints it; None: they have not agreed on it


class RecipeError(RegardError):
    """A recipe, an override or an argument that cannot be used."""


class UnknownNameError(RecipeError):
    """A name that is in no table; the message lists the names there are, or says how to list them if they are many."""

    def __init__(self, what: str, name: str, choices: Iterable[str]) -> None:
        choices = list(choices)
        hint = HINTS.get(what, {}).get(name.lower(), "")
        near = f"; {hint}" if hint else did_you_mean(name, choices)
        if len(choices) <= MOST_LISTED:
            message = f"; choose from {', '.join(choices)}{near}"
        else:
            message = f"{near}{names_all(what, after=near)}"
        super().__init__(f"unknown {what} {shown(name)}{message}")
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


class TooLargeError(NotFiniteError):
    """A value is too large for a number, though what it is computed from is finite: the perplexity of a large loss."""


class StorageError(RegardError):
    """Files could not be read or written."""

    exit_code = 4


class CorruptError(RegardError):
    """A stored file or folder is damaged or incomplete."""

    exit_code = 5


class ResourceError(RegardError):
    """The machine has too few resources, for example too little memory."""

    exit_code = 6


class LostProcessError(ResourceError):
    """Another process of a training has ended, or does not answer."""

    def __init__(self, message: str, *, is_reported: bool = False) -> None:
        super().__init__(message)
        self.is_reported = is_reported


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
    """The part of a message that suggests the choices that begin with the name, or the most similar one, if any is."""
    names = [choice for choice in choices if choice != name]
    near = [choice for choice in names if len(name) >= SHORTEST_BEGINNING and choice.startswith(name)]
    if not near:
        likeness, best = max(((_similarity(name, choice), choice) for choice in names), default=(0.0, ""))
        near = [best] if likeness >= SIMILARITY else []
    return f"; did you mean {listed(near[:MOST_SUGGESTED])}?" if near else ""


def listed(names: Sequence[str]) -> str:
    """Names in quotation marks, as a choice: `'a', 'b' or 'c'`."""
    *others, last = map(repr, names)
    return f"{', '.join(others)} or {last}" if others else last


def _similarity(name: str, choice: str) -> float:
    """How similar two names are, from 0 to 1; of equally many parts, as in a.b or a/b, those in both do not count."""
    parts = [re.split(r"[./]", text) for text in (name, choice)]
    if len(parts[0]) == len(parts[1]):
        different = [pair for pair in zip(*parts, strict=True) if pair[0] != pair[1]]
        name, choice = (".".join(pair[side] for pair in different) for side in (0, 1))
    return SequenceMatcher(None, name, choice).ratio()


def plural(noun: str) -> str:
    """The plural of a noun in messages: with an s, unless it is the same as the singular."""
    return noun if noun.endswith(UNCHANGED) else f"{noun}s"


def quantity(number: int, noun: str) -> str:
    """A number and its noun: `1 pair`, `1,200 pairs`, `2 series`."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def names_all(what: str, after: str = "") -> str:
    """The part of a message with the command that lists all names of a kind; `after` is the part before."""
    command = f"regard list {LISTS.get(what, f'{what}s')}".rstrip()
    return f"{'' if after.endswith('?') else ';'} `{command}` names all"


def pick(table: Mapping[str, Entry], name: str, what: str) -> Entry:
    """The table's entry of that name; an unknown name raises UnknownNameError."""
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
