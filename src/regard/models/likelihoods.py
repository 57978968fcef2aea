"""Likelihoods of forecasts: the distributions of the next value that a network parametrises, step by step.

For each step the network gives `parameters` numbers, here `raw`. They describe values that were divided by the scale of
their series; `log_prob`, `draw` and `mean` are of the values themselves. A new likelihood is a class and a table entry.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Raw = Float[Tensor, "*batch parameters"]  # what the network gives
Values = Float[Tensor, "*batch"]
Scale = Float[Tensor, "*#batch"]  # of each series, positive
Uniforms = Float[Tensor, "*batch uniforms"]  # between 0 and 1, without both

FILL = 1.0  # for missing values: possible under every likelihood
FLOOR = 1e-5  # of deviations, means of counts and their overdispersion, so that log-probabilities stay finite
LARGEST_EXPONENT = 60.0  # of e, in values of `lognormal`: their products and squares stay finite in float32
LEAST_DEGREES = 2.0  # of freedom of `student_t`: only above 2 has it a variance


class Impossible(NamedTuple):
    """The first of some values that a likelihood cannot give."""

    position: int  # among the values
    reason: str  # the value and what is allowed, as a part of a sentence


class Likelihood(ABC):
    """A distribution of the next value, given the network's numbers for it and the scale of the series.

    Computes in float32 at least; float64 stays. Values must be possible and not NaN, also those that are masked later:
    replace missing ones first and leave their log-probabilities out afterwards,

        values = torch.where(observed, values, FILL)
        loss = -torch.where(observed, likelihood.log_prob(raw, values, scale), 0.0).sum()

    since a gradient of zero times NaN would be NaN.
    """

    parameters: ClassVar[int]  # numbers that the network gives for each step
    uniforms: ClassVar[int]  # uniform numbers that one draw takes
    support: ClassVar[str] = "finite numbers"  # the values that are possible, for messages
    is_real: ClassVar[bool] = True  # whether every finite number is possible

    @abstractmethod
    def log_prob(self, raw: Raw, values: Values, scale: Scale) -> Values:
        """The natural logarithm of the density of the values, or of their probability if they are counts."""

    @abstractmethod
    def draw(self, raw: Raw, scale: Scale, uniforms: Uniforms) -> Values:
        """Values drawn at random: a function of the uniform numbers, row by row, whatever the other rows are."""

    @abstractmethod
    def mean(self, raw: Raw, scale: Scale) -> Values:
        """The expected value."""

    def impossible(self, values: NDArray[np.float64]) -> Impossible | None:
        """The first of the values (time,) that this likelihood cannot give; None if there is none. NaN is missing."""
        wrong = np.flatnonzero(~np.isnan(values) & ~self.are_possible(values))
        if not len(wrong):
            return None
        return Impossible(int(wrong[0]), f"{values[wrong[0]]:g} where only {self.support} are possible")

    def are_possible(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which of the values this likelihood can give."""
        return np.isfinite(values)


class Gaussian(Likelihood):
    """The normal distribution:  value = scale (m + s e),  e ~ N(0, 1),  s = softplus(raw)."""

    parameters, uniforms = 2, 1

    def log_prob(self, raw: Raw, values: Values, scale: Scale) -> Values:
        """The normal log-density of value / scale, minus log scale."""
        location, deviation = _location_deviation(raw)
        return _normal_log_prob((values / scale - location) / deviation) - deviation.log() - scale.log()

    def draw(self, raw: Raw, scale: Scale, uniforms: Uniforms) -> Values:
        """By the inverse of the cumulative distribution."""
        location, deviation = _location_deviation(raw)
        return scale * (location + deviation * _normal(uniforms[..., 0], location))

    def mean(self, raw: Raw, scale: Scale) -> Values:
        """The location times the scale."""
        return scale * _location_deviation(raw)[0]


