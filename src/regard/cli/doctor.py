"""`regard doctor`: the machine, the versions, and which fast paths a run takes."""

from typing import Annotated

import typer

from regard.cli.completion import run_names
from regard.cli.core import Json, to_json, write_beside, write_line

RUN = typer.Argument(
    metavar="[RUN]", help="A run directory, such as runs/dates, to examine too.", autocompletion=run_names
)


def doctor(run: Annotated[str | None, RUN] = None, as_json: Json = False) -> None:
    """Print machine, versions and fast paths.

    It also prints which extras are installed, which fast paths can be taken here, and which a run takes. With a RUN, a
    model like its own learns from one batch and the run answers a few texts; nothing is written. Every choice between a
    definition and its fast twin is counted, with the reason if the twin was not taken. With REGARD_PLAIN=1 in the
    environment, definitions run everywhere.
    """
    from regard.analysis.doctor import examine

    report = examine(run)
    if as_json:
        write_line(to_json(report.to_dict()))
        return
    for heading, text in report.entries():
        write_beside(heading, text)
