"""What the commands share: options, texts in, lines out."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo

if TYPE_CHECKING:
    from regard.maps import AttentionMap

CHUNK = 2000  # lines that are predicted, and printed, at a time
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # what ends a line for one reader or another, as str.splitlines
VISIBLE = {ord(end): repr(end)[1:-1] for end in LINE_ENDS}
IN_JSON = {ord(end): f"\\u{ord(end):04x}" for end in LINE_ENDS}


class Command(TyperCommand):
    """A command that lists its arguments with their help, which click 8.5 resets after typer 0.21 has set it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        hints = get_type_hints(self.callback, include_extras=True)
        for parameter in self.params:
            for told in getattr(hints.get(parameter.name or ""), "__metadata__", ()):
                if isinstance(told, ArgumentInfo):
                    parameter.help = told.help

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """List nothing: typer lists arguments with the options, and click 8.5 would list them once more."""


RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, such as runs/dates.")]
Runs = Annotated[Path, typer.Option(help="Where run directories go.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="On stderr only what went wrong.")]
Beam = Annotated[int | None, typer.Option(min=1, help="Width of the beam; 1 is greedy.  [default: as the recipe says]")]


def read_texts(name: str) -> list[str]:
    """The lines of a file, or of stdin if its name is `-`."""
    from regard.data.files import load, read_lines

    return read_lines(sys.stdin.buffer.read(), "stdin") if name == "-" else load(name)


def one_line(text: str) -> str:
    """A text without line ends: each is shown as an escape, so that a line of input has one line of output."""
    return text.translate(VISIBLE)


def to_json(content: Any) -> str:
    """As JSON on one line, whichever reader counts the lines; the escapes are JSON's own."""
    return json.dumps(content, ensure_ascii=False).translate(IN_JSON)


def draw_for_terminal(seen: "AttentionMap") -> str:
    """The map as this terminal can show it."""
    from rich.console import Console

    from regard.show.maps import terminal

    console = Console()
    return terminal(seen, width=console.width, colour=console.color_system is not None and not console.no_color)
