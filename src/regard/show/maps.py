"""The file formats of attention maps, chosen by the file's ending; `terminal` draws on the screen."""

from collections.abc import Callable
from pathlib import Path

import torch

from regard import storage
from regard.errors import RecipeError, pick, shown
from regard.maps import AttentionMap, AttentionMaps
from regard.show.html import html, html_of_all, html_of_prediction
from regard.show.png import png
from regard.show.scale import check_scale
from regard.show.svg import svg
from regard.show.text import pharaoh, table
from regard.show.walk import gif
from regard.types import Prediction

__all__ = [
    "DRAWINGS",
    "check_ending",
    "draw",
    "gif",
    "html",
    "pharaoh",
    "png",
    "save",
    "save_prediction",
    "svg",
    "table",
]

DRAWINGS: dict[str, Callable[..., bytes]] = {  # of a map and a title; those with shades also take a scale
    ".svg": lambda attention, title, scale=None: svg(attention, title, scale).encode(),
    ".png": png,
    ".gif": gif,
    ".html": html,
    ".csv": table,
    ".pharaoh": pharaoh,
}
SHADED = (".svg", ".png", ".gif", ".html")
MERGING = (".svg", ".png", ".gif")  # formats that show words, not their pieces; `terminal` gets words from its callers


def check_ending(ending: str) -> None:
    """Raise an error if no format has that ending, or if a package that it needs is not installed."""
    draw(AttentionMap(torch.ones(1, 1), ("",), ("",)), ending)


def draw(
    attention: AttentionMap, ending: str, title: str = "", *, pieces: bool = False, scale: str | None = None
) -> bytes:
    """The map as the content of a file; the file's ending chooses the format.

    Pictures (.svg, .png, .gif) show words: the columns of a word's pieces are summed, their rows averaged. With
    `pieces`, they show the pieces. `scale` names the weight that is drawn darkest: `one`, the largest of the `map`, or
    of each `row`; .csv and .pharaoh have no shades. Without it, it is `one` for a matrix, and `row` or `map` for a map
    that is drawn on its picture or recording.
    """
    if scale is not None:
        check_scale(scale)
    if ending.lower() == ".pharaoh" and attention.is_signed:
        raise RecipeError("this map is a difference of two maps, which links no words; write the links of each of them")
    paint = pick(DRAWINGS, ending.lower(), "picture ending")
    shaded = {"scale": scale} if ending.lower() in SHADED else {}
    return paint(attention.words() if ending.lower() in MERGING and not pieces else attention, title, **shaded)


def save(
    attention: AttentionMap | AttentionMaps,
    path: str | Path,
    title: str = "",
    *,
    pieces: bool = False,
    scale: str | None = None,
) -> Path:
    """Write a map to a file whose ending chooses the format; all maps of an output can only be written to .html.

    Returns the path.
    """
    path = Path(path)
    if isinstance(attention, AttentionMap):
        storage.write(path, draw(attention, path.suffix, title, pieces=pieces, scale=scale))
    elif path.suffix.lower() == ".html":
        storage.write(path, html_of_all(attention, title, scale))
    else:
        raise RecipeError(f"{shown(str(path))} holds one map; write all of them to a .html file, or pick one of them")
    return path


def save_prediction(prediction: Prediction, path: str | Path, *, scale: str | None = None) -> Path:
    """Write a prediction with the maps of its rivals to an interactive page; returns the path."""
    path = Path(path)
    storage.write(path, html_of_prediction(prediction, scale))
    return path
