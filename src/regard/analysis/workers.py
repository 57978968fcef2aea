"""Trains several runs at a time in local processes; a signal stops all of them, and each can be resumed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, NamedTuple

from regard import recipe as recipes
from regard.console import ProgressLog
from regard.errors import StoppedError, quantity
from regard.recipe import Recipe
from regard.storage import Run
from regard.training.stopping import Stopper, answer_to


class Job(NamedTuple):
    """A run to train, or to resume."""

    recipe: Recipe
    run: Run | None


Event = dict[str, Any] | None  # of a process; None: it has ended


class Trainings:
    """Trainings of jobs by their names, in other processes, which report events; a base class."""

    def __init__(self, jobs: Mapping[str, Job], log: ProgressLog) -> None:
        self.jobs, self.log = jobs, log
        self.events: Queue[tuple[str, Event]] = Queue()
        self.updates = dict.fromkeys(jobs, 0)
        self.ended = 0
        self.finished: dict[str, Run] = {}
        self.failed: dict[str, str] = {}

    def train(self) -> None:
        """Train all jobs; those that fail do not stop the others."""
        raise NotImplementedError

    def begin(self) -> None:
        """Show how many updates are done, from now on."""
        self.log.begin("training", sum(job.recipe.train.updates for job in self.jobs.values()))

    def handle(self, name: str, event: Event) -> None:
        """Record an event of a training, and show how far all are."""
        if event is None:
            self._end(name)
        elif "update" in event:
            self.updates[name] = event["update"]
        elif "run" in event:
            self.finished[name] = Run.open(event["run"])
        else:
            self.failed[name] = event["error"]
        ended = len(self.finished) + len(self.failed)
        self.log.show(sum(self.updates.values()), f"{ended} of {quantity(len(self.jobs), 'run')}")

    def _end(self, name: str) -> None:
        if name not in self.finished and name not in self.failed:
            self.failed[name] = self.why(name)
        self.updates[name] = self.jobs[name].recipe.train.updates
        self.ended += 1
        ended = f"{self.ended:,} of {len(self.jobs):,}"
        if name in self.failed:
            self.log.warn(f"{ended}: {name} failed: {self.failed[name]}")
            return
        last, metric = self.finished[name].metrics()[-1], self.jobs[name].recipe.metric
        self.log.say(f"{ended}: {name}, {metric} {last[metric]:.4f} on dev after {last['train_seconds']:.0f} s")

    def why(self, name: str) -> str:
        """Why a training ended without an event that says so."""
        raise NotImplementedError

    def stopped(self, number: int, others: str) -> StoppedError:
        """The error if a signal has stopped all; `others` says what is with those that are not finished."""
        done = f"{len(self.finished):,} of {quantity(len(self.jobs), 'run')} finished, {others}"
        return StoppedError(number, f"{done}; the same command goes on")


class Workers(Trainings):
    """Local processes that train jobs, at most `most` at a time, each with `threads` threads."""

    def __init__(self, jobs: Mapping[str, Job], runs: Path, most: int, threads: int, log: ProgressLog) -> None:
        super().__init__(jobs, log)
        self.runs, self.most, self.threads = runs, most, threads
        self.waiting = list(jobs)
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.codes: dict[str, int] = {}
        self.last: dict[str, str] = {}  # words of a process that are no event, for its error

    def train(self) -> None:
        """Train all jobs; those that fail do not stop the others."""
        self.begin()
        with Stopper().listening():
            try:
                while self.waiting or self.running:
                    while self.waiting and len(self.running) < self.most:
                        self._start(self.waiting.pop(0))
                    name, event = self.events.get()
                    if event is None:
                        self._close(name)
                    self.handle(name, event)
            except StoppedError as stopped:
                self.log.say(answer_to(stopped.number))
                self._stop(stopped.number)
                raise self.stopped(stopped.number, "the others are saved") from None
            finally:  # after any other error, the end of their input stops the processes
                for process in self.running.values():
                    _close(process)

    def _start(self, name: str) -> None:
        job = self.jobs[name]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "regard.analysis.cell"],  # -P: no module of the working directory
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"OMP_NUM_THREADS": str(self.threads)},
            process_group=0,  # Ctrl-C is for this process, which sends it on: a second signal would stop them at once
        )
        self.running[name] = process
        assert process.stdin is not None
        task = {"run": str(job.run.path) if job.run else "", "runs": str(self.runs)}
        with suppress(BrokenPipeError):  # it has ended already, and its last words say why
            process.stdin.write(json.dumps(task | {"recipe": recipes.to_toml(job.recipe)}) + "\n")
            process.stdin.flush()  # and stays open: its end would stop the process
        Thread(target=self._listen, args=(name, process), daemon=True).start()

    def _listen(self, name: str, process: "subprocess.Popen[str]") -> None:
        """Pass on the events of a process; its other words may be the reason why it ended."""
        assert process.stdout is not None
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict):
                self.events.put((name, event))
            elif line.strip():
                self.last[name] = line.strip()
        self.events.put((name, None))

    def _close(self, name: str) -> None:
        process = self.running.pop(name)
        self.codes[name] = process.wait()
        _close(process)

    def why(self, name: str) -> str:
        """Why a process ended without an event that says so."""
        code, words = self.codes[name], self.last.get(name, "")
        if code == -signal.SIGKILL:
            return "its process was killed, as when memory runs out; the same command with fewer --jobs goes on"
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended with {how}{f': {words}' if words else ''}"

    def _stop(self, number: int) -> None:
        """Send a signal to all processes and wait until they have saved; a second one makes them stop at once."""
        try:
            for process in self.running.values():
                process.send_signal(number)
            for process in self.running.values():
                process.wait()
        except StoppedError as again:
            self._stop(again.number)


def _close(process: "subprocess.Popen[str]") -> None:
    """Close the pipes of a process; what it was not sent is of no use any more."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.close()
