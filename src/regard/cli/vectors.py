"""`regard vectors`: a sentence vector for each line."""

import sys
from typing import Annotated

import typer

from regard.cli.core import CHUNK, Json, RunPath, read_texts, to_json


def vectors(
    run: RunPath,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE]...", help="Texts, one per line; - or nothing is stdin.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the sentence vector of every line, with norm 1, its numbers separated by tabs.

    A blank line, or one with too many tokens, gets zeros. This works for runs of translate, classify, masked_lm and
    answer.
    """
    from regard.analysis.vectors import vectors
    from regard.predict import load

    texts = [line for name in inputs or ["-"] for line in read_texts(name)]
    predictor = load(run)
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        for text, vector in zip(chunk, vectors(predictor, chunk).tolist(), strict=True):
            content = {"text": text, "vector": vector}
            line = to_json(content) if as_json else "\t".join(f"{number:.6g}" for number in vector)
            sys.stdout.buffer.write(line.encode() + b"\n")
