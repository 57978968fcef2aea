"""Windows of series: parts of series as tensors, with what a forecaster reads at each step.

A window has `context` steps, whose values are known, and `horizon` steps after them, whose values are forecast or, in
training, known too. All windows of a forecaster have the same shape: steps before the first value of a series are there
as steps without an observed value. So neither padding nor other series change a window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.frequency import Frequency
from regard.data.series import Series
from regard.types import BatchFirst

LEAST_DEVIATION = 1e-6
MOST_WINDOWS = 262_144  # windows drawn for training, at most; when all are used, they are shuffled again
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class WindowShape:
    """The steps of every window, and how many steps back its inputs reach."""

    context: int
    horizon: int
    lags: tuple[int, ...]  # a step reads the values of so many steps before
    scaling: str = "mean"  # an entry of SCALINGS

    @property
    def steps(self) -> int:
        """All steps of a window."""
        return self.context + self.horizon

    @property
    def context_places(self) -> slice:
        """The places of the context among the values of a window."""
        return slice(self.before, self.before + self.context)

    @property
    def before(self) -> int:
        """Values before the first step that a window holds, since the lags of its first steps reach there."""
        return max(self.lags)


@dataclass(frozen=True)
class Windows(BatchFirst):
    """A batch of windows. Values are as in the data, and 0 where none was observed."""

    values: Float[Tensor, "batch before_and_steps"]
    observed: Bool[Tensor, "batch before_and_steps"]
    features: Float[Tensor, "batch steps features"]  # known at each step: the calendar, covariates, age
    categories: Int[Tensor, "batch columns"]
    location: Float[Tensor, " batch"]  # a model reads and forecasts (value - location) / scale
    scale: Float[Tensor, " batch"]  # positive
    counted: Bool[Tensor, "batch steps"]  # the steps whose values the loss counts
    examples: Int[Tensor, " batch"]  # the index of each window's series in the data


@dataclass(frozen=True)
class Standard:
    """Mean and standard deviation of each covariate in the training data, by which it is standardised."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @staticmethod
    def of(columns: Sequence[Numbers], count: int) -> "Standard":
        """Of the covariates of all series, each an array of steps x covariates; a constant one has deviation 1."""
        rows = np.concatenate([*columns, np.zeros((0, count))])
        seen = np.isfinite(rows)
        size = np.maximum(seen.sum(0), 1)
        mean = np.where(seen, rows, 0.0).sum(0) / size
        variance = np.where(seen, np.square(rows - mean), 0.0).sum(0) / size
        deviation = np.where(variance > 0, np.sqrt(variance), 1.0)
        return Standard(tuple(mean.tolist()), tuple(deviation.tolist()))

    def apply(self, covariates: Numbers) -> NDArray[np.float32]:
        """The standardised covariates; missing ones are 0, the mean."""
        standard = (covariates - np.asarray(self.mean)) / np.asarray(self.deviation)
        return np.nan_to_num(standard, nan=0.0, posinf=0.0, neginf=0.0).astype(np.float32)


