"""The work of `regard demo`: train the recipe `dates`, score it, draw an attention map."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from regard import storage
from regard.errors import MissingExtraError
from regard.maps import AttentionMap
from regard.predict import load
from regard.show import maps
from regard.storage import Run
from regard.tasks import Scored
from regard.training import train
from regard.types import Prediction


class Demonstration(NamedTuple):
    """The results of the demo."""

    run: Run
    examples: int
    scored: Scored
    shown: list[Prediction]  # one test date of each language, English first; the map of the first is drawn
    maps: list[str]  # the names of the files of that map, in the run


def demonstrate(runs: str | Path, *, quiet: bool = False) -> Demonstration:
    """Train the recipe `dates`, score it on unseen days, and write the attention map of one of them to the run."""
    run = train("dates", runs=runs, quiet=quiet)
    predictor = load(run)
    test = predictor.task.examples(run.recipe()).test
    scored = predictor.score(test)
    longest = {example.group: example for example in sorted(test, key=lambda example: len(example.source))}
    shown = predictor.predict([example.source for example in longest.values() if example.group == "en"])
    shown += predictor.predict([example.source for group, example in longest.items() if group != "en"])
    assert shown[0].map is not None
    return Demonstration(run, len(test), scored, shown, write_maps(run.path, shown[0].map))


def write_maps(folder: Path, attention: AttentionMap) -> list[str]:
    """Write a map in every format whose package is installed; returns the names of the files, the page first."""
    names = []
    for suffix in sorted(maps.DRAWINGS, key=lambda suffix: suffix != ".html"):
        try:
            storage.write(folder / f"map{suffix}", maps.draw(attention, suffix))
        except MissingExtraError:
            continue
        names.append(f"map{suffix}")
    return names


def own_command() -> str:
    """How this regard is called from the current folder: by its name, or if that is not on the PATH, by its path."""
    if shutil.which("regard"):
        return "regard"
    program = Path(sys.executable)
    script = program.with_name("regard")
    path = script if script.exists() else program
    near = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return shlex.quote(str(near)) + ("" if path == script else " -m regard")
