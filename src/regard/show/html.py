"""The map as one self-contained HTML file: viewer, style sheet and numbers are inside."""

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.errors import RecipeError
from regard.maps import (
    AttentionMap,
    AttentionMaps,
    Frames,
    Grid,
    Layout,
    PictureView,
    SeriesView,
    SourceView,
    Steps,
)
from regard.show import steps
from regard.show.labels import MOST_CHARACTERS, make_visible, shown
from regard.show.large import DOTS, Axis, Pooled, has_many_cells, pool, pool_again
from regard.show.scale import check_scale, darkest, tops
from regard.show.views import fitted, load, loudness, resized, row_times, source_view

VIEWER = ("viewer.html", "viewer.css", "viewer.js")
LETTERS = 200_000  # maximum letters of all labels of one map, or of a page of several maps; longer labels are cut
NUMBERS = 7_000_000  # maximum bytes of all weights of a page of several maps; maps with more are pooled
VIEW_BYTES = 2_400_000  # maximum bytes of the pixels of all pictures and spectrograms of a page
TICKS = 110  # characters of the labels of a time axis, at most
MOST_MAPS = 10_000  # of one page
PLACES = ("Site", "Layer", "Head")  # what can be chosen of all maps of one output
SIDES = [DOTS, *(round(DOTS / 2 ** (half / 2)) for half in range(1, 18))]  # dots on a side that are tried in turn
TALLEST, LOWEST = 760, 520  # height of the page of a map and of a forecast without one in a notebook, in pixels


def html(attention: AttentionMap, title: str = "", scale: str | None = None) -> bytes:
    """The map as an interactive page: heat map and word-to-word lines, by tokens and, if they differ, by words.

    Of a large map the weights are rounded to 3 digits; if it has more than 1,000 rows or columns, they are pooled. A
    map over a picture or a recording is also drawn on it.
    """
    units, view = _units(attention), source_view(attention)
    maps = [_content(unit, own, scale or "one") for unit, own in units.items()]
    if view is None:
        return _page(title, {"maps": maps})
    for content, own in zip(maps, units.values(), strict=True):
        content |= _on_view(Drawn.of(own), pool(own), 0, scale)
    return _page(title, {"maps": maps, "views": [_view_content(view, VIEW_BYTES)]})


def html_of_series(view: SeriesView, title: str = "") -> bytes:
    """A forecast without a map as an interactive page: history and fan, with the numbers of each step."""
    times = view.times[len(view.history) :]
    attention = AttentionMap(torch.zeros(len(times), 0), times, (), Steps(), view=lambda: view)  # attends to nothing
    return html(attention, title or view.name)


def html_of_all(maps: AttentionMaps, title: str = "", scale: str | None = None) -> bytes:
    """All maps of one output as an interactive page, on which site, layer and head can be chosen."""
    return html_of_several(by_place(maps), PLACES, title, scale)


def by_place(maps: Iterable[AttentionMap]) -> dict[tuple[str, ...], AttentionMap]:
    """The maps by site, layer and head as texts, for `html_of_several`."""
    places = {attention.place: attention for attention in maps}
    return {tuple(place.names()): attention for place, attention in places.items() if place is not None}


def html_of_several(
    maps: Mapping[tuple[str, ...], AttentionMap], choices: Sequence[str], title: str = "", scale: str | None = None
) -> bytes:
    """An interactive page of maps that can be chosen; each key has a text for each of the `choices`.

    The page begins with the first map, but in the last layer that has such a map. Weights are rounded to 3 digits. If
    they take more than `NUMBERS` bytes, all maps are pooled to fewer dots.
    """
    check_count(len(maps))
    shapes = [own.weights.shape for whole in maps.values() for own in _units(whole).values()]
    sides = [side for side in SIDES if sum(_bytes(rows, columns, side) for rows, columns in shapes) <= NUMBERS]
    page = Page(choices, title, side=max(sides, default=SIDES[-1]), scale=scale)
    for path, whole in maps.items():
        page.add(path, whole)
    return page.html()


def check_count(maps: int) -> None:
    """Raise RecipeError if there are too many maps for one page."""
    if maps > MOST_MAPS:
        raise RecipeError(f"a page has at most {MOST_MAPS:,} maps, not {maps:,}; choose a site, layer or head")


class Entry(NamedTuple):
    """A map of a page by tokens or by words, pooled, with what is shown about the whole of it."""

    path: tuple[str, ...]
    unit: str
    pooled: Pooled
    summary: "Summary"
    drawn: "Drawn"


