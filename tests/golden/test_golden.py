"""Runs of version 0.1.0, kept as they were written: every later version loads them, predicts the same, resumes them."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import storage
from regard.predict import Predictor, load
from regard.tasks import TASKS
from regard.training import resume
from regard.types import Prediction

RUNS = Path(__file__).parent / "runs"
NAMES = sorted(path.name for path in RUNS.iterdir())
# What float32 promises through a few layers on any CPU. The inputs were chosen so that no choice is a near tie.
ROUNDING = {"rel": 1e-4, "abs": 1e-4}
SCORED = 100  # examples of test, of which two may be near ties that another CPU decides otherwise
ANOTHER = 0.02
RESUMED = 1e-3  # of a loss after twenty more updates: training multiplies what rounding began

Copy = Callable[[str], Path]
CaptureBytes = pytest.CaptureFixture[bytes]


def expected(name: str) -> dict[str, Any]:
    return json.loads((RUNS / name / "expected.json").read_text(encoding="utf-8"))


def answers(predictor: Predictor, name: str) -> list[tuple[Prediction, dict[str, Any]]]:
    """What a run predicts now by greedy search, each beside what is expected."""
    wanted = expected(name)["answers"]
    return list(zip(predictor.predict([answer["source"] for answer in wanted], beam=1), wanted, strict=True))


def score(predictor: Predictor) -> float:
    """The run's own metric on the first examples of its corpus' test."""
    recipe = predictor.task.recipe
    return predictor.score(TASKS[recipe.task].examples(recipe).test[:SCORED]).measured.value


@pytest.fixture
def copied(tmp_path: Path) -> Copy:
    """Copies a run directory to where it may be written: the golden ones stay as they are."""
    return lambda path: Path(shutil.copytree(RUNS / path, tmp_path / "run"))


def test_every_task_has_a_golden_run() -> None:
    recipes = [storage.Run.open(RUNS / name / "finished").recipe() for name in NAMES]
    assert {recipe.task for recipe in recipes} == set(TASKS)


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_run_predicts_what_it_did(name: str, copied: Copy) -> None:
    for found, wanted in answers(load(copied(f"{name}/finished"), device="cpu"), name):
        assert (found.text, list(found.tokens)) == (wanted["text"], wanted["tokens"])
        assert found.score == pytest.approx(wanted["score"], **ROUNDING)
        assert (found.map is None) == (wanted["looks"] is None)
        if found.map is not None:
            for look, clear in zip(found.map.weights.argmax(1).tolist(), wanted["looks"], strict=True):
                assert clear in (None, look)
            for row, column, weight in wanted["weights"]:
                assert found.map.weights[row, column].item() == pytest.approx(weight, **ROUNDING)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_run_answers_in_half_precision(name: str, dtype: torch.dtype, copied: Copy) -> None:
    predictor = load(copied(f"{name}/finished"), device="cpu")
    predictor.model.to(dtype)
    texts = [answer["source"] for answer in expected(name)["answers"]]
    assert all(math.isfinite(each.score) for each in predictor.predict(texts, beam=2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # typer's, as it is imported
@pytest.mark.parametrize("name", NAMES)
def test_predict_prints_a_line_for_each_line(name: str, copied: Copy, capfdbinary: CaptureBytes) -> None:
    from regard.cli import predict

    texts = [answer["source"] for answer in expected(name)["answers"]]
    given = [texts[0], "", "  ", texts[-1], ""]
    (run := copied(f"{name}/finished")).parent.joinpath("lines.txt").write_text("\n".join(given) + "\n", "utf-8")
    predict(str(run), [str(run.parent / "lines.txt")])
    assert len(capfdbinary.readouterr().out.decode().splitlines()) == len(given)


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_run_scores_what_it_did(name: str, copied: Copy) -> None:
    wanted = expected(name)["value"]
    assert score(load(copied(f"{name}/finished"), device="cpu")) == pytest.approx(wanted, rel=RESUMED, abs=ANOTHER)


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_run_resumes_to_the_same_end(name: str, copied: Copy) -> None:
    run = storage.Run.open(copied(f"{name}/stopped"))
    assert run.checkpoints()
    assert not run.finished()
    run = resume(run, quiet=True)
    assert run.finished()
    losses = [entry["dev_loss"] for entry in run.metrics() if "dev_loss" in entry]
    assert losses == pytest.approx(expected(name)["dev_losses"], rel=RESUMED)
    for found, wanted in answers(load(run, device="cpu"), name):
        assert (found.text, list(found.tokens)) == (wanted["text"], wanted["tokens"])
