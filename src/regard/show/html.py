"""The map as one HTML file that needs nothing else: the viewer, its style and the numbers are all inside."""

import json
import math
from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from regard.maps import AttentionMap
from regard.show.labels import legible, shown

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<script type="application/json" class="regard-map">{content}</script>
<noscript>This page draws its attention map with JavaScript, which is switched off here.</noscript>
<script type="module">{script}</script>
</body>
</html>
"""


def html(attention: AttentionMap, title: str = "") -> bytes:
    """The map as a page to explore: heat map and word-to-word lines, in tokens and, where they differ, in words."""
    style, script = (files("regard.show").joinpath(name).read_text("utf-8") for name in ("viewer.css", "viewer.js"))
    maps = {"tokens": attention, "words": attention.words()}
    if maps["words"].rows == attention.rows and maps["words"].columns == attention.columns:
        del maps["words"]
    told = {"title": legible(title), "maps": [_told(name, each) for name, each in maps.items()]}
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'"
    page = PAGE.format(
        policy=policy,
        title=escape(legible(title) or "attention map"),
        style=style,
        content=_inert(told),
        script=script,
    )
    return page.encode()


def _told(name: str, attention: AttentionMap) -> dict[str, Any]:
    """What the viewer needs of one map; its labels are spelled as in every other picture."""
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
    """Six digits, twice what the page shows; JSON has no word for what is not finite."""
    return [round(value, 6) if math.isfinite(value) else None for value in values]


def _inert(told: dict[str, Any]) -> str:
    """JSON in ASCII without any `<`: no label can end the block that it stands in."""
    return json.dumps(told, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _digest(content: str) -> str:
    """How a page's policy names the one script or style that may take effect."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
