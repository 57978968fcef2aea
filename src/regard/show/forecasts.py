"""The file formats of a forecast without a map, chosen by the file's ending; with one, `maps` draws both."""

import csv
from collections.abc import Callable
from io import StringIO
from pathlib import Path

from regard import storage
from regard.errors import pick
from regard.maps import SeriesView
from regard.show.fan import lay_out
from regard.show.html import html_of_series
from regard.show.png import paint as paint_png
from regard.show.svg import paint as paint_svg
from regard.show.text import harmless


def svg(view: SeriesView, title: str = "") -> bytes:
    """The forecast as a self-contained SVG."""
    return paint_svg(lay_out(None, view, title), f"Forecast: {title or view.name}").encode()


def png(view: SeriesView, title: str = "") -> bytes:
    """The forecast as a PNG that looks like the SVG."""
    return paint_png([title, view.name, *view.times], lambda spell: lay_out(None, view, title, spell))


def table(view: SeriesView, title: str = "") -> bytes:
    """The forecast as CSV (RFC 4180): for each step its time, mean and quantiles. The title is not written."""
    file = StringIO()
    writer = csv.writer(file)
    writer.writerow(["series", "time", "mean", *(f"{level:g}" for level in view.levels)])
    times, numbers = view.times[len(view.history) :], [view.mean.tolist(), *view.quantiles.tolist()]
    for time, *values in zip(times, *numbers, strict=True):
        writer.writerow([harmless(view.name), harmless(time), *(f"{value:.6g}" for value in values)])
    return file.getvalue().encode("utf-8", "backslashreplace")  # a lone surrogate has no UTF-8 encoding


DRAWINGS: dict[str, Callable[[SeriesView, str], bytes]] = {
    ".svg": svg,
    ".png": png,
    ".html": html_of_series,
    ".csv": table,
}


def draw(view: SeriesView, ending: str, title: str = "") -> bytes:
    """The forecast as the content of a file; the file's ending chooses the format."""
    return pick(DRAWINGS, ending.lower(), "picture ending of a forecast")(view, title)


def save(view: SeriesView, path: str | Path, title: str = "") -> Path:
    """Write a forecast to a file whose ending chooses the format; returns the path."""
    path = Path(path)
    storage.write(path, draw(view, path.suffix, title))
    return path
