"""One combination of order, score and scope from the sweep learns its corpus."""

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
    """It is trained in its own process, without the shape checks of the tests, which are slow."""
    assert SAMPLE in combinations()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(reach, SAMPLE, *QUICK).result().value >= TARGET


def test_the_sweep_has_every_combination_once():
    all_combinations = combinations()
    assert len(all_combinations) == len(set(all_combinations)) == 3 * 2 * len(SCORES) + 3 + 6
