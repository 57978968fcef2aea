"""Metrics of forecasts: of sample paths, each a possible course of a series, against the values that were observed.

Every metric takes `Forecasts` and a text for its signature. Values that were not observed are left out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError, TooLargeError
from regard.metrics.core import Measured

Numbers = NDArray[np.float64]
WindowCounts = Numbers  # (windows, 2): for each window a numerator and a denominator, whose sums give the metric

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the weighted quantile loss
ALPHA = 0.05  # of MSIS, for the interval of 95 %
QUANTILES = "quantiles:weibull"


@dataclass(frozen=True)
class Forecasts:
    """Forecasts of windows of series, with what was observed in each window and before it."""

    paths: Sequence[Numbers]  # (paths, horizon) for each window; of a point forecast, one path
    observed: Sequence[Numbers]  # (horizon,); NaN is a missing value
    histories: Sequence[Numbers]  # (time,), all values before the window: the scale of MASE and MSIS
    season: int  # steps after which the series repeat themselves, about: 24 for hours, 1 if they do not

    @cached_property
    def known(self) -> list[tuple[Numbers, Numbers]]:
        """For each window the paths, sorted step by step, and what was observed; without the missing steps."""
        masks = [~np.isnan(values) for values in self.observed]
        if not any(mask.any() for mask in masks):
            raise DataError(f"none of the values of {len(masks):,} windows was observed; there is nothing to compare")
        windows = zip(self.paths, self.observed, masks, strict=True)
        return [(np.sort(paths[:, mask], axis=0), values[mask]) for paths, values, mask in windows]

    @cached_property
    def scales(self) -> list[float]:
        """The seasonal error of each window, which is the scale of MASE and MSIS."""
        return [seasonal_error(history, self.season) for history in self.histories]

    @property
    def counts(self) -> str:
        """The part of a signature that counts windows, values and paths."""
        paths = sorted({len(paths) for paths in self.paths})
        several = "-".join(map(str, dict.fromkeys([paths[0], paths[-1]])))
        values = sum(len(values) for _, values in self.known)
        return f"n:{len(self.paths)}|values:{values}|paths:{several}"


def quantiles(paths: Numbers, levels: Sequence[float]) -> Numbers:
    """The quantiles (levels, horizon) of sample paths (paths, horizon), at Weibull's positions p (n + 1).

    A value that follows the same distribution as the n paths is below the quantile of level p with probability p,
    whatever n is. With other positions, as in `numpy.quantile`, it is in an interval of 90 % of 100 paths with a
    probability of only 88 %.
    """
    return _quantiles(np.sort(paths, axis=0), levels)


def _quantiles(ordered: Numbers, levels: Sequence[float]) -> Numbers:
    """The quantiles of paths that are sorted."""
    positions = np.clip(np.asarray(levels) * (len(ordered) + 1) - 1, 0, len(ordered) - 1)
    below = positions.astype(np.intp)
    above = np.minimum(below + 1, len(ordered) - 1)
    part = (positions - below)[:, None]
    return ordered[below] * (1 - part) + ordered[above] * part


def seasonal_error(history: Numbers, season: int) -> float:
    """Mean absolute difference of values one season apart, the error of the seasonal naive forecast of the past.

    For a history that is not longer than a season, values one step apart. NaN if no two values can be compared.
    """
    lag = season if season < len(history) else 1
    differences = np.abs(history[lag:] - history[:-lag])
    differences = differences[~np.isnan(differences)]
    return float(differences.mean()) if len(differences) else math.nan


# Metrics of one number for each step: the median or the mean of the paths


def nd(forecasts: Forecasts, how: str) -> Measured:
    """Normalised deviation (ND): sum |y - median| / sum |y|; lower is better."""
    return _ratio("nd", forecasts, "point:median", how)


def rmse(forecasts: Forecasts, how: str) -> Measured:
    """Root mean squared error (RMSE) of the mean of the paths; lower is better."""
    squares, values = _window_counts("rmse", forecasts).sum(0)
    return _measured("rmse", math.sqrt(squares / values), forecasts, "point:mean", how)


def nrmse(forecasts: Forecasts, how: str) -> Measured:
    """RMSE divided by the mean absolute value that was observed (NRMSE); lower is better."""
    size = sum(float(np.abs(values).sum()) for _, values in forecasts.known)
    squares, values = _window_counts("rmse", forecasts).sum(0)
    value = _divide("nrmse", math.sqrt(squares / values), size / values)
    return _measured("nrmse", value, forecasts, "point:mean", how)


def mase(forecasts: Forecasts, how: str) -> Measured:
    """Hyndman and Koehler 2006, MASE: mean |y - median| / seasonal error of the history; lower is better.

    It is averaged over the windows. Windows are left out if their history has no seasonal error, or one of 0.
    """
    return _ratio("mase", forecasts, "point:median", how)


def smape(forecasts: Forecasts, how: str) -> Measured:
    """Makridakis et al. 2020, sMAPE, from 0 to 2: mean of 2 |y - median| / (|y| + |median|); lower is better.

    The papers on M4 print it times 100. A forecast of 0 for an observed 0 has no error.
    """
    return _ratio("smape", forecasts, "point:median", how)


# Metrics of the distribution


def msis(forecasts: Forecasts, how: str) -> Measured:
    """Makridakis et al. 2020, MSIS: scaled score of the intervals of 95 %, u - l + 40 (miss); lower is better.

    `miss` is the distance of an observed value from the interval. As in MASE, the score is divided by the seasonal error
    of the history and averaged over the windows, of which the same are left out.
    """
    return _ratio("msis", forecasts, f"alpha:{ALPHA}|{QUANTILES}", how)


def weighted_quantile_loss(forecasts: Forecasts, how: str) -> Measured:
    """Quantile loss 2 sum |(y - q) (p - [y < q])| / sum |y|, mean over nine levels p; lower is better."""
    return _ratio("weighted_quantile_loss", forecasts, f"levels:{LEVELS[0]}-{LEVELS[-1]}|{QUANTILES}", how)


def crps(forecasts: Forecasts, how: str) -> Measured:
    """CRPS of the paths, sum of E |x - y| - E |x - x'| / 2, divided by sum |y|; lower is better.

    Gneiting and Raftery 2007, eq. 21, for the empirical distribution of the paths: x' may be the same path as x. Of one
    path it is the ND.
    """
    return _ratio("crps", forecasts, "distribution:empirical|per:sum |y|", how)


def coverage_50(forecasts: Forecasts, how: str) -> Measured:
    """Share of observed values in the central interval of 50 % of the paths; nearer to 0.5 is better."""
    return _ratio("coverage_50", forecasts, QUANTILES, how)


def coverage_80(forecasts: Forecasts, how: str) -> Measured:
    """Share of observed values in the central interval of 80 % of the paths; nearer to 0.8 is better."""
    return _ratio("coverage_80", forecasts, QUANTILES, how)


def coverage_90(forecasts: Forecasts, how: str) -> Measured:
    """Share of observed values in the central interval of 90 % of the paths; nearer to 0.9 is better."""
    return _ratio("coverage_90", forecasts, QUANTILES, how)
