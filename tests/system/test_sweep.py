"""A sample of the sweep: one combination of order, score and scope learns its corpus."""

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from sweep import SCORES, TARGET, Combination, combinations, reach

SAMPLE = Combination("copy", "luong", "additive", "local_m")  # `make sweep` trains them all
# Smaller and shorter than the sweep's own settings: the additive family needs no more.
QUICK = (
    *("model.encoder.cell=gru", "model.encoder.dim=128", "model.decoder.cell=gru", "model.decoder.dim=128"),
    *("train.learning_rate=0.005", "train.updates=600", "train.validate=300", "train.device=cpu"),
)


@pytest.mark.slow
def test_a_sample_of_the_sweep_reaches_its_target():
    """Trained in a process of its own: as fast as outside of the tests, which check every shape."""
    assert SAMPLE in combinations()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(reach, SAMPLE, *QUICK).result().value >= TARGET


def test_the_sweep_is_all_of_it():
    every = combinations()
    assert len(every) == len(set(every)) == 3 * 2 * len(SCORES) + 3 + 6
