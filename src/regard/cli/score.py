"""`regard score`: the score of a run on examples with references."""

import shlex
from typing import Annotated

import typer

from regard.cli.core import Beam, Columns, Json, RunPath, to_json, with_columns, write_line
from regard.errors import DataError

FILES = typer.Argument(
    metavar="[FILE]...", help="As data.test: a TSV, CSV or plain texts.  [default: the run's test set]"
)


def score(
    run: RunPath,
    files: Annotated[list[str] | None, FILES] = None,
    metric: Annotated[str | None, typer.Option(help="See `regard list metrics`.  [default: the recipe's]")] = None,
    columns: Columns = None,
    beam: Beam = None,
    as_json: Json = False,
) -> None:
    """Score the outputs of a run against references, in total and by group."""
    from regard.analysis import alignment
    from regard.predict import load

    predictor = load(run)
    recipe = predictor.task.recipe
    if not files and recipe.data.train and not recipe.data.test:
        raise DataError(f"the recipe of {run} names no test set; write: regard score {shlex.quote(run)} FILE.tsv")
    named = tuple(files or recipe.data.test)
    if files or columns is not None:
        recipe = with_columns(predictor.task, named, columns)
    examples = predictor.task.reader(recipe)(named).examples if named else predictor.task.examples(recipe).test
    scored = predictor.score(examples, metric=metric, beam=beam)
    total, links = scored.measured, alignment.measure(scored.answers, scored.asked)
    if as_json:
        errors = {reading: error.value for reading, error in links.items()}
        others = {name: measured.value for name, measured in scored.others.items()}
        content = {"signature": total.signature, "groups": scored.groups, "alignment_error": errors}
        write_line(to_json({scored.metric: total.value} | content | others))
        return
    write_line(f"{scored.metric} {total.value:.4f}  {total.signature}")
    for group, value in scored.groups.items():
        write_line(f"  {group:<8} {value:.4f}")
    for name, measured in scored.others.items():
        write_line(f"{name} {measured.value:.4f}  {measured.signature}")
    for reading, error in links.items():
        write_line(f"alignment error, read at the {reading}: {error.value:.4f}  {error.signature}")
