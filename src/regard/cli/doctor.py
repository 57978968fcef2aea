"""`regard doctor`: the machine, the versions, and which fast paths a run takes."""

from typing import Annotated

import typer

from regard.cli.core import Json, to_json, write_line

RUN = typer.Argument(metavar="[RUN]", help="A run directory, such as runs/dates, to examine too.")


def doctor(run: Annotated[str | None, RUN] = None, as_json: Json = False) -> None:
    """Print machine, versions and fast paths.

    It also prints which extras are installed, which fast paths can be taken here, and which a run takes. With a RUN, a
    model like its own learns from one batch and the run answers a few texts; nothing is written. Every choice between a
    definition and its fast twin is counted, with the reason if the twin was not taken. With REGARD_PLAIN=1 in the
    environment, definitions run everywhere.
    """
    from regard.analysis.doctor import examine

    report = examine(run)
    for line in [to_json(report.to_dict())] if as_json else report.lines():
        write_line(line)
