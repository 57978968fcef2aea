"""Models from and for other toolkits: weights in, and exports with a parity check."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from regard.errors import DataError, listed, shown
from regard.storage import Run


def _hugging_face(folder: Path, name: str, parent: Path) -> tuple[Run, list[str]]:
    """Import a folder with config.json, safetensors and tokenizer.json."""
    from regard.interop.hugging_face_import import import_folder

    run, notes = import_folder(folder, name, parent)
    return _with_card(run), notes


def _orphan(toolkit: str, path: Path, name: str, parent: Path) -> tuple[Run, list[str]]:
    """Import a model of a toolkit that is no longer maintained."""
    from regard.interop.orphans import fairseq, joeynmt, marian, opennmt

    load = {"joeynmt": joeynmt.load, "opennmt": opennmt.load, "fairseq": fairseq.load, "marian": marian.load}[toolkit]
    try:
        return _with_card(load(path, name, parent)), []
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # of torch, at shapes that no model has
        raise DataError(f"{path} cannot be imported: its weights do not fit together: {shown(str(error))}") from error


def _with_card(run: Run) -> Run:
    """The new run, with its model card."""
    from regard.tasks import task_of
    from regard.training import card

    with run.training() as held:
        card.store(held, task_of(held), held.metrics())
    return run


# What `regard import` reads, by its name: (model, name of the run, folder of runs) -> run and notes.
IMPORTS: dict[str, Callable[[Path, str, Path], tuple[Run, list[str]]]] = {
    "hugging_face": _hugging_face,
    "joeynmt": partial(_orphan, "joeynmt"),
    "opennmt": partial(_orphan, "opennmt"),
    "fairseq": partial(_orphan, "fairseq"),
    "marian": partial(_orphan, "marian"),
}
# Files by which the folder of a model is recognised; all must be there.
MARKS: dict[str, tuple[str, ...]] = {
    "hugging_face": ("config.json",),
    "joeynmt": ("config.yaml", "best.ckpt"),
    "opennmt": ("*_step_*.pt",),
    "fairseq": ("dict.*.txt", "*.pt"),
    "marian": ("*decoder.yml",),
}


def recognised(path: Path) -> str:
    """The toolkit that a model is of, by the files of its folder; DataError if they are those of several."""
    folder = path if path.is_dir() else path.parent
    fitting = [name for name, marks in MARKS.items() if all(any(folder.glob(mark)) for mark in marks)]
    if len(fitting) > 1:
        how = " or ".join(f"--from {name}" for name in fitting)
        raise DataError(f"{path} has the files of models of {listed(fitting)}; add {how}")
    return fitting[0] if fitting else "hugging_face"
