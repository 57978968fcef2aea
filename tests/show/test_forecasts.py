"""Laws of pictures of forecasts: columns of a map lie below their values, gaps stay open, no name harms a file."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from test_html import HOSTILE, content

import regard
from commands import printed, shared_commands
from regard import recipe as recipes
from regard.data.frequency import Frequency
from regard.data.series import Series
from regard.errors import UnknownNameError
from regard.maps import AttentionMap, AttentionMaps, LayerMaps, SeriesView, Steps
from regard.show import fan, forecasts, sparklines, steps
from regard.show.html import html, html_of_all
from regard.show.labels import shown
from regard.show.layout import Line, Picture
from regard.show.maps import draw, svg
from regard.show.terminal import drawing, drawing_of_series
from regard.storage import Run
from regard.tasks import Forecast

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
ESCAPES = re.compile(r"\x1b\[[\d;]*m")
NAMES = (*HOSTILE, "\x1b[31mred\x07", "=1+1")
COLOURS = ("truecolor", "256", "standard", None)


def series_view(
    history: int = 23, horizon: int = 5, *, size: float = 1.0, shift: float = 0.0, name: str = "shop", unit: str = "day"
) -> SeriesView:
    """A series of days, or of other steps, and its forecast: at step n the median is shift + size * n % 7."""
    values = shift + size * (np.arange(history + horizon) % 7).astype(float)
    start = None if unit == "step" else np.datetime64("2026-01-30T22", "s")
    labels = Series(name, values, Frequency.parse(unit), start).labels()
    ahead = torch.from_numpy(values[history:])
    spread = size * torch.linspace(-2, 2, len(LEVELS), dtype=torch.float64).unsqueeze(1)
    return SeriesView(
        name, labels, torch.from_numpy(values[:history].copy()), LEVELS, ahead + spread, ahead, ahead + 0.5 * size
    )


def series_map(view: SeriesView, reach: int, back: int = 3) -> AttentionMap:
    """A map over the last `reach` steps that may be attended to; each row has nearly all weight so many steps back."""
    history, horizon = len(view.history), view.quantiles.shape[1]
    first = len(view.times) - 1 - reach
    weights = torch.zeros(horizon, reach)
    for row in range(horizon):
        weights[row, : history + row - first] = 0.01
        weights[row, history + row - back - first] = 0.9
    return AttentionMap(weights, view.times[history:], view.times[first:-1], Steps(), view=lambda: view)


VIEW = series_view()
MAP = series_map(VIEW, 19)
CASES = {
    "plain": VIEW,
    "one step": series_view(9, 1),
    "one value": replace(series_view(2, 3), history=torch.tensor([1.0]), times=("a", "b", "c", "d")),
    "constant": series_view(size=0.0, shift=4.0),
    "zero": series_view(size=0.0),
    "huge": series_view(size=1e11, shift=1e12),
    "beyond": series_view(size=1e307),
    "tiny": series_view(size=1e-9),
    "offset": series_view(size=0.01, shift=1e6),
    "negative": series_view(size=3.0, shift=-50.0),
    "gaps": replace(VIEW, history=VIEW.history.index_fill(0, torch.tensor([4, 5, 9, 11]), torch.nan)),
    "nothing observed": replace(VIEW, history=torch.full((23,), torch.nan), observed=torch.full((5,), torch.nan)),
    "unknown future": replace(VIEW, observed=None),
    "not finite": replace(VIEW, quantiles=VIEW.quantiles.index_fill(1, torch.tensor([2]), torch.inf)),
    "median alone": replace(VIEW, levels=(0.5,), quantiles=VIEW.quantiles[3:4]),
    "positions": series_view(31, 7, unit="step"),
    "many": series_view(1200, 48, unit="hour"),
}
every_case = pytest.mark.parametrize("view", CASES.values(), ids=CASES)


# where things are


def history_lines(picture: Picture) -> list[Line]:
    """The lines of the history, without that of the key above the plot."""
    lines = [line for line in picture.lines if (line.ink, line.width, line.filled) == (fan.INK, 1.5, False)]
    return [line for line in lines if line.points[0][1] >= 0]


def test_a_column_of_the_map_lies_below_its_value() -> None:
    for reach in (19, 27):
        attention = series_map(VIEW, reach)
        picture = fan.lay_out(attention, VIEW, "")
        assert picture.image is not None
        wide = picture.image.width / picture.image.levels.shape[1]
        (past,) = history_lines(picture)
        drawn = {VIEW.times[step]: x for step, (x, _) in enumerate(past.points[1:-1])}
        for column, label in enumerate(attention.columns):
            if label in drawn:
                assert picture.image.x + (column + 0.5) * wide == pytest.approx(drawn[label])
        rows = [area for area in picture.areas if "looks most at" in area.note]
        assert [area.note.partition(" ")[0] for area in rows] == [*attention.rows]
        assert [area.y for area in rows] == sorted(area.y for area in rows)


def test_each_row_has_a_frame_around_its_largest_weight_and_its_value_a_circle() -> None:
    picture = fan.lay_out(MAP, VIEW, "")
    wide = fan.WIDE / len(VIEW.times)
    marks = [line for line in picture.lines if line.ink == fan.MARK]
    frames = [line.points[0] for line in marks if len(line.points) == 6]
    circles = [line.points[0] for line in marks if len(line.points) > 6]
    wanted = [23 + row - 3 for row in range(5)]
    assert [x / wide for x, _ in frames] == pytest.approx(wanted)
    assert [y for _, y in frames] == pytest.approx([fan.HIGH + fan.GAP + row * fan.TALLEST for row in range(5)])
    assert [x / wide - 0.5 for x, _ in circles] == pytest.approx([step + 4.0 / wide for step in wanted])
    assert [(look.step, look.back) for look in steps.looks(MAP, VIEW)] == [(step, 3) for step in wanted]
    assert [word.text for word in picture.words if "back" in word.text][:-1] == ["3 back · 0.90"] * 5


def test_nothing_is_drawn_over_weights_and_all_that_cannot_be_attended_to_is_grey() -> None:
    picture = fan.lay_out(MAP, VIEW, "")
    wide, high = fan.WIDE / len(VIEW.times), fan.HIGH + fan.GAP
    left, right = [line.points for line in picture.lines if line.ink == fan.BEYOND]
    assert max(x for x, _ in left) / wide == pytest.approx(len(VIEW.times) - 1 - 19)
    for row in range(5):
        own = [x for x, y in right if y in (high + row * fan.TALLEST, high + (row + 1) * fan.TALLEST) and x < fan.WIDE]
        assert min(own) / wide == pytest.approx(23 + row if row == 0 else 22 + row)


def test_gaps_stay_open_and_a_lone_value_is_seen() -> None:
    view = CASES["gaps"]
    parts = history_lines(fan.lay_out(None, view, ""))
    wide = fan.WIDE / len(view.times)
    covered = {round(x / wide - 0.5) for line in parts for x, _ in line.points[1:-1]}
    assert covered == set(range(23)) - {4, 5, 9, 11}
    assert len(parts) == 4
    assert all(line.points[0] != line.points[-1] for line in parts)  # that of step 10 alone has a length, too


def test_intervals_are_nested_around_the_median() -> None:
    picture = fan.lay_out(None, VIEW, "")
    bands = [line for line in picture.lines if line.filled and "sample paths" in line.note]
    assert [line.note.split(" of")[0] for line in bands] == ["90 %", "80 %", "50 %"]
    heights = [max(y for _, y in line.points) - min(y for _, y in line.points) for line in bands]
    assert heights == sorted(heights, reverse=True)
    (median,) = [line for line in picture.lines if line.note == "median"]
    for line in bands:
        assert {round(x, 6) for x, _ in line.points} == {round(x, 6) for x, _ in median.points}
    assert median.points[0][0] == pytest.approx(23 * fan.WIDE / 28)  # it begins where the history ends
    assert median.points[-1][0] == pytest.approx(fan.WIDE)


@every_case
def test_every_forecast_is_drawn_inside_its_picture(view: SeriesView) -> None:
    for attention in (None, series_map(view, len(view.times) - 1, back=1)):
        picture = fan.lay_out(attention, view, "")
        right, bottom = picture.left + picture.width, picture.top + picture.height
        for line in picture.lines:
            for x, y in line.points:
                assert picture.left <= x <= right
                assert picture.top <= y <= bottom
        for word in picture.words:
            share = {"left": 0.0, "center": 0.5, "right": 1.0}[word.anchor]
            assert picture.left <= word.x - share * word.length
            assert word.x + (1 - share) * word.length <= right
        assert (picture.image is None) == (attention is None)
        drawn = ElementTree.fromstring(svg(attention) if attention is not None else forecasts.svg(view).decode())
        assert drawn.tag.endswith("svg")
        assert ("observed" in "".join(drawn.itertext())) == (view.observed is not None)


@every_case
def test_every_forecast_is_drawn_as_a_page_a_table_and_text(view: SeriesView) -> None:
    attention = series_map(view, len(view.times) - 1, back=1)
    page = content(html(attention))["views"][0]
    assert page["times"] == [*view.times]
    assert len(page["history"]) + len(page["median"]) == len(view.times)
    low, high = page["range"]
    assert low < high
    rows = list(csv.reader(io.StringIO(forecasts.table(view).decode())))
    assert [row[1] for row in rows[1:]] == [*view.times[len(view.history) :]]
    for colours in COLOURS:
        for width in (20, 61, 120):
            text = sparklines.forecast(attention, view, width=width, colours=colours)
            assert max(cell_len(line) for line in ESCAPES.sub("", text).split("\n")) <= max(width, 40)
    assert steps.summary(attention, view)


def test_a_png_is_drawn_with_and_without_a_map() -> None:
    pytest.importorskip("matplotlib")
    for picture in (draw(MAP, ".png", "a"), forecasts.draw(VIEW, ".png", "a")):
        assert picture.startswith(b"\x89PNG")


def test_an_unknown_ending_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"ending of a forecast '\.pharaoh'; choose from \.svg, \.png, \.html"):
        forecasts.draw(VIEW, ".pharaoh")


def test_a_large_map_is_an_image_of_few_dots_at_the_same_place() -> None:
    view = series_view(2600, 1100, unit="step")
    picture = fan.lay_out(series_map(view, 3600), view, "")
    assert picture.image is not None
    rows, columns = picture.image.levels.shape
    assert max(rows, columns) <= 1000
    wide = fan.WIDE / len(view.times)
    assert picture.image.x == pytest.approx((len(view.times) - 1 - 3600) * wide)
    dots = picture.image.levels.argmax(1).double()  # 2 rows and 4 columns of the map each
    found = (picture.image.x + (dots + 0.5) * picture.image.width / columns) / wide
    wanted = 2600 + 2.0 * torch.arange(rows) - 3 + 0.5
    assert (found - wanted).abs().max() <= 4
    assert len(svg(series_map(view, 3600))) < 3_000_000


# axes


@every_case
def test_values_on_the_axis_are_round_and_within_it(view: SeriesView) -> None:
    axis = steps.value_axis(view)
    values = [value for value, _ in axis.ticks]
    assert 2 <= len(values) <= 10
    assert all(axis.low <= value <= axis.high for value in values)
    assert len({label for _, label in axis.ticks}) == len(values)
    step = values[1] - values[0]
    for value, label in axis.ticks:
        assert float(label.replace(",", "")) == pytest.approx(value, abs=step * 1e-6)
        assert len(label) <= 13
    drawn = view.history[view.history.isfinite()].double().clamp(-1e300, 1e300).tolist()
    assert all(0 <= (value - axis.low) / (axis.high - axis.low) <= 1 for value in drawn)


def test_an_axis_of_values_that_are_not_negative_does_not_go_below_zero() -> None:
    assert steps.value_axis(replace(VIEW, quantiles=VIEW.quantiles.clamp(min=0))).low == 0
    assert steps.value_axis(CASES["negative"]).low < -50


@pytest.mark.parametrize(
    ("unit", "count", "room", "labels"),
    [
        ("hour", 120, 70, ["2026-01-31", "2026-02-01", "2026-02-02", "2026-02-03", "2026-02-04"]),
        ("hour", 72, 60, ["2026-01-31 00:00", "2026-02-01 00:00", "2026-02-02 00:00"]),
        ("hour", 6, 60, ["2026-01-31 00:00", "2026-01-31 02:00"]),
        ("day", 60, 70, ["2026-02-01", "2026-02-15", "2026-03-01", "2026-03-15"]),
        ("day", 400, 70, ["2026-03", "2026-05", "2026-07", "2026-09", "2026-11", "2027-01"]),
        ("month", 60, 40, ["2027", "2028", "2029", "2030"]),
        ("step", 47, 40, ["0", "10", "20", "30", "40"]),
        ("step", 1, 1, ["0"]),
        ("day", 3, 1, ["2026-02-01"]),
    ],
)
def test_times_have_labels_where_a_day_or_month_begins(unit: str, count: int, room: int, labels: list[str]) -> None:
    times = series_view(count, 1, unit=unit).times[:count]
    ticks = steps.time_ticks(times, room)
    assert [label for _, label in ticks][: len(labels)] == labels
    assert all(times[step].startswith(label) for step, label in ticks)
    assert len(ticks) == 1 or sum(len(label) + 3 for _, label in ticks) <= room
    assert all(one < other for (one, _), (other, _) in pairwise(ticks))


def test_a_time_is_cut_at_its_beginning() -> None:
    assert steps.from_right("2026-11-18 07:00", 12) == "11-18 07:00"
    assert steps.from_right("2026-11-18", 10) == "2026-11-18"
    assert steps.from_right("123456", 3) == "123456"


def test_the_space_within_a_time_is_not_marked() -> None:
    assert [shown(label) for label in ("2026-11-18 07:00", " 7", "7 ", "a b", " ")] == [
        *("2026-11-18 07:00", "␣7", "7␣", "a␣b", "␣")
    ]


def test_a_forecast_in_words() -> None:
    assert steps.summary(MAP, VIEW) == [
        "2026-02-22: median 2, 90 % 0 to 4, observed 2.5",
        "2026-02-26: median 6, 90 % 4 to 8, observed 6.5",
        "observed: 5 of 5 within 90 %, mean absolute error of the median 0.5",
        "largest weight 3 steps back in 5 of 5 rows of the map",
    ]
    assert steps.summary(None, CASES["one step"])[0] == "2026-02-08: median 2, 90 % 0 to 4, observed 2.5"
    assert len(steps.summary(None, CASES["unknown future"])) == 2


# terminal


@pytest.mark.parametrize("room", [8, 20, 37, 120, 400])
@pytest.mark.parametrize(("history", "horizon"), [(1, 1), (23, 5), (300, 48), (7, 90)])
def test_columns_follow_the_steps_and_fit(history: int, horizon: int, room: int) -> None:
    columns = sparklines.Columns.fitting(history, horizon, room)
    assert columns.total <= max(room, sparklines.NARROWEST + 1)
    own = [columns.of(step) for step in range(history + horizon)]
    assert all(0 <= part.start < part.stop <= columns.total for part in own)
    assert all(one == other or one.stop <= other.start for one, other in pairwise(own))
    assert own[history - 1].stop == columns.now  # nothing is in the column of the line between both
    assert own[history].start == columns.now + 1
    assert all(part.start <= columns.place(step) <= part.stop for step, part in enumerate(own))


@pytest.mark.parametrize("width", [60, 77, 120])
@pytest.mark.parametrize("colours", COLOURS)
def test_the_mark_of_a_row_is_in_the_column_of_its_value(width: int, colours: str | None) -> None:
    text = sparklines.forecast(MAP, VIEW, width=width, colours=colours)
    lines = [line for line in ESCAPES.sub("", text).split("\n") if line.strip().startswith(tuple(MAP.rows))]
    margin = len("2026-02-22") + 1
    columns = sparklines.Columns.fitting(23, 5, width - margin - (14 if width >= 70 else 0))
    for row, line in enumerate(lines):
        own = columns.of(23 + row - 3)
        assert own.start <= line.index(sparklines.LOOK) - margin < own.stop
        assert line[margin + columns.now] == sparklines.NOW
    if colours in sparklines.INKS:  # its weight is there, too: the mark is on the strongest colour
        strongest = sparklines.INKS[colours].weights[-1]
        assert text.count(f"48;{strongest}m{sparklines.LOOK}") == len(lines) == 5


def test_a_pipe_gets_plain_text_and_few_colours_no_background() -> None:
    assert "\x1b" not in sparklines.forecast(MAP, VIEW, width=80, colours=None)
    assert "48;" not in sparklines.forecast(MAP, VIEW, width=80, colours="standard")
    assert ";2;" not in sparklines.forecast(MAP, VIEW, width=80, colours="256")
    for colours in COLOURS:  # each line ends with the colours that it began with
        for line in sparklines.forecast(MAP, VIEW, width=80, colours=colours).split("\n"):
            codes = ESCAPES.findall(line)
            assert codes[1::2] == ["\x1b[0m"] * (len(codes) // 2)
    assert drawing(MAP) == sparklines.forecast(MAP, VIEW, width=80, colours=None)
    assert drawing_of_series(VIEW) == sparklines.forecast(None, VIEW, width=80, colours=None)


def test_braille_dots_follow_the_values() -> None:
    view = replace(series_view(12, 3), history=torch.arange(12.0), observed=None)
    columns = sparklines.Columns.fitting(12, 3, 60)
    axis = steps.value_axis(view, 5)
    text = sparklines.forecast(None, view, width=60, colours=None).split("\n")[1 : 1 + sparklines.HIGH]
    margin = max(len(label) for _, label in axis.ticks) + 1
    highest = []
    for step in range(12):
        place = margin + int(columns.place(step))
        highest.append(min(line for line, drawn in enumerate(text) if drawn[place : place + 1].strip()))
    assert highest == sorted(highest, reverse=True)  # the higher the value, the nearer to the first line
    assert highest[0] - highest[-1] >= sparklines.HIGH // 2


# names


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_series_harms_a_file(name: str) -> None:
    view = series_view(name=name)
    attention = series_map(view, 19)
    for drawn in (svg(attention, name), forecasts.svg(view).decode()):
        root = ElementTree.fromstring(drawn)
        assert not [part for part in root.iter() if part.tag.rpartition("}")[2] in ("script", "img", "b")]
    for page in (html(attention, name), forecasts.draw(view, ".html")):
        assert page.count(b"<script") == 2
        assert not re.search(rb"[\x00-\x08\x0b-\x1f]", page)
    assert "\x1b" not in sparklines.forecast(attention, view, width=80, colours=None)
    (_, first, *_) = csv.reader(io.StringIO(forecasts.table(view).decode()))
    written = name.encode("utf-8", "backslashreplace").decode()
    assert first[0] == (f"'{written}" if name.startswith("=") else written)


def test_hostile_names_are_shown_literally() -> None:
    view = series_view(name="</script><b>\x1b[31mred")
    texts = [text for text in ElementTree.fromstring(forecasts.svg(view).decode()).itertext() if text.strip()]
    assert "</script><b>␛[31mred" in texts
    assert content(forecasts.draw(view, ".html"))["title"] == "</script><b>␛[31mred"


# pages


def test_a_page_has_the_places_of_the_columns() -> None:
    page = content(html(MAP, "shop"))
    (drawn,), (view,) = page["maps"], page["views"]
    assert view["kind"] == "series"
    first = len(view["times"]) - 1 - drawn["reach"]
    assert [view["times"][first + column] for column in range(19)] == [*MAP.columns] == drawn["columns"]
    assert drawn["steps"] == [1, 1]
    assert [band["share"] for band in view["bands"]] == ["90 %", "80 %", "50 %"]
    assert view["observed"][0] == pytest.approx(2.5)


def test_a_page_of_all_heads_has_the_series_once() -> None:
    layer = LayerMaps(
        "decoder.self_attention", 1, MAP.weights.expand(2, -1, -1), MAP.rows, MAP.columns, Steps(), MAP.view
    )
    page = content(html_of_all(AttentionMaps((layer,)), "shop"))
    assert len(page["views"]) == 1
    assert [own["view"] for own in page["maps"]] == [0, 0, 0]


def test_a_view_that_is_shorter_than_the_map_is_not_drawn() -> None:
    attention = replace(MAP, view=lambda: replace(VIEW, times=VIEW.times[-10:], history=VIEW.history[-5:]))
    assert "views" not in content(html(attention))
    assert svg(attention) == svg(attention.without_view())


# forecasts


def some_forecast(*, has_map: bool) -> Forecast:
    series = Series("shop", np.arange(20.0) % 7, Frequency.parse("day"), np.datetime64("2026-01-30", "s"))
    paths = torch.arange(20, 25) % 7 + torch.linspace(-1, 1, 11).unsqueeze(1)
    times = series.labels(25)[20:]
    answer = Forecast("shop", "6 0 1 2 3", -1.0, times, None, series=series, times=times, paths=paths, context=14)
    if not has_map:
        return answer
    weights = torch.full((2, 5, 19), 1 / 19)
    layer = LayerMaps("decoder.self_attention", 1, weights, times, series.labels(24)[5:], Steps(), answer.view)
    maps = AttentionMaps((layer,))
    return replace(answer, map=maps.pick(), maps=maps)


@pytest.mark.parametrize("has_map", [True, False])
def test_a_forecast_saves_and_shows_itself(tmp_path: Path, has_map: bool) -> None:
    answer = some_forecast(has_map=has_map)
    assert answer.title == "shop: 5 steps after 2026-02-18"
    assert repr(answer).startswith("Forecast('shop: 5 steps after 2026-02-18', median '6 0 1 2 3', 11 paths")
    assert ("map 5 × 19, 3 maps" in repr(answer)) == has_map
    assert answer.save(tmp_path / "x.csv").read_text("utf-8").startswith("series,time,mean,0.05,")
    assert answer.title in answer.save(tmp_path / "x.svg").read_text("utf-8")
    page = content(answer.save(tmp_path / "x.html").read_bytes())
    assert page["views"][0]["kind"] == "series"
    assert ("choices" in page) == has_map
    assert "<iframe" in answer._repr_html_()
    assert answer._repr_svg_().startswith("<svg")


@pytest.mark.parametrize("has_map", [True, False])
def test_what_was_observed_is_drawn_with_the_map_too(has_map: bool) -> None:
    before = some_forecast(has_map=has_map)
    after = before.with_observed(np.array([1.0, 2.0, math.nan, 4.0, 5.0]))
    views = [after.view()]
    if after.map is not None and after.maps is not None:
        assert after.map.view is not None
        views += [after.map.view(), *(layer.view() for layer in after.maps.layers if layer.view)]
    for view in views:
        assert view.observed is not None
        assert view.observed.isnan().tolist() == [False, False, True, False, False]
    assert after.to_dict()["observed"] == [1.0, 2.0, None, 4.0, 5.0]
    assert "observed" not in before.to_dict()
    assert before.view().observed is None


def test_the_history_of_a_view_has_all_that_the_model_read() -> None:
    answer = some_forecast(has_map=True)
    assert len(answer.view().history) == 15  # the context and the step before; 3 times the horizon are as many
    assert len(replace(answer, context=17).view().history) == 18
    assert len(replace(answer, context=500).view().history) == 20
    assert answer.map is not None
    view = answer.map.view()
    assert view.times[len(view.times) - 1 - 19 :][:19] == answer.map.columns


# the command


RECIPE = """
name = "{order}"
task = "forecast"
metric = "crps"
data.train = ["{file}"]
forecast = {{horizon = 5, context = 9, lags = "1", samples = 13}}
model.decoder = {{order = "{order}", cell = "gru", dim = 8}}
train = {{updates = 2, validate = 1, batch_tokens = 200, warmup = 1}}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run with attention, `luong`, and one without, `none`."""
    folder = tmp_path_factory.mktemp("forecasts")
    with (folder / "shops.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["series", "time", "value"])
        for number, name in enumerate(("shop", "</script>\x1b[31m")):
            for day in range(40):
                writer.writerow([name, np.datetime64("2026-01-30") + day, 10 * number + day % 7])
    for order in ("luong", "none"):
        text = RECIPE.format(order=order, file=(folder / "shops.csv").as_posix())
        run = regard.train(recipes.parse(text, order), runs=folder)
        assert isinstance(run, Run)
    return folder


def test_look_prints_numbers_a_fan_and_a_map_and_writes_files(runs: Path) -> None:
    out = printed(runs, "look", "luong", "shop", "-o", "x.html", "-o", "x.svg", "-o", "x.csv")
    assert out.startswith("shop: 5 steps after 2026-03-05\n2026-03-06: median ")
    assert "largest weight " in out
    assert out.count(sparklines.LOOK) == 5 + 1  # a row each, and the legend
    assert (runs / "x.csv").read_text("utf-8").count("\n") == 6
    assert content((runs / "x.html").read_bytes())["views"][0]["observed"]
    alone = printed(runs, "look", "none", "shop", "-o", "y.html", "-o", "y.svg")
    assert alone.startswith("shop: 5 steps after 2026-03-05\n")
    assert sparklines.LOOK not in alone
    assert "largest weight" not in alone


def test_look_prints_json_and_all_maps(runs: Path) -> None:
    answer = json.loads(printed(runs, "look", "luong", "shop", "--json"))
    assert [len(answer[key]) for key in ("times", "mean", "paths", "observed", "attention")] == [5, 5, 13, 5, 5]
    answer = json.loads(printed(runs, "look", "luong", "shop", "--all", "--json", "-o", "all.html"))
    assert [own["site"] for own in answer["maps"]] == ["decoder.self_attention"]
    assert content((runs / "all.html").read_bytes())["choices"] == ["Site", "Layer", "Head"]
    assert json.loads(printed(runs, "look", "none", "shop", "--json"))["source"] == "shop"
    chosen = printed(runs, "look", "luong", "shop", "--layer", "1", "--matrix", "-o", "m.csv")
    assert "decoder.self_attention, layer 1, head 1" in chosen
    assert (runs / "m.csv").read_text("utf-8").startswith(",2026-")


def test_look_prints_no_control_character_of_a_name(runs: Path) -> None:
    out = shared_commands()("look", "luong", "</script>\x1b[31m", "-o", "z.html", folder=runs, limit=120)
    assert out.code == 0
    assert (runs / "z.html").read_bytes().count(b"<script") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none", "shop", "--layer", "1"), "there is no map: this run forecasts without attention"),
        (("none", "shop", "-o", "x.pharaoh"), "unknown picture ending of a forecast '.pharaoh'"),
        (("luong", "shop", "--layer", "2"), "layer 2: decoder.self_attention has one layer, layer 1"),
        (("luong", "shop", "--target", "a"), "--beside and --pieces are for texts; leave them out"),
        (("luong", "shopp"), "there is no series 'shopp' in the data of this run; did you mean 'shop'?"),
    ],
)
def test_look_refuses_what_a_forecast_does_not_have(runs: Path, arguments: tuple[str, ...], message: str) -> None:
    result = shared_commands()("look", *arguments, folder=runs, limit=120)
    result.assert_behaved([2])
    assert message in result.error.replace("\n", " ")


@pytest.mark.parametrize("lags", [(), (1, 2, 3), (1, 3, 4, 9), (2, 30)])
def test_the_areas_that_a_step_cannot_look_at_have_every_such_step(lags: tuple[int, ...]) -> None:
    attention = replace(MAP, layout=Steps(lags))
    first, history = steps.first_step(attention, VIEW), len(VIEW.history)
    for rows in range(len(MAP.rows) + 1):
        areas = steps.beyond(attention, VIEW, rows)
        for row in range(rows):
            covered = {step for area in areas for step in area[row]}
            assert all(len(area) == rows for area in areas)
            for step in range(len(VIEW.times)):
                back = history + row - step
                is_read = step >= first and (back in lags if lags else back > 0)
                assert (step in covered) != is_read, (row, step)
