"""The work of `regard demo`: train a recipe, score it on its test set, draw an attention map."""

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.errors import MissingExtraError
from regard.storage import Run

if TYPE_CHECKING:  # they import torch, which takes a while: `regard demo` says so before
    from regard.predict import Predictor
    from regard.types import Example, Prediction


class Quality(NamedTuple):
    """How good a run is on its test set."""

    values: dict[str, Any]  # the keys of --json
    sentences: list[str]  # the same in words, each without its full stop


def _as_pair(prediction: "Prediction") -> str:
    return f"{prediction.source} -> {prediction.text}"


class Demo(NamedTuple):
    """What a demo trains, measures and shows."""

    recipe: str
    measure: "Callable[[Predictor, Sequence[Example]], Quality]"
    first: str  # of the groups of test examples, the one whose map is drawn
    reading: str  # what its map shows, in words
    another: str  # an input to look at next
    sources: str = ""  # what the names of sources mean, if they are no texts
    describe: "Callable[[Prediction], str]" = _as_pair  # a prediction in one line


class Demonstration(NamedTuple):
    """The results of a demo."""

    run: Run
    examples: int  # of the test set
    quality: Quality
    shown: "list[Prediction]"  # one test example of each group; the map of the first is drawn
    maps: list[str]  # the names of the files of that map, in the run


def demonstrate(runs: str | Path, demo: Demo, *, quiet: bool = False) -> Demonstration:
    """Train the recipe of a demo, score it on unseen examples, and write the attention map of one of them."""
    from regard.predict import load
    from regard.training import train

    run = train(demo.recipe, runs=runs, quiet=quiet)
    predictor = load(run)
    test = predictor.task.examples(run.recipe()).test
    quality = demo.measure(predictor, test)
    longest = {example.group: example.source for example in sorted(test, key=lambda example: len(example.source))}
    shown = predictor.predict([longest.pop(demo.first)])
    shown += predictor.predict(list(longest.values()))
    return Demonstration(run, len(test), quality, shown, write_maps(run.path, shown[0]))


def _measure_dates(predictor: "Predictor", test: "Sequence[Example]") -> Quality:
    scored = predictor.score(test)
    value, groups = scored.measured.value, scored.groups
    languages = ", ".join(f"{group} {share:.3f}" for group, share in groups.items())
    sentences = [f"Exact match on unseen days by language: {languages}", f"In all {value:.4f} of {len(test):,}"]
    return Quality({"exact_match": value, "exact_match_by_language": groups}, sentences)


def _measure_captions(predictor: "Predictor", test: "Sequence[Example]") -> Quality:
    from regard.analysis.grounding import grounding

    value, attention = predictor.score(test).measured.value, grounding(predictor, test)
    sentences = [
        f"The heaviest cell of a noun shows its object: {attention.share:.4f} of {attention.words:,} nouns "
        f"(cells drawn at random: {attention.chance:.3f})",
        f"Exact match on unseen scenes: {value:.4f} of {len(test):,}",
    ]
    return Quality({"exact_match": value, "right_cells": attention.share, "nouns": attention.words}, sentences)


def _measure_transcripts(predictor: "Predictor", test: "Sequence[Example]") -> Quality:
    from regard.analysis.timing import timing

    value, times = predictor.score(test).measured.value, timing(predictor, test)
    sentences = [
        f"Time of a note, read from the map: {times.seconds:.3f} s from its onset (median), "
        f"or {times.positions:.2f} positions of the encoder",
        f"Token errors on {len(test):,} unseen melodies: {value:.2%} of {times.notes:,} notes",
    ]
    values = {"token_errors": value, "time_error_seconds": times.seconds, "time_error_positions": times.positions}
    return Quality(values, sentences)


def _measure_forecasts(predictor: "Predictor", test: "Sequence[Example]") -> Quality:
    from regard.analysis.lags import excess, lags

    scores, looks = excess(predictor, test), lags(predictor, test)
    ratio = scores.crps / scores.true_crps
    sentences = [
        f"The heaviest weight is at most one step beside the lag that generates the series: {looks.share:.3f} of "
        f"{looks.steps:,} steps",
        f"Values inside the interval of 90 %: {scores.coverage:.3f} (true process: {scores.true_coverage:.3f})",
        f"CRPS on {len(test):,} unseen series: {scores.crps:.4f}, {ratio:.2f} times that of the true process",
    ]
    values = {
        "crps": scores.crps,
        "true_crps": scores.true_crps,
        "crps_ratio": ratio,
        "coverage_90": scores.coverage,
        "right_lags": looks.share,
        "steps": looks.steps,
    }
    return Quality(values, sentences)


def _describe_forecast(prediction: "Prediction") -> str:
    """The series, and the last step of its forecast."""
    from regard.show.steps import describe
    from regard.tasks import Forecast

    assert isinstance(prediction, Forecast)
    return f"{prediction.source}, at {describe(prediction.view(), len(prediction.times) - 1)}"


DEMOS = {
    "dates": Demo(
        "dates", _measure_dates, "en", "rows: what it wrote, columns: what it attended to", "14 juillet 1989"
    ),
    "caption": Demo(
        "shapes",
        _measure_captions,
        "3 objects",
        "for each word, the weights of the cells of the picture",
        "shapes:red-circle-8-8-6,blue-square-40-8-7",
        "The sources are pictures. Their names list the objects: COLOUR-SHAPE-ACROSS-DOWN-RADIUS, in pixels. The model "
        "reads the pixels, not the names:",
    ),
    "transcribe": Demo(
        "tones",
        _measure_transcripts,
        "6",
        "for each note, the weights of the times of the recording",
        "tones:7:C4-E4-G4",
        "The sources are recordings. Their names have a number, from which timbre and noise are drawn, and the notes "
        "that are played. The model reads the sound, not the names:",
    ),
    "forecast": Demo(
        "waves",
        _measure_forecasts,
        "lagged",
        "rows: steps of the forecast, columns: values before them, under the series itself",
        "waves:seasonal:7",
        "The sources are hourly series. Their names have the process that generates them, for some with its lag in "
        "steps, and a number, from which the noise is drawn. The model reads kind and lag as categories, and the "
        "values before the forecast. Of each forecast, the last of 24 steps:",
        _describe_forecast,
    ),
}


def write_maps(folder: Path, prediction: "Prediction") -> list[str]:
    """Write its map in every format whose package is installed; returns the names of the files, the page first."""
    from regard.show import maps

    names = []
    for suffix in sorted(maps.DRAWINGS, key=lambda suffix: suffix != ".html"):
        try:
            prediction.save(folder / f"map{suffix}")
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
