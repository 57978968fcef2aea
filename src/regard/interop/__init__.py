"""Models from and for other toolkits: weights in, and exports with a parity check."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

from regard.storage import Run


def _hugging_face(folder: Path, name: str, parent: Path) -> tuple[Run, list[str]]:
    """Import a folder with config.json, safetensors and tokenizer.json."""
    from regard.interop.hugging_face_import import import_folder

    return import_folder(folder, name, parent)


def _orphan(toolkit: str, path: Path, name: str, parent: Path) -> tuple[Run, list[str]]:
    """Import a model of a toolkit that is no longer maintained, by the module of its name."""
    run: Run = import_module(f"regard.interop.orphans.{toolkit}").load(path, name, parent)
    return run, []


# What `regard import` reads, by its name: (folder of the model, name of the run, folder of runs) -> run and notes.
IMPORTS: dict[str, Callable[[Path, str, Path], tuple[Run, list[str]]]] = {
    "hugging_face": _hugging_face,
    "joeynmt": partial(_orphan, "joeynmt"),
    "opennmt": partial(_orphan, "opennmt"),
    "fairseq": partial(_orphan, "fairseq"),
    "marian": partial(_orphan, "marian"),
}
