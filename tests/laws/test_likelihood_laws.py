"""Laws of every likelihood of forecasts: density, draws, mean and gradients agree; a draw depends on its place only."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, distributions
from torch.distributions import Distribution
from torch.nn import functional

from regard.models.likelihoods import (
    FEW,
    FILL,
    FLOOR,
    LIKELIHOODS,
    Likelihood,
    _gamma,
    _philox,
    _poisson,
    series_key,
    uniform_numbers,
)

DOUBLE = torch.float64
CONTINUOUS = tuple(name for name in LIKELIHOODS if name != "negative_binomial")
every_likelihood = pytest.mark.parametrize("name", LIKELIHOODS)
every_continuous = pytest.mark.parametrize("name", CONTINUOUS)
# Network outputs and a scale: moderate, narrow, wide; small and large scales.
CASES = [([0.4, -0.3, 0.9], 1.0), ([1.5, -4.0, 3.0], 250.0), ([-1.2, 2.0, -3.0], 0.07)]
every_case = pytest.mark.parametrize(("raw", "scale"), CASES)
DRAWS = 20_000
STRANGEST = 1.95  # sqrt(n) times the Kolmogorov-Smirnov distance is larger in one of a thousand samples


def make(name: str) -> Likelihood:
    return LIKELIHOODS[name]()


def reference(name: str, raw: Tensor, scale: Tensor) -> Distribution:
    """The distribution of torch with the parameters that the docstrings state."""
    positive = torch.log1p(raw.exp()) + FLOOR
    if name == "gaussian":
        return distributions.Normal(scale * raw[..., 0], scale * positive[..., 1])
    if name == "student_t":
        return distributions.StudentT(2 + positive[..., 2], scale * raw[..., 0], scale * positive[..., 1])
    if name == "lognormal":
        return distributions.LogNormal(raw[..., 0] + scale.log(), positive[..., 1])
    mean, dispersion = scale * positive[..., 0], positive[..., 1] / scale.sqrt()
    return distributions.NegativeBinomial(1 / dispersion, probs=dispersion * mean / (1 + dispersion * mean))


def possible_values(name: str, *shape: int) -> Tensor:
    values = 3 * torch.randn(*shape, dtype=DOUBLE)
    if name == "negative_binomial":
        return values.square().round()
    return values.exp() if name == "lognormal" else values


def given(name: str, raw: list[float], scale: float) -> tuple[Tensor, Tensor]:
    return torch.tensor(raw[: LIKELIHOODS[name].parameters], dtype=DOUBLE), torch.tensor(scale, dtype=DOUBLE)


def table(name: str, raw: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Values that cover the distribution, and the probability of each, or of the interval up to the next."""
    likelihood = make(name)
    if name == "negative_binomial":
        values = torch.arange(200_000, dtype=DOUBLE)
        return values, likelihood.log_prob(raw.expand(len(values), -1), values, scale).exp()
    middle, width = raw[0], functional.softplus(raw[1]) + FLOOR
    steps = torch.linspace(-14, 14, 400_001, dtype=DOUBLE)
    values = scale * (middle + width * steps).exp() if name == "lognormal" else scale * (middle + width * steps.sinh())
    density = likelihood.log_prob(raw.expand(len(values), -1), values, scale).exp()
    return values, functional.pad((density[1:] + density[:-1]) / 2 * values.diff(), (1, 0))


def drawn(name: str, raw: Tensor, scale: Tensor, count: int = DRAWS) -> Tensor:
    likelihood = make(name)
    uniforms = uniform_numbers(5, [7], (count, 1, likelihood.uniforms)).reshape(count, -1)
    return likelihood.draw(raw.expand(count, -1), scale, uniforms)


def distance_from_uniform(numbers: Tensor) -> float:
    """The Kolmogorov-Smirnov distance times sqrt(n)."""
    ordered = numbers.double().flatten().sort().values
    count = len(ordered)
    ranks = torch.arange(count, dtype=DOUBLE) / count
    return float(torch.maximum(ordered - ranks, ranks + 1 / count - ordered).max()) * math.sqrt(count)


# Densities


@every_likelihood
def test_log_prob_is_that_of_the_stated_distribution(name: str) -> None:
    raw = 2 * torch.randn(3, 5, LIKELIHOODS[name].parameters, dtype=DOUBLE)
    scale = torch.tensor([[0.01], [1.0], [300.0]], dtype=DOUBLE)
    values = possible_values(name, 3, 5)
    expected = reference(name, raw, scale).log_prob(values)
    assert make(name).log_prob(raw, values, scale).shape == (3, 5)
    torch.testing.assert_close(make(name).log_prob(raw, values, scale), expected, rtol=1e-11, atol=1e-11)


