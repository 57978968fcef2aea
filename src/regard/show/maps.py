"""The file formats of attention maps, chosen by the file's ending; `terminal` draws on the screen."""

from collections.abc import Callable
from pathlib import Path

import torch

from regard import storage
from regard.errors import RecipeError, pick, shown
from regard.maps import AttentionMap, AttentionMaps
from regard.show.html import html, html_of_all
from regard.show.png import png
from regard.show.svg import svg
from regard.show.terminal import terminal
from regard.show.text import pharaoh, table

__all__ = ["DRAWINGS", "check_ending", "draw", "html", "pharaoh", "png", "save", "svg", "table", "terminal"]

DRAWINGS: dict[str, Callable[[AttentionMap, str], bytes]] = {
    ".svg": lambda attention, title: svg(attention, title).encode(),
    ".png": png,
    ".html": html,
    ".csv": table,
    ".pharaoh": pharaoh,
}
MERGING = (".svg", ".png")  # formats that show words, not their pieces; `terminal` gets words from its callers


def check_ending(ending: str) -> None:
    """Raise an error if no format has that ending, or if a package that it needs is not installed."""
    draw(AttentionMap(torch.ones(1, 1), ("",), ("",)), ending)


def draw(attention: AttentionMap, ending: str, title: str = "", *, pieces: bool = False) -> bytes:
    """The map as the content of a file; the file's ending chooses the format.

    Pictures (.svg, .png) show words: the columns of a word's pieces are summed, their rows averaged. With `pieces`,
    they show the pieces.
    """
    paint = pick(DRAWINGS, ending.lower(), "picture ending")
    return paint(attention.words() if ending.lower() in MERGING and not pieces else attention, title)


def save(attention: AttentionMap | AttentionMaps, path: str | Path, title: str = "", *, pieces: bool = False) -> Path:
    """Write a map to a file whose ending chooses the format; all maps of an output can only be written to .html.

    Returns the path.
    """
    path = Path(path)
    if isinstance(attention, AttentionMap):
        storage.write(path, draw(attention, path.suffix, title, pieces=pieces))
    elif path.suffix.lower() == ".html":
        storage.write(path, html_of_all(attention, title))
    else:
        raise RecipeError(f"{shown(str(path))} holds one map; write all of them to a .html file, or pick one of them")
    return path
