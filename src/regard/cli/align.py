"""`regard align`: compare the attention of a run with word alignments made by people."""

from typing import Annotated

import typer

from regard.cli.core import Json, Quiet, RunPath, note, note_unfinished, to_json, write_beside, write_line

FILES = "A TSV of source, target and links; or `source ||| target` lines, and links; or a file for each."


def align(
    run: RunPath,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help=FILES)],
    first: Annotated[int, typer.Option(min=0, max=1, help="The number of the first word in links.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare attention with word alignments.

    It prints the alignment error rate (AER) of a run's attention against alignments made by people. FILE... is a TSV of
    source, target and links; or a file of `source ||| target` lines and one of links; or three files of sources,
    targets and links. A link is `3-4` (sure) or `3p4` (possible); words are separated by spaces. The run is forced to
    write the given targets.
    """
    from regard.console import ProgressLog
    from regard.storage import Run

    Run.open(run)  # an error before torch is loaded
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.analysis.forced import align
        from regard.data.gold import gold
        from regard.predict import load

        gold_links = gold(tuple(files), first)
        predictor = load(run)
        measured = align(predictor, gold_links)
    note_unfinished(predictor.run, quiet=quiet)
    if gold_links.skipped and not quiet:
        note(f"{gold_links.skipped:,} links to words that do not exist were left out")
    if as_json:
        rates = {"alignment_error_rate": {name: rate.value for name, rate in measured.items()}}
        write_line(to_json(rates | {"signature": {name: rate.signature for name, rate in measured.items()}}))
        return
    for name, rate in measured.items():
        source = "of the diagonal baseline" if name == "diagonal" else f"read at the {name}"
        write_beside("", f"alignment error rate, {source}: {rate.value:.4f}  {rate.signature}")
