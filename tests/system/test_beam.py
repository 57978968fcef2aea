"""Beam search on trained models: a wider beam finds what is at least as likely, as good as always.

Where the beam loses the prefix that greedy search follows, it may end worse; that is rare, and counted here.
"""

from pathlib import Path

import pytest

import regard
from regard.tasks import TASKS
from regard.types import Prediction

WIDTHS = (2, 4, 8)
MOST = 0.005  # share of sentences for which a beam may end worse than greedy search
SMALL = (
    "data.size=2000",
    "data.max_length=10",
    "model.embedding=32",
    "model.encoder.dim=48",
    "model.attention.dim=32",
    "model.decoder.dim=48",
    "train.updates=150",
    "train.batch_tokens=500",
    "train.validate=150",
    "train.learning_rate=0.01",
    "train.device=cpu",
    "train.threads=1",
)
TRANSFORMER = (
    "model.encoder.kind=transformer",
    "model.decoder.kind=transformer",
    "model.attention.score=scaled_dot",
    "model.attention.heads=4",
    "train.learning_rate=0.003",
)
KINDS = {
    "bahdanau": ("model.decoder.order=bahdanau",),
    "luong": ("model.decoder.order=luong", "model.attention.score=general"),
    "luong_feeding": ("model.decoder.order=luong_feeding", "model.decoder.cell=lstm"),
    "none": ("model.decoder.order=none",),
    "transformer": TRANSFORMER,
}


def likelier(one: Prediction, other: Prediction) -> bool:
    """Whether one scores clearly above the other, rounding apart."""
    return one.score > other.score + 1e-4


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Ten small models, some sure of themselves and some not."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        regard.train(corpus, *SMALL, *overrides, f"name={corpus}_{kind}", runs=folder, quiet=True).path
        for corpus in ("copy", "reverse")
        for kind, overrides in KINDS.items()
    ]


def test_a_beam_is_hardly_ever_worse_than_greedy_search(runs: list[Path]) -> None:
    worse, asked = [], 0
    for run in runs:
        predictor = regard.load(run)
        texts = [each.source for each in TASKS["translate"].examples(predictor.task.recipe).dev][:200]
        greedy = predictor.predict(texts, beam=1)
        for width in WIDTHS:
            found = predictor.predict(texts, beam=width)
            asked += len(texts)
            worse += [
                (run.name, width, one.text, other.text)
                for one, other in zip(greedy, found, strict=True)
                if likelier(one, other)
            ]
    assert len(runs) == 10
    assert asked == 10 * len(WIDTHS) * 200
    assert len(worse) <= MOST * asked, worse
