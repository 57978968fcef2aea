"""The work of `regard demo`: train the recipe `dates`, score it, draw an attention map."""

from pathlib import Path
from typing import NamedTuple

from regard import storage
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


def demonstrate(runs: str | Path, *, quiet: bool = False) -> Demonstration:
    """Train the recipe `dates`, score it on unseen days, and write the attention map of one of them to the run."""
    run = train("dates", runs=runs, quiet=quiet)
    predictor = load(run)
    test = predictor.task.examples(run.recipe()).test
    scored = predictor.score(test)
    longest = {example.group: example for example in sorted(test, key=lambda example: len(example.source))}
    shown = predictor.predict([example.source for example in longest.values() if example.group == "en"])
    shown += predictor.predict([example.source for group, example in longest.items() if group != "en"])
    for suffix in maps.DRAWINGS:
        assert shown[0].map is not None
        storage.write(run.path / f"map{suffix}", maps.draw(shown[0].map, suffix))
    return Demonstration(run, len(test), scored, shown)
