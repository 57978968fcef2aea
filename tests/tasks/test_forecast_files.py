"""From a CSV of series to a scored run and a CSV of forecasts, as docs/forecasting.md shows it."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.data.series import Series
from regard.tasks import Forecast, Forecasting

SHOPS, DAYS, HORIZON, WINDOWS = 4, 90, 5, 3
SMALL = (
    *(f"forecast.horizon={HORIZON}", "forecast.context=10", f"forecast.windows={WINDOWS}", "forecast.samples=20"),
    *("forecast.known=holiday", "forecast.categories=region", "model.decoder.dim=8", "train.device=cpu"),
    *("train.updates=2", "train.validate=2", "train.threads=1", "name=own"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `sales.csv`, whose holidays are known longer than the sales, and a run that learned from it."""
    folder = tmp_path_factory.mktemp("forecast")
    lines = ["series,time,value,region,holiday"]
    for shop in range(SHOPS):
        for day in range(DAYS + HORIZON):
            value = f"{10 + shop + np.sin(2 * np.pi * day / 7):.3f}" if day < DAYS else ""
            lines.append(
                f"shop-{shop},{np.datetime64('2024-01-01') + day},{value},{'ns'[shop % 2]},{int(day % 9 == 0)}"
            )
    (folder / "sales.csv").write_text("\n".join([*lines, ""]), "utf-8")
    regard.train("waves", f"data.train={folder / 'sales.csv'}", *SMALL, runs=folder, quiet=True)
    return folder


def test_the_last_windows_of_the_series_are_scored_beside_the_baselines(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from regard.cli.score import score

    score(str(folder / "own"), as_json=True)
    printed = capfdbinary.readouterr()
    scores = json.loads(printed.out)
    assert f"|n:{SHOPS * WINDOWS}|values:{SHOPS * WINDOWS * HORIZON}|paths:20|" in scores["signature"]
    assert scores["baselines"]["seasonal_naive"]["nd"] < 1e-3 < scores["nd"]  # the series repeat themselves
    assert b"no test set is named; scored on 12 windows at the end of the series" in printed.err


def test_forecasts_of_a_file_are_the_steps_after_its_last_values(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from regard.cli.predict import predict

    predict(str(folder / "own"), [str(folder / "sales.csv")], quiet=True)
    header, *rows = csv.reader(capfdbinary.readouterr().out.decode().splitlines())
    assert header == ["series", "time", "mean", "0.05", "0.1", "0.25", "0.5", "0.75", "0.9", "0.95"]
    assert len(rows) == SHOPS * HORIZON
    assert [row[:2] for row in rows[:2]] == [["shop-0", "2024-03-31"], ["shop-0", "2024-04-01"]]
    for row in rows:
        quantiles = [float(cell) for cell in row[3:]]
        assert quantiles == sorted(quantiles)


def test_changing_the_future_changes_no_forecast(folder: Path) -> None:
    predictor = regard.load(folder / "own")
    windows = predictor.task.examples(predictor.task.recipe).test
    changed = []
    for window in windows:
        series = Series.from_text(window.target)
        values = series.values.copy()
        values[-HORIZON:] = 1000 - 7 * values[-HORIZON:]
        changed.append(replace(window, target=replace(series, values=values).to_text()))
    before, after = (predictor.score(examples).answers for examples in (windows, changed))
    for first, second in zip(before, after, strict=True):
        assert isinstance(first, Forecast)
        assert isinstance(second, Forecast)
        assert first.observed != second.observed
        assert torch.equal(first.paths, second.paths)
        assert torch.equal(first.map.weights, second.map.weights)


def test_training_sees_no_value_of_a_window_that_validates_or_is_scored(folder: Path) -> None:
    recipe = regard.load(folder / "own").task.recipe
    parts = Forecasting.examples(recipe)
    held_out = HORIZON * WINDOWS
    for part, length in ((parts.train, DAYS - held_out - HORIZON), (parts.dev, DAYS - held_out)):
        assert [len(Series.from_text(example.target)) for example in part] == [length] * SHOPS
    ends = [DAYS - HORIZON * number for number in reversed(range(WINDOWS))]
    assert [len(Series.from_text(example.target)) for example in parts.test] == ends * SHOPS
