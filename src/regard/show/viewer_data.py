"""The data that the viewer (`viewer/viewer.js`) shows, as dictionaries for JSON: maps, predictions, several models.

`regard.show.html` puts them into a page; a server sends them as they are, and `mount(element, data)` draws them. All
texts in them are plain texts, never markup. The format:

    data = {
      "title": text,
      "panels": [panel, ...]              # one for each model, side by side; or the keys of one panel stand here
    }
    panel = {
      "name": text,                       # optional: the name of the model, above the panel
      "maps": [map, ...],
      "choices": [text, ...],             # optional: what can be chosen, such as ["Output", "Site", "Layer", "Head"]
      "start": [text, ...],               # the path of the map that is shown first
      "labels": [[text, ...], ...],       # the axes; with it, `rows` and `columns` of a map are indices of this list
      "ends": [[number, ...] | null, ...],  # with `labels`: of each, the number of its last token; null: 1, 2, 3, ...
      "outputs": [{"name", "text", "score"}, ...],  # optional: the hypotheses; `name` is what paths have for "Output"
      "views": [view, ...],               # optional: pictures, recordings and series
      "honesty": text                     # optional: how far its maps may be trusted, but for those with their own
    }
    map = {
      "name": "tokens" | "words",
      "path": [text, ...],                # one for each of the choices
      "rows": [text, ...] | index, "columns": [text, ...] | index,      # outputs and sources
      "ends": {"rows": [number, ...] | null, "columns": ...},           # optional, without the panel's `labels`
      "weights": [[number | null, ...], ...] | text,      # rows; as text: two letters for each weight, see `_dense`
      "unit": number,                     # optional: what weights are multiples of
      "signed": true,                     # optional: a difference of two maps, with weights below 0
      "entropy": [number, ...], "coverage": [number, ...], "monotonicity": number,
      "size": [rows, columns], "note": text, "mean_entropy": number,    # of large maps, whose dots may be pooled
      "tops": [number, ...], "darkest": text,             # if shades do not go to 1: the darkest weight of each row
      "honesty": text,                    # optional, instead of the panel's
      "view": index of views, "top": [number, ...],       # of maps that are drawn on a view
      "grid": [height, width]             # over a picture
      | "seconds": number, "times": [number | null, ...]  # over a recording: of a column, and of each row
      | "steps": [of a row, of a column], "reach": number # over a series: columns end a step before its last step
      , "lags": [number, ...]             # optional: steps back that a row can look, if not all
    }
    view = {"kind": "picture", "height", "width", "data"}                # RGB bytes in base64
      | {"kind": "recording", "frames", "bands", "seconds", "highest", "data", "sound"}  # levels; a WAV as data URL
      | {"kind": "series", "times", "history", "median", "bands", "observed", "range", "values", "ticks"}
"""

import math
import struct
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.errors import RecipeError, shown
from regard.maps import (
    AttentionMap,
    AttentionMaps,
    Frames,
    Grid,
    Layout,
    PictureView,
    SeriesView,
    SourceView,
    Spectrogram,
    Steps,
    Words,
    words_of,
)
from regard.show import steps
from regard.show.labels import MOST_CHARACTERS, make_visible
from regard.show.labels import shown as label_shown
from regard.show.large import DOTS, Axis, Pooled, has_many_cells, pool, pool_again
from regard.show.scale import check_scale, darkest, tops
from regard.show.views import fitted, load, loudness, resized, row_times, source_view
from regard.types import Prediction

LETTERS = 200_000  # maximum letters of all labels of one map, or of a page of several maps; longer labels are cut
NUMBERS = 7_000_000  # maximum bytes of all weights of a page of several maps; maps with more are pooled
VIEW_BYTES = 2_400_000  # maximum bytes of the pixels of all pictures and spectrograms of a page
SOUND_BYTES = 2_400_000  # maximum bytes of the sound of all recordings of a page; longer ones are silent
TICKS = 110  # characters of the labels of a time axis, at most
MOST_MAPS = 10_000  # of one page
OUTPUT = "Output"  # the choice between the hypotheses of a search
PLACES = ("Site", "Layer", "Head")  # what can be chosen of all maps of one output
SIDES = [DOTS, *(round(DOTS / 2 ** (half / 2)) for half in range(1, 18))]  # dots on a side that are tried in turn
DENSE = 250_000  # a map with more dots has its weights as letters, not as numbers
DENSE_BYTES = 9_000_000  # of the weights of a map that is alone on its page: enough for 2,000 x 2,000 dots
ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"  # base64
LEAST, NOT_FINITE = 1000, 4095  # codes of the weight 0, and of a weight that is not finite
Data = dict[str, Any]


