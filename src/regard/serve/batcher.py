"""One thread for each run, which owns its model and answers requests of the same settings together.

A request is a `Job` with a future. Whoever waits for it may give up: then a job that has not begun is never begun, and
a batch that nobody waits for any more ends at the next step of its search or forecast.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Protocol

from regard.data.tokenizers import Tokenizer
from regard.predict import Predictor
from regard.search import checking, following
from regard.search.hypotheses import Beams
from regard.serve.limits import Bounds, RefusedError
from regard.serve.questions import Question
from regard.tasks.intervened import Intervened
from regard.types import Prediction

Answer = Prediction | Intervened

LONGEST_WAIT = 30  # seconds of Retry-After at most
LOADING = "loading"  # the states of a lane
READY = "ready"
STOPPED = "stopped"


@dataclass(frozen=True)
class Token:
    """A token that a running search has just written."""

    token: str
    text: str  # the output so far
    attention: list[float] | None  # the row of its map


@dataclass(eq=False)
class Job:
    """A question that waits for its answers, or is being answered."""

    question: Question
    deadline: float  # of time.monotonic
    tell: Callable[[Token], None] | None = None  # called with each token, for a stream
    future: "Future[list[Answer]]" = field(default_factory=Future)
    came: float = field(default_factory=time.monotonic)
    began: float | None = None  # when its batch was begun
    abandoned: bool = False

    @property
    def size(self) -> int:
        """The number of inputs."""
        return len(self.question.inputs)

    @property
    def waited(self) -> float:
        """Seconds in the queue."""
        return (time.monotonic() if self.began is None else self.began) - self.came

    def abandon(self) -> None:
        """Say that nobody waits for the answers any more."""
        self.abandoned = True
        self.future.cancel()  # of one that has begun, nothing happens

    def joins(self, other: "Job") -> bool:
        """Whether both may be answered in one batch; a stream follows its search alone."""
        return self.tell is None and other.tell is None and self.question.key == other.question.key


class Watcher(Protocol):
    """What is told about the work of a lane, for metrics."""

    def batch(self, run: str, inputs: int, seconds: float) -> None:
        """A batch was answered."""

    def dropped(self, run: str, jobs: int) -> None:
        """Jobs were not begun, or their batch was ended, since nobody waited for them."""


class Lane:
    """The queue of one run, and the thread that owns its model."""

    def __init__(self, name: str, load: Callable[[], Predictor], bounds: Bounds, watcher: Watcher) -> None:
        self.name, self.bounds, self.state = name, bounds, LOADING
        self.problem: Exception | None = None  # why the run could not be loaded
        self._load, self._watcher = load, watcher
        self._predictor: Predictor | None = None
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._changed = threading.Condition()
        self._seconds = 0.0  # of an input, a moving mean
        self._thread = threading.Thread(target=self._work, name=f"lane {name}", daemon=True)

    def start(self) -> None:
        """Begin to load the run, and then to answer."""
        self._thread.start()

    @property
    def predictor(self) -> Predictor:
        """The run's predictor, for checking requests; only this lane's thread runs the model."""
        if self._predictor is None:
            raise RefusedError(503, f"the run {self.name} is being loaded; try again", 1)
        return self._predictor

    @property
    def depth(self) -> int:
        """The number of inputs that wait."""
        return sum(job.size for job in self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        with self._changed:
            return not self._waiting and not self._running

    def submit(self, job: Job) -> None:
        """Put a job into the queue; RefusedError if it is full, or the lane has stopped."""
        with self._changed:
            if self.state == STOPPED:
                raise RefusedError(503, "the server is stopping; try again later", 5)
            if self.depth + job.size > self.bounds.queue:
                full = f"{self.depth} inputs are waiting for {self.name}, at most {self.bounds.queue}; try again later"
                raise RefusedError(429, full, self.retry_after())
            self._waiting.append(job)
            self._changed.notify_all()

    def retry_after(self) -> int:
        """Whole seconds after which the queue is probably empty."""
        return max(1, min(LONGEST_WAIT, math.ceil(self.depth * self._seconds)))

    def stop(self) -> None:
        """End the thread after its batch; jobs that wait are refused."""
        with self._changed:
            self.state = STOPPED
            left, self._waiting = list(self._waiting), deque()
            for job in self._running:
                job.abandon()
            self._changed.notify_all()
        for job in left:
            _fail(job, RefusedError(503, "the server is stopping; try again later", 5))

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(seconds)

    # in the thread

    def _work(self) -> None:
        try:
            self._predictor = self._load()
        except Exception as error:  # the server ends with it
            self.problem = error
            return
        with self._changed:
            if self.state == LOADING:
                self.state = READY
        while batch := self._take():
            self._answer(batch)
            with self._changed:
                self._running = []

    def _take(self) -> list[Job]:
        """The jobs of the next batch, which have begun; waits for one. Empty if the lane is stopped."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self.state == STOPPED)
                if self.state == STOPPED:
                    return []
                self._drop_unwanted()
                if not self._waiting:
                    continue
                first = self._waiting[0]
                left = first.came + self.bounds.window - time.monotonic()
                if left > 0 and first.tell is None and self._count(first) < self.bounds.batch:
                    self._changed.wait(left)
                    continue
                self._running = self._pick(first)
                if self._running:
                    return self._running

    def _count(self, first: Job) -> int:
        """The inputs that could be in one batch with a job."""
        return sum(job.size for job in self._waiting if job is first or job.joins(first))

    def _pick(self, first: Job) -> list[Job]:
        """Take the oldest job out of the queue, and those that join it, up to the bounds of a batch."""
        chosen: list[Job] = []
        others = deque[Job]()
        for job in self._waiting:
            if job is first or (job.joins(first) and self._fit([*chosen, job])):
                if job.future.set_running_or_notify_cancel():
                    job.began = time.monotonic()
                    chosen.append(job)
            else:
                others.append(job)
        self._waiting = others
        return chosen

    def _fit(self, jobs: Sequence[Job]) -> bool:
        """Whether jobs are within the bounds of a batch."""
        weights, bounds = [job.question.weights for job in jobs], self.bounds
        return (
            sum(job.size for job in jobs) <= bounds.batch
            and sum(job.question.work for job in jobs) <= bounds.work
            and sum(own.searched for own in weights) <= bounds.searched
            and sum(own.recorded for own in weights) <= bounds.recorded
        )

    def _drop_unwanted(self) -> None:
        """Take jobs out of the queue that nobody waits for, and refuse those whose deadline is over."""
        now = time.monotonic()
        unwanted = [job for job in self._waiting if job.abandoned]
        late = [job for job in self._waiting if not job.abandoned and job.deadline <= now]
        self._waiting = deque(job for job in self._waiting if not job.abandoned and job.deadline > now)
        for job in late:
            _fail(
                job, RefusedError(503, "no answer was begun before the deadline; try again later", self.retry_after())
            )
        if unwanted:
            self._watcher.dropped(self.name, len(unwanted))

    def _answer(self, jobs: Sequence[Job]) -> None:
        """Answer a batch; if it fails, each job alone, so that only the job that is at fault gets the error."""
        began, size = time.monotonic(), sum(job.size for job in jobs)
        try:
            answers = self._predict(jobs)
        except CancelledError:
            self._watcher.dropped(self.name, len(jobs))
            for job in jobs:
                job.future.set_exception(RefusedError(503, "the request was cancelled", 1))
            return
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:
                self._answer([job])
            return
        seconds = time.monotonic() - began
        self._seconds += 0.2 * (seconds / size - self._seconds)
        self._watcher.batch(self.name, size, seconds)
        for job in jobs:
            job.future.set_result(answers[: job.size])
            answers = answers[job.size :]

    def _predict(self, jobs: Sequence[Job]) -> list[Answer]:
        """Predict the inputs of all jobs at once."""
        predictor, options = self.predictor, jobs[0].question.options
        written = Written(predictor.task.output_tokens, jobs[0].tell) if jobs[0].tell else None

        def follow(beams: Beams) -> None:
            if written is not None:
                written.add(beams)

        def check() -> None:
            if all(job.abandoned for job in jobs):
                raise CancelledError

        inputs = [value for job in jobs for value in job.question.inputs]
        with following(follow), checking(check):
            if options.interventions:
                changes = options.interventions
                return [predictor.intervene(inputs[0], changes, search=options.changes, seed=options.seed)]
            predictions: list[Answer] = []
            predictions += predictor.predict(
                inputs,
                n_best=options.n_best,
                search=options.changes,
                seed=options.seed,
                all_maps=jobs[0].question.records,
            )
            return predictions


class Written:
    """Tells a stream the tokens of its search, as they are written."""

    def __init__(self, tokenizer: Tokenizer | None, tell: Callable[[Token], None]) -> None:
        self._tokenizer, self._tell = tokenizer, tell
        self._tokens: list[int] = []

    def add(self, beams: Beams) -> None:
        """Tell the last token of the only hypothesis; a recording that was cut into parts has several at once."""
        if self._tokenizer is None or len(beams.tokens) != 1:
            return
        self._tokens.append(int(beams.tokens[0, -1]))
        attention = None if beams.maps is None else beams.maps[0, -1].tolist()
        text = self._tokenizer.decode(self._tokens)
        self._tell(Token(self._tokenizer.piece(self._tokens[-1]), text, attention))


def _fail(job: Job, error: Exception) -> None:
    """Give an error to whoever waits for a job that has not begun."""
    if job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
