"""How well attention finds the lags that generate the series of the corpus `waves`, and a forecast their truth."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from regard.data.corpora.waves import true_paths, truth
from regard.metrics import METRICS
from regard.metrics.forecasts import Forecasts
from regard.predict import Predictor
from regard.tasks import Forecast, Forecasting
from regard.types import Example

NEAR = 1  # steps that the heaviest weight may be beside the lag
SAMPLES = 1000  # paths of the truth


class Lags(NamedTuple):
    """Where attention is, over the steps of all series with exactly one generating lag."""

    share: float  # of the steps whose heaviest weight is at most NEAR steps beside the lag
    steps: int
    by_lag: dict[int, float]  # the same for the series of each lag


def lags(predictor: Predictor, examples: Sequence[Example]) -> Lags:
    """Compares the heaviest weight of every step of a forecast with the lag that generates its series."""
    found: dict[int, list[bool]] = {}
    chosen = [example.source for example in examples if len(truth(example.source).lags) == 1]
    for forecast in predictor.predict(chosen):
        assert forecast.map is not None
        (lag,) = truth(forecast.source).lags
        weights = forecast.map.weights
        # The last column is the step before the last row: see `Forecasting`.
        steps = np.arange(len(weights)) + weights.shape[1] - len(weights) + 1
        looks = steps - weights.argmax(-1).numpy()
        found.setdefault(lag, []).extend((np.abs(looks - lag) <= NEAR).tolist())
    right = [step for steps in found.values() for step in steps]
    return Lags(float(np.mean(right)), len(right), {lag: float(np.mean(found[lag])) for lag in sorted(found)})


class Excess(NamedTuple):
    """The scores of forecasts, and those of sample paths of the true process for the same windows."""

    crps: float
    true_crps: float
    coverage: float  # of the intervals of 90 %
    true_coverage: float


def excess(predictor: Predictor, examples: Sequence[Example]) -> Excess:
    """Compares forecasts of series of the corpus with the true distribution of what comes next."""
    task, asked = predictor.task, [example.source for example in examples]
    assert isinstance(task, Forecasting)
    forecasts = [forecast for forecast in predictor.predict(asked) if isinstance(forecast, Forecast)]
    observed = [np.asarray(forecast.observed) for forecast in forecasts]
    histories = [forecast.series.values for forecast in forecasts if forecast.series is not None]
    own = [forecast.paths.double().numpy() for forecast in forecasts if forecast.paths is not None]
    horizon = task.shape.horizon
    true = [true_paths(name, history, horizon, SAMPLES) for name, history in zip(asked, histories, strict=True)]
    scores = [
        METRICS[metric](Forecasts(paths, observed, histories, task.learned.season), "").value
        for metric in ("crps", "coverage_90")
        for paths in (own, true)
    ]
    return Excess(*scores)
