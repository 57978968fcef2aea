"""The map as one self-contained HTML file: viewer, style sheet and numbers are inside."""

import json
import math
from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from jaxtyping import Float
from torch import Tensor

from regard.maps import AttentionMap
from regard.show.labels import MOST_CHARACTERS, make_visible, shown
from regard.show.large import has_many_cells, pool

VIEWER = ("viewer.html", "viewer.css", "viewer.js")
LETTERS = 200_000  # maximum letters of all labels of one map; longer labels are cut


def html(attention: AttentionMap, title: str = "") -> bytes:
    """The map as an interactive page: heat map and word-to-word lines, by tokens and, if they differ, by words.

    Of a large map the weights are rounded to 3 digits; if it has more than 1,000 rows or columns, they are pooled.
    """
    page, style, script = (files("regard.show").joinpath(name).read_text("utf-8") for name in VIEWER)
    maps = {"tokens": attention, "words": attention.words()}
    if maps["words"].rows == attention.rows and maps["words"].columns == attention.columns:
        del maps["words"]
    content = {"title": make_visible(title), "maps": [_content(name, shown_map) for name, shown_map in maps.items()]}
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'"
    safe_title, safe_content = escape(make_visible(title) or "attention map"), _safe_json(content)
    return page.format(policy=policy, title=safe_title, style=style, content=safe_content, script=script).encode()


def _content(name: str, attention: AttentionMap) -> dict[str, Any]:
    """The data of one map for the viewer; labels are written as in every other picture."""
    if has_many_cells(attention):
        return _large_content(name, attention)
    most = LETTERS // max(len(attention.rows) + len(attention.columns), LETTERS // MOST_CHARACTERS)
    return {
        "name": name,
        "rows": [shown(label, most) for label in attention.rows],
        "columns": [shown(label, most) for label in attention.columns],
        "weights": [_numbers(row) for row in attention.weights.tolist()],
        "entropy": _numbers(attention.entropy().tolist()),
        "coverage": _numbers(attention.coverage().tolist()),
        "monotonicity": attention.monotonicity(),
    }


def _large_content(name: str, attention: AttentionMap) -> dict[str, Any]:
    """The data of a large map: thousandths as weights, for each dot the mean entropy and the sum of the coverage."""
    pooled = pool(attention)
    rows, columns = ([axis.name(dot) for dot in range(axis.dots)] for axis in (pooled.rows, pooled.columns))
    entropy, coverage = attention.entropy(), attention.coverage()
    return {
        "name": name,
        "rows": rows,
        "columns": columns,
        "size": list(attention.weights.shape),
        "note": pooled.describe().partition("; ")[2],
        "unit": 0.001,
        "weights": _thousandths(pooled.weights),
        "entropy": _numbers([part.mean().item() for part in entropy.split(pooled.rows.step)]),
        "coverage": _numbers([part.sum().item() for part in coverage.split(pooled.columns.step)]),
        "mean_entropy": _numbers([entropy.mean().item()])[0],
        "monotonicity": attention.monotonicity(),
    }


def _numbers(values: list[float]) -> list[float | None]:
    """Numbers for JSON: rounded to 6 digits (the page shows 3), None if not finite, which JSON cannot write."""
    return [round(value, 6) if math.isfinite(value) else None for value in values]


def _thousandths(weights: Float[Tensor, "rows columns"]) -> list[list[int | None]]:
    """The weights of a large map for JSON, in as few digits as the page shows."""
    is_finite = weights.isfinite()
    rows: list[list[int | None]] = (weights * 1000).where(is_finite, 0).round().long().tolist()
    for row, column in (~is_finite).nonzero().tolist():
        rows[row][column] = None
    return rows


def _safe_json(content: dict[str, Any]) -> str:
    """JSON in ASCII with every `<` escaped, so that no label can close the script element around it."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _digest(content: str) -> str:
    """The hash by which the page's Content-Security-Policy allows this one script or style."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
