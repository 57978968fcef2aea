"""Draws and saves the pictures of the lessons, in the folder named by REGARD_LESSON_OUT or in ./lessons-out.

If a lesson is run as a script, the titles of its sections are printed too.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TextIO

from exercises import script
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from regard.maps import AttentionMap
from regard.show import maps
from regard.show.labels import shown
from regard.show.ramp import RAMP

BLUE, ORANGE, GREEN, GREY = "#143e7d", "#c2662d", "#3f7d4f", "#6b7788"
BLUES = LinearSegmentedColormap.from_list("regard", [tuple(part / 255 for part in colour) for colour in RAMP])


@dataclass(frozen=True)
class Picture:
    """A saved picture; a notebook shows it."""

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


def keep(picture: Figure | AttentionMap, name: str) -> Picture:
    """Save a picture as NAME.png and print its path."""
    path = _folder() / f"{name}.png"
    if isinstance(picture, AttentionMap):
        path.write_bytes(maps.draw(picture, ".png"))
    else:
        picture.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    print(f"picture: {path}")
    return Picture(path)


@cache
def _folder() -> Path:
    """The folder of the pictures: made if it is missing, or a temporary one if the current folder is read-only."""
    named = os.environ.get("REGARD_LESSON_OUT")
    folder = Path(named or "lessons-out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")  # git ignores the whole folder, wherever it is
    except OSError:
        if named:
            raise
        folder = Path(tempfile.mkdtemp(prefix="lessons-out-"))
    return folder


def plot(title: str, *, x: str, y: str, width: float = 7.0, height: float = 3.6) -> tuple[Figure, Axes]:
    """An empty plot with a title and labelled axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e3e9f0")
    axes.set_axisbelow(True)
    return figure, axes


def panels(
    *titles: str, width: float = 9.0, height: float = 3.4, shares: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """Empty plots side by side, each with its title; `shares` gives their relative widths, by default equal."""
    figure = Figure(figsize=(width, height), layout="constrained")
    places = list(figure.subplots(1, len(titles), squeeze=False, width_ratios=shares).flat)
    for axes, title in zip(places, titles, strict=True):
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, places


def side_by_side(named: Mapping[str, AttentionMap], *, columns: int = 4) -> Figure:
    """Several maps in one picture, each with its name as title; white is 0, dark is 1."""
    columns = min(columns, len(named))
    lines = -(-len(named) // columns)
    cells = max(len(each.columns) for each in named.values()), max(len(each.rows) for each in named.values())
    size = columns * (0.27 * cells[0] + 1.0), lines * (0.27 * cells[1] + 1.1)
    figure = Figure(figsize=size, layout="constrained")
    places = figure.subplots(lines, columns, squeeze=False).flat
    for axes in places:
        axes.set_visible(False)
    for axes, (name, shown_map) in zip(figure.axes, named.items(), strict=False):
        axes.set_visible(True)
        axes.imshow(shown_map.weights.detach().numpy(), cmap=BLUES, vmin=0, vmax=1)
        rotation = 60 if max(map(len, shown_map.columns)) > 1 else 0
        axes.set_xticks(range(len(shown_map.columns)), map(shown, shown_map.columns), rotation=rotation, fontsize=8)
        axes.set_yticks(range(len(shown_map.rows)), map(shown, shown_map.rows), fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_color("#e3e9f0")
        axes.set_title(name, fontsize=10)
    return figure


class Titled:
    """A stream for the output of a lesson: before the first output of a section, it writes the section's title."""

    def __init__(self, stream: TextIO, lesson: Path) -> None:
        self.stream = stream
        self.lesson = lesson
        lines = enumerate(lesson.read_text(encoding="utf-8").split("\n"), start=1)
        self.titles = {number: line.lstrip("# ") for number, line in lines if re.match("# #+ ", line)}
        self.written = 0  # the line of the last title that was written

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text, after the title of the section that the running line of the lesson belongs to."""
        number = max((number for number in self.titles if number <= self.running_line()), default=0)
        if number > self.written:
            self.written = number
            self.stream.write(f"\n{self.titles[number]}\n{'-' * len(self.titles[number])}\n")
        return self.stream.write(text)

    def running_line(self) -> int:
        """The line of the lesson that is running, outside of its functions; 0 if another file is run."""
        frame = sys._getframe()
        while frame.f_back:
            frame = frame.f_back
        return frame.f_lineno if frame.f_code.co_filename == str(self.lesson) else 0


if (_lesson := script()) and _lesson.name.startswith("lesson_"):
    sys.stdout = Titled(sys.stdout, _lesson)
    sys.stdout.write("")  # the title of the lesson, before its first training
