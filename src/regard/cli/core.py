"""Shared by the commands: options, reading of texts, and output on one line."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo

if TYPE_CHECKING:
    from regard.maps import AttentionMap

CHUNK = 2000  # lines that are predicted and printed at a time
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # all line ends that str.splitlines knows
VISIBLE = {ord(end): repr(end)[1:-1] for end in LINE_ENDS}
IN_JSON = {ord(end): f"\\u{ord(end):04x}" for end in LINE_ENDS}


class Command(TyperCommand):
    """A command whose help lists the arguments with their help texts; click 8.5 drops those that typer 0.21 sets."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        hints = get_type_hints(self.callback, include_extras=True)
        for parameter in self.params:
            for info in getattr(hints.get(parameter.name or ""), "__metadata__", ()):
                if isinstance(info, ArgumentInfo):
                    parameter.help = info.help

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Print nothing: typer lists the arguments with the options, and click 8.5 would list them a second time."""


RunPath = Annotated[str, typer.Argument(metavar="RUN", help="A run directory, such as runs/dates.")]
Runs = Annotated[Path, typer.Option(help="The folder for run directories.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors on stderr.")]
Beam = Annotated[int | None, typer.Option(min=1, help="Width of the beam; 1 is greedy.  [default: as the recipe says]")]


def read_texts(name: str) -> list[str]:
    """The lines of a file, or of stdin if the name is `-`."""
    from regard.data.files import load, read_lines

    return read_lines(sys.stdin.buffer.read(), "stdin") if name == "-" else load(name)


def one_line(text: str) -> str:
    """The text with every line end as an escape, so that each line of input gives one line of output."""
    return text.translate(VISIBLE)


def to_json(content: Any) -> str:
    """JSON on one line, for any definition of a line: all line ends are JSON escapes."""
    return json.dumps(content, ensure_ascii=False).translate(IN_JSON)


def draw_for_terminal(attention: "AttentionMap") -> str:
    """The map as text, with the width and the colours of this terminal."""
    from rich.console import Console

    from regard.show.maps import terminal

    console = Console()
    colour = console.color_system is not None and not console.no_color
    return terminal(attention, width=console.width, colour=colour)