class StudentT(Likelihood):
    """Student's t, for outliers:  value = scale (m + s t),  t ~ t(v),  s = softplus(raw),  v = 2 + softplus(raw)."""

    parameters, uniforms = 3, 2

    def log_prob(self, raw: Raw, values: Values, scale: Scale) -> Values:
        """The log-density of t at (value / scale - m) / s, minus log s and log scale."""
        location, deviation = _location_deviation(raw)
        degrees = self._degrees(raw)
        distance = (values / scale - location) / deviation
        # In float64, because the two are large and almost equal if there are many degrees of freedom.
        half = degrees.double() / 2
        factor = (torch.lgamma(half + 0.5) - torch.lgamma(half)).to(degrees.dtype) - 0.5 * (math.pi * degrees).log()
        tail = (degrees + 1) / 2 * torch.log1p(distance.square() / degrees)
        return factor - tail - deviation.log() - scale.log()

    def draw(self, raw: Raw, scale: Scale, uniforms: Uniforms) -> Values:
        """Bailey 1994, polar form, exact:  t = sqrt(v (u1^(-2/v) - 1)) cos(2 pi u2)."""
        location, deviation = _location_deviation(raw)
        degrees = self._degrees(raw)
        first, second = uniforms.to(location.dtype).unbind(-1)
        radius = (degrees * torch.expm1(-2 / degrees * first.log())).sqrt()
        return scale * (location + deviation * radius * torch.cos(2 * math.pi * second))

    def mean(self, raw: Raw, scale: Scale) -> Values:
        """The location times the scale."""
        return scale * _location_deviation(raw)[0]

    def _degrees(self, raw: Raw) -> Values:
        return LEAST_DEGREES + _positive(raw[..., 2])


