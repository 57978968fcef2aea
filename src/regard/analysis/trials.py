"""Trains several runs as trials of Ray Tune, on this machine or a cluster; a trial that is lost starts again."""

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

from regard import recipe as recipes
from regard import training
from regard.analysis.cell import Telling
from regard.analysis.comparison import trained_before
from regard.analysis.workers import Event, Job, Trainings
from regard.console import ProgressLog
from regard.errors import RegardError, StoppedError, quantity, shown
from regard.tasks import task_class
from regard.training.clusters import LOCAL, RESTARTS, connected
from regard.training.stopping import Stopper

# Variables of Ray Tune: no files of its own about results, the earlier output, which can be turned off.
QUIET = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}
PATIENCE = 10.0  # seconds until the tuner has noticed that Ray was shut down
LAST = ""  # the name of the event that says that there will be no others


class Trials(Trainings):
    """Trials of Ray Tune that train jobs, at most `most` at a time (0: as many as there is room for).

    Each has `threads` processors, and a GPU if there are any.
    """

    def __init__(
        self, jobs: Mapping[str, Job], runs: Path, address: str, most: int, threads: int, log: ProgressLog
    ) -> None:
        super().__init__(jobs, log)
        self.runs, self.address, self.most, self.threads = runs, address, most, threads
        self.reasons: dict[str, str] = {}  # of lost trials
        self.tuning = Thread()

    def train(self) -> None:
        """Train all jobs; those that fail do not stop the others."""
        self.log.begin("starting Ray")
        processors = self.most * self.threads if self.address == LOCAL else 0
        with tempfile.TemporaryDirectory(prefix="regard-ray-") as storage:
            try:
                with connected(self.address, processors) as ray, Stopper().listening():  # Ray has a handler of its own
                    self._start(ray, storage)
                    self.begin()
                    while (named := self.events.get())[0] != LAST:
                        self.handle(*named)
            except StoppedError as stopped:
                raise self.stopped(stopped.number, "the others go on from their last validation") from None
            finally:  # if Ray was shut down before the end, the tuner fails, and must no longer use its folder
                if self.tuning.is_alive():
                    self.tuning.join(PATIENCE)
        for name in self.jobs:
            if name not in self.finished and name not in self.failed:
                self.handle(name, None)

    def why(self, name: str) -> str:
        """Why a trial ended without an event that says so."""
        reason = self.reasons.get(name, "Ray Tune has given no reason")
        return f"its process was lost, also after {quantity(RESTARTS, 'restart')} ({reason})"

    def _start(self, ray: Any, storage: str) -> None:
        """Begin the trials, in a thread: signals reach only the main one, which handles the events."""
        os.environ.update(QUIET)
        from ray import tune

        wants_gpu = any(job.recipe.train.device != "cpu" for job in self.jobs.values())
        gpus = int(wants_gpu and ray.cluster_resources().get("GPU", 0) >= 1)
        work = {
            "runs": str(self.runs.resolve()),
            "named": str(self.runs),
            "folder": os.getcwd(),
            "jobs": self._described(),
        }
        tuner = tune.Tuner(
            tune.with_resources(partial(_train_one, work), {"cpu": self.threads, "gpu": gpus}),
            param_space={"name": tune.grid_search(list(self.jobs))},
            tune_config=tune.TuneConfig(max_concurrent_trials=self.most or None),
            run_config=tune.RunConfig(
                storage_path=storage,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=RESTARTS),
                callbacks=[self._listener(tune.Callback)],
            ),
        )
        self.tuning = Thread(target=self._fit, args=(tuner,), daemon=True)
        self.tuning.start()

    def _described(self) -> dict[str, dict[str, str]]:
        """The jobs as texts, which another process reads."""
        return {
            name: {"recipe": recipes.to_toml(job.recipe), "run": str(job.run.path.resolve()) if job.run else ""}
            for name, job in self.jobs.items()
        }

    def _fit(self, tuner: Any) -> None:
        """Run the trials to their end."""
        try:
            with redirect_stdout(sys.stderr):  # Ray prints warnings there
                tuner.fit()
        except Exception as error:
            self.reasons |= dict.fromkeys(self.jobs, shown(str(error).split("\n", 1)[0]))
        finally:
            self.events.put((LAST, None))

    def _listener(self, base: type) -> Any:
        """A callback of Ray Tune that passes the events of trials on."""

        class Listener(base):  # type: ignore[misc]
            def __init__(self, events: "Queue[tuple[str, Event]]", reasons: dict[str, str]) -> None:
                self.events, self.reasons = events, reasons

            def __getstate__(self) -> dict[str, Any]:
                """Nothing: Ray Tune writes it to a file, to go on with trials, which is not used here."""
                return {}

            def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
                self.events.put((trial.config["name"], _event(result)))

            def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
                self.events.put((trial.config["name"], None))

            def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
                self.reasons[trial.config["name"]] = shown(str(trial.get_error()).strip().split("\n", 1)[0])
                self.events.put((trial.config["name"], None))

        return Listener(self.events, self.reasons)


def _event(result: Mapping[str, Any]) -> Event:
    """The event in the result of a trial, which has entries of Ray Tune, too."""
    return {key: result[key] for key in ("update", "run", "error") if key in result}


def _train_one(work: Mapping[str, Any], chosen: Mapping[str, str]) -> None:
    """A trial: train the chosen job, or resume its run, also that of an earlier start of this trial."""
    from ray import tune

    def tell(**event: Any) -> None:
        tune.report(event)

    os.chdir(work["folder"])
    job, quiet = work["jobs"][chosen["name"]], ProgressLog(quiet=True)
    recipe, runs = recipes.parse(job["recipe"], "the sweep"), Path(work["runs"])
    callbacks = [Telling(tell)]
    try:
        begun = job["run"] or trained_before("", recipe, runs, lambda one: task_class(one.task).examples(one), quiet)
        if begun:
            run = training.resume(begun, quiet=True, callbacks=callbacks)
        else:
            run = training.train(recipe, runs=runs, quiet=True, callbacks=callbacks)
    except RegardError as error:
        tell(error=str(error))
        return
    tell(run=str(Path(work["named"]) / run.path.name))
