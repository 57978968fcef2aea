"""Metrics of forecasts equal values worked out by hand, their definitions, and GluonTS where it is installed."""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from regard.errors import DataError, NotFiniteError, TooLargeError
from regard.metrics import METRICS, Forecasts, better, quantiles
from regard.metrics.forecasts import LEVELS, WINDOW_COUNTS, seasonal_error, window_counts

Numbers = NDArray[np.float64]
NAMES = (*WINDOW_COUNTS, "nrmse")
COVERAGES = ("coverage_50", "coverage_80", "coverage_90")
LEFT = math.nan  # not observed

# Two windows: of three paths, of which the second step was not observed, and of one path. Their seasonal errors are
# (|3 - 1| + |5 - 2|) / 2 = 2.5 and |7 - 4| = 3. In the first step of the first window the median is 2 and the mean 3.
BY_HAND = Forecasts(
    paths=[np.array([[6.0, 4.0], [1.0, 5.0], [2.0, 6.0]]), np.array([[10.0, 20.0]])],
    observed=[np.array([3.0, LEFT]), np.array([12.0, 0.0])],
    histories=[np.array([1.0, 2.0, 3.0, 5.0]), np.array([LEFT, 4.0, 4.0, 7.0])],
    season=2,
)
# The quantiles of 1, 2, 6 at the levels 0.1 ... 0.9 are 1, 1, 1.2, 1.6, 2, 3.6, 5.2, 6 and 6; the losses of 3 sum to 4.
EXPECTED = {
    "nd": (1 + 2 + 20) / 15,
    "rmse": math.sqrt((0 + 4 + 400) / 3),
    "nrmse": math.sqrt((0 + 4 + 400) / 3) / 5,
    "mase": (1 / 2.5 + 11 / 3) / 2,
    "smape": (0.4 + (4 / 22 + 2) / 2) / 2,
    "msis": ((6 - 1) / 2.5 + (40 * 2 + 40 * 20) / 2 / 3) / 2,
    "weighted_quantile_loss": 2 * (4 / 9 + 2 * 0.5 + 20 * 0.5) / 15,
    "crps": (2 - 10 / 9 + 2 + 20) / 15,
    "coverage_50": 1 / 3,
    "coverage_80": 1 / 3,
    "coverage_90": 1 / 3,
}


def measured(name: str, forecasts: Forecasts) -> float:
    return METRICS[name](forecasts, "split:test").value


def one(paths: list[list[float]], observed: list[float], history: Sequence[float] = (1.0, 3.0)) -> Forecasts:
    """The forecasts of one window."""
    return Forecasts([np.array(paths)], [np.array(observed)], [np.array(history)], 1)


def random_forecasts(windows: int, paths: int, horizon: int, season: int = 5, missing: float = 0.0) -> Forecasts:
    generator = np.random.default_rng(windows)
    observed = generator.normal(3, 2, (windows, horizon))
    observed[generator.random(observed.shape) < missing] = LEFT
    samples = generator.normal(3, 1.5, (windows, paths, horizon))
    return Forecasts(list(samples), list(observed), list(generator.normal(3, 2, (windows, 4 * season + 3))), season)


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_has_the_value_worked_out_by_hand(name: str) -> None:
    assert measured(name, BY_HAND) == pytest.approx(EXPECTED[name], rel=1e-12)


def test_coverages_count_values_in_their_intervals() -> None:
    """The quantile of level p of 1, 2, ..., 19 is 20 p: the intervals are 5 to 15, 2 to 18 and 1 to 19, with ends."""
    observed = [4.9, 5.0, 10.0, 15.0, 15.1, 1.9, 19.0, 19.1]
    forecasts = one([[float(number)] * 8 for number in range(19, 0, -1)], observed)
    assert [measured(name, forecasts) for name in COVERAGES] == [3 / 8, 5 / 8, 7 / 8]


def test_intervals_of_a_perfect_model_cover_what_they_promise() -> None:
    """With numpy's quantiles, only 88 % would be in the interval of 90 % of 100 paths."""
    generator = np.random.default_rng(0)
    samples, observed = generator.normal(size=(1000, 100, 20)), generator.normal(size=(1000, 20))
    forecasts = Forecasts(list(samples), list(observed), [np.zeros(2)] * 1000, 1)
    for name, share in zip(COVERAGES, (0.5, 0.8, 0.9), strict=True):
        assert measured(name, forecasts) == pytest.approx(share, abs=3.3 * math.sqrt(share * (1 - share) / 20_000))


def test_quantiles_are_weibulls() -> None:
    paths = np.random.default_rng(1).normal(size=(37, 5))
    levels = [0.0, 0.01, 0.1, 0.25, 0.5, 0.77, 0.99, 1.0]
    np.testing.assert_allclose(quantiles(paths, levels), np.quantile(paths, levels, axis=0, method="weibull"))
    np.testing.assert_array_equal(quantiles(paths[:1], levels), np.tile(paths[:1], (8, 1)))


