"""Text formats for other programs: the weights as CSV, the hard alignment in the Pharaoh format."""

import csv
import re
from io import StringIO

from regard.maps import AttentionMap

# Places in a label where a spreadsheet would begin a formula: the start, and after a separator that some spreadsheets
# have in place of the comma; those may ignore quotation marks. The fullwidth forms count in some of their languages.
FORMULA = re.compile("(?:^|(?<=[;\t\r\n]))(?=['\"]*[-=+@\t\r\n\uff0d\uff1d\uff0b\uff20])")


def table(attention: AttentionMap, title: str = "") -> bytes:
    """The map as CSV (RFC 4180): labels, and weights with all digits. The title is not written.

    Labels that a spreadsheet would run have an apostrophe in front, see `harmless`.
    """
    file = StringIO()
    writer = csv.writer(file)
    writer.writerow(["", *map(harmless, attention.columns)])
    for label, weights in zip(attention.rows, attention.weights.tolist(), strict=True):
        writer.writerow([harmless(label), *weights])
    return file.getvalue().encode("utf-8", "backslashreplace")  # a lone surrogate has no UTF-8 encoding


def harmless(text: str) -> str:
    """The text of a cell, with an apostrophe where a spreadsheet would begin a formula.

    That is in front of a text such as `=1+1`, and after a semicolon, tab or line end within a text such as `x;=1+1`,
    because some spreadsheets separate cells there. It is added if apostrophes stand there already, so that removing one
    always gives the text back. All other texts are unchanged.
    """
    return FORMULA.sub("'", text)


def pharaoh(attention: AttentionMap, title: str = "") -> bytes:
    """The links as one line of `source-target` pairs, counted from zero: the Pharaoh format of word aligners.

    These are the links that `regard align` and `regard score` count at the output step: between words if the sub-word
    pieces mark where words begin, else between tokens. The title is not written.
    """
    links = attention.words().links()
    return (" ".join(f"{column}-{row}" for column, row in links) + "\n").encode()
