"""`regard align`: compare the attention of a run with word alignments made by people."""

from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.core import Json, Quiet, RunPath, note, note_unfinished, to_json, write_beside, write_line
from regard.errors import RecipeError

if TYPE_CHECKING:
    from regard.analysis.readings import Chosen, Row
    from regard.data.gold import Gold
    from regard.predict import Predictor

FILES = "A TSV of source, target and links; or pairs, and links; or a file for each."

HEADS = "A table of all ways to read links: layers and heads, by norm, at both steps; chosen on the other half."
REVERSE = "A run that translates the other way, whose links are joined with this run's; adds rows to --heads."
SILVER = "FILE... has pairs without links: take those of both runs where they agree, by grow-diag; with --reverse."
STORE = "Keep the best layer and head in the run, for regard look and regard force with --head best."


def align(
    run: RunPath,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help=FILES)],
    heads: Annotated[bool, typer.Option("--heads", help=HEADS)] = False,
    reverse: Annotated[str | None, typer.Option(metavar="RUN", help=REVERSE)] = None,
    silver: Annotated[bool, typer.Option("--silver", help=SILVER)] = False,
    store: Annotated[bool, typer.Option("--store", help=STORE)] = False,
    first: Annotated[int, typer.Option(min=0, max=1, help="The number of the first word in links.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare attention with word alignments.

    It prints the alignment error rate (AER) of a run's attention against alignments made by people. FILE... is a TSV of
    source, target and links; or a file of pairs (source<TAB>target, or `source ||| target`) and one of links, such as a
    .pharaoh file; or three files of sources, targets and links. A link is `3-4` (sure) or `3p4` (possible); words are
    separated by spaces. The run is forced to write the given targets.

    With --heads, a layer and a head are chosen on one half of the sentences and reported on the other, both ways round.
    What is best on all of them is kept with --store. With --silver, no person has to draw links.
    """
    from regard.console import ProgressLog
    from regard.storage import Run

    for option, chosen in (("--reverse", reverse is not None), ("--silver", silver), ("--store", store)):
        if chosen and not heads:
            raise RecipeError(f"{option} is for the table of --heads; add --heads")
    if silver and reverse is None:
        raise RecipeError("--silver takes the links on which two runs agree; add --reverse with a run of the other way")
    for name in (run, reverse):
        if name is not None:
            Run.open(name)  # an error before torch is loaded
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.analysis.forced import align
        from regard.analysis.readings import store as keep
        from regard.data.gold import gold, pairs
        from regard.predict import load

        given = pairs(tuple(files)) if silver else gold(tuple(files), first)
        predictor = load(run)
        if heads:
            rows, best = _read_all(predictor, given, None if reverse is None else load(reverse), silver=silver)
        else:
            measured = align(predictor, given)
    note_unfinished(predictor.run, quiet=quiet)
    if given.skipped and not quiet:
        note(f"{given.skipped:,} links to words that do not exist were left out")
    if heads:
        _write_table(rows, best, as_json=as_json)
        if store:
            keep(predictor.run, best)
        return
    if as_json:
        rates = {"alignment_error_rate": {name: rate.value for name, rate in measured.items()}}
        write_line(to_json(rates | {"signature": {name: rate.signature for name, rate in measured.items()}}))
        return
    for name, rate in measured.items():
        source = "of the diagonal baseline" if name == "diagonal" else f"read at the {name}"
        write_beside("", f"alignment error rate, {source}: {rate.value:.4f}  {rate.signature}")


def _read_all(
    predictor: "Predictor", given: "Gold", other: "Predictor | None", *, silver: bool
) -> "tuple[list[Row], Chosen]":
    """The rows of the table of all readings, with those of both directions if there is another run; and the best.

    Silver links are themselves those of both directions, so that these are not judged by them.
    """
    from regard.analysis import readings

    found = readings.readings(predictor, given.examples)
    if other is None:
        return readings.table(found, given), readings.choose(found, given)
    backward = readings.readings(other, readings.reversed_gold(given).examples)
    if silver:
        given = readings.silver(found, backward, given.examples)
        return readings.table(found, given), readings.choose(found, given)
    rows = readings.table(found, given) + readings.symmetric_rows(found, backward, given)
    return rows, readings.choose(found, given)


def _write_table(rows: "list[Row]", best: "Chosen", *, as_json: bool) -> None:
    """Print the error of each reading and what was chosen on each half; and the best reading of all sentences."""
    if as_json:
        content = [{"name": row.name, "alignment_error_rate": row.error.value, "chosen": row.chosen} for row in rows]
        best_reading = best.reading._asdict()
        write_line(to_json({"readings": content, "best": best_reading, "signature": best.error.signature}))
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        write_beside(f"{row.name:<{width}}  {row.error.value:.4f}  ", " / ".join(dict.fromkeys(row.chosen)))
    write_beside(f"{'chosen on all sentences':<{width}}          ", str(best.reading))
    write_beside("", best.error.signature)
