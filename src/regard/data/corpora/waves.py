"""Time series of known processes, so that a forecast can be compared with the best one there is."""

import random
import re
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.data.corpora.core import Splits, belongs
from regard.data.frequency import Frequency, Numbers
from regard.data.series import Series
from regard.errors import DataError, pick, shown
from regard.types import Example

TEST, DEV = 200, 100  # series
STEPS, HORIZON = 400, 24  # of a series, and how many of them, the last ones, are to be forecast
SEASON = 24
FREQUENCY = Frequency("hour")
PREFIX = "waves:"
SEEDS = 2**32
FIRST, HOURS = np.datetime64("2020-01-01T00:00:00"), 5 * 365 * 24  # series begin in one of so many hours
SCALE = (0.0, 2.0)  # decimal logarithm of the scale of a series, the least and the largest
DIGITS = 4  # decimals of a value at scale 1
NAME = re.compile(rf"{PREFIX}([a-z_]+(?:-[0-9]{{1,3}})?):([0-9]{{1,10}})")

Paths = NDArray[np.float64]  # (samples, steps)


class Process(Protocol):
    """A process in units of its scale: how its values go on from a history.

    A series is generated as a continuation of an empty history, so that truth and data cannot differ.
    """

    @property
    def lags(self) -> tuple[int, ...]:
        """The steps back that the distribution of a value depends on; () if it is no fixed number of steps."""

    @property
    def is_scaled(self) -> bool:
        """Whether values are multiplied with the scale of the series; counts are not."""

    def paths(self, history: Numbers, steps: int, samples: int, generator: np.random.RandomState) -> Paths:
        """Samples of the next values, given all values before."""


class Echo(NamedTuple):
    """x[t] = level + weight (x[t - lag] - level) + sqrt(1 - weight²) e, with normal e: `lag` independent chains.

    No other value than x[t - lag] says anything about x[t], and that one much. The variance is 1. Before the first
    value, x is drawn from the same distribution, or if `is_smooth`, it is a sine of one cycle.
    """

    lag: int
    weight: float
    level: float = 0.0
    is_smooth: bool = False
    is_scaled: bool = True

    @property
    def lags(self) -> tuple[int, ...]:
        """The one lag."""
        return (self.lag,)

    def paths(self, history: Numbers, steps: int, samples: int, generator: np.random.RandomState) -> Paths:
        """Exact if the history is not shorter than the lag."""
        values = _started(history - self.level, self.before(samples, generator), steps)
        noise = np.sqrt(1 - self.weight**2) * generator.standard_normal((samples, steps))
        for start in range(0, steps, self.lag):
            stop = min(steps, start + self.lag)
            values[:, start + self.lag : stop + self.lag] = self.weight * values[:, start:stop] + noise[:, start:stop]
        return values[:, self.lag :] + self.level

    def before(self, samples: int, generator: np.random.RandomState) -> Paths:
        """The values before the first, without the level."""
        if not self.is_smooth:
            return generator.standard_normal((samples, self.lag))
        phases = generator.uniform(size=(samples, 1)) + np.arange(self.lag) / self.lag
        return np.sqrt(2) * np.sin(2 * np.pi * phases)


class Growth(NamedTuple):
    """x[t] = x[t - 1] (1 + rate + noise e), with normal e: a trend of so much per step; x begins at about 1."""

    rate: float
    noise: float
    lags: tuple[int, ...] = (1,)
    is_scaled: bool = True

    def paths(self, history: Numbers, steps: int, samples: int, generator: np.random.RandomState) -> Paths:
        """Exact."""
        last = _started(history, generator.uniform(0.5, 1.5, (samples, 1)), 0)
        factors = 1 + self.rate + self.noise * generator.standard_normal((samples, steps))
        return last * np.cumprod(factors, axis=1)