@every_likelihood
@every_case
def test_probabilities_sum_to_one_and_give_the_mean(name: str, raw: list[float], scale: float) -> None:
    raw, scale = given(name, raw, scale)
    values, probabilities = table(name, raw, scale)
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-6)
    mean = float(make(name).mean(raw, scale))
    assert mean == pytest.approx(float(reference(name, raw, scale).mean), rel=1e-12)
    if name != "student_t":  # whose tails beyond the table still matter for the mean
        if name in CONTINUOUS:
            values = functional.pad((values[1:] + values[:-1]) / 2, (1, 0))
        assert float((values * probabilities).sum()) == pytest.approx(mean, rel=1e-5)


@every_continuous
def test_a_series_in_another_unit_has_a_shifted_log_density(name: str) -> None:
    raw = torch.randn(3, 5, LIKELIHOODS[name].parameters, dtype=DOUBLE)
    scale, values = torch.rand(3, 1, dtype=DOUBLE) + 0.1, possible_values(name, 3, 5)
    for unit in (1e-6, 7.0, 1e9):
        changed = make(name).log_prob(raw, unit * values, unit * scale)
        torch.testing.assert_close(changed, make(name).log_prob(raw, values, scale) - math.log(unit))
        uniforms = torch.rand(3, 5, LIKELIHOODS[name].uniforms, dtype=DOUBLE)
        in_unit = make(name).draw(raw, unit * scale, uniforms)
        torch.testing.assert_close(in_unit, unit * make(name).draw(raw, scale, uniforms))


@pytest.mark.parametrize("scale", [0.3, 1.0, 400.0])
def test_counts_have_the_stated_variance(scale: float) -> None:
    raw, scale = given("negative_binomial", [0.8, -0.5], scale)
    mean, dispersion = scale * (1.1711007 + FLOOR), (0.4740770 + FLOOR) / scale.sqrt()
    values, probabilities = table("negative_binomial", raw, scale)
    variance = ((values - mean).square() * probabilities).sum()
    torch.testing.assert_close(variance, mean + dispersion * mean.square(), rtol=1e-6, atol=0)


@every_likelihood
def test_float32_is_as_precise_as_it_can_be(name: str) -> None:
    """Also with counts of a million, next to no overdispersion and a million degrees of freedom."""
    raw = torch.tensor([[1.0, -1.0, 1e6], [1.0, -12.0, 2e3], [0.5, 1.0, 3.0]])[:, : LIKELIHOODS[name].parameters]
    scale, values = torch.tensor([1e6, 1e6, 2.0]), torch.tensor([1_310_000.0, 1_313_000.0, 3.0])
    result = make(name).log_prob(raw, values, scale)
    assert result.dtype == torch.float32
    precise = make(name).log_prob(raw.double(), values.double(), scale.double())
    torch.testing.assert_close(result, precise.float())


@every_likelihood
def test_the_precision_is_float32_at_least(name: str) -> None:
    likelihood = make(name)
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (DOUBLE, DOUBLE)):
        raw = torch.zeros(3, likelihood.parameters, dtype=dtype)
        scale, values = torch.ones(3, dtype=expected), torch.ones(3, dtype=expected)
        uniforms = torch.full((3, likelihood.uniforms), 0.3)
        assert likelihood.log_prob(raw, values, scale).dtype == expected
        assert likelihood.draw(raw, scale, uniforms).dtype == expected
        assert likelihood.mean(raw, scale).dtype == expected


# Gradients


@every_likelihood
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    raw = torch.randn(2, 3, LIKELIHOODS[name].parameters, dtype=DOUBLE, requires_grad=True)
    scale = (torch.rand(2, 1, dtype=DOUBLE) + 0.5).requires_grad_()
    values = possible_values(name, 2, 3)
    assert torch.autograd.gradcheck(lambda raw, scale: make(name).log_prob(raw, values, scale), (raw, scale))


@every_likelihood
@pytest.mark.parametrize("extreme", [-1e4, -100.0, 0.0, 100.0, 1e4])
@pytest.mark.parametrize(("value", "scale"), [(0.0, 1.0), (0.0, 1e-8), (1e6, 1.0), (1e6, 1e6), (1.0, 1e-8)])
def test_extreme_outputs_have_finite_log_probabilities_and_gradients(
    name: str, extreme: float, value: float, scale: float
) -> None:
    likelihood = make(name)
    if not likelihood.are_possible(np.array([value]))[0]:
        value = 1e-30
    raw = torch.full((likelihood.parameters, likelihood.parameters), 0.3)
    raw = raw.fill_diagonal_(extreme).requires_grad_()
    log_prob = likelihood.log_prob(raw, torch.full((likelihood.parameters,), value), torch.tensor(scale))
    assert log_prob.isfinite().all()
    log_prob.sum().backward()
    assert raw.grad.isfinite().all()
    for uniform in (2.0**-24, 0.5, 1 - 2.0**-24):
        uniforms = torch.full((likelihood.parameters, likelihood.uniforms), uniform)
        assert likelihood.draw(raw, torch.tensor(scale), uniforms).isfinite().all()
    assert likelihood.mean(raw, torch.tensor(scale)).isfinite().all()


