"""The map as one self-contained HTML file: viewer, style sheet and numbers are inside."""

import json
import math
from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from regard.maps import AttentionMap
from regard.show.labels import make_visible, shown

VIEWER = ("viewer.html", "viewer.css", "viewer.js")


def html(attention: AttentionMap, title: str = "") -> bytes:
    """The map as an interactive page: heat map and word-to-word lines, by tokens and, if they differ, by words."""
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
    return {
        "name": name,
        "rows": list(map(shown, attention.rows)),
        "columns": list(map(shown, attention.columns)),
        "weights": [_numbers(row) for row in attention.weights.tolist()],
        "entropy": _numbers(attention.entropy().tolist()),
        "coverage": _numbers(attention.coverage().tolist()),
        "monotonicity": attention.monotonicity(),
    }


def _numbers(values: list[float]) -> list[float | None]:
    """Numbers for JSON: rounded to 6 digits (the page shows 3), None if not finite, which JSON cannot write."""
    return [round(value, 6) if math.isfinite(value) else None for value in values]


def _safe_json(content: dict[str, Any]) -> str:
    """JSON in ASCII with every `<` escaped, so that no label can close the script element around it."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _digest(content: str) -> str:
    """The hash by which the page's Content-Security-Policy allows this one script or style."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
