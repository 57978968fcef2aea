"""Models from and for other toolkits: weights in, and exports with a parity check."""

from collections.abc import Callable
from pathlib import Path

from regard.storage import Run


def _hugging_face(folder: Path, name: str, parent: Path) -> tuple[Run, list[str]]:
    """Import a folder with config.json, safetensors and tokenizer.json."""
    from regard.interop.hugging_face_import import import_folder

    return import_folder(folder, name, parent)


def _joeynmt(folder: Path, name: str, parent: Path) -> tuple[Run, list[str]]:
    """Import a model directory of JoeyNMT."""
    from regard.interop.orphans import joeynmt

    return joeynmt.load(folder, name, parent), []


# What `regard import` reads, by its name: (folder of the model, name of the run, folder of runs) -> run and notes.
IMPORTS: dict[str, Callable[[Path, str, Path], tuple[Run, list[str]]]] = {
    "hugging_face": _hugging_face,
    "joeynmt": _joeynmt,
}