class Shifts(NamedTuple):
    """x[t] = level + noise e, with normal e; with a small probability, the level of a step is drawn anew.

    Levels are normal, with mean `level` and variance 1. They are hidden: their distribution given the history is a
    mixture over the step of the last shift, which is computed exactly (Adams and MacKay 2007).
    """

    probability: float
    noise: float
    level: float
    lags: tuple[int, ...] = ()
    is_scaled: bool = True

    def paths(self, history: Numbers, steps: int, samples: int, generator: np.random.RandomState) -> Paths:
        """Exact."""
        means, variances, weights = self.beliefs(history)
        runs = np.searchsorted(np.cumsum(weights[:-1]), generator.uniform(size=samples), side="right")
        now = means[runs] + np.sqrt(variances[runs]) * generator.standard_normal(samples)
        levels = np.concatenate([now[:, None], self.level + generator.standard_normal((samples, steps))], axis=1)
        is_shift = generator.uniform(size=(samples, steps)) < self.probability
        last_shift = np.maximum.accumulate(np.where(is_shift, np.arange(1, steps + 1), 0), axis=1)
        drawn = np.take_along_axis(levels, last_shift, axis=1)
        return drawn + self.noise * generator.standard_normal((samples, steps))

    def beliefs(self, history: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Mean, variance and weight of each component of the level after the history, by the step of the last shift."""
        means, variances, weights = np.array([self.level]), np.ones(1), np.ones(1)
        for index, value in enumerate(history):
            if index:  # the level may have shifted before this value
                weights = np.append(weights * (1 - self.probability), self.probability)
                means, variances = np.append(means, self.level), np.append(variances, 1.0)
            total = variances + self.noise**2
            exponents = (value - means) ** 2 / total / 2
            weights = weights * np.exp(exponents.min() - exponents) / np.sqrt(total)
            weights = weights / weights.sum()
            means = means + variances / total * (value - means)
            variances = variances * self.noise**2 / total
        return means, variances, weights


class Orders(NamedTuple):
    """Counts with many zeros: x[t] > 0 is likely if x[t - lag] > 0; what is above 0 is 1 plus a Poisson number."""

    lag: int
    again: float  # probability that a value is above 0, if the one a lag before is
    anew: float  # and if not
    mean: float  # of what is above 1
    is_scaled: bool = False

    @property
    def lags(self) -> tuple[int, ...]:
        """The one lag."""
        return (self.lag,)

    def paths(self, history: Numbers, steps: int, samples: int, generator: np.random.RandomState) -> Paths:
        """Exact if the history is not shorter than the lag."""
        before = generator.uniform(size=(samples, self.lag)) < self.anew / (1 - self.again + self.anew)
        ordered = _started(history, before.astype(np.float64), steps) > 0
        draws = generator.uniform(size=(samples, steps))
        for start in range(0, steps, self.lag):
            stop = min(steps, start + self.lag)
            chances = np.where(ordered[:, start:stop], self.again, self.anew)
            ordered[:, start + self.lag : stop + self.lag] = draws[:, start:stop] < chances
        return ordered[:, self.lag :] * (1.0 + generator.poisson(self.mean, (samples, steps)))


def _started(history: Numbers, before: Paths, steps: int) -> Paths:
    """For each sample the last values, as many as `before` has, and room for the next `steps`.

    They are those of the history; if it is too short, those of `before` come first.
    """
    samples, lag = before.shape
    values = np.empty((samples, lag + steps))
    recent = history[-lag:]
    values[:, :lag] = before
    values[:, lag - len(recent) : lag] = recent
    return values


LAGS = (5, 7, 11, 13)  # of lagged series
KINDS: dict[str, Process] = {
    **{f"lagged-{lag}": Echo(lag, weight=0.95) for lag in LAGS},
    "seasonal": Echo(SEASON, weight=0.97, level=2.5, is_smooth=True),
    "trended": Growth(rate=0.005, noise=0.015),
    "level_shifted": Shifts(probability=1 / 80, noise=0.2, level=2.5),
    "intermittent": Orders(lag=7, again=0.8, anew=0.1, mean=2.0),
}
ORDER = (*KINDS, "seasonal", "trended")  # of the series of a corpus, again and again


class Truth(NamedTuple):
    """The process of a series."""

    kind: str  # an entry of KINDS
    process: Process
    scale: float  # that its values are multiplied with

    @property
    def lags(self) -> tuple[int, ...]:
        """The steps back that the distribution of a value depends on; () if it is no fixed number of steps."""
        return self.process.lags

    @property
    def categories(self) -> tuple[str, str]:
        """What a series says about its process: the kind, and the lag."""
        return self.kind.partition("-")[0], "-".join(map(str, self.lags)) or "none"


class _Drawn(NamedTuple):
    """What follows from the name of a series."""

    truth: Truth
    start: np.datetime64
    seed: int


def waves(seed: int, size: int) -> Splits:
    """Hourly series of known processes: seasonal, trended, level-shifted, intermittent, and lagged ones.

    The target of an example is the series as text, its group the kind; see `draw_series`.
    """
    train, dev, test = (
        [Example(one.name, one.to_text(), one.categories[0], one.origin) for one in draw_series(seed, size, part)]
        for part in ("train", "dev", "test")
    )
    return Splits(train, dev, test)


def draw_series(seed: int, size: int, part: str = "train") -> list[Series]:
    """The series of a part of the corpus: train, dev or test.

    A name such as `waves:lagged-7:2071` says all about a series: `wave` generates it, `truth` returns its process and
    the lags that generate it, and `true_paths` continues any history of it as the process does. So the score of a
    forecast can be compared with that of the truth, and a map of attention with the lag. All series of a kind have
    the same process, but for the scale, so that what is learned from some holds for others; kind and lag are their
    categories. Six of ten are lagged or seasonal: then exactly one value of the past is of any use.

    No series is in two parts. Dev and test are the same for every seed and size.
    The last HORIZON of the STEPS of a series are meant to be forecast. Noise is normal, except for the few intermittent
    series, whose values are small counts.
    """
    count = pick({"train": size, "dev": DEV, "test": TEST}, part, "part of the corpus")
    generator = random.Random(f"waves:train:{seed}" if part == "train" else f"waves:{part}")
    return [wave(_name(index, part, generator), origin=f"{PREFIX}{part}:{index + 1}") for index in range(count)]


def _name(index: int, part: str, generator: random.Random) -> str:
    while True:
        name = f"{PREFIX}{ORDER[index % len(ORDER)]}:{generator.randrange(SEEDS)}"
        if belongs(name, part):
            return name


def wave(name: str, steps: int = STEPS, origin: str = "") -> Series:
    """The series of a name; of some kinds, another number of steps has other values from the first on."""
    truth, start, seed = _drawn(name)
    # RandomState, because numpy keeps its numbers the same in all versions, which it does not promise for others.
    generator = np.random.RandomState(seed)
    values = truth.scale * truth.process.paths(np.zeros(0), steps, 1, generator)[0]
    decimals = DIGITS - int(np.log10(truth.scale))  # the rounding of other machines is rounded away
    return Series(name, np.round(values, decimals), FREQUENCY, start, categories=truth.categories, origin=origin)


def truth(series: str) -> Truth:
    """The process of a series, by its name or its text."""
    return _drawn(_name_of(series)).truth


def _name_of(series: str) -> str:
    return Series.from_text(series).name if series.startswith("{") else series


def true_paths(series: str, history: Numbers, horizon: int, samples: int, seed: int = 0) -> Paths:
    """Samples of the next `horizon` values of a series, given its values up to now: (samples, horizon).

    They are drawn from the true distribution: exactly, if the history is not shorter than the lag. `series` is the name
    of the series, or its text.
    """
    name = _name_of(series)
    kind, process, scale = truth(name)
    if np.isnan(history).any():
        raise DataError(
            f"a history of {kind} with missing values; give one without, so that its future is known exactly"
        )
    generator = np.random.RandomState(random.Random(f"{name}:{seed}").randrange(SEEDS))
    return scale * process.paths(history / scale, horizon, samples, generator)


@lru_cache(maxsize=1024)
def _drawn(name: str) -> _Drawn:
    """Parses a name, and draws the scale and the start of its series from it."""
    match = NAME.fullmatch(name)
    if match is None or int(match[2]) >= SEEDS:
        form = f"{PREFIX}KIND:NUMBER, for example {PREFIX}{ORDER[0]}:7, with a number below 2**32"
        raise DataError(f"{shown(name)} is no series of the corpus waves; write {form}")
    process = pick(KINDS, match[1], "kind of series")
    generator = random.Random(name)
    scale = 10 ** generator.uniform(*SCALE) if process.is_scaled else 1.0
    start = FIRST + np.timedelta64(generator.randrange(HOURS), "h")
    return _Drawn(Truth(match[1], process, scale), start, generator.randrange(SEEDS))
