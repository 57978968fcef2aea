"""Where the lessons leave their pictures: the folder that REGARD_LESSON_OUT names, or ./lessons-out."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """A picture that was kept; a notebook shows it."""

    path: Path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()


def keep(picture: Figure | AttentionMap, name: str) -> Picture:
    """Write a picture as NAME.png and say where."""
    folder = Path(os.environ.get("REGARD_LESSON_OUT", "lessons-out"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")  # git ignores the whole folder, wherever it is
    path = folder / f"{name}.png"
    if isinstance(picture, AttentionMap):
        path.write_bytes(maps.draw(picture, ".png"))
    else:
        picture.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
    print(f"picture: {path}")
    return Picture(path)


def plot(title: str, *, x: str, y: str, width: float = 7.0, height: float = 3.6) -> tuple[Figure, Axes]:
    """An empty picture with named axes."""
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
    """Empty pictures beside each other, each under its title; `shares` of the width, or all alike."""
    figure = Figure(figsize=(width, height), layout="constrained")
    places = list(figure.subplots(1, len(titles), squeeze=False, width_ratios=shares).flat)
    for axes, title in zip(places, titles, strict=True):
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, places


def side_by_side(seen: Mapping[str, AttentionMap], *, columns: int = 4) -> Figure:
    """Several maps in one picture, each under its name; white is 0, dark is 1."""
    columns = min(columns, len(seen))
    lines = -(-len(seen) // columns)
    cells = max(len(each.columns) for each in seen.values()), max(len(each.rows) for each in seen.values())
    size = columns * (0.27 * cells[0] + 1.0), lines * (0.27 * cells[1] + 1.1)
    figure = Figure(figsize=size, layout="constrained")
    places = figure.subplots(lines, columns, squeeze=False).flat
    for axes in places:
        axes.set_visible(False)
    for axes, (name, each) in zip(figure.axes, seen.items(), strict=False):
        axes.set_visible(True)
        axes.imshow(each.weights.detach().numpy(), cmap=BLUES, vmin=0, vmax=1)
        upright = max(map(len, each.columns)) > 1
        axes.set_xticks(range(len(each.columns)), map(shown, each.columns), rotation=60 if upright else 0, fontsize=8)
        axes.set_yticks(range(len(each.rows)), map(shown, each.rows), fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_color("#e3e9f0")
        axes.set_title(name, fontsize=10)
    return figure
