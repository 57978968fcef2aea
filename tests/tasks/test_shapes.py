"""Every task trains, validates and predicts with the shapes in signatures checked."""

from pathlib import Path

import pytest
from jaxtyping import config

import regard
from regard import recipe as recipes
from regard.tasks import TASKS
from regard.training import loop

RECIPES = {
    "translate": "reverse",
    "classify": "moods",
    "language_model": "sentences",
    "tag": "parts",
    "masked_lm": "clues",
    "answer": "facts",
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_trains_and_predicts_with_shapes_checked(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "fit", getattr(loop.fit, "__wrapped__", loop.fit))
    assert not config.jaxtyping_disable
    keys = ["data.size=40", "train.updates=2", "train.validate=2", "train.batch_tokens=2000", "train.device=cpu"]
    recipe = recipes.load(RECIPES[task], keys)
    assert recipe.task == task
    predictor = regard.load(regard.train(recipe, runs=tmp_path, quiet=True))
    example = predictor.task.examples(recipe).dev[0]
    assert len(predictor.predict([example.source or example.target])) == 1
