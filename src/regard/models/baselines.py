"""Baselines of forecasts: rules that continue a series without training. A new one is a function and a table entry.

Each takes the past values of a series (time,), where NaN is missing, the number of steps to forecast and the length of
a season, and returns sample paths (paths, horizon); a rule that gives one number for each step returns one path.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from regard.attention import attend
from regard.attention.scores import Gaussian
from regard.errors import DataError

Numbers = NDArray[np.float64]
Baseline = Callable[[Numbers, int, int], Numbers]  # history, horizon, season -> paths

PATHS = 100  # of `kernel`
SHORTEST_WINDOW = 8  # values that `kernel` compares, if season and horizon are shorter
TRIALS = 64  # past windows by which `kernel` chooses its bandwidth
NARROWNESS = (0.0, -1.0, 1.0, 2.0, 3.0)  # w of the score `gaussian`, from which it chooses; the first if it cannot


def naive(history: Numbers, horizon: int, season: int) -> Numbers:
    """The last observed value, for every step."""
    known = _observed(history)
    return np.full((1, horizon), history[known[-1]])


def seasonal_naive(history: Numbers, horizon: int, season: int) -> Numbers:
    """The value one season before each step, or two seasons before, if that is missing, and so on.

    If no value is observed at that place of any season, for example because the history is shorter than one, the last
    observed value.
    """
    known = _observed(history)
    latest = np.full(season, known[-1])  # the index of the value for each place in the season
    latest[known % season] = known  # of several, the last is kept
    steps = np.arange(len(history), len(history) + horizon)
    return history[latest[steps % season]][None]


def drift(history: Numbers, horizon: int, season: int) -> Numbers:
    """The straight line through the first and the last observed value."""
    known = _observed(history)
    first, last = known[0], known[-1]
    slope = (history[last] - history[first]) / max(1, last - first)
    steps = np.arange(len(history), len(history) + horizon) - last
    return (history[last] + slope * steps)[None]


def kernel(history: Numbers, horizon: int, season: int) -> Numbers:
    """Nadaraya 1964, Watson 1964: what followed similar windows of the past, which is attention without learning.

    Paths are drawn from what followed, in proportion to the weights (`kernel_regression`). A history that is too short
    to have a past window of the length of a season is continued by `seasonal_naive`.
    """
    regression = kernel_regression(history, horizon, max(season, horizon, SHORTEST_WINDOW))
    regression = regression or kernel_regression(history, horizon, max(season, 1))
    return seasonal_naive(history, horizon, season) if regression is None else regression.paths


BASELINES: dict[str, Baseline] = {
    "naive": naive,
    "seasonal_naive": seasonal_naive,
    "drift": drift,
    "kernel": kernel,
}


class KernelRegression(NamedTuple):
    """A forecast by past windows, with the attention weight of each of them."""

    mean: Numbers  # (horizon,), the context of attention
    paths: Numbers  # (PATHS, horizon), what followed windows that were drawn by their weights
    weights: Numbers  # (windows,), which sum to 1
    starts: NDArray[np.intp]  # (windows,), the index in the history of the first value that followed each window

    def map(self, length: int) -> Numbers:
        """The weights (horizon, length) by which each step looks at each value of a history of that length."""
        steps = np.arange(len(self.mean))
        weights = np.zeros((len(self.mean), length))
        weights[steps[:, None], self.starts + steps[:, None]] = self.weights
        return weights


@torch.no_grad()
def kernel_regression(history: Numbers, horizon: int, width: int) -> KernelRegression | None:
    """Attend from the last `width` values to all windows of that width; the values are what followed each of them.

    Weights are softmax(-|query - key|^2 / (2 h^2)), the score `gaussian`. The mean of a window is subtracted from it
    and from what followed, and the mean of the query is added, so that the level of a series does not matter. The
    bandwidth h is the one of five with which the last past windows would have been forecast with the least absolute
    error. A window with a missing value is left out; in the query, the last value before it takes its place. None if no
    window is left.
    """
    filled = _filled(history)
    size = width + horizon
    complete = ~np.isnan(history)
    masks = sliding_window_view(complete, size).all(-1) if len(history) >= size else np.zeros(0, dtype=bool)
    if not masks.any():
        return None
    windows = sliding_window_view(filled, size)[masks]
    starts = np.flatnonzero(masks) + width
    spread = filled.std() or 1.0
    level = filled[-width:].mean()
    levels = windows[:, :width].mean(-1, keepdims=True)
    keys = torch.from_numpy((windows[:, :width] - levels) / spread).unsqueeze(0)
    values = torch.from_numpy((windows[:, width:] - levels) / spread).unsqueeze(0)
    query = torch.from_numpy((filled[-width:] - level) / spread).view(1, 1, width)
    attended = attend(query, keys, values, score=_chosen_score(keys, values, starts, horizon))
    assert attended.weights is not None  # None only on fused paths, which this score has not
    weights = attended.weights.flatten().numpy()
    drawn = np.searchsorted(weights.cumsum(), (np.arange(PATHS) + 0.5) / PATHS)
    followed = values[0].numpy()[drawn.clip(max=len(weights) - 1)]
    mean = attended.context.flatten().numpy()
    return KernelRegression(level + spread * mean, level + spread * followed, weights, starts)


def _chosen_score(keys: Tensor, values: Tensor, starts: NDArray[np.intp], horizon: int) -> Gaussian:
    """The score `gaussian` with the bandwidth that is best for forecasts of past windows from the windows before."""
    ends = torch.from_numpy(starts)
    mask = ends + horizon <= ends[-TRIALS:].unsqueeze(-1)  # what followed had ended when the window of the trial did
    trials = mask.any(-1)

    def error(narrowness: float) -> float:
        context = attend(
            keys[:, -TRIALS:], keys, values, score=_score(keys.shape[-1], narrowness), mask=mask.unsqueeze(0)
        ).context
        return float((context - values[:, -TRIALS:])[:, trials].abs().sum())

    return _score(keys.shape[-1], min(NARROWNESS, key=error))


def _score(width: int, narrowness: float) -> Gaussian:
    score = Gaussian(query_dim=width, key_dim=width).double()
    score.weight.fill_(narrowness)
    return score


def _observed(history: Numbers) -> NDArray[np.intp]:
    """The indices of the values that are not missing."""
    known = np.flatnonzero(~np.isnan(history))
    if not len(known):
        raise DataError(f"none of the {len(history):,} past values of a series was observed, so it cannot be continued")
    return known


def _filled(history: Numbers) -> Numbers:
    """The history with the last observed value in place of a missing one; before the first, the first."""
    known = _observed(history)
    before = np.searchsorted(known, np.arange(len(history)), side="right") - 1
    return history[known[before.clip(min=0)]]
