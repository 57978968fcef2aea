"""Shared by the commands: arguments and options, reading of texts, output by lines, and notes on stderr."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo

from regard.errors import DataError, shown
from regard.visible import ENCODING_ERRORS, WITHIN_LINES, for_stream, is_terminal, make_visible, unguarded

if TYPE_CHECKING:
    from regard.maps import AttentionMap

CHUNK = 2000  # lines that are computed and printed at a time
# Python decodes bytes of the command line that are not UTF-8 to these; they have no encoding, in JSON an escape.
SURROGATES = range(0xD800, 0xE000)
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # all line ends that str.splitlines knows
VISIBLE = {ord(end): repr(end)[1:-1] for end in LINE_ENDS}
IN_JSON = {ord(end): f"\\u{ord(end):04x}" for end in LINE_ENDS} | {code: f"\\u{code:04x}" for code in SURROGATES}


class Command(TyperCommand):
    """A command whose help shows the help texts of its arguments: click 8.5 ignores the texts that typer 0.21 sets."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        hints = get_type_hints(self.callback, include_extras=True)
        for parameter in self.params:
            for info in getattr(hints.get(parameter.name or ""), "__metadata__", ()):
                if isinstance(info, ArgumentInfo):
                    parameter.help = info.help

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Print nothing: typer lists the arguments with the options, and click 8.5 would list them a second time."""


RECIPE = typer.Argument(metavar="RECIPE", help="A name from `regard list`, or a .toml file.")
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Keys to change.")]
Inputs = Annotated[
    list[str] | None, typer.Argument(metavar="[FILE]...", help="Texts, one per line; - or nothing is stdin.")
]
RunPath = Annotated[
    str, typer.Argument(metavar="RUN", help="A run directory, such as runs/dates; latest is the last one in runs.")
]
Runs = Annotated[Path, typer.Option(help="The folder for run directories.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors on stderr.")]
Beam = Annotated[int | None, typer.Option(min=1, help="Width of the beam; 1 is greedy.  [default: as the recipe says]")]


def read_texts(names: list[str] | None) -> Sequence[str]:
    """The lines of all files; the name `-` is stdin, which is also read if there are no names."""
    from regard.data.files import load, read_stdin
    from regard.data.store import joined

    return joined([read_stdin() if name == "-" else load(name) for name in names or ["-"]])


def check_utf8(text: str, name: str) -> None:
    """Raise DataError if a text of the command line is not UTF-8."""
    if not text.isprintable() and any(ord(character) in SURROGATES for character in text):
        raise DataError(f"{name} is not UTF-8 text: {shown(text)}; convert it first")


def in_chunks(texts: Sequence[str]) -> list[Sequence[str]]:
    """The texts in order, `CHUNK` at a time."""
    return [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]


def write_line(line: str) -> None:
    """Print a line on stdout; in a terminal with visible control characters, elsewhere unchanged and in UTF-8."""
    write_lines([line])


def write_lines(lines: list[str]) -> None:
    """Print lines like `write_line`, at once: a progress bar in the terminal is drawn anew after each call."""
    if is_terminal(sys.stdout):
        print("\n".join(make_visible(line, WITHIN_LINES) for line in lines))
    elif sys.stdout is not None:  # it is if it was closed before the start
        sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode("utf-8", ENCODING_ERRORS))


def note(text: object) -> None:
    """Print a sentence on stderr, after the program's name."""
    say(f"regard: {text}")


def say(line: str) -> None:
    """Print a line on stderr; in a terminal with visible control characters."""
    print(for_stream(line, sys.stderr), file=sys.stderr)


def one_line(text: str) -> str:
    """The text with every line end as an escape, so that each line of input gives one line of output."""
    return text.translate(VISIBLE)


def to_json(content: Any) -> str:
    """JSON on one line, for any definition of a line: all line ends are JSON escapes."""
    return json.dumps(content, ensure_ascii=False).translate(IN_JSON)


def print_map(attention: "AttentionMap") -> None:
    """Print the map as text, with the width and the colours of this terminal."""
    from rich.console import Console

    from regard.show.maps import terminal

    console = Console()
    has_colours = console.color_system is not None and not console.no_color
    drawing = terminal(attention, width=console.width, colour=has_colours)
    if is_terminal(sys.stdout):
        print(drawing, end="", file=unguarded(sys.stdout))  # its colours are ours, its labels are visible already
    elif sys.stdout is not None:
        sys.stdout.buffer.write(drawing.encode())
