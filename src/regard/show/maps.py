"""Every form an AttentionMap takes as a file, by the file's ending; `terminal` is the one on the screen."""

from collections.abc import Callable

import torch

from regard.errors import pick
from regard.maps import AttentionMap
from regard.show.html import html
from regard.show.png import png
from regard.show.svg import svg
from regard.show.terminal import terminal
from regard.show.text import pharaoh, table

__all__ = ["DRAWINGS", "draw", "drawable", "drawing", "html", "pharaoh", "png", "svg", "table", "terminal"]

Drawing = Callable[[AttentionMap, str], bytes]

DRAWINGS: dict[str, Drawing] = {
    ".svg": lambda attention, title: svg(attention, title).encode(),
    ".png": png,
    ".html": html,
    ".csv": table,
    ".pharaoh": pharaoh,
}


def drawing(ending: str) -> Drawing:
    """What draws a file of that ending."""
    return pick(DRAWINGS, ending.lower(), "picture ending")


def drawable(ending: str) -> None:
    """Refuse an ending that no picture has, or for which a package is missing."""
    draw(AttentionMap(torch.ones(1, 1), ("",), ("",)), ending)


def draw(attention: AttentionMap, ending: str, title: str = "") -> bytes:
    """The bytes of a picture file, in the form that the file's ending names."""
    return drawing(ending)(attention, title)