@every_likelihood
def test_a_missing_value_reaches_no_gradient(name: str) -> None:
    likelihood = make(name)
    raw = torch.randn(3, 5, likelihood.parameters, dtype=DOUBLE)
    scale, values = torch.rand(3, 1, dtype=DOUBLE) + 0.5, possible_values(name, 3, 5)
    missing = torch.zeros(3, 5, dtype=torch.bool)
    missing[1, 2] = missing[2, 4] = True
    gradients = []
    for values_with in (values, values.masked_fill(missing, torch.nan)):
        outputs = raw.clone().requires_grad_()
        filled = torch.where(missing, FILL, values_with)
        torch.where(missing, 0.0, likelihood.log_prob(outputs, filled, scale)).sum().backward()
        gradients.append(outputs.grad)
    assert torch.equal(*gradients)
    assert gradients[0].isfinite().all()
    assert (gradients[0][missing] == 0).all()
    assert (gradients[0][~missing] != 0).any(-1).all()


# Draws


@every_likelihood
@every_case
def test_draws_follow_the_distribution(name: str, raw: list[float], scale: float) -> None:
    raw, scale = given(name, raw, scale)
    values, probabilities = table(name, raw, scale)
    cumulative = probabilities.cumsum(0).numpy()
    numbers = drawn(name, raw, scale).numpy()
    if name == "negative_binomial":  # a count stands for an interval of probabilities, of which one is drawn
        counts = numbers.astype(int)
        between = uniform_numbers(6, [8], (DRAWS, 1, 1)).flatten().numpy()
        ranks = cumulative[counts] - between * probabilities.numpy()[counts]
    else:
        ranks = np.interp(numbers, values.numpy(), cumulative)
    assert distance_from_uniform(torch.from_numpy(ranks)) < STRANGEST


@every_likelihood
@every_case
def test_the_mean_of_draws_is_the_mean(name: str, raw: list[float], scale: float) -> None:
    raw, scale = given(name, raw, scale)
    raw[1:] = raw[1:].clamp(-1, 1)  # with heavier tails, the mean of many draws is still far off
    numbers = drawn(name, raw, scale)
    error = numbers.std() / math.sqrt(DRAWS)
    assert abs(float(numbers.mean() - make(name).mean(raw, scale))) < 3.3 * float(error)


@every_likelihood
def test_batch_mates_change_no_draw(name: str) -> None:
    likelihood = make(name)
    raw, scale = torch.randn(5, 7, likelihood.parameters), torch.rand(5, 1) + 0.5
    uniforms = uniform_numbers(3, range(5), (7, 1, likelihood.uniforms))[:, :, 0]
    together = likelihood.draw(raw, scale, uniforms)
    assert together.shape == (5, 7)
    assert len(together.unique()) > 5
    for row in range(5):
        assert torch.equal(likelihood.draw(raw[row, 2:3], scale[row], uniforms[row, 2:3]), together[row, 2:3])


@pytest.mark.parametrize("shape", [0.02, 0.6, 1.0, 2.5, 40.0, 1e7])
def test_gamma_numbers_follow_their_distribution(shape: float) -> None:
    count = 200_000
    shapes = torch.full((count,), shape, dtype=DOUBLE)
    numbers = _gamma(shapes, uniform_numbers(1, [2], (count, 1, 7))[0, :, 0].double())
    if shape < 1e6:
        ranks = torch.special.gammainc(shapes, numbers)
    else:  # Wilson and Hilferty 1931; torch's function takes long for large numbers
        cube_root = ((numbers / shape) ** (1 / 3) - (1 - 1 / (9 * shape))) * 3 * math.sqrt(shape)
        ranks = torch.special.ndtr(cube_root)
    if shape < 0.1:  # most numbers are too small for a float
        ranks = ranks[numbers > 0]
    assert distance_from_uniform(ranks) < STRANGEST


