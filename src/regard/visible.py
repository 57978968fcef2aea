"""Text made safe to print: in a terminal, invisible and control characters are replaced by visible ones."""

import codecs
import re
import sys
import unicodedata
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any, TextIO

# Invisible characters of other categories: fillers and joiners (Unicode: Default_Ignorable), the blank of braille, and
# the selectors of variants.
IGNORABLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
SELECTORS = (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
# Characters that are emoji, or are when a variation selector follows (Unicode: Emoji, without digits), by ranges.
EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa\u24c2"
    "\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2767\u2795-\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50"
    "\u2b55\u3030\u303d\u3297\u3299\U0001f004\U0001f0cf\U0001f170-\U0001f251\U0001f300-\U0001faff"
)
# Invisible characters within emoji: joiners between two, selectors after one, and selectors of keycaps (1 in a box).
WITHIN_EMOJI = re.compile(f"((?<=[{EMOJI}])(?:\ufe0f?\u200d(?=[{EMOJI}])|\ufe0f)|(?<=[0-9#*])\ufe0f(?=\u20e3))")
ENCODING_ERRORS = "regard.escape"  # name of the error handler for characters that an encoding does not have


class _Symbols(dict[int, str]):
    """What each character is printed as, by code point; filled when a character is first met."""

    def __missing__(self, code: int) -> str:
        self[code] = _symbol(code)
        return self[code]


def _symbol(code: int) -> str:
    """The character itself, or a symbol or an escape for it if it is invisible."""
    character = chr(code)
    category = unicodedata.category(character)
    if code < 32 or code == 127:
        return chr(0x2400 + min(code, 33))  # the symbols for control characters; DEL's comes after that for space
    if category in ("Cc", "Cf", "Cn", "Cs", "Zl", "Zp") or character in IGNORABLE or code in SELECTORS:
        return character.encode("unicode_escape").decode()
    return " " if category == "Zs" else character


ALL = _Symbols()
WITHIN_LINES = _Symbols({ord("\t"): "\t"})
WITHIN_TEXTS = _Symbols({ord("\t"): "\t", ord("\n"): "\n"})


def make_visible(text: str, symbols: dict[int, str] = ALL) -> str:
    """The text with every control, formatting or otherwise invisible character replaced by visible ones.

    `WITHIN_LINES` keeps the tab, which separates columns, `WITHIN_TEXTS` also the newline. Emoji that are made of
    several characters are kept whole.
    """
    if text.isascii() and text.isprintable():
        return text
    between = WITHIN_EMOJI.split(text)  # every second part is within an emoji
    between[::2] = [part.translate(symbols) for part in between[::2]]
    return "".join(between)


class VisibleStream:
    """A terminal as a text stream: what is written is made visible, except for newlines and tabs."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write the text with visible characters."""
        self.stream.write(make_visible(text, WITHIN_TEXTS))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all lines, as `write` does."""
        for line in lines:
            self.write(line)

    if not TYPE_CHECKING:  # so that a type checker finds misspelt names

        def __getattr__(self, name: str) -> Any:
            return getattr(self.stream, name)


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether people read the stream in a terminal; a stream that was closed before the start is None."""
    return stream is not None and stream.isatty()


def for_stream(line: str, stream: TextIO | None) -> str:
    """The line as it may be printed there: visible, also its newlines, in a terminal; elsewhere unchanged."""
    return make_visible(line) if is_terminal(stream) else line


def guarded(stream: TextIO) -> TextIO:
    """The stream, in a terminal as one that makes all text visible; `unguarded` returns the one inside."""
    visible: Any = VisibleStream(stream)
    return visible if is_terminal(stream) and not isinstance(stream, VisibleStream) else stream


def unguarded(stream: TextIO) -> TextIO:
    """The stream that takes colours and cursor movements of our own; text of others must be made visible before."""
    return stream.stream if isinstance(stream, VisibleStream) else stream


def guard_streams() -> None:
    """Make stdout and stderr safe for any text: visible in a terminal, and never an error of the encoding.

    Whoever prints is covered: the library that parses the command line, warnings, tracebacks. In a pipe or a file the
    bytes are not changed; what the encoding does not have is escaped.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            continue
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=ENCODING_ERRORS)
            if is_terminal(stream) and codecs.lookup(stream.encoding).name == "ascii":
                stream.reconfigure(encoding="utf-8")  # otherwise click opens the terminal anew, past the guard
        setattr(sys, name, guarded(stream))


def _escape(error: UnicodeError) -> tuple[str | bytes, int]:
    """Encode an argument's or a file name's bytes that are not UTF-8 as they were, other characters as escapes."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


codecs.register_error(ENCODING_ERRORS, _escape)