def data_of_map(attention: AttentionMap, title: str = "", scale: str | None = None) -> Data:
    """The data of one map: by tokens and, if they differ, by words.

    Of a large map the weights are rounded to 3 digits; if it has more than 2,000 rows or columns, they are pooled, and
    sooner if it has words, too. A map over a picture or a recording is also drawn on it.
    """
    units, view = _units(attention), source_view(attention)
    side = _sharpest(own.map.weights.shape for own in units)
    maps = [_content(own, scale or "one", side) for own in units]
    data = _titled(title, attention.trust)
    if view is None:
        return data | {"maps": maps}
    for content, own in zip(maps, units, strict=True):
        content |= _on_view(Drawn.of(own.map), own.pooled(side), 0, scale)
    return data | {"maps": maps, "views": [_view_content(view, VIEW_BYTES, SOUND_BYTES)]}


def data_of_series(view: SeriesView, title: str = "") -> Data:
    """The data of a forecast without a map: history and fan, with the numbers of each step."""
    times = view.times[len(view.history) :]
    attention = AttentionMap(torch.zeros(len(times), 0), times, (), Steps(), view=lambda: view)  # attends to nothing
    return data_of_map(attention, title or view.name)


def data_of_maps(maps: AttentionMaps, title: str = "", scale: str | None = None) -> Data:
    """The data of all maps of one output, of which site, layer and head can be chosen."""
    return data_of_several(by_place(maps), PLACES, title, scale)


def data_of_prediction(prediction: Prediction, scale: str | None = None, name: str = "") -> Data:
    """The data of a prediction: its map or all its `maps`, and the maps of its rivals (`alternatives`), if it has any.

    `name` is that of the model, for predictions of several models side by side. A forecast without a map is shown, too.
    """
    named = {"name": make_visible(name)} if name else {}
    if not _rivals(prediction):
        return _data_of_best(prediction, scale) | named
    maps, choices = maps_of_outputs(prediction)
    outputs = [
        {"name": str(number), "text": make_visible(own.text, MOST_CHARACTERS), "score": _numbers([own.score])[0]}
        for number, own in enumerate([prediction, *prediction.alternatives], start=1)
    ]
    shown_outputs = [own for own in outputs if any(path[0] == own["name"] for path in maps)]
    return data_of_several(maps, choices, prediction.title, scale) | {"outputs": shown_outputs} | named


def _data_of_best(prediction: Prediction, scale: str | None) -> Data:
    """The data of a prediction without rivals."""
    if prediction.maps is not None:
        return data_of_maps(prediction.maps, prediction.title, scale)
    if prediction.map is not None:
        return data_of_map(prediction.map, prediction.title, scale)
    view = getattr(prediction, "view", None)  # of a `Forecast`
    if view is not None:
        return data_of_series(view(), prediction.title)
    raise RecipeError(f"{shown(prediction.source)} has no map to show: it is blank, or the model has no attention")


def _rivals(prediction: Prediction) -> list[Prediction]:
    """The alternatives that have a map."""
    return [own for own in prediction.alternatives if own.map is not None]


