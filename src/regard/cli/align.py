"""`regard align`: compare the attention of a run with word alignments made by people."""

from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.core import Json, Quiet, RunPath, note, note_unfinished, to_json, write_beside, write_line
from regard.errors import RecipeError

if TYPE_CHECKING:
    from regard.analysis.readings import Row
    from regard.data.gold import Gold
    from regard.predict import Predictor

FILES = "A TSV of source, target and links; or `source ||| target` lines, and links; or a file for each."

HEADS = "A table of all ways to read links: layers and heads, by norm, at both steps; chosen on the other half."
REVERSE = "A run that translates the other way, whose links are joined with this run's; adds rows to --heads."


def align(
    run: RunPath,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help=FILES)],
    heads: Annotated[bool, typer.Option("--heads", help=HEADS)] = False,
    reverse: Annotated[str | None, typer.Option(metavar="RUN", help=REVERSE)] = None,
    first: Annotated[int, typer.Option(min=0, max=1, help="The number of the first word in links.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare attention with word alignments.

    It prints the alignment error rate (AER) of a run's attention against alignments made by people. FILE... is a TSV of
    source, target and links; or a file of `source ||| target` lines and one of links; or three files of sources,
    targets and links. A link is `3-4` (sure) or `3p4` (possible); words are separated by spaces. The run is forced to
    write the given targets.

    With --heads, a layer and a head are chosen on one half of the sentences and reported on the other, both ways round.
    """
    from regard.console import ProgressLog
    from regard.storage import Run

    if reverse is not None and not heads:
        raise RecipeError("--reverse adds rows to the table of --heads; add --heads")
    for name in (run, reverse):
        if name is not None:
            Run.open(name)  # an error before torch is loaded
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.analysis.forced import align
        from regard.data.gold import gold
        from regard.predict import load

        gold_links = gold(tuple(files), first)
        predictor = load(run)
        if heads:
            rows = _read_all(predictor, gold_links, None if reverse is None else load(reverse))
        else:
            measured = align(predictor, gold_links)
    note_unfinished(predictor.run, quiet=quiet)
    if gold_links.skipped and not quiet:
        note(f"{gold_links.skipped:,} links to words that do not exist were left out")
    if heads:
        _write_table(rows, as_json=as_json)
        return
    if as_json:
        rates = {"alignment_error_rate": {name: rate.value for name, rate in measured.items()}}
        write_line(to_json(rates | {"signature": {name: rate.signature for name, rate in measured.items()}}))
        return
    for name, rate in measured.items():
        source = "of the diagonal baseline" if name == "diagonal" else f"read at the {name}"
        write_beside("", f"alignment error rate, {source}: {rate.value:.4f}  {rate.signature}")


def _read_all(predictor: "Predictor", gold_links: "Gold", other: "Predictor | None") -> "list[Row]":
    """The rows of the table of all readings, with those of both directions if there is another run."""
    from regard.analysis.readings import readings, reversed_gold, symmetric_rows, table

    found = readings(predictor, gold_links.examples)
    rows = table(found, gold_links)
    if other is None:
        return rows
    return rows + symmetric_rows(found, readings(other, reversed_gold(gold_links).examples), gold_links)


def _write_table(rows: "list[Row]", *, as_json: bool) -> None:
    """Print the error of each reading, and what was chosen on each half."""
    if as_json:
        content = [{"name": row.name, "alignment_error_rate": row.error.value, "chosen": row.chosen} for row in rows]
        write_line(to_json({"readings": content, "signature": rows[0].error.signature}))
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        write_beside(f"{row.name:<{width}}  {row.error.value:.4f}  ", " / ".join(dict.fromkeys(row.chosen)))
    write_beside("", rows[0].error.signature)