@pytest.mark.parametrize("mean", [1e-9, 0.3, 7.0, 16.0, 16.01, 30.0, 300.0, 30_000.0])
def test_poisson_numbers_are_quantiles(mean: float) -> None:
    grid = 2**19
    uniforms = (torch.arange(grid, dtype=DOUBLE) + 0.5) / grid
    means = torch.full((grid,), mean, dtype=DOUBLE)
    counts = torch.arange(int(mean + 12 * math.sqrt(mean) + 40), dtype=DOUBLE)
    cumulative = torch.special.gammaincc(counts + 1, torch.tensor(mean, dtype=DOUBLE))
    expected = torch.searchsorted(cumulative, uniforms)
    differences = (_poisson(means, uniforms) - expected).abs()
    if mean <= FEW:
        assert not differences.any()
    else:
        assert differences.max() <= 1
        assert differences.mean() < 3e-4


# Values that are possible


@pytest.mark.parametrize(
    ("name", "values", "position", "reason"),
    [
        ("gaussian", [0.0, math.nan, -3.5, math.inf], 3, "inf where only finite numbers are possible"),
        ("student_t", [-math.inf, 1.0], 0, "-inf where only finite numbers are possible"),
        (
            "negative_binomial",
            [0, 4, math.nan, -2],
            3,
            r"-2 where only counts \(whole numbers from 0 on\) are possible",
        ),
        ("negative_binomial", [1e6, 2.5, -1], 1, r"2.5 where only counts \(whole numbers from 0 on\) are possible"),
        ("lognormal", [math.nan, 1e-9, 0.0], 2, "0 where only numbers above 0 are possible"),
    ],
)
def test_the_first_impossible_value_is_named(name: str, values: list[float], position: int, reason: str) -> None:
    impossible = make(name).impossible(np.array(values, dtype=np.float64))
    assert impossible is not None
    assert impossible.position == position
    assert impossible.reason == reason.replace("\\", "")
    assert make(name).impossible(np.array(values[:position], dtype=np.float64)) is None


@every_likelihood
def test_missing_values_are_filled_with_a_possible_one(name: str) -> None:
    assert make(name).impossible(np.array([FILL, math.nan])) is None


# Uniform numbers


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers that the authors publish with Random123
        ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0A4093822,
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_the_generator_is_philox(counter: list[int], key: int, expected: list[int]) -> None:
    words = _philox([np.array([word], dtype=np.uint64) for word in counter], key)
    assert [int(word[0]) for word in words] == expected


def numbers_of(seed: int, keys: list[int], shape: tuple[int, int, int]) -> NDArray[np.float32]:
    return uniform_numbers(seed, keys, shape).numpy()


def test_a_uniform_number_depends_on_its_place_alone() -> None:
    keys = [series_key(name) for name in ("a", "b", "H417", "Straße")]
    everything = numbers_of(3, keys, (7, 5, 6))
    assert everything.shape == (4, 7, 5, 6)
    for row, key in enumerate(keys):
        assert (numbers_of(3, [key], (7, 5, 6))[0] == everything[row]).all()
    assert (numbers_of(3, keys[::-1], (2, 3, 1)) == everything[::-1, :2, :3, :1]).all()
    assert (numbers_of(3, keys, (300, 90, 9))[:, :7, :5, :6] == everything).all()  # in several chunks


def test_all_uniform_numbers_differ_and_none_is_0_or_1() -> None:
    words = [numbers_of(seed, [4, 4 + 2**32], (30, 20, 5)) for seed in (0, 1, 2**32, -1)]
    distinct = np.unique(np.stack(words))
    assert distinct.size > 0.99 * np.stack(words).size  # of 24,000 numbers of 23 bits, a few are equal by chance
    many = numbers_of(9, range(20), (500, 50, 4))
    assert many.dtype == np.float32
    assert 0 < many.min() < 1e-6
    assert 1 - 1e-6 < many.max() < 1


def test_uniform_numbers_are_uniform_and_not_correlated() -> None:
    shape = (11, 13, 17, 6)  # series, paths, steps, numbers
    numbers = uniform_numbers(2, range(shape[0]), shape[1:])
    assert distance_from_uniform(numbers) < STRANGEST
    for axis, size in enumerate(shape):
        assert distance_from_uniform(numbers.select(axis, size - 1)) < STRANGEST
        rows = numbers.movedim(axis, 0).reshape(size, -1) - 0.5
        between = torch.corrcoef(rows)[*torch.triu_indices(size, size, 1)] * math.sqrt(rows.shape[1])
        assert between.abs().max() < 4.2  # of at most 136 almost normal numbers
        assert between.std() < 1.35


def test_names_have_keys_of_their_own() -> None:
    assert series_key("H1") == 14683136532060473684
    assert len({series_key(f"H{number}") for number in range(10_000)}) == 10_000
