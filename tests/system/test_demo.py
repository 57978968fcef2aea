"""`regard demo` in full: it learns to read dates, its test score is high, and its attention is where it belongs.

So are the demos of captions, transcripts and forecasts, which run in `make slow`. All are run as users do who have
installed the wheel: that of dates with the extras that the README names, the others without any.
"""

import json
import re
from pathlib import Path

import pytest

import regard
import wheels
from regard.predict import Predictor
from regard.tasks import Transduce
from regard.types import Example

THREADS = {"OMP_NUM_THREADS": "1"}  # one thread: fast on a busy machine too
LANGUAGES = ("en", "de", "ja")
MAPS = 40  # attention maps that are checked for each language
BEAMS = (2, 4, 8)
DATES = 300  # dates that are decoded with each beam


@pytest.fixture(scope="module")
def demo(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The scores in the last line of `regard demo --json`, and the folder of the run."""
    folder = tmp_path_factory.mktemp("demo")
    program = wheels.install(built[1], tmp_path_factory.mktemp("environment"), "corpora", "plot")
    result = wheels.start(program, "demo", "--json", folder=folder, timeout=900, **THREADS)
    assert result.code == 0, result.error
    assert "Traceback" not in result.error
    scores = json.loads(result.lines[-1])
    assert {"exact_match", "train_seconds", "run"} <= scores.keys()
    assert scores["run"] == "runs/dates"
    return scores | {"run": folder / scores["run"]}


@pytest.fixture(scope="module")
def predictor(demo: dict[str, object]) -> Predictor:
    return regard.load(demo["run"])


@pytest.fixture(scope="module")
def unseen_examples(predictor: Predictor) -> list[Example]:
    return Transduce.examples(predictor.run.recipe()).test


def test_dates_of_the_test_set_are_read(demo: dict[str, object]) -> None:
    assert demo["examples"] >= 1000
    assert demo["exact_match"] >= 0.99
    languages = demo["exact_match_by_language"]
    assert len(languages) >= 12
    assert min(languages.values()) >= 0.97, languages


def test_it_learns_in_a_fixed_number_of_updates(demo: dict[str, object]) -> None:
    from regard import recipe as recipes
    from regard.storage import Run

    run = Run.open(demo["run"])
    *_, last, scored = run.metrics()
    assert last["update"] == recipes.load("dates").train.updates
    assert demo["train_seconds"] == scored["train_seconds"]


def test_the_map_is_saved_as_svg_and_png(demo: dict[str, object]) -> None:
    assert (demo["run"] / "map.svg").read_bytes().startswith(b"<svg ")
    assert (demo["run"] / "map.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("part", ["year", "day"])
def test_attention_is_on_the_year_and_the_day(
    predictor: Predictor, unseen_examples: list[Example], language: str, part: str
) -> None:
    """Rows of the output's year attend to the year in the source, rows of its day to the day.

    One more column on either side counts too, because recurrent states contain information of their neighbours.
    """
    examples = [example for example in unseen_examples if example.group == language]
    rows = slice(0, 4) if part == "year" else slice(8, 10)
    chosen: list[tuple[str, int]] = []  # a source, and the position of the year or day in it
    for example in examples:
        digits = example.target[rows]
        starts = [match.start() for match in re.finditer(rf"(?<!\d){digits}(?!\d)", example.source)]
        if len(starts) == 1 and not digits.startswith("0"):  # `05` may be written as `5`, and `10` may be day and month
            chosen.append((example.source, starts[0]))
    chosen = chosen[:MAPS]
    masses, uniform = [], []
    for (_, start), prediction in zip(chosen, predictor.predict([source for source, _ in chosen]), strict=True):
        assert prediction.map is not None
        inside = prediction.map.weights[rows, max(0, start - 1) : start + (rows.stop - rows.start) + 1]
        masses.append(inside.sum(dim=-1).mean().item())
        uniform.append(inside.shape[-1] / len(prediction.map.columns))
    assert len(masses) == MAPS
    mass, uniform_mass = sum(masses) / MAPS, sum(uniform) / MAPS
    print(f"{language} {part}: {mass:.3f} of the weight is where it belongs; with uniform weights {uniform_mass:.3f}")
    assert mass > 0.5
    assert mass > uniform_mass + 0.3


def test_a_wider_beam_is_as_good_as_greedy_search(predictor: Predictor, unseen_examples: list[Example]) -> None:
    """For a confident model, all hypotheses but the first are unlikely ones that end early."""
    examples = unseen_examples[:: len(unseen_examples) // DATES][:DATES]
    texts = [example.source for example in examples]
    greedy, *wider = (predictor.predict(texts, beam=beam) for beam in (1, *BEAMS))

    def count_right(answers: list[regard.Prediction]) -> int:
        return sum(answer.text == example.target for answer, example in zip(answers, examples, strict=True))

    assert count_right(greedy) > 0.95 * DATES
    for answers in wider:
        assert count_right(answers) >= count_right(greedy)
        pairs = zip(answers, greedy, strict=True)
        assert all(answer.score >= greedy_answer.score - 1e-4 for answer, greedy_answer in pairs)


@pytest.mark.slow
def test_captions_are_right_and_attention_is_at_the_objects(program: Path, tmp_path: Path) -> None:
    result = wheels.start(program, "demo", "caption", "--json", folder=tmp_path, timeout=900, **THREADS)
    assert result.code == 0, result.error
    scores = json.loads(result.lines[-1])
    assert scores["examples"] == 1000
    assert scores["exact_match"] >= 0.95
    assert scores["right_cells"] >= 0.85


@pytest.mark.slow
def test_transcripts_are_right_and_attention_is_at_the_onsets(program: Path, tmp_path: Path) -> None:
    result = wheels.start(program, "demo", "transcribe", "--json", folder=tmp_path, timeout=900, **THREADS)
    assert result.code == 0, result.error
    scores = json.loads(result.lines[-1])
    assert scores["examples"] == 1000
    assert scores["token_errors"] <= 0.02
    assert scores["time_error_positions"] <= 1


@pytest.mark.slow
def test_forecasts_cover_what_comes_and_attention_is_at_the_lag(program: Path, tmp_path: Path) -> None:
    result = wheels.start(program, "demo", "forecast", "--json", folder=tmp_path, timeout=900, **THREADS)
    assert result.code == 0, result.error
    scores = json.loads(result.lines[-1])
    assert scores["examples"] == 200
    assert 0.87 <= scores["coverage_90"] <= 0.93
    assert scores["right_lags"] >= 0.8
