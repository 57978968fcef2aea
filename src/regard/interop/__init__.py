"""Models from and for other toolkits: exports with a parity check, and checkpoints of orphaned toolkits."""

from collections.abc import Callable
from pathlib import Path

from regard.storage import Run


def _joeynmt(path: Path, parent: Path = Path("runs")) -> Run:
    """Import a model directory of JoeyNMT."""
    from regard.interop.orphans import joeynmt

    return joeynmt.load(path, parent)


# What `regard import` reads, by its name: (path of the model, folder of the new run) -> run.
IMPORTS: dict[str, Callable[..., Run]] = {
    "joeynmt": _joeynmt,
}
