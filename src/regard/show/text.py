"""Text formats for other programs: the weights as CSV, the hard alignment in the Pharaoh format."""

import csv
from io import StringIO

from regard.maps import AttentionMap


def table(attention: AttentionMap, title: str = "") -> bytes:
    """The map as CSV (RFC 4180): unchanged labels, weights with all digits. The title is not written."""
    file = StringIO()
    writer = csv.writer(file)
    writer.writerow(["", *attention.columns])
    for label, weights in zip(attention.rows, attention.weights.tolist(), strict=True):
        writer.writerow([label, *weights])
    return file.getvalue().encode("utf-8", "backslashreplace")  # a lone surrogate has no UTF-8 encoding


def pharaoh(attention: AttentionMap, title: str = "") -> bytes:
    """The links as one line of `source-target` pairs, counted from zero: the Pharaoh format of word aligners.

    These are the links that `regard align` and `regard score` count at the output step: between words if the sub-word
    pieces mark where words begin, else between tokens. The title is not written.
    """
    links = attention.words().links()
    return (" ".join(f"{column}-{row}" for column, row in links) + "\n").encode()
