"""A sample of the sweep: two orders, each with a mechanism of its own, learn their corpora."""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from sweep import SCORES, TARGET, Combination, Reached, combinations, reach

SAMPLE = (
    Combination("reverse", "bahdanau", "concat", "local_p"),
    Combination("copy", "luong", "additive", "local_m"),
)
# Smaller and shorter than the sweep's own settings: the additive family needs no more.
QUICK = (
    *("model.encoder.cell=gru", "model.encoder.dim=128", "model.decoder.cell=gru", "model.decoder.dim=128"),
    *("train.learning_rate=0.005", "train.updates=600", "train.validate=300", "train.device=cpu"),
)


@pytest.fixture(scope="module")
def reached() -> dict[Combination, Reached]:
    """Trained side by side, in processes of their own: as fast as outside of the tests, which check every shape."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        training = {each: pool.submit(reach, each, *QUICK) for each in SAMPLE}
        return {each: result.result() for each, result in training.items()}


@pytest.mark.parametrize("combination", SAMPLE, ids=" ".join)
def test_a_sample_of_the_sweep_reaches_its_target(combination, reached):
    assert combination in combinations()
    assert reached[combination].value >= TARGET


def test_the_sweep_is_all_of_it():
    every = combinations()
    assert len(every) == len(set(every)) == 3 * 2 * len(SCORES) + 3 + 6
