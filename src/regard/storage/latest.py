"""Names of runs: the symbolic link `latest` to the run that was created last, and names without their folder."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from regard.storage import files

LATEST = "latest"
RUNS = Path("runs")  # the folder that `latest`, and every other name alone, is looked for in


def point_to(run: Path, owner: str, is_run: Callable[[Path], bool]) -> None:
    """Let the link beside a run point to it; anything of that name but a link to another run is left alone.

    A file system that has no links gets none. `owner` is part of the temporary name of a link that is replaced, and
    `is_run` says whether a path is a run directory.
    """
    link = run.with_name(LATEST)
    with contextlib.suppress(OSError):
        if not os.path.lexists(link):
            os.symlink(run.name, link)
        elif _target(link) != run.name and _points_to_a_run(link, is_run):
            files.replace_link(link, run.name, owner)


def describe_obstacle(run: Path, is_run: Callable[[Path], bool]) -> str:
    """A sentence if something else has the name of the link, so that none points to the run; empty otherwise."""
    link = run.with_name(LATEST)
    if run == link or not os.path.lexists(link) or _points_to_a_run(link, is_run):
        return ""
    try:
        target = f"a link to {os.readlink(link)}, which is not a run there"
    except OSError:
        target = "not a link"
    return f"{link} is {target}: it is left alone, and does not name this run; remove it to have a link to the next run"


def _points_to_a_run(link: Path, is_run: Callable[[Path], bool]) -> bool:
    """Whether it is a link as regard makes them: to a run beside it. One whose run is gone may be anybody's."""
    target = _target(link)
    return bool(target) and is_run(link.with_name(target))


def resolve(path: Path) -> Path:
    """The path of a run; for a link `latest`, that of the run it points to now.

    A name without a folder that is not there stands for the run of that name in `RUNS`.
    """
    is_in_runs = path.name == LATEST or os.path.lexists(RUNS / path)
    if is_name(path) and not os.path.lexists(path) and is_in_runs:
        path = RUNS / path
    target = _target(path) if path.name == LATEST else ""
    return path.with_name(target) if target else path


def is_name(path: Path) -> bool:
    """Whether a path is a name alone, without a folder."""
    return len(path.parts) == 1


def _target(link: Path) -> str:
    """The name that a link points to beside it; empty if it is no link, or one that leads out of its folder."""
    try:
        target = os.readlink(link)
    except OSError:
        return ""
    return target if os.sep not in target and target.strip(".") else ""