def test_crps_is_the_integral_of_the_squared_difference_of_distributions() -> None:
    generator = np.random.default_rng(2)
    paths, observed = generator.normal(size=(7, 3)), generator.normal(size=3)
    grid = np.linspace(-8, 8, 160_001)
    expected = 0.0
    for step, value in enumerate(observed):
        share = (paths[:, step, None] <= grid).mean(0)
        expected += np.square(share - (value <= grid)).sum() * (grid[1] - grid[0])
    assert measured("crps", one(paths.tolist(), observed.tolist())) == pytest.approx(
        expected / np.abs(observed).sum(), rel=1e-3
    )


def test_the_quantile_loss_of_many_levels_is_the_crps(monkeypatch: pytest.MonkeyPatch) -> None:
    forecasts = random_forecasts(3, 4000, 5)
    monkeypatch.setattr("regard.metrics.forecasts.LEVELS", tuple((np.arange(1000) + 0.5) / 1000))
    assert measured("weighted_quantile_loss", forecasts) == pytest.approx(measured("crps", forecasts), rel=1e-3)


def test_of_one_path_quantile_loss_and_crps_are_the_deviation() -> None:
    forecasts = random_forecasts(7, 1, 5)
    assert measured("crps", forecasts) == pytest.approx(measured("nd", forecasts))
    assert measured("weighted_quantile_loss", forecasts) == pytest.approx(measured("nd", forecasts))


@pytest.mark.parametrize("name", NAMES)
def test_missing_steps_windows_without_values_and_the_order_of_paths_change_nothing(name: str) -> None:
    forecasts = random_forecasts(4, 9, 5)
    padded = Forecasts(
        [np.insert(paths[::-1], 2, 1e9, axis=1) for paths in forecasts.paths] + [np.full((9, 3), 1e9)],
        [np.insert(values, 2, LEFT) for values in forecasts.observed] + [np.full(3, LEFT)],
        [*forecasts.histories, np.ones(4)],
        forecasts.season,
    )
    assert METRICS[name](padded, "x") == METRICS[name](forecasts, "x")


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_changes_only_rmse(name: str) -> None:
    forecasts = random_forecasts(3, 9, 5)
    lists = [
        [1000 * array for array in arrays] for arrays in (forecasts.paths, forecasts.observed, forecasts.histories)
    ]
    factor = 1000 if name == "rmse" else 1
    assert measured(name, Forecasts(*lists, forecasts.season)) == pytest.approx(factor * measured(name, forecasts))


@pytest.mark.parametrize("name", NAMES)
def test_a_perfect_forecast_has_the_best_value(name: str) -> None:
    expected = 1.0 if name in COVERAGES else 0.0
    assert measured(name, one([[4.0, 0.0, -2.0]], [4.0, 0.0, -2.0])) == expected
    assert measured(name, one([[0.0, 0.0]], [0.0, 0.0])) == expected


# Histories


@pytest.mark.parametrize(
    ("history", "season", "expected"),
    [
        ([1.0, 2.0, 4.0, 8.0], 1, (1 + 2 + 4) / 3),
        ([1.0, 2.0, 4.0, 8.0], 3, 7.0),
        ([1.0, 2.0, 4.0, 8.0], 4, (1 + 2 + 4) / 3),  # not longer than a season: one step apart
        ([1.0, LEFT, 4.0, 8.0, 5.0], 2, (3 + 1) / 2),
        ([3.0, 3.0, 3.0], 1, 0.0),
        ([5.0], 1, math.nan),
        ([], 7, math.nan),
        ([1.0, LEFT, 4.0, LEFT], 1, math.nan),
    ],
)
def test_the_seasonal_error_of_a_history(history: list[float], season: int, expected: float) -> None:
    assert seasonal_error(np.array(history), season) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("name", ["mase", "msis"])
@pytest.mark.parametrize("history", [[2.0, 2.0, 2.0], [2.0], [], [1.0, LEFT, 3.0]])
def test_a_window_without_a_scale_is_left_out(name: str, history: list[float]) -> None:
    first = one([[1.0], [4.0]], [3.0])
    both = Forecasts([*first.paths] * 2, [*first.observed] * 2, [*first.histories, np.array(history)], 1)
    alone = METRICS[name](first, "x")
    value, signature = METRICS[name](both, "x")
    assert value == alone.value > 0
    assert signature == alone.signature.replace("n:1|values:1", "n:2|values:2").replace("|x", "|skipped:1|x")
    sentence = f"{name} is too large for a number: .* is 0 or unknown for every window; choose another metric, such as"
    with pytest.raises(TooLargeError, match=sentence):
        METRICS[name](one([[1.0]], [3.0], history), "x")


@pytest.mark.parametrize("name", ["nd", "nrmse", "weighted_quantile_loss", "crps"])
def test_nothing_is_divided_by_observed_zeros(name: str) -> None:
    with pytest.raises(
        TooLargeError, match=f"{name} is too large for a number: .* observed values, which are all 0; ch"
    ):
        METRICS[name](one([[0.0, 1.0]], [0.0, 0.0]), "x")


