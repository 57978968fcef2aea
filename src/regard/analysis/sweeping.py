"""Sweeps: train a recipe with all combinations of some values, several at a time, and compare the runs."""

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from regard import recipe as recipes
from regard import training
from regard.analysis.comparison import Comparison, Entrant, Read, compare_entrants, trained_before
from regard.analysis.trials import Trials
from regard.analysis.workers import Job, Trainings, Workers
from regard.console import ProgressLog, current_log
from regard.device import choose_device, uses_threads
from regard.errors import RecipeError, RegardError, quantity, shown
from regard.recipe import Recipe
from regard.storage import Run
from regard.storage.files import digest
from regard.storage.runs import LONGEST_NAME
from regard.training.clusters import LOCAL

MOST_RUNS = 1000
# A value: quoted parts, parts in brackets, and anything else, up to a comma.
ITEM = re.compile(r"""((?:"(?:[^"\\]|\\.)*"|'[^']*'|\[[^\]]*\]|[^,"'\[])*)(?:,|$)""")
MOST_JOBS = 8  # by default: each process needs memory for torch alone

Axes = Mapping[str, Sequence[str]]


def sweep(
    recipe: Recipe | str | Path,
    *overrides: str,
    data: Sequence[str] = (),
    metric: str | None = None,
    beam: int | None = None,
    runs: str | Path = "runs",
    jobs: int = 0,
    ray: str = "",
    quiet: bool = False,
) -> Comparison:
    """Train a recipe with all combinations of values such as `train.seed=[1,2,3]`, and compare the runs.

    Other overrides hold for all. Each combination is a run of its own under `runs`, trained in a local process, `jobs`
    at a time (0: by the number of cores). With the address of a Ray cluster as `ray`, or `local`, they are trials of
    Ray Tune. One that is finished is not trained again, one that was stopped goes on. What
    fails does not stop the others: `failed` of the comparison says why.
    """
    base = recipe if isinstance(recipe, Recipe) else recipes.load(recipe)
    fixed, axes = split_overrides(overrides)
    named, failed = _cells(recipes.override_all(base, fixed), axes)
    with current_log(quiet=quiet) as log:
        for name, why in failed.items():
            log.warn(f"{name} is left out: {why}")

        def train(entrants: Mapping[str, Entrant], read: Read) -> Mapping[str, Run]:
            trained, why = _train(entrants, Path(runs), jobs, ray, read, log)
            failed.update(why)
            return trained

        return replace(compare_entrants(named, tuple(data), metric, beam, train, log), failed=failed)


# from arguments to cells


