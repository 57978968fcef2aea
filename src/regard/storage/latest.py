"""The symbolic link `latest` in a folder of runs: it points to the run that was created there last."""

import contextlib
import os
from pathlib import Path

from regard.storage import files

LATEST = "latest"
RUNS = Path("runs")  # the folder that `latest` alone is looked for in


def point_to(run: Path, owner: str) -> None:
    """Let the link beside a run point to it; anything else that has its name is left alone.

    A file system that has no links gets none. `owner` is part of the temporary name of a link that is replaced.
    """
    link = run.with_name(LATEST)
    with contextlib.suppress(OSError):
        if _target(link):
            files.replace_link(link, run.name, owner)
        else:
            os.symlink(run.name, link)  # FileExistsError if something else has the name


def resolve(path: Path) -> Path:
    """The path of a run; for a link `latest`, that of the run it points to now."""
    if path == Path(LATEST) and not os.path.lexists(path):
        path = RUNS / LATEST
    target = _target(path) if path.name == LATEST else ""
    return path.with_name(target) if target else path


def _target(link: Path) -> str:
    """The name that a link points to beside it; empty if it is no link, or one that leads out of its folder."""
    try:
        target = os.readlink(link)
    except OSError:
        return ""
    return target if os.sep not in target and target.strip(".") else ""