@pytest.mark.parametrize("name", NAMES)
def test_without_observed_values_there_is_nothing_to_measure(name: str) -> None:
    with pytest.raises(DataError, match="no value was observed in the 2 windows; there is nothing to compare"):
        METRICS[name](Forecasts([np.ones((3, 2))] * 2, [np.full(2, LEFT)] * 2, [np.ones(4)] * 2, 1), "x")


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_forecasts_that_are_not_finite_are_refused(junk: float) -> None:
    with pytest.raises(NotFiniteError, match="the forecasts are not finite numbers"):
        METRICS["nd"](one([[1.0], [junk]], [2.0]), "x")


def test_a_window_without_history_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        METRICS["nd"](Forecasts([np.ones((3, 2))], [np.ones(2)], [], 1), "x")


# Signatures


@pytest.mark.parametrize(
    ("name", "details"),
    [
        ("nd", "point:median"),
        ("rmse", "point:mean"),
        ("nrmse", "point:mean"),
        ("mase", "point:median|season:2"),
        ("smape", "point:median"),
        ("msis", "alpha:0.05|quantiles:weibull|season:2"),
        ("weighted_quantile_loss", "levels:0.1-0.9|quantiles:weibull"),
        ("crps", "distribution:empirical|unit:mean |y|"),
        ("coverage_50", "quantiles:weibull"),
        ("coverage_80", "quantiles:weibull"),
        ("coverage_90", "quantiles:weibull"),
    ],
)
def test_a_signature_says_how_a_score_was_computed(name: str, details: str) -> None:
    assert METRICS[name](BY_HAND, "windows:2").signature == f"{name}|n:2|values:3|paths:1-3|{details}|windows:2"


def test_coverages_have_no_direction() -> None:
    assert [better(name) for name in COVERAGES] == [f"nearer to 0.{level} is better" for level in (5, 8, 9)]


@pytest.mark.parametrize("name", [name for name in WINDOW_COUNTS if name != "rmse"])
def test_a_metric_is_the_ratio_of_the_sums_over_its_windows(name: str) -> None:
    forecasts = random_forecasts(6, 9, 5, missing=0.3)
    counts = window_counts(name, forecasts)
    assert counts.shape == (6, 2)
    assert measured(name, forecasts) == pytest.approx(counts[:, 0].sum() / counts[:, 1].sum())


def test_many_windows_are_measured_in_a_second() -> None:
    forecasts = random_forecasts(414, 100, 48, season=24)
    start = time.process_time()
    for name in NAMES:
        measured(name, forecasts)
    assert time.process_time() - start < 1


# GluonTS


def gluonts_scores(forecasts: Forecasts, forecast: Callable[[Numbers, object], object]) -> dict[str, float]:
    """The scores of GluonTS's evaluator for the windows, whose forecasts `forecast` makes from paths and start."""
    import pandas
    from gluonts.evaluation import Evaluator

    series, made = [], []
    for paths, values, history in zip(forecasts.paths, forecasts.observed, forecasts.histories, strict=True):
        index = pandas.period_range("2020-01-01", periods=len(history) + len(values), freq="h")
        series.append(pandas.DataFrame(np.concatenate([history, values]), index=index))
        made.append(forecast(paths, index[len(history)]))
    evaluator = Evaluator(quantiles=LEVELS, seasonality=forecasts.season, alpha=0.05, num_workers=None)
    return evaluator(iter(series), iter(made), num_series=len(series))[0]


GLUONTS = {
    "nd": "ND",
    "rmse": "RMSE",
    "nrmse": "NRMSE",
    "mase": "MASE",
    "smape": "sMAPE",
    "msis": "MSIS",
    "weighted_quantile_loss": "mean_wQuantileLoss",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_scores_equal_those_of_gluonts(missing: float) -> None:
    """On equal quantiles, since GluonTS takes the nearest path for a quantile.

    If values are missing, its RMSE is another: each window counts as much as any other, not each value.
    """
    model = pytest.importorskip("gluonts.model.forecast")
    forecasts = random_forecasts(7, 50, 11, missing=missing)
    levels = [0.025, *LEVELS, 0.975]

    def quantile_forecast(paths: Numbers, start: object) -> object:
        arrays = np.concatenate([quantiles(paths, levels), paths.mean(0, keepdims=True)])
        return model.QuantileForecast(arrays, start_date=start, forecast_keys=[*map(str, levels), "mean"])

    scores = gluonts_scores(forecasts, quantile_forecast)
    for name, other in GLUONTS.items():
        if missing and name in ("rmse", "nrmse"):
            continue
        assert measured(name, forecasts) == pytest.approx(scores[other], rel=1e-9), name


@pytest.mark.filterwarnings("ignore")
def test_with_its_own_quantiles_gluonts_differs_little() -> None:
    model = pytest.importorskip("gluonts.model.forecast")
    forecasts = random_forecasts(7, 1001, 11)
    scores = gluonts_scores(forecasts, lambda paths, start: model.SampleForecast(paths, start_date=start))
    for name, other in GLUONTS.items():
        assert measured(name, forecasts) == pytest.approx(scores[other], rel=0.003), name
