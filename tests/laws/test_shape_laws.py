"""Every task, search and sampling run with the shapes in signatures checked, if REGARD_CHECK_SHAPES=1."""

from pathlib import Path

import pytest
import torch
from jaxtyping import config
from setups import LIMITS, SETUP_KINDS, make_setup

import regard
from regard import recipe as recipes
from regard.search import beam, sample
from regard.tasks import TASKS
from regard.training import loop
from small_recipes import RECIPES

PREFIX = torch.tensor([[4, 9, 5], [8, 8, 8], [6, 4, 7]])


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


@pytest.mark.parametrize("kind", SETUP_KINDS)
def test_search_and_sampling_run_with_shapes_checked(kind: str) -> None:
    setup = make_setup(kind)
    assert all(beam(setup.model.decoder, setup.memory, width=3, limits=LIMITS, n_best=2))
    assert all(beam(setup.model.decoder, setup.memory, width=2, limits=LIMITS, no_repeat=2, prefix=PREFIX))
    assert all(sample(setup.model.decoder, setup.memory, limits=LIMITS, seeds=(11, 22, 33), prefix=PREFIX))
