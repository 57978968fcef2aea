"""The map for other programs: its numbers as CSV, its hard alignment in the Pharaoh format."""

import csv
from io import StringIO

from regard.maps import AttentionMap


def table(attention: AttentionMap, title: str = "") -> bytes:
    """The labels as they are and every weight in full, as CSV (RFC 4180); the form has no place for a title."""
    file = StringIO()
    writer = csv.writer(file)
    writer.writerow(["", *attention.columns])
    for label, weights in zip(attention.rows, attention.weights.tolist(), strict=True):
        writer.writerow([label, *weights])
    return file.getvalue().encode("utf-8", "backslashreplace")  # half a surrogate pair has no UTF-8


def pharaoh(attention: AttentionMap, title: str = "") -> bytes:
    """The links as one line of `source-target` pairs from zero, as word aligners write and read them.

    They are the links that `regard align` and `regard score` count at the output step: between words where pieces say
    where words begin, else between tokens.
    """
    links = attention.words().links()
    return (" ".join(f"{column}-{row}" for column, row in links) + "\n").encode()
