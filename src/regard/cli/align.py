"""`regard align`: where a run looks against word alignments drawn by people."""

import json
import sys
from typing import Annotated

import typer

from regard.cli.core import Json, RunPath


def align(
    run: RunPath,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="A TSV of source, target and links; or `source ||| target` lines, and links; or a file of each.",
        ),
    ],
    first: Annotated[int, typer.Option(min=0, max=1, help="The number that links give to a first word.")] = 0,
    as_json: Json = False,
) -> None:
    """Score where a run looks against word alignments drawn by people (AER).

    FILE... is a TSV of source, target and links; or a file of `source ||| target` lines and one of links; or a file
    each of sources, targets and links. Links are `3-4`, sure, or `3p4`, possible; words are what spaces set apart.
    The run is made to write the given targets.
    """
    from regard.analysis.forced import align
    from regard.data.gold import gold
    from regard.predict import load

    drawn = gold(tuple(files), first)
    measured = align(load(run), drawn)
    if drawn.skipped:
        print(f"regard: {drawn.skipped:,} links of words that are not there were left out", file=sys.stderr)
    if as_json:
        told = {"alignment_error_rate": {name: each.value for name, each in measured.items()}}
        print(json.dumps(told | {"signature": {name: each.signature for name, each in measured.items()}}))
        return
    for name, each in measured.items():
        how = "of the bare diagonal" if name == "diagonal" else f"read at the {name}"
        print(f"alignment error rate, {how}: {each.value:.4f}  {each.signature}")
