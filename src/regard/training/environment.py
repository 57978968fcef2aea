"""What a training is computed with: versions, processor, GPU, threads. Others may change the last bits of a result."""

import json
from collections.abc import Mapping
from typing import Any

import torch

from regard import __version__
from regard.device import choose_device, name_gpu, name_processor
from regard.errors import DataError, shown
from regard.kernels.choose import are_definitions_only
from regard.recipe import Train
from regard.storage import ENVIRONMENT, Run

Environment = dict[str, Any]
MOST_NAMED = 10  # changes that a message names


def current(settings: Train, processes: int = 1) -> Environment:
    """What a training with these settings, by so many processes, is computed with, here and now."""
    return {
        "regard": __version__,
        "torch": torch.__version__,
        "processor": name_processor(),
        "gpu": name_gpu(choose_device(settings.device)),
        "threads": settings.threads or torch.get_num_threads(),
        "processes": processes,
        "definitions_only": are_definitions_only(),  # REGARD_PLAIN=1
    }


def to_json(environment: Environment) -> bytes:
    """The content of a new run's file: one entry for each part of its training, each with its first update."""
    return json.dumps([{"update": 0} | environment], indent=1).encode()


def describe_changes(run: Run, now: Environment, *, exact: bool) -> str:
    """A sentence on how this environment differs from those the run was trained with; empty if it does not.

    With `exact`, any difference is an error, and so is a run that did not record its environment.
    """
    stored = run.environments()
    changes = list(dict.fromkeys(change for before in stored for change in _changes(before, now)))
    sentence = f"{run.path} was trained with {'; '.join(changes[:MOST_NAMED])}" if changes else ""
    if exact and (changes or not stored):
        why = sentence or f"{run.path} did not record what it was trained with"
        raise DataError(f"{why}. --exact resumes a run only in the environment it was trained in; resume without it")
    return f"{sentence}: the last bits of the weights may not be those of an uninterrupted training" if changes else ""


def _changes(before: Mapping[str, Any], now: Environment) -> list[str]:
    before = {"processes": 1, **before}  # older versions knew only one
    different = [name for name in now if before.get(name) != now[name]]
    return [f"{name} {shown(before.get(name, 'not recorded'))}, now {shown(now[name])}" for name in different]


def record(run: Run, now: Environment, update: int) -> None:
    """Add to the run's file that its training goes on in this environment after `update` updates, if it is new."""
    stored = run.environments()
    if not stored or _changes(stored[-1], now):
        run.append_to_list(ENVIRONMENT, {"update": update} | now)
