"""`regard near`: the lines nearest to a text."""

import sys
from typing import Annotated

import typer

from regard.cli.core import Json, RunPath, one_line, read_texts, to_json


def near(
    run: RunPath,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Texts to search, one a line; -: stdin.")],
    text: Annotated[str, typer.Option("--text", help="The text to which others are to be near.")],
    count: Annotated[int, typer.Option(min=1, help="How many to find.")] = 5,
    as_json: Json = False,
) -> None:
    """Find the lines of a file that are nearest to a text: cosine, number of the line, line.

    All tokens that the run's vocabulary does not hold look the same to it; stderr names those of --text.
    """
    from regard.analysis.vectors import near, unknown
    from regard.predict import load

    predictor, lines = load(run), read_texts(file)
    nearest = near(predictor, text, lines, count)
    if missing := unknown(predictor, text):
        print(f"regard: the vocabulary does not hold these tokens of --text: {', '.join(missing)}", file=sys.stderr)
    if lacking := sum(bool(unknown(predictor, line)) for line in lines):
        print(
            f"regard: the vocabulary does not hold all tokens of {lacking:,} of {len(lines):,} lines", file=sys.stderr
        )
    for found in nearest:
        number = found.place + 1
        told = {"cosine": found.cosine, "line": number, "text": found.text}
        line = to_json(told) if as_json else f"{found.cosine:.4f}\t{number}\t{one_line(found.text)}"
        sys.stdout.buffer.write(line.encode() + b"\n")
