"""Baselines of forecasts equal values worked out by hand; on M4 hourly, seasonal naive has the published scores."""

import csv
import gzip
import math
import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from regard.errors import DataError
from regard.metrics import METRICS, Forecasts
from regard.models.baselines import BASELINES, NARROWNESS, PATHS, kernel_regression

Numbers = NDArray[np.float64]
LEFT = math.nan  # not observed

every_baseline = pytest.mark.parametrize("name", BASELINES)


def forecast(name: str, history: list[float], horizon: int, season: int) -> list[list[float]]:
    return BASELINES[name](np.array(history, dtype=np.float64), horizon, season).tolist()


def waves(length: int, season: int, noise: float = 0.0) -> Numbers:
    """A pattern of that season on a level of 50."""
    generator = np.random.default_rng(0)
    pattern = generator.normal(0, 10, season)
    return 50 + np.resize(pattern, length) + generator.normal(0, noise, length)


# By hand


@pytest.mark.parametrize(
    ("name", "history", "season", "expected"),
    [
        ("naive", [1, 5, 3], 2, [3, 3, 3, 3]),
        ("naive", [1, 5, LEFT, LEFT], 2, [5, 5, 5, 5]),
        ("seasonal_naive", [1, 2, 3, 4, 5], 3, [3, 4, 5, 3]),
        ("seasonal_naive", [1, 2, 3, 4, 5], 1, [5, 5, 5, 5]),
        ("seasonal_naive", [7, 8, 3, LEFT, 5], 3, [3, 7, 5, 3]),  # one season before is missing: two before
        ("seasonal_naive", [LEFT, 8, 3, LEFT, 5], 3, [3, 5, 5, 3]),  # missing in every season: the last value
        ("seasonal_naive", [4, 6], 5, [6, 6, 6, 4]),  # shorter than a season
        ("drift", [1, 2, 0, 7], 2, [9, 11, 13, 15]),
        ("drift", [LEFT, 1, 2, 5, LEFT], 2, [9, 11, 13, 15]),  # the line goes on over the missing value
        ("drift", [LEFT, 4, LEFT], 2, [4, 4, 4, 4]),
    ],
)
def test_a_forecast_by_hand(name: str, history: list[float], season: int, expected: list[float]) -> None:
    assert forecast(name, history, 4, season) == [expected]


def test_kernel_regression_by_hand() -> None:
    """Windows of two values and what followed, less their means; the query is (0.5, -0.5), with a mean of 3.5.

    The windows are (1, 2) 4, (2, 4) 3, (4, 3) 4 and (3, 4) 3; without means (-0.5, 0.5) 2.5, (-1, 1) 0, (0.5, -0.5) 0.5
    and (-0.5, 0.5) -0.5. Their squared distances from the query are 2, 4.5, 0 and 2, divided by the variance of the
    history. The squared bandwidth is sqrt(2 * 2) exp(-2 w), for one of five w.
    """
    history = np.array([1.0, 2.0, 4.0, 3.0, 4.0, 3.0])
    regression = kernel_regression(history, 1, 2)
    assert regression.starts.tolist() == [2, 3, 4, 5]
    distances = np.array([2, 4.5, 0, 2]) / history.var()
    followed = np.array([2.5, 0, 0.5, -0.5])
    candidates = []
    for narrowness in NARROWNESS:
        kernels = np.exp(-distances / (2 * 4**0.5 * math.exp(-2 * narrowness)))
        candidates.append(kernels / kernels.sum())
    match = [index for index, weights in enumerate(candidates) if np.allclose(regression.weights, weights)]
    assert len(match) == 1
    assert regression.mean == pytest.approx([3.5 + candidates[match[0]] @ followed])
    assert set(np.round(regression.paths[:, 0] - 3.5, 9)) <= set(followed)


# Kernel regression


def test_the_kernel_continues_a_periodic_series() -> None:
    series = waves(97, season=12)
    paths = BASELINES["kernel"](series[:80], 17, 12)
    assert paths.shape == (PATHS, 17)
    np.testing.assert_allclose(np.median(paths, axis=0), series[80:], atol=1e-9)


def test_the_kernel_looks_at_the_same_place_of_earlier_seasons() -> None:
    regression = kernel_regression(waves(80, season=12, noise=0.5), 5, 12)
    assert regression.weights.sum() == pytest.approx(1)
    same_place = (80 - regression.starts) % 12 == 0
    assert regression.weights[same_place].sum() > 0.95
    weights = regression.map(80)
    assert weights.shape == (5, 80)
    np.testing.assert_allclose(weights.sum(1), 1)
    for step in range(5):
        np.testing.assert_array_equal(weights[step, regression.starts + step], regression.weights)
    np.testing.assert_array_equal(weights[0, :12], 0)


