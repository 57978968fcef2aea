"""`regard near`: the lines of a file that are nearest to a text."""

import sys
from typing import Annotated

import typer

from regard.cli.core import (
    Columns,
    Json,
    RunPath,
    check_columns,
    check_utf8,
    note,
    one_line,
    read_texts,
    to_json,
    write_line,
)
from regard.visible import is_terminal


def near(
    run: RunPath,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Texts to search, one per line; - is stdin.")],
    text: Annotated[str, typer.Option("--text", help="The text to compare the lines with.")],
    count: Annotated[int, typer.Option(min=1, help="How many lines to print.")] = 5,
    columns: Columns = None,
    as_json: Json = False,
) -> None:
    """Print the lines that are nearest to a text.

    It prints cosine, line number and line. Tokens that are not in the run's vocabulary all count as the same token;
    those of --text are named on stderr.
    """
    from regard.console import ProgressLog

    check_utf8(text, "--text")
    check_columns(columns, [file])
    with ProgressLog(quiet=not is_terminal(sys.stderr)) as log:
        log.begin("loading torch")
        from regard.analysis.vectors import near, unknown
        from regard.predict import load

        log.begin("loading the run")
        predictor = load(run)
    lines = read_texts(predictor.task, [file], columns)
    nearest = near(predictor, text, lines, count)
    if missing := unknown(predictor, text):
        note(f"the vocabulary does not hold these tokens of --text: {', '.join(missing)}")
    if lacking := sum(bool(unknown(predictor, line)) for line in lines):
        note(f"the vocabulary does not hold all tokens of {lacking:,} of {len(lines):,} lines")
    for neighbour in nearest:
        cosine, number, line = neighbour.cosine, neighbour.place + 1, neighbour.text
        if as_json:
            write_line(to_json({"cosine": cosine, "line": number, "text": line}))
        else:
            write_line(f"{cosine:.4f}\t{number}\t{one_line(line)}")
