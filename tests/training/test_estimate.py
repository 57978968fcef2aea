"""The estimate of the time that a training takes: smoothed, without validations, and a suggestion if it is hours."""

from dataclasses import replace

import pytest

from regard import recipe as recipes
from regard.recipe import Train
from regard.training import estimate
from regard.training.estimate import Estimate, describe, smaller, work


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    result = Clock()
    monkeypatch.setattr(estimate.time, "perf_counter", result)
    return result


def test_what_is_left_counts_updates_and_validations_apart(clock: Clock) -> None:
    timed = Estimate(Train(updates=100, validate=10), done=0)
    assert timed.seconds_left(0) is None
    clock.now += 60  # the first update takes long, as when kernels are compiled
    timed.after_update(1)
    for update in range(2, 11):
        clock.now += 2
        timed.after_update(update)
    assert timed.seconds_left(10) == pytest.approx(90 * 2)
    clock.now += 7
    timed.after_validation(10)
    assert timed.seconds_left(10) == pytest.approx(90 * 2 + 9 * 7)


def test_updates_that_are_faster_than_the_clock_is_read_are_measured_at_validations(clock: Clock) -> None:
    timed = Estimate(Train(updates=100, validate=5), done=20)
    for update in range(21, 26):
        clock.now += 0.01
        timed.after_update(update)
    assert timed.seconds_left(25) is None
    timed.after_validation(25)
    assert timed.seconds_left(25) == pytest.approx(75 * 0.01, rel=1e-6)


def test_the_first_estimate_needs_a_few_updates_and_seconds(clock: Clock) -> None:
    timed = Estimate(Train(updates=100), done=0)
    known = []
    for update in range(1, 8):
        timed.after_update(update)
        known.append(timed.is_known(update))
        clock.now += 12
    assert known == [False, False, False, True, True, True, True]


def test_hours_come_with_a_quicker_way() -> None:
    slow = recipes.load("multi30k_bahdanau")
    assert describe(slow, "cpu", 0.0123, 600) == "0.012 s an update here, about 10 min for the rest"
    (quick,) = smaller(slow)  # other recipes may come
    sentence = "12 s an update here, about 40 hours for the rest"
    assert describe(slow, "cpu", 12, 144_000) == f"{sentence}; try the recipe {quick}, or a GPU"
    assert describe(slow, "cuda:0", 12, 144_000) == f"{sentence}; try the recipe {quick}"
    own = recipes.load("dates", ["data.train=mine.tsv"])
    assert describe(own, "cpu", 12, 144_000) == f"{sentence}; a GPU"
    assert describe(own, "cuda:0", 12, 144_000) == f"{sentence}; lower train.updates"


def test_a_smaller_recipe_has_the_same_data_and_much_less_work() -> None:
    tiny, large = recipes.load("multi30k_tiny"), recipes.load("multi30k_bahdanau")
    assert work(tiny) < work(large) / 3
    assert smaller(recipes.load(*smaller(large))) == []
    assert smaller(replace(large, task="classify")) == []
