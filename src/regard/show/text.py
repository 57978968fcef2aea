"""Text formats for other programs: the weights as CSV, the hard alignment in the Pharaoh format."""

import csv
import re
from io import StringIO

from regard.maps import AttentionMap

# Spreadsheets run a cell that begins with one of these; the fullwidth forms count in some of their languages.
FORMULA = re.compile("'*[-=+@\t\r\n\uff0d\uff1d\uff0b\uff20]")


def table(attention: AttentionMap, title: str = "") -> bytes:
    """The map as CSV (RFC 4180): labels, and weights with all digits. The title is not written.

    A label that a spreadsheet would run as a formula, such as `=1+1`, gets an apostrophe in front: the spreadsheet then
    shows it as text. So does such a label that begins with apostrophes already, so that removing one always gives the
    label back. All other labels are unchanged.
    """
    file = StringIO()
    writer = csv.writer(file)
    writer.writerow(["", *map(_harmless, attention.columns)])
    for label, weights in zip(attention.rows, attention.weights.tolist(), strict=True):
        writer.writerow([_harmless(label), *weights])
    return file.getvalue().encode("utf-8", "backslashreplace")  # a lone surrogate has no UTF-8 encoding


def _harmless(label: str) -> str:
    return f"'{label}" if FORMULA.match(label) else label


def pharaoh(attention: AttentionMap, title: str = "") -> bytes:
    """The links as one line of `source-target` pairs, counted from zero: the Pharaoh format of word aligners.

    These are the links that `regard align` and `regard score` count at the output step: between words if the sub-word
    pieces mark where words begin, else between tokens. The title is not written.
    """
    links = attention.words().links()
    return (" ".join(f"{column}-{row}" for column, row in links) + "\n").encode()