class Page:
    """Collects maps for an interactive page; of all of them together it keeps no more numbers than the page may have.

    If they are too many, the maps so far are pooled again, each dot the largest of several dots.
    """

    def __init__(self, choices: Sequence[str], title: str = "", side: int = DOTS, scale: str | None = None) -> None:
        self.choices, self.title, self.scale = list(choices), title, scale
        self._side = side  # dots on a side that a map has at most
        self._entries: list[Entry] = []
        self._bytes = 0

    def add(self, path: tuple[str, ...], attention: AttentionMap) -> None:
        """Add a map; `path` has a text for each of the choices."""
        for unit, own in _units(attention).items():
            pooled = pool(own, self._side, self._side)
            kept = pooled._replace(weights=pooled.weights.clone())  # a view would keep the maps of all heads in memory
            self._entries.append(Entry(path, unit, kept, Summary.of(own), Drawn.of(own)))
            self._bytes += _bytes(kept.rows.dots, kept.columns.dots, self._side)
        while self._bytes > NUMBERS and self._side > SIDES[-1]:
            self._side = next(side for side in SIDES if side < self._side)
            self._entries = [entry._replace(pooled=pool_again(entry.pooled, self._side)) for entry in self._entries]
            self._bytes = sum(
                _bytes(entry.pooled.rows.dots, entry.pooled.columns.dots, self._side) for entry in self._entries
            )

    def html(self) -> bytes:
        """The page as the content of a file."""
        check_count(len({entry.path for entry in self._entries}))
        axes = list(
            dict.fromkeys(axis for entry in self._entries for axis in (entry.pooled.rows, entry.pooled.columns))
        )
        longest = max(2, LETTERS // max(sum(axis.dots for axis in axes), LETTERS // MOST_CHARACTERS))
        place = {axis: number for number, axis in enumerate(axes)}
        views = self._views()
        number = {view: number for number, view in enumerate(views)}
        contents = [
            _pooled_content(unit, pooled, summary, self.scale or "one")
            | {"path": list(path), "rows": place[pooled.rows], "columns": place[pooled.columns]}
            | (_on_view(drawn, pooled, number[drawn.view], self.scale) if drawn.view in number else {})
            for path, unit, pooled, summary, drawn in self._entries
        ]
        labels = [_labels(axis, longest) for axis in axes]
        start = _start(dict.fromkeys(entry.path for entry in self._entries), self.choices)
        content = {"choices": self.choices, "start": start, "labels": labels, "maps": contents}
        return _page(self.title, content | ({"views": list(views.values())} if views else {}))

    def _views(self) -> "dict[Callable[[], SourceView | None], dict[str, Any]]":
        """The pictures and spectrograms of all maps, by the functions that load them; the more, the smaller."""
        wanted = {drawn.view: drawn for *_, drawn in self._entries if drawn.view is not None}
        contents = {}
        for view, drawn in wanted.items():
            if (loaded := load(view, drawn.layout, drawn.columns)) is not None:
                contents[view] = _view_content(loaded, VIEW_BYTES // len(wanted))
        return contents


def _start(maps: Iterable[tuple[str, ...]], choices: Sequence[str]) -> tuple[str, ...]:
    """The place of the first map, but in the last layer that has such a map."""

    def without_layer(path: tuple[str, ...]) -> list[str]:
        return [name for name, choice in zip(path, choices, strict=True) if choice != "Layer"]

    first, *others = maps
    return [first, *(path for path in others if without_layer(path) == without_layer(first))][-1]


def _bytes(rows: int, columns: int, most: int) -> int:
    """An upper bound of the bytes of a map's numbers, if it has at most so many dots on a side."""
    rows, columns = min(rows, most), min(columns, most)
    return 5 * rows * columns + 11 * (rows + columns) + 300


def _labels(axis: Axis, longest: int) -> list[str]:
    """The labels of an axis; of dots for several positions, their numbers come first."""
    if axis.step == 1:
        return [shown(label, longest) for label in axis.labels]
    return [axis.name(dot, longest) for dot in range(axis.dots)]


def _units(attention: AttentionMap) -> dict[str, AttentionMap]:
    """The map by tokens and, if it differs, by words."""
    words = attention.words()
    differs = (words.rows, words.columns) != (attention.rows, attention.columns)
    return {"tokens": attention} | ({"words": words} if differs else {})


def _page(title: str, content: dict[str, Any]) -> bytes:
    """The page with its content as JSON; its Content-Security-Policy allows only its own script and style."""
    page, style, script = (files("regard.show").joinpath(name).read_text("utf-8") for name in VIEWER)
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'"
    name = make_visible(title)
    safe_title, safe_content = escape(name or "attention map"), _safe_json({"title": name} | content)
    return page.format(policy=policy, title=safe_title, style=style, content=safe_content, script=script).encode()


def framed(attention: AttentionMap | AttentionMaps | SeriesView, title: str = "") -> str:
    """The interactive page inside a notebook: an iframe that holds the page, so that no server or file is needed.

    Its sandbox lets the page's own script run, but gives it no access to the notebook.
    """
    if isinstance(attention, SeriesView):
        page, height = html_of_series(attention, title), LOWEST
    elif isinstance(attention, AttentionMap):
        page, height = html(attention, title), _height(attention)
    else:
        page, height = html_of_all(attention, title), _height(attention.pick())
    style = f"width: 100%; height: {height}px; border: 0"
    frame = f'<iframe sandbox="allow-scripts" style="{style}" title="attention map"'
    return f'{frame} srcdoc="{escape(page.decode())}"></iframe>'


def _height(attention: AttentionMap) -> int:
    """The height of a map's page in a notebook."""
    return TALLEST if attention.view is not None else min(TALLEST, 440 + 32 * len(attention.rows))


def _content(name: str, attention: AttentionMap, scale: str) -> dict[str, Any]:
    """The data of one map for the viewer; labels are written as in every other picture."""
    if has_many_cells(attention):
        return _large_content(name, attention, scale)
    most = LETTERS // max(len(attention.rows) + len(attention.columns), LETTERS // MOST_CHARACTERS)
    return {
        "name": name,
        "rows": [shown(label, most) for label in attention.rows],
        "columns": [shown(label, most) for label in attention.columns],
        "weights": [_numbers(row) for row in attention.weights.tolist()],
        "entropy": _numbers(attention.entropy().tolist()),
        "coverage": _numbers(attention.coverage().tolist()),
        "monotonicity": attention.monotonicity(),
    } | _scale(attention.weights, scale)


def _large_content(name: str, attention: AttentionMap, scale: str) -> dict[str, Any]:
    """The data of a large map."""
    pooled = pool(attention)
    rows, columns = ([axis.name(dot) for dot in range(axis.dots)] for axis in (pooled.rows, pooled.columns))
    return _pooled_content(name, pooled, Summary.of(attention), scale) | {"rows": rows, "columns": columns}


class Summary(NamedTuple):
    """What a page shows about a map besides its weights."""

    entropy: Float[Tensor, " rows"]
    coverage: Float[Tensor, " columns"]
    monotonicity: float

    @staticmethod
    def of(attention: AttentionMap) -> "Summary":
        """The summary of a whole map."""
        return Summary(attention.entropy(), attention.coverage(), attention.monotonicity())


def _pooled_content(name: str, pooled: Pooled, summary: Summary, scale: str) -> dict[str, Any]:
    """The data of a map without labels: thousandths as weights, for each dot mean entropy and summed coverage."""
    entropy, coverage, monotonicity = summary
    return {
        "name": name,
        "size": [len(entropy), len(coverage)],
        "note": pooled.describe().partition("; ")[2],
        "unit": 0.001,
        "weights": _thousandths(pooled.weights),
        "entropy": _numbers(_of_dots(entropy, pooled.rows.step, torch.mean)),
        "coverage": _numbers(_of_dots(coverage, pooled.columns.step, torch.sum)),
        "mean_entropy": _numbers([entropy.mean().item()])[0],
        "monotonicity": monotonicity,
    } | _scale(pooled.weights, scale)


class Drawn(NamedTuple):
    """What a page needs to draw a map on its picture or recording, besides its weights."""

    view: Callable[[], SourceView | None] | None
    layout: Layout
    columns: int
    times: list[float | None]  # of the rows over a recording

    @staticmethod
    def of(attention: AttentionMap) -> "Drawn":
        """That of a whole map."""
        times = row_times(attention) if isinstance(attention.layout, Frames) else []
        return Drawn(attention.view, attention.layout, len(attention.columns), times)


def _on_view(drawn: Drawn, pooled: Pooled, number: int, scale: str | None) -> dict[str, Any]:
    """The data for drawing a map on a picture or recording, which has this number; none if cells are pooled."""
    layout, step = drawn.layout, pooled.columns.step
    if isinstance(layout, Grid):
        top = _numbers(tops(pooled.weights, scale or "row").squeeze(1).tolist())
        return {"view": number, "grid": [layout.height, layout.width], "top": top} if step == 1 else {}
    top = _numbers(tops(pooled.weights, scale or "map").squeeze(1).tolist())
    if isinstance(layout, Steps):
        return {"view": number, "steps": [pooled.rows.step, step], "reach": drawn.columns, "top": top}
    assert isinstance(layout, Frames)
    times = [None if time is None else round(time, 3) for time in drawn.times[:: pooled.rows.step]]
    return {"view": number, "seconds": layout.seconds * step, "times": times, "top": top}


def _view_content(view: SourceView, most: int) -> dict[str, Any]:
    """A picture, spectrogram or series for the viewer; pixels in at most so many bytes before they are text."""
    if isinstance(view, PictureView):
        side = min(max(view.pixels.shape), max(1, math.isqrt(most // 3)))
        height, width = fitted(view, side)
        pixels = resized(view.pixels, height, width)
        return {"kind": "picture", "height": height, "width": width, "data": _base64(pixels)}
    if isinstance(view, SeriesView):
        return _series_content(view)
    bands = view.features.shape[1]
    levels = (loudness(view, max(1, min(DOTS, most // bands)), bands) * 255).round().byte()
    seconds = len(view.features) * view.seconds
    size = {"frames": len(levels), "bands": bands, "seconds": seconds, "highest": view.highest}
    return {"kind": "recording", "data": _base64(levels)} | size


def _series_content(view: SeriesView) -> dict[str, Any]:
    """A series and its forecast for the viewer, with its axes; times are those of the steps."""
    axis = steps.value_axis(view)
    longest = max(2, LETTERS // max(len(view.times), LETTERS // MOST_CHARACTERS))
    observed = [] if view.observed is None else _digits(view.observed.tolist())
    return {
        "kind": "series",
        "times": [make_visible(time, longest) for time in view.times],
        "history": _digits(view.history.tolist()),
        "median": _digits(steps.median(view)),
        "bands": [
            {
                "share": share,
                "low": _digits(view.quantiles[low].tolist()),
                "high": _digits(view.quantiles[high].tolist()),
            }
            for low, high, share in steps.bands(view)
        ],
        "observed": observed,
        "range": [axis.low, axis.high],
        "values": axis.ticks,
        "ticks": [(step, make_visible(label, longest)) for step, label in steps.time_ticks(view.times, TICKS)],
    }


def _digits(values: list[float]) -> list[float | None]:
    """Values of a series for JSON: with 8 digits, None if not finite."""
    return [float(f"{value:.8g}") if math.isfinite(value) else None for value in values]


def _base64(values: UInt8[Tensor, "..."]) -> str:
    return b64encode(values.contiguous().numpy().tobytes()).decode()


def _scale(weights: Float[Tensor, "rows columns"], scale: str) -> dict[str, Any]:
    """The scale of a map's shades, if it is not from 0 to 1: what is drawn darkest in each row, and in words."""
    check_scale(scale)
    if scale == "one":
        return {}
    return {"tops": _numbers(tops(weights, scale).squeeze(1).tolist()), "darkest": darkest(weights, scale)}


def _of_dots(values: Float[Tensor, " positions"], step: int, join: Callable[[Tensor], Tensor]) -> list[float]:
    """One number for each dot, from the values of its positions."""
    numbers: list[float] = (values if step == 1 else torch.stack([*map(join, values.split(step))])).tolist()
    return numbers


def _numbers(values: list[float]) -> list[float | None]:
    """Numbers for JSON: rounded to 6 digits (the page shows 3), None if not finite, which JSON cannot write."""
    return [round(value, 6) if math.isfinite(value) else None for value in values]


def _thousandths(weights: Float[Tensor, "rows columns"]) -> list[list[int | None]]:
    """The weights of a large map for JSON, in as few digits as the page shows."""
    is_finite = weights.isfinite()
    rows: list[list[int | None]] = (weights * 1000).where(is_finite, 0).round().long().tolist()
    for row, column in (~is_finite).nonzero().tolist():
        rows[row][column] = None
    return rows


def _safe_json(content: dict[str, Any]) -> str:
    """JSON in ASCII with every `<` escaped, so that no label can close the script element around it."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _digest(content: str) -> str:
    """The hash by which the page's Content-Security-Policy allows this one script or style."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
