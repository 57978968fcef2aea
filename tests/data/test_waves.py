"""The corpus waves: its series follow the processes that it says, and the true paths continue them."""

import random
import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from regard.data.corpora.waves import (
    DEV,
    HORIZON,
    KINDS,
    LAGS,
    ORDER,
    STEPS,
    TEST,
    Shifts,
    draw_series,
    true_paths,
    truth,
    wave,
)
from regard.data.frequency import Frequency
from regard.data.series import Series, is_no_count
from regard.errors import DataError, RegardError


@pytest.fixture(scope="module")
def train():
    return draw_series(1, 300)


@pytest.fixture(scope="module")
def held_out():
    return draw_series(1, 0, "test")


def of_kind(series, kind):
    return [one for one in series if truth(one.name).kind == kind]


def scaled(series):
    return series.values / truth(series.name).scale


def crps(paths, values):
    """Of each step: mean |path - value| - mean |path - path'| / 2, of all pairs of two paths."""
    samples = len(paths)
    weights = 2 * np.arange(1, samples + 1) - samples - 1
    spread = (weights[:, None] * np.sort(paths, axis=0)).sum(0) / (samples * (samples - 1))
    return np.abs(paths - values).mean(0) - spread


def test_the_same_arguments_give_the_same_series(train):
    assert draw_series(1, 300) == train
    assert draw_series(1, 30) == train[:30]
    assert draw_series(2, 30) != train[:30]
    for part, count in (("dev", DEV), ("test", TEST)):
        assert draw_series(1, 5, part) == draw_series(2, 7, part)
        assert len(draw_series(1, 5, part)) == count


def test_series_are_generated_from_their_names_alone(train):
    assert [wave(one.name) for one in train[:10]] == train[:10]
    assert truth(train[0].to_text()) == truth(train[0].name)
    assert Series.from_text(train[0].to_text()) == train[0]


def test_no_series_is_in_two_parts(train):
    names = [one.name for part in ("dev", "test") for one in draw_series(1, 0, part)] + [one.name for one in train]
    assert len(set(names)) == len(names)


def test_all_kinds_are_there_with_their_categories(train):
    assert Counter(truth(one.name).kind for one in train) == Counter({kind: 30 * ORDER.count(kind) for kind in KINDS})
    assert {one.categories for one in train} == {
        *(("lagged", str(lag)) for lag in LAGS),
        *(("seasonal", "24"), ("trended", "1"), ("level_shifted", "none"), ("intermittent", "7")),
    }
    assert all(len(one) == STEPS and one.missing == 0 and one.frequency == Frequency("hour") for one in train)
    assert all(one.calendar().shape == (STEPS, 4) for one in train[:3])


@pytest.mark.parametrize("kind", [f"lagged-{lag}" for lag in LAGS])
def test_of_a_lagged_series_only_the_value_at_the_lag_helps(train, kind):
    values = np.stack([scaled(one) for one in of_kind(train, kind)])
    (lag,) = truth(of_kind(train, kind)[0].name).lags
    correlations = [float((values[:, back:] * values[:, :-back]).mean()) for back in range(1, 24)]
    assert np.argmax(np.abs(correlations)) + 1 == lag
    assert correlations[lag - 1] == pytest.approx(0.95, abs=0.1)
    others = [value for back, value in enumerate(correlations, start=1) if back % lag]
    assert np.abs(others).max() < 0.2
    assert values.std() == pytest.approx(1, abs=0.1)


def test_seasonal_series_repeat_and_trended_ones_grow(train):
    seasonal = np.stack([scaled(one) for one in of_kind(train, "seasonal")]) - 2.5
    assert np.mean(seasonal[:, 24:] * seasonal[:, :-24]) == pytest.approx(0.97, abs=0.1)
    smooth = seasonal[:, :24]
    assert np.abs(np.diff(smooth)).mean() < np.abs(np.diff(seasonal[:, -24:])).mean()
    trended = np.stack([scaled(one) for one in of_kind(train, "trended")])
    growth = trended[:, 1:] / trended[:, :-1] - 1
    assert [growth.mean(), growth.std()] == pytest.approx([0.005, 0.015], abs=0.0005)


def test_intermittent_series_are_counts_with_many_zeros(train):
    values = np.stack([one.values for one in of_kind(train, "intermittent")])
    assert not is_no_count(values).any()
    assert (values == 0).mean() == pytest.approx(2 / 3, abs=0.03)
    assert (values[:, 7:][values[:, :-7] > 0] > 0).mean() == pytest.approx(0.8, abs=0.03)


def test_scales_differ(train):
    scales = [truth(one.name).scale for one in train if truth(one.name).process.is_scaled]
    assert min(scales) < 2 < 50 < max(scales)


