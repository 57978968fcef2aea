"""Metrics of forecasts: of sample paths, each a possible course of a series, against the values that were observed.

Every metric takes `Forecasts` and a text for its signature. Values that were not observed are left out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError, NotFiniteError, TooLargeError
from regard.metrics.core import Counts, Measured

Numbers = NDArray[np.float64]

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the weighted quantile loss
ALPHA = 0.05  # of MSIS, for the interval of 95 %
QUANTILES = "quantiles:weibull"


class Window(NamedTuple):
    """The steps of one window that were observed."""

    ordered: Numbers  # (paths, steps), sorted step by step
    observed: Numbers  # (steps,)
    scale: float  # the seasonal error of the history


@dataclass(frozen=True)
class Forecasts:
    """Forecasts of windows of series, with what was observed in each window and before it."""

    paths: Sequence[Numbers]  # (paths, horizon) for each window; of a point forecast, one path
    observed: Sequence[Numbers]  # (horizon,); NaN is a missing value
    histories: Sequence[Numbers]  # (time,), all values before the window: the scale of MASE and MSIS
    season: int  # steps after which the series repeat themselves, about: 24 for hours, 1 if they do not

    @cached_property
    def windows(self) -> list[Window]:
        """The windows with an observed value, without the steps that were not observed."""
        windows = []
        for paths, values, history in zip(self.paths, self.observed, self.histories, strict=True):
            steps = ~np.isnan(values)
            if not np.isfinite(paths).all():
                raise NotFiniteError("the forecasts are not finite numbers; nothing can be compared with them")
            if steps.any():
                ordered = np.sort(paths[:, steps], axis=0)
                windows.append(Window(ordered, values[steps], seasonal_error(history, self.season)))
        if not windows:
            raise DataError(f"no value was observed in the {len(self.paths):,} windows; there is nothing to compare")
        return windows


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
    squares, values = window_counts("rmse", forecasts).sum(0)
    return Measured(math.sqrt(squares / values), _signature("rmse", forecasts, "point:mean", how))


def nrmse(forecasts: Forecasts, how: str) -> Measured:
    """RMSE divided by the mean absolute value that was observed (NRMSE); lower is better."""
    _, size = window_counts("nd", forecasts).sum(0)
    squares, values = window_counts("rmse", forecasts).sum(0)
    value = _divide("nrmse", math.sqrt(squares / values), size / values)
    return Measured(value, _signature("nrmse", forecasts, "point:mean", how))


def mase(forecasts: Forecasts, how: str) -> Measured:
    """Hyndman and Koehler 2006, MASE: mean |y - median| / seasonal error of the history; lower is better.

    It is averaged over the windows. Windows are left out if their history has no seasonal error, or one of 0.
    """
    return _scaled("mase", forecasts, "point:median", how)


def smape(forecasts: Forecasts, how: str) -> Measured:
    """Makridakis et al. 2020, sMAPE, from 0 to 2: mean of 2 |y - median| / (|y| + |median|); lower is better.

    It is averaged over the steps of a window, then over the windows. Papers on M4 print it times 100. A forecast of 0
    for an observed 0 has no error.
    """
    return _ratio("smape", forecasts, "point:median", how)


# Metrics of the distribution


def msis(forecasts: Forecasts, how: str) -> Measured:
    """Makridakis et al. 2020, MSIS: width of the intervals of 95 % + 40 times the misses, scaled; lower is better.

    A miss is the distance of an observed value from the interval. As in MASE, the sum is divided by the seasonal error
    of the history and averaged over the windows, of which the same are left out.
    """
    return _scaled("msis", forecasts, f"alpha:{ALPHA}|{QUANTILES}", how)


def weighted_quantile_loss(forecasts: Forecasts, how: str) -> Measured:
    """Quantile loss: 2 sum |(y - q) (p - [y < q])| / sum |y|, averaged over nine levels p; lower is better."""
    return _ratio("weighted_quantile_loss", forecasts, f"levels:{LEVELS[0]}-{LEVELS[-1]}|{QUANTILES}", how)


def crps(forecasts: Forecasts, how: str) -> Measured:
    """CRPS of the paths x: sum of E |x - y| - E |x - x'| / 2, divided by sum |y|; lower is better.

    Gneiting and Raftery 2007, for the empirical distribution of the paths: x' may be the same path as x. Of one
    path it is the ND.
    """
    return _ratio("crps", forecasts, "distribution:empirical|unit:mean |y|", how)


def coverage_50(forecasts: Forecasts, how: str) -> Measured:
    """Share of observed values in the central interval of 50 % of the paths; nearer to 0.5 is better."""
    return _ratio("coverage_50", forecasts, QUANTILES, how)


def coverage_80(forecasts: Forecasts, how: str) -> Measured:
    """Share of observed values in the central interval of 80 % of the paths; nearer to 0.8 is better."""
    return _ratio("coverage_80", forecasts, QUANTILES, how)


def coverage_90(forecasts: Forecasts, how: str) -> Measured:
    """Share of observed values in the central interval of 90 % of the paths; nearer to 0.9 is better."""
    return _ratio("coverage_90", forecasts, QUANTILES, how)


# Most metrics are a ratio of two sums over the windows.


def window_counts(metric: str, forecasts: Forecasts) -> Numbers:
    """The numerator and denominator (windows, 2) of a metric of `WINDOW_COUNTS` for each of `forecasts.windows`."""
    return np.array([WINDOW_COUNTS[metric](window) for window in forecasts.windows], dtype=np.float64)


def _ratio(name: str, forecasts: Forecasts, details: str, how: str) -> Measured:
    value = _divide(name, *window_counts(name, forecasts).sum(0))
    return Measured(value, _signature(name, forecasts, details, how))


def _scaled(name: str, forecasts: Forecasts, details: str, how: str) -> Measured:
    total, windows = window_counts(name, forecasts).sum(0)
    if not windows:
        raise TooLargeError(
            f"{name} is too large for a number: it divides by the mean difference of past values a season "
            "apart, which is 0 or unknown for every window; choose another metric, such as rmse"
        )
    skipped = len(forecasts.windows) - int(windows)
    details = f"{details}|season:{forecasts.season}{f'|skipped:{skipped}' if skipped else ''}"
    return Measured(float(total / windows), _signature(name, forecasts, details, how))


def _divide(name: str, numerator: float, denominator: float) -> float:
    """The ratio; 0 if both are, for a perfect forecast of zeros."""
    if numerator and not denominator:
        raise TooLargeError(
            f"{name} is too large for a number: it divides by the sum of the observed values, which are all 0; "
            "choose another metric, such as rmse"
        )
    return float(numerator / (denominator or 1.0))


def _signature(name: str, forecasts: Forecasts, details: str, how: str) -> str:
    paths = sorted({len(paths) for paths in forecasts.paths})
    several = "-".join(map(str, dict.fromkeys([paths[0], paths[-1]])))
    values = sum(len(window.observed) for window in forecasts.windows)
    return f"{name}|n:{len(forecasts.windows)}|values:{values}|paths:{several}|{details}|{how}"


def _median(window: Window) -> Numbers:
    return _quantiles(window.ordered, [0.5])[0]


def _size(window: Window) -> float:
    return float(np.abs(window.observed).sum())


def _deviation(window: Window) -> Counts:
    return float(np.abs(window.observed - _median(window)).sum()), _size(window)


def _squared_error(window: Window) -> Counts:
    return float(np.square(window.observed - window.ordered.mean(0)).sum()), len(window.observed)


def _scaled_error(window: Window) -> Counts:
    return _in_scale(window, np.abs(window.observed - _median(window)))


def _symmetric_error(window: Window) -> Counts:
    median = _median(window)
    sizes = np.abs(window.observed) + np.abs(median)
    errors = 2 * np.abs(window.observed - median) / np.where(sizes > 0, sizes, 1.0)
    return float(errors.mean()), 1


def _interval_score(window: Window) -> Counts:
    low, high = _quantiles(window.ordered, [ALPHA / 2, 1 - ALPHA / 2])
    miss = np.maximum(low - window.observed, 0.0) + np.maximum(window.observed - high, 0.0)
    return _in_scale(window, high - low + 2 / ALPHA * miss)


def _in_scale(window: Window, errors: Numbers) -> Counts:
    return (float(errors.mean()) / window.scale, 1) if window.scale > 0 else (0.0, 0)


def _quantile_loss(window: Window) -> Counts:
    levels = np.array(LEVELS)[:, None]
    differences = window.observed - _quantiles(window.ordered, LEVELS)
    losses = np.maximum(levels * differences, (levels - 1) * differences)
    return 2 * float(losses.mean(0).sum()), _size(window)


def _energy(window: Window) -> Counts:
    """E |x - x'| of n sorted numbers is 2 / n^2 times the sum of (2 i - n - 1) x_i, i = 1 ... n."""
    count = len(window.ordered)
    ranks = (2 * np.arange(1, count + 1) - count - 1) / count**2
    distances = np.abs(window.ordered - window.observed).mean(0)
    return float((distances - ranks @ window.ordered).sum()), _size(window)


def _inside(window: Window, *, share: float) -> Counts:
    low, high = _quantiles(window.ordered, [(1 - share) / 2, (1 + share) / 2])
    return int(((low <= window.observed) & (window.observed <= high)).sum()), len(window.observed)


WINDOW_COUNTS: dict[str, Callable[[Window], Counts]] = {
    "nd": _deviation,
    "rmse": _squared_error,  # which is the root of the ratio
    "mase": _scaled_error,
    "smape": _symmetric_error,
    "msis": _interval_score,
    "weighted_quantile_loss": _quantile_loss,
    "crps": _energy,
    "coverage_50": partial(_inside, share=0.5),
    "coverage_80": partial(_inside, share=0.8),
    "coverage_90": partial(_inside, share=0.9),
}