def test_paths_are_what_followed_in_proportion_to_the_weights() -> None:
    series = waves(80, season=12, noise=9.0)
    regression = kernel_regression(series, 5, 12)
    drawn = 0
    for start, weight in zip(regression.starts, regression.weights.cumsum(), strict=True):
        followed = series[start : start + 5] - series[start - 12 : start].mean() + series[-12:].mean()
        drawn += np.isclose(regression.paths, followed).all(1).sum()
        assert abs(drawn - PATHS * weight) <= 0.5 + 1e-9  # of this window and those before it
    assert drawn == PATHS
    assert len(np.unique(regression.paths, axis=0)) > 3


def test_the_level_and_the_unit_do_not_matter_to_the_kernel() -> None:
    series = waves(80, season=12, noise=2.0)
    paths = BASELINES["kernel"](series, 5, 12)
    np.testing.assert_allclose(BASELINES["kernel"](1000 * series - 7, 5, 12), 1000 * paths - 7)


def test_a_missing_value_leaves_out_its_windows() -> None:
    series = waves(80, season=12, noise=2.0)
    series[40] = LEFT
    regression = kernel_regression(series, 5, 12)
    assert not set(range(40 - 4, 40 + 13)) & set(regression.starts.tolist())  # 40 is among what followed, or before
    assert regression.starts.tolist() == [*range(12, 36), *range(53, 76)]
    assert np.isfinite(regression.paths).all()
    series[[40, 78, 79]] = 50.0, LEFT, LEFT  # in the query, the last value before takes their place
    regression = kernel_regression(series, 5, 12)
    assert regression.starts.max() == 73
    level = np.append(series[68:78], [series[77]] * 2).mean()
    offsets = regression.paths - level
    filled = np.where(np.isnan(series), series[77], series)
    followed = {
        tuple(np.round(filled[start : start + 5] - filled[start - 12 : start].mean(), 6)) for start in range(12, 74)
    }
    assert {tuple(np.round(offset, 6)) for offset in offsets} <= followed


@pytest.mark.parametrize("history", [[4.0], [1.0, 2.0, 3.0], [1.0, LEFT, 2.0, LEFT, 5.0, LEFT, 7.0, LEFT] * 3])
def test_without_past_windows_the_kernel_is_seasonal_naive(history: list[float]) -> None:
    assert kernel_regression(np.array(history), 5, 3) is None
    assert forecast("kernel", history, 5, 3) == forecast("seasonal_naive", history, 5, 3)


# All baselines


@every_baseline
@pytest.mark.parametrize("length", [1, 2, 9, 60])
@pytest.mark.parametrize("season", [1, 4, 30])
def test_every_history_is_continued(name: str, length: int, season: int) -> None:
    history = waves(length, 4, noise=1.0)
    for missing in ([], [0], [length - 1], [*range(3, length, 5)]):
        history_with = history.copy()
        history_with[missing] = LEFT
        if np.isnan(history_with).all():
            continue
        before = history_with.copy()
        paths = BASELINES[name](history_with, 7, season)
        assert paths.ndim == 2
        assert paths.shape[1] == 7
        assert paths.dtype == np.float64
        assert np.isfinite(paths).all()
        np.testing.assert_array_equal(history_with, before)


@every_baseline
def test_a_constant_series_stays_constant(name: str) -> None:
    for value in (0.0, 3.0):
        assert (BASELINES[name](np.full(50, value), 6, 4) == value).all()


@every_baseline
def test_a_history_without_values_is_refused(name: str) -> None:
    for length in (0, 5):
        with pytest.raises(DataError, match=f"none of the {length} past values of a series was observed"):
            BASELINES[name](np.full(length, LEFT), 3, 2)


# M4 hourly itself

M4 = Path(os.environ.get("REGARD_DATA", "data"), "m4-hourly")


def m4(part: str) -> list[Numbers]:
    with gzip.open(M4 / f"Hourly-{part}.csv.gz", "rt") as file:
        rows = list(csv.reader(file))[1:]
    return [np.array([float(cell) for cell in row[1:] if cell]) for row in rows]


@pytest.mark.skipif(not (M4 / "Hourly-train.csv.gz").exists(), reason="M4 hourly is not in $REGARD_DATA")
def test_seasonal_naive_has_the_published_scores_on_m4_hourly() -> None:
    histories, observed = m4("train"), m4("test")
    paths = [BASELINES["seasonal_naive"](history, 48, 24) for history in histories]
    forecasts = Forecasts(paths, observed, histories, 24)
    assert len(paths) == 414
    assert round(100 * METRICS["smape"](forecasts, "m4").value, 3) == 13.912
    assert round(METRICS["mase"](forecasts, "m4").value, 3) == 1.193
