"""`regard serve`: an HTTP server for runs, with a page to try them on."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.completion import run_names
from regard.cli.core import Quiet, say
from regard.errors import RecipeError, shown

RUNS = "Runs in the folder runs, or their paths; NAME=RUN gives one another name."
HOST = "The address to listen on; one that other machines can reach needs a token."
TOKEN = "A token that requests need; better given as REGARD_TOKEN, since others may see the command line."
TIMEOUT = "Seconds in which a request is answered at most."
WINDOW = "Milliseconds that a request waits for others, to be answered with them."


def serve(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help=RUNS, autocompletion=run_names)],
    host: Annotated[str, typer.Option(help=HOST)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port; 0 chooses a free one.")] = 8000,
    token: Annotated[str, typer.Option(envvar="REGARD_TOKEN", show_default=False, help=TOKEN)] = "",
    queue: Annotated[int, typer.Option(min=1, max=100_000, help="Inputs that wait for a run at most.")] = 256,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Inputs that are answered at once at most.")] = 64,
    window: Annotated[float, typer.Option(min=0, max=1000, help=WINDOW)] = 5,
    timeout: Annotated[float, typer.Option(min=0.1, max=3600, help=TIMEOUT)] = 30,
    drain: Annotated[float, typer.Option(min=0, max=3600, help="Seconds for accepted requests after SIGTERM.")] = 20,
    quiet: Quiet = False,
) -> None:
    """Serve runs over HTTP, and a page to try them.

    The page is at /, the interface is described at /docs: predictions, streams of tokens, attention maps. Requests with
    the same settings are answered together. SIGTERM and Ctrl-C let the server answer what it has accepted, and end with
    exit code 0.
    """
    from regard.serve.address import Address, check
    from regard.serve.limits import Bounds
    from regard.storage import Run

    address, named = Address(host, port, token), _named(runs)
    check(address)  # errors before torch is loaded
    for run in named.values():
        Run.open(run)
    from regard.serve.server import serve as serve_runs

    bounds = Bounds(queue=queue, batch=batch, window=window / 1000, deadline=timeout, drain=drain)
    serve_runs(named, address, bounds, (lambda line: None) if quiet else say)


def _named(runs: list[str]) -> dict[str, str]:
    """The paths of runs by their names: that of the folder, unless another is given."""
    from regard.storage import Run

    named: dict[str, str] = {}
    for run in runs:
        name, equals, path = run.partition("=")
        if not equals or Run.at(Path(run)):
            name, path = Run.open(run).path.resolve().name, run
        if not name or not name.isprintable():
            raise RecipeError(f"the name of a run is {shown(name)}; choose one with letters, such as dates=runs/dates")
        if name in named:
            raise RecipeError(f"two runs are named {name}; give one another name, such as other={path}")
        named[name] = path
    return named