@pytest.mark.parametrize("kind", KINDS)
def test_true_paths_go_on_as_the_series_does(kind):
    """Rank of the true value among the paths: its mean and variance are those of a uniform number."""
    ranks, generator = [], random.Random(f"ranks {kind}")
    for _ in range(300):
        series = wave(f"waves:{kind}:{generator.randrange(2**32)}", 90)
        now, later = series.values[:-HORIZON], series.values[-HORIZON:]
        paths = true_paths(series.name, now, HORIZON, samples=99, seed=3)
        assert paths.shape == (99, HORIZON)
        draws = np.random.RandomState(generator.randrange(2**32)).uniform(size=HORIZON)
        ranks.append(((paths < later).sum(0) + draws * ((paths == later).sum(0) + 1)) / 100)  # ties are broken by draws
    assert np.mean(ranks) == pytest.approx(0.5, abs=0.03)
    assert np.mean(ranks, axis=0) == pytest.approx(np.full(HORIZON, 0.5), abs=0.07)
    assert np.var(ranks, axis=0) == pytest.approx(np.full(HORIZON, 1 / 12), abs=0.02)


def test_true_paths_are_better_than_naive_ones_and_cover_what_they_say(held_out):
    scores, naive, covered = [], [], []
    for series in held_out:
        now, later = series.values[:-HORIZON], series.values[-HORIZON:]
        scale = truth(series.name).scale
        paths = true_paths(series.name, now, HORIZON, samples=100)
        low, high = np.quantile(paths, [0.05, 0.95], axis=0)
        covered.append((low <= later) & (later <= high))
        scores.append(crps(paths, later).mean() / scale)
        naive.append(min(np.abs(now[-1] - later).mean(), np.abs(now[-24:] - later).mean()) / scale)
    assert 0.87 < np.mean(covered) < 0.93
    assert np.mean(scores) < 0.5 * np.mean(naive)


def test_paths_are_those_of_the_seed_and_follow_the_history():
    series = wave("waves:lagged-5:7")
    first, same, other = (true_paths(series.name, series.values, 7, 11, seed) for seed in (1, 1, 2))
    assert (first == same).all()
    assert (first != other).all()
    changed = series.values.copy()
    changed[-5] += 100  # the value a lag before the first step, and no other of these
    difference = true_paths(series.name, changed, 7, 11, 1) - first
    assert difference[:, 0] == pytest.approx(95)
    assert difference[:, 1:5] == pytest.approx(0)
    assert difference[:, 5] == pytest.approx(95 * 0.95)


def test_the_beliefs_about_a_hidden_level_are_those_of_all_its_shifts():
    """The filter against a sum over all 2 ** 5 ways to shift, each with the densities of its values."""
    process = Shifts(probability=0.2, noise=0.3, level=2.5)
    history = np.array([2.0, 2.4, 0.1, 0.2, 3.0, 2.9])
    total, mean, second = 0.0, 0.0, 0.0
    for code in range(2 ** (len(history) - 1)):
        shifts = [code >> bit & 1 for bit in range(len(history) - 1)]
        weight = np.prod([0.2 if shift else 0.8 for shift in shifts])
        starts = [0, *(index + 1 for index, shift in enumerate(shifts) if shift), len(history)]
        for begin, end in pairwise(starts):
            values = history[begin:end]
            covariance = 0.3**2 * np.eye(len(values)) + 1
            offsets = np.linalg.solve(covariance, values - 2.5)
            weight *= np.exp(-(values - 2.5) @ offsets / 2) / np.sqrt(np.linalg.det(2 * np.pi * covariance))
        level = 2.5 + offsets.sum()
        variance = 1 - np.linalg.solve(covariance, np.ones(len(values))).sum()
        total, mean, second = total + weight, mean + weight * level, second + weight * (variance + level**2)
    means, variances, weights = process.beliefs(history)
    assert weights.sum() == pytest.approx(1)
    assert weights @ means == pytest.approx(mean / total)
    assert weights @ (variances + means**2) == pytest.approx(second / total)


def test_a_history_may_be_short_or_far_from_the_process():
    for kind in KINDS:
        name = f"waves:{kind}:7"
        for history in (np.zeros(0), np.array([3.0, 4.0]), np.full(30, 1e6)):
            paths = true_paths(name, history, 5, 3)
            assert paths.shape == (3, 5)
            assert np.isfinite(paths).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("waves:lagged-5", "'waves:lagged-5' is no series of the corpus waves; write waves:KIND:NUMBER, for example "),
        (
            "waves:lagged-5:4294967296",
            "'waves:lagged-5:4294967296' is no series of the corpus waves; write waves:KIND:",
        ),
        ("waves:lagged-6:7", "unknown kind of series 'lagged-6'; choose from lagged-5, "),
        ("tones:7:C4", "'tones:7:C4' is no series of the corpus waves; "),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(RegardError, match=f"^{message}"):
        wave(name)


def test_missing_values_and_other_parts_are_refused():
    with pytest.raises(DataError, match=r"^a history of trended with missing values; give one without"):
        true_paths("waves:trended:7", np.array([1.0, np.nan]), 5, 3)
    with pytest.raises(
        RegardError, match=r"^unknown part of the corpus 'tests'; choose from train, dev, test; did you"
    ):
        draw_series(1, 5, "tests")


def test_five_hundred_series_are_generated_within_a_second():
    before = time.process_time()
    draw_series(4, 500)
    assert time.process_time() - before < 1
