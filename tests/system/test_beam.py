"""Beam search on a trained model: what comes out is as good as by greedy search, and as likely."""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from beam import BEAMS, MOST, TEN, Found, Model, measure

EXAMPLES = 200
SAMPLE = {  # one of the ten, shorter: `python benchmarks/beam.py` runs them all, product titles too, in minutes
    Model("copy", "luong"): ("train.updates=300", "data.size=6000"),
}


@pytest.fixture(scope="module")
def found() -> dict[Model, Found]:
    """Trained in a process of its own, which checks no shapes."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        training = {model: pool.submit(measure, model, *own, examples=EXAMPLES) for model, own in SAMPLE.items()}
        return {model: result.result() for model, result in training.items()}


@pytest.mark.parametrize("model", SAMPLE, ids=" ".join)
def test_a_wider_beam_is_as_good_as_greedy_search(model: Model, found: dict[Model, Found]) -> None:
    assert model in TEN
    exact, worse = found[model]
    assert exact[1] > 0.5  # it has learned enough for the question to mean something
    assert all(exact[beam] >= exact[1] - 1 / EXAMPLES for beam in BEAMS)  # another CPU may round one to another text
    assert sum(worse.values()) <= MOST * EXAMPLES * len(BEAMS[1:])
