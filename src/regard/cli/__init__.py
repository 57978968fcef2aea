"""The command line: one short file for each command. Slow imports are inside functions, so that --help is fast."""

import re
import shlex
import signal
import sys
from contextlib import suppress
from contextvars import ContextVar
from typing import Annotated, Any, NoReturn

import typer

from regard import __version__
from regard.cli.align import align
from regard.cli.card import card
from regard.cli.compare import compare
from regard.cli.config import config
from regard.cli.core import Command, UsageError, note, say
from regard.cli.data import data
from regard.cli.demo import demo
from regard.cli.doctor import doctor
from regard.cli.errors import explain, finish_streams, is_reported_elsewhere, prepare_streams
from regard.cli.export import export
from regard.cli.force import force
from regard.cli.import_ import import_
from regard.cli.intervene import intervene
from regard.cli.list import list_tables
from regard.cli.look import look
from regard.cli.measure import measure
from regard.cli.near import near
from regard.cli.predict import predict
from regard.cli.score import score
from regard.cli.serve import serve
from regard.cli.show import show
from regard.cli.sweep import sweep
from regard.cli.train import train
from regard.cli.vectors import vectors

INTERRUPTED = 130  # the exit code that typer gives KeyboardInterrupt
CLOSED_PIPE = 128 + signal.SIGPIPE  # the exit code if the reader of stdout has closed it, as `| head -3` does
WITH_OVERRIDES = ("train", "compare", "sweep", "data", "show", "config")  # commands that take KEY=VALUE
LOGGED = ("--tensorboard", "--wandb", "--mlflow")  # options that others have; here they are values of --log
WITH_TEXT = ("near",)  # commands with a --text, and no more words after their last argument
_DEBUGGING: ContextVar[bool] = ContextVar("_DEBUGGING", default=False)  # whether --debug was given

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        print(f"regard {__version__}")
        raise typer.Exit


VERSION = typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
DEBUG = typer.Option("--debug", help="Print the traceback of an error, too.")


@app.callback()
def regard(version: Annotated[bool, VERSION] = False, debug: Annotated[bool, DEBUG] = False) -> None:
    """Sequence-to-sequence learning with attention: train it, look at it, ship it."""
    _DEBUGGING.set(debug)


COMMANDS = {
    command.__name__.removesuffix("_"): command
    for command in (
        *(demo, train, predict, score, force, align, measure, look, intervene),
        *(compare, sweep, vectors, near, data, show, config, serve, import_, export, card, doctor),
    )
} | {"list": list_tables}
for name, command in COMMANDS.items():
    app.command(name=name, cls=Command)(command)


def main() -> NoReturn:
    """Run a command; any error is printed as one sentence, with an exit code."""
    try:
        prepare_streams()
        code = app(standalone_mode=False) or 0
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()
    except UsageError as error:
        code = error.exit_code
        with suppress(OSError):  # of a stderr that cannot be written
            _show_usage(error)
    except BrokenPipeError:
        code = CLOSED_PIPE
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        code = CLOSED_PIPE  # typer has chosen 1
    except (Exception, KeyboardInterrupt) as error:
        code = _report(error)
    finish_streams()
    sys.exit(code)


def _show_usage(error: Any) -> None:
    """Print what is wrong with the arguments, as click does; but a suggestion once, and hints at what to write."""
    message = re.sub(r"( Did you mean [^?]*\?)\1", r"\1", error.format_message())  # click and typer add it both
    if error.ctx is None:
        say(f"Error: {message}")
    elif message == error.ctx.get_help():  # of `regard` alone, for which click raises the help as an error
        print(message, file=sys.stderr)
    else:
        print(error.ctx.get_usage(), file=sys.stderr)
        print(f"Try '{error.ctx.command_path} --help' for help.\n", file=sys.stderr)
        hint = _hint(error)
        say(f"Error: {message.rstrip('.') if hint else message}{hint}")


def _hint(error: Any) -> str:
    """The end of a message about wrong arguments, with what to write instead; empty if that is not known."""
    context, option = error.ctx, getattr(error, "option_name", "")
    if option in (own := {name: parameter for parameter in context.command.params for name in parameter.opts}):
        return f": {option} {own[option].metavar}" if own[option].metavar else ""
    if context.command.name == "train" and option in LOGGED:
        return f"; write: --log {option.lstrip('-')}=PLACE"
    if option and context.command.name in WITH_OVERRIDES:
        from regard.recipe import suggestion_for_option

        return suggestion_for_option(option)
    if context.parent is None and sys.argv[1:2] == ["help"]:
        return f"; write: {shlex.join(['regard', *sys.argv[2:3], '--help'])}"
    is_extra = type(error) is UsageError  # other mistakes have classes of their own
    return "; put a text of several words in quotes" if is_extra and context.command.name in WITH_TEXT else ""


def _report(error: Exception | KeyboardInterrupt) -> int:
    """Print an error on stderr; returns the exit code."""
    command = next((name for name in sys.argv[1:] if name in COMMANDS), "")
    explained = explain(error, f"regard {command}".rstrip())
    with suppress(OSError):  # of a stderr that cannot be written
        if _DEBUGGING.get():
            import traceback

            traceback.print_exception(error)
        if command != "train" or not is_reported_elsewhere(explained):
            note(explained)
    return explained.exit_code