@dataclass(frozen=True)
class Panel:
    """All series of the data in one array each, with empty steps around every series, and the windows in them."""

    shape: WindowShape
    values: Float[Tensor, " all"]
    observed: Bool[Tensor, " all"]
    features: Float[Tensor, "all features"]
    past: Float[Tensor, "all covariates"]  # covariates that are known only up to the present
    categories: Int[Tensor, "series columns"]
    firsts: Int[Tensor, " series"]  # the place of each series' first value
    lengths: Int[Tensor, " series"]
    rows: Int[Tensor, " windows"]  # the series of each window
    ends: Int[Tensor, " windows"]  # the number of the series' values before the window's horizon
    counts_context: bool = False  # whether the loss counts the context's steps, too, as in training

    @staticmethod
    def of(
        series: Sequence[Series],
        ends: Sequence[int],
        shape: WindowShape,
        categories: Int[Tensor, "series columns"],
        known: Standard,
        past: Standard,
    ) -> "Panel":
        """The panel of these series, with one window for each: its horizon begins after `ends` values."""
        margin = shape.before + shape.context
        sizes = np.asarray([margin + len(each.values) + shape.horizon for each in series])
        firsts = np.cumsum(sizes) - sizes + margin
        values, observed = np.zeros(sizes.sum(), np.float32), np.zeros(sizes.sum(), bool)
        width = count_features(series[0].frequency, len(known.mean), 0)
        features = np.zeros((sizes.sum(), width), np.float32)  # 0 before the first value of a series
        past_values = np.zeros((sizes.sum(), len(past.mean)), np.float32)
        for each, first in zip(series, firsts.tolist(), strict=True):
            here = slice(first, first + len(each.values))
            observed[here] = np.isfinite(each.values)
            values[here] = np.where(observed[here], each.values, 0.0)
            features[first : here.stop + shape.horizon] = step_features(each, shape.horizon, known)
            past_values[here] = past.apply(each.past)
        return Panel(
            shape,
            torch.from_numpy(values),
            torch.from_numpy(observed),
            torch.from_numpy(features),
            torch.from_numpy(past_values),
            categories,
            torch.from_numpy(firsts),
            torch.tensor([len(each.values) for each in series]),
            torch.arange(len(series)),
            torch.tensor([*ends], dtype=torch.long),
        )

    def only(self, indices: Int[Tensor, " some"]) -> "Panel":
        """The panel with these of its windows."""
        return replace(self, rows=self.rows[indices], ends=self.ends[indices])

    def drawn(self, seed: int, *, weighted: bool) -> "Panel":
        """The panel with windows for training, drawn at random from all that lie within the values of a series.

        If `weighted`, a series is drawn with a probability proportional to its mean absolute value (Salinas et al.
        2020, 3.4); otherwise every window is as probable. A series with too few values for the whole context has the
        windows with the fewest missing steps; one without any value before the horizon has none.
        """
        lasts = (self.lengths - self.shape.horizon).numpy()
        leasts = np.minimum(self.shape.context, lasts)
        counts = np.where(lasts >= 1, lasts - leasts + 1, 0)
        weights = counts * (self.mean_sizes().numpy() if weighted else 1.0)
        if not weights.sum() > 0:
            weights = counts.astype(float)
        total = int(min(counts.sum(), MOST_WINDOWS))
        generator = np.random.Generator(np.random.PCG64(seed))
        rows = generator.choice(len(counts), total, p=weights / weights.sum()) if total else np.zeros(0, np.int64)
        ends = leasts[rows] + (generator.random(total) * counts[rows]).astype(np.int64)
        return replace(self, rows=torch.from_numpy(rows), ends=torch.from_numpy(ends), counts_context=True)

    def mean_sizes(self) -> Float[Tensor, " series"]:
        """The mean absolute value of each series."""
        home = torch.repeat_interleave(torch.arange(len(self.lengths)), self.lengths)
        place = torch.arange(len(home)) - torch.repeat_interleave(self.lengths.cumsum(0) - self.lengths, self.lengths)
        places = self.firsts[home] + place
        sums = torch.zeros(len(self.lengths), dtype=torch.float64)
        sizes, counts = sums.clone(), sums.clone()
        sizes.index_add_(0, home, self.values[places].abs().double())
        counts.index_add_(0, home, self.observed[places].double())
        return sizes / counts.clamp(min=1)

    def collate(self, indices: Sequence[int]) -> Windows:
        """The windows with these numbers."""
        chosen, shape = torch.as_tensor(indices, dtype=torch.long), self.shape
        rows, ends = self.rows[chosen], self.ends[chosen]
        starts = (self.firsts[rows] + ends - shape.context).unsqueeze(1)
        places = starts + torch.arange(-shape.before, shape.steps)
        values, observed = self.values[places], self.observed[places]
        steps = places[:, shape.before :]
        known = torch.arange(shape.steps) <= shape.context  # a step reads the past covariates of the step before
        past = self.past[steps - 1] * known[:, None]
        context = shape.context_places
        location, scale = SCALINGS[shape.scaling](values[:, context], observed[:, context])
        counted = observed[:, shape.before :] & (self.counts_context | (torch.arange(shape.steps) >= shape.context))
        return Windows(
            values,
            observed,
            torch.cat([self.features[steps], past], dim=-1),
            self.categories[rows],
            location,
            torch.where(scale > 0, scale, 1.0),
            counted,
            rows,
        )


Scaled = tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]  # location and scale of each window


def mean_scaling(values: Float[Tensor, "batch context"], observed: Bool[Tensor, "batch context"]) -> Scaled:
    """Salinas et al. 2020, 3.3: values are divided by the mean absolute value of the context."""
    counts = observed.sum(1).clamp(min=1)
    return torch.zeros_like(values[:, 0]), torch.where(observed, values, 0.0).abs().sum(1) / counts


def standard_scaling(values: Float[Tensor, "batch context"], observed: Bool[Tensor, "batch context"]) -> Scaled:
    """The mean of the context is subtracted, and values are divided by its standard deviation.

    A deviation below a millionth of the mean is rounding: the context counts as constant.
    """
    counts = observed.sum(1).clamp(min=1)
    mean = torch.where(observed, values, 0.0).sum(1) / counts
    distances = torch.where(observed, values - mean.unsqueeze(1), 0.0)
    deviation = (distances.square().sum(1) / counts).sqrt()
    return mean, torch.where(deviation > LEAST_DEVIATION * mean.abs(), deviation, mean.abs())


SCALINGS: dict[str, Callable[[Tensor, Tensor], Scaled]] = {
    "mean": mean_scaling,
    "standard": standard_scaling,
}


def count_features(frequency: Frequency, known: int, past: int) -> int:
    """The number of features of a step, for so many covariates of each kind."""
    return len(frequency.features) + known + 1 + past


def step_features(series: Series, horizon: int, known: Standard) -> NDArray[np.float32]:
    """What is known at each step, from the first value of a series to `horizon` steps after the last.

    The calendar, the covariates that are known in advance, and the age of the series as a logarithm.
    """
    count = len(series.values) + horizon
    calendar = np.zeros((count, len(series.frequency.features)))  # 0 if the times are not known
    if series.start is not None:
        calendar = series.frequency.calendar(series.start, count)
    covariates = np.full((count, len(known.mean)), np.nan)
    given = series.known[:count]
    covariates[: len(given)] = given
    age = np.log10(2.0 + np.arange(count))[:, None] - 2.0
    return np.concatenate([calendar, known.apply(covariates), age], axis=1, dtype=np.float32)
