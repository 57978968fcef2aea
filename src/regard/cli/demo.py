"""`regard demo`: train a small model in a minute or two and show an attention map."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.core import Json, Quiet, Runs, print_map, write_beside, write_line
from regard.errors import pick

WHAT = "dates (text to text), caption (pictures to text), transcribe (recordings to text) or forecast (time series)."


def demo(
    what: Annotated[str, typer.Argument(metavar="[WHAT]", help=WHAT)] = "dates",
    runs: Runs = Path("runs"),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a small model; show its attention map.

    `dates` reads dates in fifteen languages, in about a minute; `caption` describes scenes of coloured shapes,
    `transcribe` writes the notes of melodies, and `forecast` continues time series, each in about two minutes.
    """
    from regard.cli.demonstration import DEMOS, demonstrate, own_command
    from regard.console import ProgressLog

    demo = pick(DEMOS, what, "demo")
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        result = demonstrate(runs, demo, quiet=quiet)
    run, seconds = str(result.run.path), result.run.metrics()[-1]["train_seconds"]
    if as_json:
        content = {"run": run, "train_seconds": seconds, "examples": result.examples}
        write_line(json.dumps(content | result.quality.values))
        return
    if demo.sources:
        write_beside("", demo.sources)
        write_line("")
    for prediction in result.shown:
        write_beside("", demo.describe(prediction))
    assert result.shown[0].map is not None
    write_line("")
    write_beside("", f"The attention map of the first one ({demo.reading}):")
    write_line("")
    print_map(result.shown[0].map)
    write_line("")
    *first, last = result.quality.sentences
    for sentence in first:
        write_beside("", sentence)
    write_beside("", f"{last}, after {seconds:.0f} s of training. The run is in {run}.")
    page, *others = result.maps
    write_line("")
    write_beside("", f"The map as a page for the browser: {run}/{page} (also {', '.join(others)})")
    write_beside("", f"Another map: {own_command()} look {shlex.quote(run)} {shlex.quote(demo.another)}")
