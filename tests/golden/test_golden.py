"""Every later version loads the runs that version 0.1.0 wrote, predicts the same with them and resumes them."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import storage
from regard.errors import DataError
from regard.predict import Predictor, load
from regard.tasks import TASKS, Forecast
from regard.training import resume
from regard.types import Prediction

RUNS = Path(__file__).parent / "runs"
NAMES = sorted(path.name for path in RUNS.iterdir())
# Rounding of float32 through a few layers on any CPU. The inputs were chosen so that no choice is a near tie.
ROUNDING = {"rel": 1e-4, "abs": 1e-4}
SCORED = 100  # test examples, of which two may be near ties with another result on another CPU
SCORE_TOLERANCE = 0.02
BATCH_MATES = 20  # test examples that are predicted all at once and one by one
RELATIVE_TOLERANCE = 1e-3  # after twenty more updates: training amplifies rounding differences

Copy = Callable[[str], Path]
CaptureBytes = pytest.CaptureFixture[bytes]


def expected(name: str) -> dict[str, Any]:
    return json.loads((RUNS / name / "expected.json").read_text(encoding="utf-8"))


def predictions_and_expected(predictor: Predictor, name: str) -> list[tuple[Prediction, dict[str, Any]]]:
    """The predictions of a run by greedy search, each with the expected answer."""
    expected_answers = expected(name)["answers"]
    texts = [answer["source"] for answer in expected_answers]
    return list(zip(predict(predictor, texts, beam=1), expected_answers, strict=True))


def predict(predictor: Predictor, texts: list[str], beam: int) -> list[Prediction]:
    """Predict with a beam of this width if the task searches."""
    return predictor.predict(texts, beam=beam if predictor.task.uses("search.beam") else None)


def score(predictor: Predictor) -> float:
    """The metric of the run on the first test examples of its corpus."""
    recipe = predictor.task.recipe
    return predictor.score(TASKS[recipe.task].examples(recipe).test[:SCORED]).measured.value


def text_of(prediction: Prediction, text: str) -> object:
    """The text, to be compared with that of a prediction; of a forecast, one whose numbers may differ by rounding."""
    if not isinstance(prediction, Forecast):
        return text
    are_near = numbers_of(text) == pytest.approx(numbers_of(prediction.text), rel=RELATIVE_TOLERANCE, abs=1e-3)
    return prediction.text if are_near else text


def numbers_of(text: str) -> list[float]:
    return [float(number) for number in text.split()]


@pytest.fixture
def copied(tmp_path: Path) -> Copy:
    """Copies a run directory, so that the golden runs are never changed."""
    return lambda path: Path(shutil.copytree(RUNS / path, tmp_path / "run"))


def test_every_task_has_a_golden_run() -> None:
    recipes = [storage.Run.open(RUNS / name / "finished").recipe() for name in NAMES]
    assert {recipe.task for recipe in recipes} == set(TASKS)


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_run_predicts_the_same_as_before(name: str, copied: Copy) -> None:
    for prediction, answer in predictions_and_expected(load(copied(f"{name}/finished"), device="cpu"), name):
        assert (prediction.text, list(prediction.tokens)) == (text_of(prediction, answer["text"]), answer["tokens"])
        assert prediction.score == pytest.approx(answer["score"], **ROUNDING)
        assert (prediction.map is None) == (answer["looks"] is None)
        if prediction.map is not None:
            for column, expected_column in zip(prediction.map.weights.argmax(1).tolist(), answer["looks"], strict=True):
                assert expected_column in (None, column)
            for row, column, weight in answer["weights"]:
                assert prediction.map.weights[row, column].item() == pytest.approx(weight, **ROUNDING)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_alone_gets_the_answer_that_it_gets_in_a_batch(name: str, copied: Copy) -> None:
    """Scores differ by rounding: see docs/promises.md, and benchmarks/batch_mates.py, which measures how much."""
    predictor = load(copied(f"{name}/finished"), device="cpu")
    recipe = predictor.task.recipe
    unseen = TASKS[recipe.task].examples(recipe).test[:BATCH_MATES]
    texts = [answer["source"] for answer in expected(name)["answers"]] + [each.source or each.target for each in unseen]
    for text, among in zip(texts, predict(predictor, texts, beam=2), strict=True):
        [alone] = predict(predictor, [text], beam=2)
        assert (alone.text, alone.tokens) == (text_of(alone, among.text), among.tokens)
        assert alone.score == pytest.approx(among.score, rel=0, abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_run_predicts_in_half_precision(name: str, dtype: torch.dtype, copied: Copy) -> None:
    predictor = load(copied(f"{name}/finished"), device="cpu")
    predictor.model.to(dtype)
    texts = [answer["source"] for answer in expected(name)["answers"]]
    assert all(math.isfinite(prediction.score) for prediction in predict(predictor, texts, beam=2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of typer, when it is imported
@pytest.mark.parametrize("name", [name for name in NAMES if name != "forecast"])  # which reads tables
def test_predict_prints_one_line_per_input_line(name: str, copied: Copy, capfdbinary: CaptureBytes) -> None:
    from regard.cli import predict

    texts = [answer["source"] for answer in expected(name)["answers"]]
    lines = [texts[0], "", "  ", texts[-1], ""]
    (run := copied(f"{name}/finished")).parent.joinpath("lines.txt").write_text("\n".join(lines) + "\n", "utf-8")
    predict(str(run), [str(run.parent / "lines.txt")])
    assert len(capfdbinary.readouterr().out.decode().splitlines()) == len(lines)


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_run_scores_the_same_as_before(name: str, copied: Copy) -> None:
    expected_score = expected(name)["value"]
    assert score(load(copied(f"{name}/finished"), device="cpu")) == pytest.approx(
        expected_score, rel=RELATIVE_TOLERANCE, abs=SCORE_TOLERANCE
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_run_resumes_to_the_same_end(name: str, copied: Copy) -> None:
    run = storage.Run.open(copied(f"{name}/stopped"))
    assert run.checkpoints()
    assert not run.finished()
    run = resume(run, quiet=True)
    assert run.finished()
    losses = [entry["dev_loss"] for entry in run.metrics() if "dev_loss" in entry]
    assert losses == pytest.approx(expected(name)["dev_losses"], rel=RELATIVE_TOLERANCE)
    for prediction, answer in predictions_and_expected(load(run, device="cpu"), name):
        assert (prediction.text, list(prediction.tokens)) == (text_of(prediction, answer["text"]), answer["tokens"])


def test_an_old_run_gets_another_length_if_it_has_a_checkpoint(copied: Copy, tmp_path: Path) -> None:
    run = resume(copied("language_model_lines/stopped"), "train.updates=131", quiet=True)
    assert run.finished()
    assert run.newest_update() == 131
    finished = shutil.copytree(RUNS / "language_model_lines/finished", tmp_path / "finished")
    with pytest.raises(DataError, match="is finished and has no checkpoint to go on from, like all runs of older"):
        resume(finished, "train.updates=200", quiet=True)