def maps_of_outputs(prediction: Prediction) -> tuple[dict[tuple[str, ...], AttentionMap], list[str]]:
    """The maps of all outputs of a search by their paths, the number of the output first, and what can be chosen.

    Of rivals only the map that the model reports is known: if all maps of the best output are given, it stands at the
    place of `maps.pick()`.
    """
    maps: dict[tuple[str, ...], AttentionMap] = {}
    places: tuple[str, ...] = ()
    if prediction.maps is not None:
        maps |= {("1", *place): attention for place, attention in by_place(prediction.maps).items()}
        picked = prediction.maps.pick().place
        places = picked.names() if picked else ()
    elif prediction.map is not None:
        maps["1",] = prediction.map
    for number, rival in enumerate(prediction.alternatives, start=2):
        if rival.map is not None:
            maps[str(number), *places] = rival.map
    return maps, [OUTPUT, *(PLACES if places else ())]


def side_by_side(panels: Sequence[Data], title: str = "") -> Data:
    """The data of several models, each of which has its own panel and name; play walks them together."""
    parts = [{key: value for key, value in panel.items() if key != "title"} for panel in panels]
    return _titled(title or (panels[0]["title"] if panels else "")) | {"panels": parts}


def by_place(maps: Iterable[AttentionMap]) -> dict[tuple[str, ...], AttentionMap]:
    """The maps by site, layer and head as texts, for `data_of_several`."""
    places = {attention.place: attention for attention in maps}
    return {tuple(place.names()): attention for place, attention in places.items() if place is not None}


def data_of_several(
    maps: Mapping[tuple[str, ...], AttentionMap],
    choices: Sequence[str],
    title: str = "",
    scale: str | None = None,
) -> Data:
    """The data of maps that can be chosen; each key has a text for each of the `choices`.

    The page begins with the first map, but in the last layer that has such a map. Weights are rounded to 3 digits. If
    they take more than `NUMBERS` bytes, all maps are pooled to fewer dots.
    """
    check_count(len(maps))
    shapes = [shape for whole in maps.values() for shape in _shapes(whole)]
    sides = [side for side in SIDES if sum(_bytes(rows, columns, side) for rows, columns in shapes) <= NUMBERS]
    page = Page(choices, title, side=max(sides, default=SIDES[-1]), scale=scale)
    for path, whole in maps.items():
        page.add(path, whole)
    return page.data()


def check_count(maps: int) -> None:
    """Raise RecipeError if there are too many maps for one page."""
    if maps > MOST_MAPS:
        raise RecipeError(f"a page has at most {MOST_MAPS:,} maps, not {maps:,}; choose a site, layer or head")


def _titled(title: str, honesty: str = "") -> Data:
    return {"title": make_visible(title)} | ({"honesty": make_visible(honesty)} if honesty else {})


class Unit(NamedTuple):
    """A map by tokens or by words, with the number of the last token of each word."""

    name: str
    map: AttentionMap
    row_ends: tuple[int, ...] = ()
    column_ends: tuple[int, ...] = ()

    def pooled(self, side: int) -> Pooled:
        """The map in at most so many dots on a side."""
        weights, rows, columns = pool(self.map, side, side)
        return Pooled(weights, rows._replace(ends=self.row_ends), columns._replace(ends=self.column_ends))


