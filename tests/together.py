"""Commands that several processes run together: forks with the variables that torchrun sets, which talk by gloo."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commands import Result, shared_commands
from regard.storage import Run

LIMIT = 60.0  # seconds of a training, which takes about three
WALL_CLOCK = {"tokens_per_second", "seconds", "train_seconds"}


def start(
    count: int,
    arguments: Sequence[str],
    folder: Path,
    acts: Mapping[int, Mapping[str, Any]] | None = None,
    *,
    float64: bool = True,
) -> list[int]:
    """Start a command in so many processes; `acts` are options of forks.py by rank. Returns their process ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    started = []
    for rank in range(count):
        own = {"RANK": rank, "LOCAL_RANK": rank} | group if count > 1 else {}
        options = {"folder": folder, "environment": {key: str(value) for key, value in own.items()}}
        started.append(
            shared_commands().start(*arguments, float64=float64, **options | dict((acts or {}).get(rank, {})))
        )
    return started


def together(
    count: int,
    arguments: Sequence[str],
    folder: Path,
    acts: Mapping[int, Mapping[str, Any]] | None = None,
    *,
    float64: bool = True,
) -> list[Result]:
    """The results of a command in so many processes, see `start`."""
    started = start(count, arguments, folder, acts, float64=float64)
    return [shared_commands().wait(process, LIMIT) for process in started]


def curve(path: Path) -> list[dict[str, Any]]:
    """The recorded numbers of a run that do not depend on the clock."""
    return [{key: value for key, value in entry.items() if key not in WALL_CLOCK} for entry in Run(path).metrics()]
