"""The part of `regard predict` for runs of task = forecast: the series of files, and forecasts as CSV or JSON."""

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from regard.cli import core
from regard.errors import RecipeError

if TYPE_CHECKING:
    from regard.data.series import Series
    from regard.predict import Predictor
    from regard.tasks import Forecast

AT_ONCE = 200  # series that are forecast and printed at a time


def forecast_files(
    predictor: "Predictor", names: list[str], columns: str | None, seed: int, *, as_json: bool, maps: bool, quiet: bool
) -> None:
    """Print the forecast of what comes after each series of the files: CSV with a row per step, or JSON lines."""
    from regard.console import track

    series = read(predictor, names, columns, quiet=quiet)
    groups = [series[start : start + AT_ONCE] for start in range(0, len(series), AT_ONCE)]
    if not as_json:
        core.write_line(_row(header()))
    for group in track(groups, "forecasting", quiet=quiet):
        for forecast in cast("list[Forecast]", predictor.predict(group, seed=seed)):
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
    recipe = replace(task.recipe, data=replace(task.recipe.data, columns=chosen))
    task.check_columns(recipe)
    series, notes = task.read_series(recipe, names)
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
