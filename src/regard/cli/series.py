"""The parts of `regard predict` and `regard look` for runs of task = forecast: CSV or JSON, and pictures."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from regard.cli import core, maps
from regard.errors import RecipeError

if TYPE_CHECKING:
    from regard.data.series import Series
    from regard.maps import AttentionMap
    from regard.predict import Predictor
    from regard.tasks import Forecast

AT_ONCE = 200  # series that are forecast and printed at a time


def forecast_files(
    predictor: "Predictor", names: list[str], columns: str | None, seed: int, *, as_json: bool, maps: bool, quiet: bool
) -> None:
    """Print the forecast of what comes after each series of the files: CSV with a row per step, or JSON lines."""
    from regard.console import track
    from regard.tasks import Forecast

    series = read(predictor, names, columns, quiet=quiet)
    groups = [series[start : start + AT_ONCE] for start in range(0, len(series), AT_ONCE)]
    for number, group in enumerate(track(groups, "forecasting", quiet=quiet)):
        forecasts = predictor.predict(group, seed=seed)
        if not (as_json or number):  # nothing is printed if the first series are refused
            core.write_line(_row(header()))
        for forecast in forecasts:
            assert isinstance(forecast, Forecast)
            if as_json:
                core.write_line(core.to_json(forecast.to_dict(maps=maps)))
            else:
                core.write_lines([_row(row) for row in rows(forecast)])
    print(end="", flush=True)


def read(predictor: "Predictor", names: list[str], columns: str | None, *, quiet: bool) -> "list[Series]":
    """The series of the files, read as the recipe says."""
    from dataclasses import replace

    from regard.tasks import Forecasting

    task = predictor.task
    assert isinstance(task, Forecasting)
    if not names or core.STDIN in names:
        raise RecipeError("this run forecasts series: give a CSV file, such as series.csv")
    chosen = core.split_columns(columns) or task.recipe.data.columns
    recipe = replace(task.for_later_data, data=replace(task.recipe.data, columns=chosen))
    task.check_columns(recipe)
    series, notes = task.read_series(recipe, names)
    task.check_later(series)
    if not quiet:
        for sentence in notes:
            core.note(sentence)
    return series


def header() -> list[str]:
    """The names of the columns."""
    from regard.tasks.forecast import LEVELS

    return ["series", "time", "mean", *(f"{level:g}" for level in LEVELS)]


def rows(forecast: "Forecast") -> Iterator[list[str]]:
    """A row for each step: series, time, mean and quantiles."""
    from regard.tasks.forecast import LEVELS

    numbers = [forecast.mean, *map(forecast.quantile, LEVELS)]
    for time, *values in zip(forecast.times, *numbers, strict=True):
        yield [forecast.source, time, *(f"{value:.6g}" for value in values)]


def _row(fields: list[str]) -> str:
    """A line of CSV, without its end."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([core.one_line(field) for field in fields])
    return line.getvalue()


class MapChoice(NamedTuple):
    """The options of `regard look` that choose maps, and say how they are drawn."""

    site: str | None
    layer: int | None
    head: int | None
    all_maps: bool
    matrix: bool
    scale: str | None


def look_at_series(predictor: "Predictor", name: str, out: Sequence[Path], choice: MapChoice, *, as_json: bool) -> None:
    """Print the forecast of a series in the data, its picture and its map, and write them to files."""
    from regard import storage
    from regard.show.steps import summary
    from regard.show.terminal import drawing_of_series
    from regard.tasks import Forecast

    several = choice.all_maps or (choice.site, choice.layer, choice.head) != (None, None, None)
    forecast = predictor.predict([name], all_maps=several)[0]
    assert isinstance(forecast, Forecast)
    chosen = _chosen(forecast, choice)
    drawings = [(path, _drawn(forecast, chosen, path.suffix.lower(), choice)) for path in out]
    for path, content in drawings:  # only after all are drawn without an error
        storage.write(path, content)
        if not as_json:
            core.say(f"written: {path}")
    if as_json:
        added = maps.maps_to_dict([*chosen.values()], all_maps=choice.all_maps)
        core.write_line(core.to_json(forecast.to_dict() | added))
        return
    core.write_line(core.one_line(forecast.title))
    shown_map = next(iter(chosen.values())) if len(chosen) == 1 else forecast.map
    core.write_lines([core.one_line(line) for line in summary(shown_map, forecast.view())])
    if not chosen:
        core.write_line("")
        core.print_drawing(drawing_of_series(forecast.view()))
    for attention in [] if choice.all_maps and out else chosen.values():  # the page shows them all
        core.write_line("")
        if several:
            core.write_line(str(attention.place))
        core.print_map(attention, scale=choice.scale)


def _chosen(forecast: "Forecast", choice: MapChoice) -> "dict[tuple[str, ...], AttentionMap]":
    """The maps to be shown, by their place; none if the model has no attention."""
    site, layer, head, all_maps, matrix, _ = choice
    if forecast.map is None:
        if choice != (None, None, None, False, False, None):
            raise RecipeError(
                "there is no map: this run forecasts without attention (model.decoder.order = none); leave out --site, "
                "--layer, --head, --all, --matrix and --scale"
            )
        return {}
    if all_maps:
        chosen = maps.choose_all(forecast, site, layer, head)
    else:
        attention = maps.choose(forecast, site, layer, head)
        chosen = {attention.place.names() if attention.place else (): attention}
    return {place: own.without_view() for place, own in chosen.items()} if matrix else chosen


def _drawn(
    forecast: "Forecast", chosen: "dict[tuple[str, ...], AttentionMap]", ending: str, choice: MapChoice
) -> bytes:
    """The content of a file: the forecast with its map or maps; .csv is the table of the forecast, not of a matrix."""
    from regard.show import forecasts
    from regard.show.html import html_of_several
    from regard.show.maps import draw
    from regard.show.viewer_data import PLACES

    if not chosen or (ending == ".csv" and not choice.matrix):
        return forecasts.draw(forecast.view(), ending, forecast.title)
    if choice.all_maps:
        return html_of_several(chosen, PLACES, forecast.title, choice.scale)
    (attention,) = chosen.values()
    return draw(attention, ending, forecast.title, scale=choice.scale)
