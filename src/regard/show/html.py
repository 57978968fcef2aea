"""The map as one self-contained HTML file: viewer, style sheet and numbers are inside.

`viewer_data` builds the numbers; the files of `viewer/` show them. A server may send both apart.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files

from regard.maps import AttentionMap, AttentionMaps, SeriesView
from regard.show import viewer_data
from regard.show.viewer_data import Data
from regard.types import Prediction

# The modules of the viewer, each after those that it imports; the last one exports `mount`.
MODULES = ("parts.js", "maps.js", "matrix.js", "lines.js", "sources.js", "export.js", "viewer.js")
STYLE, FRAME = "viewer.css", "page.html"
IMPORT = re.compile(r'^import [^;]*? from "\./\w+\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class)\b)", re.MULTILINE)
START = """
for (const block of document.querySelectorAll("script.regard-map")) {
  const root = document.createElement("main");
  block.after(root);
  mount(root, JSON.parse(block.textContent), { view: location.hash.slice(1) });
}
"""
TALLEST, LOWEST = 860, 520  # height of the page of a map and of a forecast without one in a notebook, in pixels


@cache
def viewer_file(name: str) -> str:
    """A file of the viewer: one of `MODULES` or its `STYLE`. A page may import `viewer.js` as a module, or `script`."""
    return files("regard.show").joinpath("viewer", name).read_text("utf-8")


@cache
def script() -> str:
    """All modules of the viewer as one, for pages that cannot import files: without imports and exports."""
    parts = (EXPORT.sub("", IMPORT.sub("", viewer_file(name))) for name in MODULES)
    return "\n".join(parts)


def page(data: Data) -> bytes:
    """A page that shows data of `viewer_data`; its Content-Security-Policy allows only its own script and style.

    Pictures and sound may come from the page itself: exports are drawn from images that the script has made.
    """
    style, code = viewer_file(STYLE), script() + START
    made = "img-src data: blob:; media-src data: blob:"
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(code)}; {made}; base-uri 'none'"
    title = escape(data.get("title") or "attention map")
    frame = viewer_file(FRAME)
    return frame.format(policy=policy, title=title, style=style, content=safe_json(data), script=code).encode()


def html(attention: AttentionMap, title: str = "", scale: str | None = None) -> bytes:
    """The map as an interactive page: heat map and word-to-word lines, by tokens and, if they differ, by words."""
    return page(viewer_data.data_of_map(attention, title, scale))


def html_of_series(view: SeriesView, title: str = "") -> bytes:
    """A forecast without a map as an interactive page: history and fan, with the numbers of each step."""
    return page(viewer_data.data_of_series(view, title))


def html_of_all(maps: AttentionMaps, title: str = "", scale: str | None = None) -> bytes:
    """All maps of one output as an interactive page, on which site, layer and head can be chosen."""
    return page(viewer_data.data_of_maps(maps, title, scale))


def html_of_several(
    maps: Mapping[tuple[str, ...], AttentionMap], choices: Sequence[str], title: str = "", scale: str | None = None
) -> bytes:
    """An interactive page of maps that can be chosen; each key has a text for each of the `choices`."""
    return page(viewer_data.data_of_several(maps, choices, title, scale))


def html_of_prediction(prediction: Prediction, scale: str | None = None) -> bytes:
    """A prediction as an interactive page: all its maps, and those of its rivals, the next best outputs of a search."""
    return page(viewer_data.data_of_prediction(prediction, scale))


def html_side_by_side(predictions: Sequence[tuple[str, Prediction]], scale: str | None = None) -> bytes:
    """An interactive page of what several models, each given with its name, predict for the same input."""
    panels = [viewer_data.data_of_prediction(own, scale, name=name) for name, own in predictions]
    source = next((str(own.source) for _, own in predictions), "")
    return page(viewer_data.side_by_side(panels, source))


def framed(shown: AttentionMap | AttentionMaps | SeriesView | Prediction, title: str = "") -> str:
    """The interactive page inside a notebook: an iframe that holds the page, so that no server or file is needed.

    Its sandbox lets the page's own script run and save files, but gives it no access to the notebook.
    """
    if isinstance(shown, SeriesView):
        content, height = html_of_series(shown, title), LOWEST
    elif isinstance(shown, AttentionMap):
        content, height = html(shown, title), _height(shown)
    elif isinstance(shown, Prediction):
        content, height = html_of_prediction(shown), TALLEST
    else:
        content, height = html_of_all(shown, title), _height(shown.pick())
    style = f"width: 100%; height: {height}px; border: 0"
    frame = f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" title="attention map"'
    return f'{frame} srcdoc="{escape(content.decode())}"></iframe>'


def _height(attention: AttentionMap) -> int:
    """The height of a map's page in a notebook."""
    return TALLEST if attention.view is not None else min(TALLEST, 540 + 32 * len(attention.rows))


def safe_json(data: Data) -> str:
    """JSON in ASCII with every `<` escaped, so that no label can close the script element around it."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _digest(content: str) -> str:
    """The hash by which the page's Content-Security-Policy allows this one script or style."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