class NegativeBinomial(Likelihood):
    """Salinas et al. 2020, counts:  variance = mu + alpha mu^2,  mu = scale m,  alpha = a / sqrt(scale).

    m and a are softplus(raw). With r = 1 / alpha,
    p(k) = Gamma(k + r) / (k! Gamma(r)) (r / (r + mu))^r (mu / (r + mu))^k.
    """

    parameters, uniforms = 2, 8
    support = "counts (whole numbers from 0 on)"
    is_real = False

    CANDIDATES: ClassVar[int] = 3  # of the gamma distribution for each draw, each with two uniform numbers

    def log_prob(self, raw: Raw, values: Values, scale: Scale) -> Values:
        """The log-probability, computed in float64, because the logarithm of k! is above 10^7 for a k of a million."""
        mean, rate = self._mean_rate(raw, scale)
        counts = values.double()
        ways = torch.lgamma(counts + rate) - torch.lgamma(rate) - torch.lgamma(counts + 1)
        odds = counts * (mean.log() - (rate + mean).log()) - rate * torch.log1p(mean / rate)
        return (ways + odds).to(_precision(raw))

    @torch.no_grad()  # counts have no gradient
    def draw(self, raw: Raw, scale: Scale, uniforms: Uniforms) -> Values:
        """A Poisson number whose mean was drawn from a gamma distribution of shape r and mean mu.

        It is not quite exact: the gamma number is wrong with a probability of 1e-4, the Poisson number with 3e-4, by 1.
        """
        mean, rate = self._mean_rate(raw, scale)
        numbers = uniforms.double()
        gamma = _gamma(rate, numbers[..., 1:])
        return _poisson(gamma * mean / rate, numbers[..., 0]).to(_precision(raw))

    def mean(self, raw: Raw, scale: Scale) -> Values:
        """The location times the scale."""
        return scale * _positive(raw[..., 0])

    def are_possible(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whole numbers from 0 on."""
        return np.isfinite(values) & (values >= 0) & (values == np.floor(values))

    def _mean_rate(self, raw: Raw, scale: Scale) -> tuple[Values, Values]:
        """The mean mu and the rate r, in float64."""
        mean, dispersion = _positive(raw.double()).unbind(-1)
        scale = scale.double()
        return scale * mean, scale.sqrt() / dispersion


class LogNormal(Likelihood):
    """Positive values whose logarithm is normal:  value = scale exp(m + s e),  e ~ N(0, 1),  s = softplus(raw)."""

    parameters, uniforms = 2, 1
    support = "numbers above 0"
    is_real = False

    def log_prob(self, raw: Raw, values: Values, scale: Scale) -> Values:
        """The normal log-density of log(value / scale), minus log value."""
        location, deviation = _location_deviation(raw)
        distance = ((values / scale).log() - location) / deviation
        return _normal_log_prob(distance) - deviation.log() - values.log()

    def draw(self, raw: Raw, scale: Scale, uniforms: Uniforms) -> Values:
        """By the inverse of the cumulative distribution."""
        location, deviation = _location_deviation(raw)
        return scale * _bounded_exponential(location + deviation * _normal(uniforms[..., 0], location))

    def mean(self, raw: Raw, scale: Scale) -> Values:
        """The scale times exp(m + s^2 / 2)."""
        location, deviation = _location_deviation(raw)
        return scale * _bounded_exponential(location + deviation.square() / 2)

    def are_possible(self, values: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Numbers above 0."""
        return np.isfinite(values) & (values > 0)


def around(raw: Raw, centre: Values) -> Raw:
    """The network's numbers for a distribution of any number, with a location that it counts from a centre.

    location = centre + deviation m:  if the deviation is small, so is the distance.
    """
    location, deviation = _location_deviation(raw)
    return torch.cat([(centre + deviation * location).unsqueeze(-1), raw[..., 1:]], dim=-1)


LIKELIHOODS: dict[str, type[Likelihood]] = {
    "gaussian": Gaussian,
    "student_t": StudentT,
    "negative_binomial": NegativeBinomial,
    "lognormal": LogNormal,
}


def _precision(raw: Tensor) -> torch.dtype:
    return torch.promote_types(raw.dtype, torch.float32)


def _positive(raw: Tensor) -> Tensor:
    """softplus(raw), and a little more: its logarithm is finite for every raw."""
    return functional.softplus(raw.to(_precision(raw))) + FLOOR


def _location_deviation(raw: Raw) -> tuple[Values, Values]:
    return raw[..., 0].to(_precision(raw)), _positive(raw[..., 1])


def _normal_log_prob(distance: Values) -> Values:
    return -0.5 * distance.square() - 0.5 * math.log(2 * math.pi)


def _normal(uniforms: Tensor, like: Tensor) -> Tensor:
    """Standard normal numbers, by the inverse of the cumulative distribution, in the precision of `like`."""
    return torch.special.ndtri(uniforms.to(like.dtype))


def _bounded_exponential(exponent: Tensor) -> Tensor:
    return exponent.clamp(max=LARGEST_EXPONENT).exp()


# Numbers of the gamma and Poisson distributions, with a fixed number of steps: a GPU need not wait for a condition.


def _gamma(shape: Float[Tensor, "*batch"], uniforms: Float[Tensor, "*batch numbers"]) -> Float[Tensor, "*batch"]:
    """Marsaglia and Tsang 2000: gamma numbers of scale 1, by rejection, from the first candidate that is accepted.

    One in 20 candidates at most is rejected. The last is taken even if it should be rejected.
    """
    larger = torch.where(shape < 1, shape + 1, shape)  # for shapes below 1: gamma(shape + 1) u^(1 / shape)
    d = larger - 1 / 3
    gamma = torch.zeros_like(d)
    first, *pairs = uniforms.split([1] + [2] * NegativeBinomial.CANDIDATES, dim=-1)
    for number, pair in enumerate(reversed(pairs)):
        normal = torch.special.ndtri(pair[..., 0])
        root = (1 + normal / (9 * d).sqrt()).clamp(min=0)
        cube = root**3
        accepted = pair[..., 1].log() < 0.5 * normal.square() + d * (1 - cube + cube.log())
        gamma = torch.where(accepted | (number == 0), d * cube, gamma)
    return torch.where(shape < 1, gamma * (first.squeeze(-1).log() / shape).exp(), gamma)


FEW = 16  # the mean up to which Poisson numbers are counted up from 0
MOST_OF_FEW = 42  # a Poisson number of mean 16 is larger with a probability below 2^-24, the least uniform number


def _poisson(mean: Float[Tensor, "*batch"], uniforms: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Poisson numbers, by the inverse of the cumulative distribution.

    It is exact for means up to 16; above, by its expansion to the order 1 / mean (Giles 2016), 1 too high or low with a
    probability of at most 3e-4.
    """
    few = mean.clamp(max=FEW)
    probability = (-few).exp()
    total, count = probability.clone(), torch.zeros_like(few)
    for number in range(1, MOST_OF_FEW + 1):
        count += uniforms > total
        probability *= few
        probability /= number
        total += probability
    many = mean.clamp(min=FEW)
    normal = torch.special.ndtri(uniforms)
    square = normal.square()
    expansion = many + many.sqrt() * normal + (1 / 3 + square / 6) - normal * (1 / 36 + square / 72) / many.sqrt()
    expansion = expansion + (-8 / 405 + 7 * square / 810 + square.square() / 270) / many
    return torch.where(mean <= FEW, count, expansion.floor().clamp(min=0))


# Uniform random numbers as a function of where they are used, not of what was drawn before.

MASK = 2**64 - 1
WORD, HALF = np.uint64(2**32 - 1), np.uint64(32)
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
INCREMENTS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
ROUNDS = 10
BLOCK, BLOCK_BITS = 4, np.uint64(8)  # numbers of one counter; bits of the counter's index in a step
DROPPED = np.uint64(9)  # bits of a word of 32: the other 23 and a half are exact in float32
CHUNK = 2**13  # counters that are computed at once: they stay in the processor's cache


def series_key(name: str) -> int:
    """A number of 64 bits for the name of a series, for `uniform_numbers`: another name gives another number."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def uniform_numbers(
    seed: int, keys: Sequence[int], shape: tuple[int, int, int]
) -> Float[Tensor, "series paths steps numbers"]:
    """Uniform random numbers between 0 and 1, without both, for each series, and `shape`: paths, steps, numbers.

    Each number is a function of the seed, the key of its series (`series_key`), and its own path, step and index alone:
    other series, more paths or more steps change none. It is the same on every machine and device; the tensor is on the
    CPU. The generator is Philox 4x32-10 (Salmon et al. 2011): a cipher of the place, under the seed as its key.
    """
    paths, steps, numbers = shape
    blocks = -(-numbers // BLOCK)
    path, step, block = np.indices((paths, steps, blocks), dtype=np.uint64).reshape(3, -1)
    series = np.array([key & MASK for key in keys], dtype=np.uint64).reshape(-1, 1)
    bits = np.empty((len(series), paths * steps * blocks, BLOCK), dtype=np.float32)
    rows = max(1, CHUNK // max(1, bits.shape[1]))
    for start in range(0, len(series), rows):
        chunk = series[start : start + rows]
        place = np.broadcast_arrays(chunk & WORD, chunk >> HALF, path, step << BLOCK_BITS | block)
        for index, word in enumerate(_philox(place, seed & MASK)):
            bits[start : start + rows, :, index] = word >> DROPPED
    bits += np.float32(0.5)  # so that no number is 0
    bits *= np.float32(2.0**-23)
    return torch.from_numpy(bits.reshape(len(series), paths, steps, -1)[..., :numbers])


def _philox(counter: Sequence[NDArray[np.uint64]], key: int) -> Sequence[NDArray[np.uint64]]:
    """Philox 4x32-10: four random words of 32 bits for every four words of the counter, in arrays of 64 bits."""
    first, second, third, fourth = counter
    low, high = np.uint64(key) & WORD, np.uint64(key) >> HALF
    for _ in range(ROUNDS):
        left, right = first * MULTIPLIERS[0], third * MULTIPLIERS[1]
        first, second = (right >> HALF) ^ second ^ low, right & WORD
        third, fourth = (left >> HALF) ^ fourth ^ high, left & WORD
        low, high = (low + INCREMENTS[0]) & WORD, (high + INCREMENTS[1]) & WORD
    return first, second, third, fourth
