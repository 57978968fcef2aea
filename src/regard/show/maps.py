"""The file formats of attention maps, chosen by the file's ending; `terminal` draws on the screen."""

from collections.abc import Callable

import torch

from regard.errors import pick
from regard.maps import AttentionMap
from regard.show.html import html
from regard.show.png import png
from regard.show.svg import svg
from regard.show.terminal import terminal
from regard.show.text import pharaoh, table

__all__ = ["DRAWINGS", "check_ending", "draw", "html", "pharaoh", "png", "svg", "table", "terminal"]

DRAWINGS: dict[str, Callable[[AttentionMap, str], bytes]] = {
    ".svg": lambda attention, title: svg(attention, title).encode(),
    ".png": png,
    ".html": html,
    ".csv": table,
    ".pharaoh": pharaoh,
}


def check_ending(ending: str) -> None:
    """Raise an error if no format has that ending, or if a package that it needs is not installed."""
    draw(AttentionMap(torch.ones(1, 1), ("",), ("",)), ending)


def draw(attention: AttentionMap, ending: str, title: str = "") -> bytes:
    """The map as the content of a file; the file's ending chooses the format."""
    return pick(DRAWINGS, ending.lower(), "picture ending")(attention, title)