class Entry(NamedTuple):
    """A map of a page by tokens or by words, pooled, with what is shown about the whole of it."""

    path: tuple[str, ...]
    unit: str
    pooled: Pooled
    summary: "Summary"
    drawn: "Drawn"
    trust: str


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
        for own in _units(attention):
            pooled = own.pooled(self._side)
            kept = pooled._replace(weights=pooled.weights.clone())  # a view would keep the maps of all heads in memory
            self._entries.append(Entry(path, own.name, kept, Summary.of(own.map), Drawn.of(own.map), own.map.trust))
            self._bytes += _bytes(kept.rows.dots, kept.columns.dots, self._side)
        while self._bytes > NUMBERS and self._side > SIDES[-1]:
            self._side = next(side for side in SIDES if side < self._side)
            self._entries = [entry._replace(pooled=pool_again(entry.pooled, self._side)) for entry in self._entries]
            self._bytes = sum(
                _bytes(entry.pooled.rows.dots, entry.pooled.columns.dots, self._side) for entry in self._entries
            )

    def data(self) -> Data:
        """The data of all maps so far."""
        check_count(len({entry.path for entry in self._entries}))
        axes = list(
            dict.fromkeys(axis for entry in self._entries for axis in (entry.pooled.rows, entry.pooled.columns))
        )
        longest = max(2, LETTERS // max(sum(axis.dots for axis in axes), LETTERS // MOST_CHARACTERS))
        place = {axis: number for number, axis in enumerate(axes)}
        views = self._views()
        number = {view: number for number, view in enumerate(views)}
        [(usual, _)] = Counter(entry.trust for entry in self._entries).most_common(1) or [("", 0)]
        start = _start(dict.fromkeys(entry.path for entry in self._entries), self.choices)
        contents = [
            _pooled_content(unit, pooled, summary, self.scale or "one")
            | {"path": list(path), "rows": place[pooled.rows], "columns": place[pooled.columns]}
            | (_on_view(drawn, pooled, number[drawn.view], self.scale) if drawn.view in number else {})
            | ({"honesty": make_visible(trust)} if trust != usual else {})
            for path, unit, pooled, summary, drawn, trust in self._entries
        ]
        labels, ends = [_labels(axis, longest) for axis in axes], [_ends(axis) for axis in axes]
        content = {"choices": self.choices, "start": start, "labels": labels, "ends": ends, "maps": contents}
        return _titled(self.title, usual) | content | ({"views": list(views.values())} if views else {})

    def _views(self) -> dict[Callable[[], SourceView | None], Data]:
        """The pictures and spectrograms of all maps, by the functions that load them; the more, the smaller."""
        wanted = {entry.drawn.view: entry.drawn for entry in self._entries if entry.drawn.view is not None}
        contents = {}
        for view, drawn in wanted.items():
            if (loaded := load(view, drawn.layout, drawn.columns)) is not None:
                contents[view] = _view_content(loaded, VIEW_BYTES // len(wanted), SOUND_BYTES // len(wanted))
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
        return [label_shown(label, longest) for label in axis.labels]
    return [axis.name(dot, longest) for dot in range(axis.dots)]


def _ends(axis: Axis) -> list[int] | None:
    """The number of the last token of each label of an axis; None if each label is one token."""
    return axis.last_tokens() if axis.ends or axis.step > 1 else None


def _words(attention: AttentionMap) -> tuple[Words, Words] | None:
    """The words of both axes; None if they are the tokens."""
    rows, columns = words_of(attention.rows), words_of(attention.columns)
    return None if (rows.labels, columns.labels) == (attention.rows, attention.columns) else (rows, columns)


def _units(attention: AttentionMap) -> list[Unit]:
    """The map by tokens and, if it differs, by words."""
    tokens, words = Unit("tokens", attention), _words(attention)
    if words is None:
        return [tokens]
    rows, columns = words
    return [tokens, Unit("words", attention.merged(rows, columns), rows.ends(), columns.ends())]


def _shapes(attention: AttentionMap) -> list[tuple[int, int]]:
    """The numbers of rows and columns of the units."""
    words, tokens = _words(attention), (len(attention.rows), len(attention.columns))
    return [tokens] if words is None else [tokens, (len(words[0].labels), len(words[1].labels))]


def _sharpest(shapes: Iterable[tuple[int, ...]]) -> int:
    """The most dots on a side that maps of these sizes may have on a page of their own."""
    sizes = list(shapes)
    sides = [2 * DOTS, round(math.sqrt(2) * DOTS), *SIDES]
    fitting = (
        side for side in sides if 2 * sum(math.prod(min(own, side) for own in size) for size in sizes) <= DENSE_BYTES
    )
    return next(fitting, SIDES[-1])


def _content(unit: Unit, scale: str, side: int) -> Data:
    """The data of one map for the viewer; labels are written as in every other picture."""
    name, attention, pooled = unit.name, unit.map, unit.pooled(side)
    ends = {"rows": _ends(pooled.rows), "columns": _ends(pooled.columns)}
    told = {"ends": ends} if any(ends.values()) else {}
    if has_many_cells(attention):
        return _large_content(name, attention, pooled, scale) | told
    most = LETTERS // max(len(attention.rows) + len(attention.columns), LETTERS // MOST_CHARACTERS)
    return (
        {
            "name": name,
            "rows": [label_shown(label, most) for label in attention.rows],
            "columns": [label_shown(label, most) for label in attention.columns],
            "weights": [_numbers(row) for row in attention.weights.tolist()],
            "entropy": _numbers(attention.entropy().tolist()),
            "coverage": _numbers(attention.coverage().tolist()),
            "monotonicity": attention.monotonicity(),
        }
        | _scale(attention.weights, scale)
        | told
    )


def _large_content(name: str, attention: AttentionMap, pooled: Pooled, scale: str) -> Data:
    """The data of a large map."""
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


def _pooled_content(name: str, pooled: Pooled, summary: Summary, scale: str) -> Data:
    """The data of a map without labels: thousandths as weights, for each dot mean entropy and summed coverage."""
    entropy, coverage, monotonicity = summary
    return {
        "name": name,
        "size": [len(entropy), len(coverage)],
        "note": pooled.describe().partition("; ")[2],
        "unit": 0.001,
        "weights": _dense(pooled.weights) if pooled.weights.numel() > DENSE else _thousandths(pooled.weights),
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


def _on_view(drawn: Drawn, pooled: Pooled, number: int, scale: str | None) -> Data:
    """The data for drawing a map on a picture or recording, which has this number; none if cells are pooled."""
    layout, step = drawn.layout, pooled.columns.step
    if isinstance(layout, Grid):
        top = _numbers(tops(pooled.weights, scale or "row").squeeze(1).tolist())
        return {"view": number, "grid": [layout.height, layout.width], "top": top} if step == 1 else {}
    top = _numbers(tops(pooled.weights, scale or "map").squeeze(1).tolist())
    if isinstance(layout, Steps):
        lags = {"lags": list(layout.lags)} if layout.lags else {}
        return {"view": number, "steps": [pooled.rows.step, step], "reach": drawn.columns, "top": top} | lags
    assert isinstance(layout, Frames)
    times = [None if time is None else round(time, 3) for time in drawn.times[:: pooled.rows.step]]
    return {"view": number, "seconds": layout.seconds * step, "times": times, "top": top}


def _view_content(view: SourceView, most: int, most_sound: int) -> Data:
    """A picture, spectrogram or series for the viewer; pixels and sound in at most so many bytes before base64."""
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
    return {"kind": "recording", "data": _base64(levels)} | size | _sound(view, most_sound)


def _sound(view: Spectrogram, most: int) -> Data:
    """The sound of a recording as a WAV of 16 bits in a data URL; none if it is not known or too long."""
    if view.samples is None or 2 * len(view.samples) > most:
        return {}
    size, rate = 2 * len(view.samples), view.rate
    header = struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", 36 + size, b"WAVEfmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", size
    )
    samples = (view.samples.detach().cpu().clamp(-1, 1) * 32767).round().short()
    return {"sound": f"data:audio/wav;base64,{b64encode(header + samples.numpy().astype('<i2').tobytes()).decode()}"}


def _series_content(view: SeriesView) -> Data:
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


def _scale(weights: Float[Tensor, "rows columns"], scale: str) -> Data:
    """The scale of a map's shades, if it is not from 0 to 1: what is drawn darkest in each row, and in words."""
    check_scale(scale)
    sign = {"signed": True} if bool((weights < 0).any()) else {}
    if scale == "one":
        return sign
    return sign | {"tops": _numbers(tops(weights, scale).squeeze(1).tolist()), "darkest": darkest(weights, scale)}


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


def _dense(weights: Float[Tensor, "rows columns"]) -> str:
    """The same in two letters of base64 for each weight, because text of many numbers is long and slow to read.

    The letters are the upper and the lower 6 bits of the thousandths, from -1,000 to 3,000, plus 1,000; `//` is null.
    """
    thousandths = (weights * 1000).nan_to_num(0, 0, 0).round().clamp(-LEAST, 3000) + LEAST
    codes = thousandths.where(weights.isfinite(), NOT_FINITE).long()
    letters = torch.tensor(list(ALPHABET), dtype=torch.uint8)
    return letters[torch.stack([codes >> 6, codes & 63], -1)].numpy().tobytes().decode()
