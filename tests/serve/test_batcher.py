"""The batcher: requests of the same settings are joined, unwanted work is not done, errors stay where they belong."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from regard.errors import DataError
from regard.recipe import Search
from regard.serve.batcher import READY, Job, Lane
from regard.serve.limits import Bounds, RefusedError
from regard.serve.questions import Options, Question
from regard.serve.weights import Weights


@dataclass
class Slow:
    """Stands for a predictor: notes its batches, and answers only when it may."""

    may: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    batches: list[list[str]] = field(default_factory=list)
    task: Any = None

    def predict(self, texts: Sequence[str], **settings: Any) -> list[str]:
        self.batches.append(list(texts))
        self.begun.set()
        assert self.may.wait(10)
        if "bad" in texts:
            raise DataError("bad input")
        return [text.upper() for text in texts]


class Noted:
    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.gone = 0

    def batch(self, run: str, inputs: int, seconds: float) -> None:
        self.sizes.append(inputs)

    def dropped(self, run: str, jobs: int) -> None:
        self.gone += jobs


def job(*texts: str, seconds: float = 10.0, tell: Any = None, **changes: Any) -> Job:
    options = Options({}, **changes)
    settings = Search(temperature=0.5) if changes.get("seed") else Search()
    weights = Weights(100 * len(texts), 10 * len(texts), 0)
    question = Question(texts, options, settings, sum(map(len, texts)), weights)
    return Job(question, time.monotonic() + seconds, tell)


@pytest.fixture
def lane() -> Iterator[Callable[..., tuple[Lane, Slow, Noted]]]:
    started = []

    def start(**bounds: Any) -> tuple[Lane, Slow, Noted]:
        slow, noted = Slow(), Noted()
        lane = Lane("run", lambda: slow, Bounds(**{"window": 0.0, **bounds}), noted)
        started.append((lane, slow))
        lane.start()
        while lane.state != READY:
            time.sleep(0.001)
        return lane, slow, noted

    yield start
    for lane, slow in started:
        slow.may.set()
        lane.stop()
        lane.join(10)
        assert not lane._thread.is_alive()


def fill(lane: Lane, slow: Slow, *jobs: Job) -> list[Job]:
    """Submit jobs while a first one is being answered; then let all be answered."""
    first = job("first")
    lane.submit(first)
    assert slow.begun.wait(10)
    for one in jobs:
        lane.submit(one)
    return [first, *jobs]


def test_jobs_of_the_same_settings_are_answered_together(lane) -> None:
    own, slow, noted = lane()
    jobs = fill(own, slow, job("a"), job("b", "c"), job("d", n_best=2), job("e"), job("s", seed=1), job("t", seed=1))
    slow.may.set()
    assert [one.future.result(10) for one in jobs] == [["FIRST"], ["A"], ["B", "C"], ["D"], ["E"], ["S"], ["T"]]
    # sampled outputs depend on their place in a batch, so each of those jobs is alone
    assert slow.batches == [["first"], ["a", "b", "c", "e"], ["d"], ["s"], ["t"]]
    while sum(noted.sizes) < 8:
        time.sleep(0.001)
    assert noted.sizes == [1, 4, 1, 1, 1]


def test_a_batch_has_no_more_inputs_and_no_more_work_than_its_bounds(lane) -> None:
    own, slow, _ = lane(batch=3, work=9)
    jobs = fill(own, slow, job("a", "b"), job("c", "d"), job("e"), job("f" * 8), job("g"))
    slow.may.set()
    for one in jobs:
        one.future.result(10)
    assert slow.batches[1:] == [["a", "b", "e"], ["c", "d", "g"], ["f" * 8]]


@pytest.mark.parametrize("bound", [{"searched": 250}, {"recorded": 25}])
def test_a_batch_takes_no_more_weights_than_its_bounds(lane, bound: dict[str, int]) -> None:
    own, slow, _ = lane(**bound)
    jobs = fill(own, slow, job("a"), job("b"), job("c"))
    slow.may.set()
    for one in jobs:
        one.future.result(10)
    assert slow.batches[1:] == [["a", "b"], ["c"]]


def test_a_first_job_waits_for_others_only_as_long_as_the_window(lane) -> None:
    own, slow, _ = lane(window=0.3)
    slow.may.set()
    jobs = [job("a"), job("b")]
    own.submit(jobs[0])
    time.sleep(0.05)
    own.submit(jobs[1])
    began = time.monotonic()
    assert [one.future.result(10) for one in jobs] == [["A"], ["B"]]
    assert time.monotonic() - began < 5
    assert slow.batches == [["a", "b"]]


def test_a_full_batch_does_not_wait(lane) -> None:
    own, slow, _ = lane(window=60.0, batch=2)
    slow.may.set()
    jobs = [job("a"), job("b")]
    for one in jobs:
        own.submit(one)
    assert [one.future.result(10) for one in jobs] == [["A"], ["B"]]


def test_work_that_nobody_waits_for_is_not_begun(lane) -> None:
    own, slow, noted = lane()
    jobs = fill(own, slow, gone := job("gone"), job("stays"))
    gone.abandon()
    slow.may.set()
    assert jobs[2].future.result(10) == ["STAYS"]
    assert gone.future.cancelled()
    assert slow.batches == [["first"], ["stays"]]
    assert noted.gone == 1


def test_a_job_whose_deadline_is_over_is_not_begun(lane) -> None:
    own, slow, _ = lane()
    jobs = fill(own, slow, job("late", seconds=0.01), job("stays"))
    time.sleep(0.02)
    slow.may.set()
    with pytest.raises(RefusedError, match="no answer was begun before the deadline") as refused:
        jobs[1].future.result(10)
    assert (refused.value.status, refused.value.retry_after) == (503, 1)
    assert jobs[2].future.result(10) == ["STAYS"]
    assert slow.batches == [["first"], ["stays"]]


def test_a_full_queue_refuses_and_says_when_to_come_back(lane) -> None:
    own, slow, _ = lane(queue=3)
    fill(own, slow, job("a"), job("b", "c"))
    with pytest.raises(RefusedError, match="3 inputs are waiting for run, at most 3") as refused:
        own.submit(job("d"))
    assert (refused.value.status, refused.value.retry_after) == (429, 1)


def test_an_error_reaches_only_the_job_at_fault(lane) -> None:
    own, slow, _ = lane()
    jobs = fill(own, slow, job("a"), job("bad"), job("b"))
    slow.may.set()
    assert jobs[1].future.result(10) == ["A"]
    assert jobs[3].future.result(10) == ["B"]
    with pytest.raises(DataError, match="bad input"):
        jobs[2].future.result(10)


def test_a_stopped_lane_refuses_what_waits_and_what_comes(lane) -> None:
    own, slow, _ = lane()
    jobs = fill(own, slow, job("waits"))
    own.stop()
    for refused in (lambda: jobs[1].future.result(10), lambda: own.submit(job("comes"))):
        with pytest.raises(RefusedError, match="the server is stopping") as error:
            refused()
        assert error.value.retry_after
    slow.may.set()
    assert jobs[0].future.result(10) == ["FIRST"]
    own.join(10)
    assert not own._thread.is_alive()


def test_a_run_that_cannot_be_loaded_is_told() -> None:
    def fail() -> Any:
        raise DataError("no such run")

    lane = Lane("run", fail, Bounds(), Noted())
    lane.start()
    lane.join(10)
    assert str(lane.problem) == "no such run"
    with pytest.raises(RefusedError, match="is being loaded"):
        lane.predictor  # noqa: B018