def split_overrides(overrides: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The overrides with one value, and the values of each key that has several, in brackets."""
    fixed, axes = [], dict[str, list[str]]()
    for text in overrides:
        key, equals, value = text.partition("=")
        key, value = key.strip(), value.strip()
        if value.startswith("[") and not value.endswith("]"):
            raise RecipeError(f"{shown(text)} begins a list, and has no ] at its end; write {key}=[VALUE,VALUE]")
        if not (equals and value.startswith("[") and value.endswith("]")):
            fixed.append(text)
            continue
        if key == "name":
            raise RecipeError("runs of a sweep are named by their values; give one name, which all begin with")
        values = _items(text, value[1:-1])
        repeated = [each for each, times in Counter(values).items() if times > 1]
        if not values or repeated or key in axes:
            what = "no value" if not values else f"{repeated[0]} twice" if repeated else "two lists of values"
            raise RecipeError(f"{key} has {what} in the sweep; write its values once, such as train.seed=[1,2,3]")
        axes[key] = values
    if not axes:
        raise RecipeError("nothing to sweep: give a key several values, such as train.seed=[1,2,3]")
    return fixed, axes


def _items(text: str, inside: str) -> list[str]:
    """The parts between commas that are neither in brackets nor in quotes; RecipeError if one of these has no end."""
    found = [*ITEM.finditer(inside)]
    if "".join(match[0] for match in found) != inside:
        how = "close every quote and bracket, and put values that contain one in quotes"
        raise RecipeError(f"{shown(text)} has a quote or a bracket without its end; {how}")
    return [match[1].strip() for match in found if match[1].strip()]


def _cells(base: Recipe, axes: Axes) -> tuple[dict[str, Entrant], dict[str, str]]:
    """The recipe of each combination by its name, and those that cannot be trained, with the reason."""
    if (count := math.prod(map(len, axes.values()))) > MOST_RUNS:
        raise RecipeError(f"the sweep has {count:,} combinations, at most {MOST_RUNS:,} are allowed; give fewer values")
    last = Counter(key.rpartition(".")[2] for key in axes)
    short = {key: key.rpartition(".")[2] if last[key.rpartition(".")[2]] == 1 else key for key in axes}
    named, failed, first = dict[str, Entrant](), dict[str, str](), None
    for values in product(*axes.values()):
        changes = dict(zip(axes, values, strict=True))
        name = " ".join([base.name, *(f"{short[key]}={value}" for key, value in changes.items())])
        try:
            recipe = recipes.override_all(base, [f"{key}={value}" for key, value in changes.items()])
            recipe = replace(recipe, name=_run_name(base.name, {short[key]: value for key, value in changes.items()}))
            training.check(recipe)
        except RegardError as error:
            first, failed[name] = first or error, str(error)
            continue
        named[name] = Entrant(name, name, recipe, None)
    if first and not named:
        raise first
    return named, failed


def _run_name(name: str, changes: Mapping[str, str]) -> str:
    """The name of a run, such as `dates+order-luong+seed-2`."""
    parts = [f"{key}-{re.sub(r'[^A-Za-z0-9.-]+', '_', value).strip('_')}" for key, value in changes.items()]
    long = "+".join([name, *parts])
    return long if len(long.encode()) <= LONGEST_NAME else f"{name}+{digest(long.encode())[:12]}"


# from cells to runs


def _train(
    entrants: Mapping[str, Entrant], runs: Path, jobs: int, ray: str, read: Read, log: ProgressLog
) -> tuple[dict[str, Run], dict[str, str]]:
    """The runs of all entrants, and the errors of those that failed; raises an error if all did."""
    finished, to_do = dict[str, Run](), dict[str, Job]()
    for name, entrant in entrants.items():
        run = trained_before(name, entrant.recipe, runs, read, log)
        if run is not None and run.finished():
            finished[name] = run
        else:
            to_do[name] = Job(entrant.recipe, run)
    trainings = _trainings(to_do, runs, jobs, ray, log)
    if to_do:
        trainings.train()
    finished |= trainings.finished
    if not finished:
        name, why = next(iter(trainings.failed.items()))
        raise RegardError(f"no run of the sweep could be trained; {name}: {why}")
    return {name: finished[name] for name in entrants if name in finished}, trainings.failed


def _trainings(to_do: Mapping[str, Job], runs: Path, jobs: int, ray: str, log: ProgressLog) -> Trainings:
    """How the runs are trained: in local processes, or as trials of Ray Tune."""
    most, threads = share_cores(len(to_do), jobs, on_gpu=any(map(_on_gpu, to_do.values())))
    if ray not in ("", LOCAL):  # cores and GPUs are those of the cluster
        most, threads = jobs, _threads() or 1
    if to_do:
        at_once = f", {most} at a time with {quantity(threads, 'thread')} each" if len(to_do) > 1 and most else ""
        log.say(f"{quantity(len(to_do), 'run')} to train{at_once}")
    return Trials(to_do, runs, ray, most, threads, log) if ray else Workers(to_do, runs, most, threads, log)


def _on_gpu(job: Job) -> bool:
    return not uses_threads(choose_device(job.recipe.train.device))


def share_cores(count: int, jobs: int, *, on_gpu: bool = False) -> tuple[int, int]:
    """How many of `count` runs are trained at a time, and the threads of each: by the cores, unless it is set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = max(1, min(count, jobs or (1 if on_gpu else min(cores, MOST_JOBS))))
    return most, _threads() or max(1, cores // most)


def _threads() -> int:
    """The threads of a process as the environment sets them; 0 if it does not."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdecimal() else 0
