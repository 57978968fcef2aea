"""`regard measure`: how far the attention maps of a run may be trusted."""

from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.core import Columns, Json, Quiet, RunPath, note, note_unfinished, to_json, write_beside, write_line
from regard.cli.maps import Head, Layer
from regard.cli.score import examples_of
from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.analysis.measure import Trust

FILES = typer.Argument(metavar="[FILE]...", help="Pairs, as data.test.  [default: the run's test set, or dev set]")
OTHER = "A run of the same recipe with another seed: its agreement is the ceiling, reported beside this run's."
EXAMPLES = "How many examples are measured, spread evenly over all of them."


def measure(
    run: RunPath,
    files: Annotated[list[str] | None, FILES] = None,
    other: Annotated[str | None, typer.Option(metavar="RUN", help=OTHER)] = None,
    examples: Annotated[int, typer.Option(min=1, help=EXAMPLES)] = 200,
    layer: Layer = None,
    head: Head = None,
    columns: Columns = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how far maps may be trusted.

    Every source position of each example is erased in turn, and the exact change of the log-probability of each output
    token is compared with its row of the map, by Kendall's tau-b: 1 is the same order, 0 is chance. The floor is a
    permuted map, the ceiling the agreement with another run. It also reports how uniform and permuted attention weights
    change the outputs. The run is forced to write the targets; pairs with a side that is too long for the model are
    left out. The last line is stored in the run in place of an earlier one, and `regard look` shows it under the map.
    It is not stored if there were fewer than 10 examples, which are too few, or if --layer or --head chose another map
    to measure.
    """
    from regard.console import ProgressLog
    from regard.storage import Run

    for name in (run, other):
        if name is not None:
            Run.open(name)  # an error before torch is loaded
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.analysis.measure import SHOWN, Choice, store
        from regard.analysis.measure import measure as measured
        from regard.predict import load
        from regard.tasks.core import evenly

        predictor = load(run)
        second = None if other is None else load(other)
        chosen = evenly(examples_of(predictor, tuple(files or ()), columns, log), examples)
        choice = Choice(layer, head)
        trust = measured(predictor, chosen, other=second, choice=choice)
    note_unfinished(predictor.run, quiet=quiet)
    if trust.left_out and not quiet:
        note(f"{trust.left_out:,} {'pair' if trust.left_out == 1 else 'pairs'} with a side that is too long left out")
    if as_json:
        write_line(to_json(trust.to_dict()))
    else:
        _write(trust)
    if choice == SHOWN and trust.has_enough:
        try:
            store(predictor.run, trust)
        except RegardError as error:  # the run may be read-only, or be trained just now; the result was printed
            note(f"the result is not stored in the run: {error}")


def _write(trust: "Trust") -> None:
    """Print the result as a table, and its sentence."""
    rows = [("agreement with erasing source positions", str(trust.agreement))]
    rows.append(("  of a permuted map", str(trust.floor)))
    if trust.ceiling is not None:
        rows.append(("  of the other run's effects of erasing", str(trust.ceiling)))
    for name, replaced in (("uniform", trust.uniform), ("permuted", trust.permuted)):
        nats = f"log-probability of a token {replaced.log_prob:+.3f}"
        rows.append((f"outputs changed by {name} weights", f"{replaced.changed:.1%}, {nats}"))
    rows.append(("weight on the end mark", f"{trust.end_mass:.1%}"))
    rows.append(("weight on punctuation", f"{trust.punctuation_mass:.1%}"))
    rows += [(f"alignment error, read at the {name}", f"{rate:.4f}") for name, rate in trust.alignment.items()]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        write_line(f"{name:<{width}}  {value}")
    write_beside("", trust.signature)
    write_beside("", trust.line)
