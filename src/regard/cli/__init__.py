"""The command line: one short file for each command. Slow imports are inside functions, so that --help is fast."""

import sys
from typing import Annotated, NoReturn

import typer

from regard import __version__
from regard.cli.align import align
from regard.cli.compare import compare
from regard.cli.core import Command, note
from regard.cli.data import data
from regard.cli.demo import demo
from regard.cli.doctor import doctor
from regard.cli.list import list_tables
from regard.cli.look import look
from regard.cli.near import near
from regard.cli.predict import predict
from regard.cli.score import score
from regard.cli.train import train
from regard.cli.vectors import vectors
from regard.errors import RegardError
from regard.visible import guard_streams

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        print(f"regard {__version__}")
        raise typer.Exit


VERSION = typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")


@app.callback()
def regard(version: Annotated[bool, VERSION] = False) -> None:
    """Sequence-to-sequence learning with attention: train it, look at it, ship it."""


for command in (demo, train, predict, score, align, look, compare, vectors, near, data, doctor):
    app.command(cls=Command)(command)
app.command(name="list", cls=Command)(list_tables)


def main() -> NoReturn:
    """Run a command; an error that the user can fix is printed as one sentence, with an exit code."""
    guard_streams()
    try:
        app()
    except RegardError as error:
        note(error)
        sys.exit(error.exit_code)
    sys.exit(0)
