"""`regard vectors`: a sentence vector for each line."""

import sys

from regard.cli.core import (
    Columns,
    Inputs,
    Json,
    Quiet,
    RunPath,
    check_columns,
    in_chunks,
    note_unfinished,
    read_texts,
    to_json,
    write_lines,
)
from regard.visible import is_terminal


def vectors(
    run: RunPath, inputs: Inputs = None, columns: Columns = None, as_json: Json = False, quiet: Quiet = False
) -> None:
    """Print the sentence vector of every line.

    Vectors have norm 1; their numbers are separated by tabs. A blank line, or one with too many tokens, gets zeros.
    This works for runs of translate, classify, masked_lm and answer.
    """
    from regard.console import ProgressLog, counted, unwatched
    from regard.storage import Run

    Run.open(run)  # an error before torch is loaded
    check_columns(columns, inputs or [])
    with ProgressLog(quiet=quiet) as log:
        log.begin("loading torch")
        from regard.analysis.vectors import vectors
        from regard.predict import load

        predictor = load(run)
        texts = read_texts(predictor.task, inputs, columns)
    note_unfinished(predictor.run, quiet=quiet)
    with ProgressLog(quiet=quiet or is_terminal(sys.stdout)):  # there, people see the results as they come
        for chunk in counted(in_chunks(texts), "computing vectors", size=1):
            with unwatched():
                rows = vectors(predictor, chunk).tolist()
            pairs = zip(chunk, rows, strict=True)
            write_lines([to_json({"text": text, "vector": row}) if as_json else _numbers(row) for text, row in pairs])


def _numbers(vector: list[float]) -> str:
    return "\t".join(f"{number:.6g}" for number in vector)
