"""Greedy search against beams on ten small trained models: exact match, and how often a beam ends less likely.

    python benchmarks/beam.py

At length and coverage penalty 0 a beam ends less likely than greedy search only if it loses the prefix that greedy
search follows. Prints exact match on 500 unseen examples by beam, and the share of sentences for which that happened;
exits with 1 if it is more than 0.5 %. A model is trained in a process of its own, by one thread.
"""

import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

import regard
from regard.tasks import TASKS

BEAMS = (1, 2, 4, 8)
EXAMPLES = 500
MOST = 0.005  # share of sentences for which a beam may end less likely than greedy search
ROUNDING = 1e-4  # of a summed log-probability in float32


class Model(NamedTuple):
    """One of the ten."""

    recipe: str
    order: str  # of a recurrent decoder, or transformer


TEN = (
    *(Model("titles", order) for order in ("bahdanau", "luong", "luong_feeding", "gnmt_v2")),
    *(Model("reverse", order) for order in ("bahdanau", "luong_feeding", "transformer")),
    *(Model("copy", order) for order in ("bahdanau", "luong", "transformer")),
)
TRANSFORMER = (
    *("model.encoder.kind=transformer", "model.encoder.layers=2", "model.encoder.dim=128"),
    *("model.decoder.kind=transformer", "model.decoder.layers=2", "model.decoder.dim=128"),
    *("model.attention.score=scaled_dot", "model.attention.heads=4", "train.learning_rate=0.002"),
)
RECURRENT = {"gnmt_v2": ("model.decoder.layers=2",)}


class Found(NamedTuple):
    """Exact match of each beam, and the sentences that it ends less likely than greedy search."""

    exact: dict[int, float]
    worse: dict[int, int]


def measure(model: Model, *overrides: str, examples: int = EXAMPLES) -> Found:
    """Train it, and answer unseen examples with every beam."""
    order = model.order
    kind = TRANSFORMER if order == "transformer" else (f"model.decoder.order={order}", *RECURRENT.get(order, ()))
    with tempfile.TemporaryDirectory() as folder:
        own = ("train.device=cpu", "train.threads=1", *kind, *overrides)
        predictor = regard.load(regard.train(model.recipe, *own, runs=folder, quiet=True), device="cpu")
    test = TASKS["translate"].examples(predictor.task.recipe).test[:examples]
    answers = {beam: predictor.predict([each.source for each in test], beam=beam) for beam in BEAMS}
    exact = {
        beam: sum(one.text == each.target for one, each in zip(found, test, strict=True)) / len(test)
        for beam, found in answers.items()
    }
    worse = {
        beam: sum(one.score < greedy.score - ROUNDING for one, greedy in zip(found, answers[1], strict=True))
        for beam, found in answers.items()
    }
    return Found(exact, worse)


def main() -> None:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        training = {model: pool.submit(measure, model) for model in TEN}
        print(f"{'model':<24}" + "".join(f"{f'beam {beam}':>9}" for beam in BEAMS) + "   less likely, by beam")
        worse = 0
        for model, result in training.items():
            found = result.result()
            worse += sum(found.worse.values())
            told = "".join(f"{found.exact[beam]:9.4f}" for beam in BEAMS)
            print(f"{' '.join(model):<24}{told}   {[found.worse[beam] for beam in BEAMS[1:]]}", flush=True)
    asked = len(TEN) * EXAMPLES * (len(BEAMS) - 1)
    print(f"a beam ended less likely than greedy search for {worse} of {asked:,} sentences, {worse / asked:.2%}")
    sys.exit(worse > MOST * asked)


if __name__ == "__main__":
    main()
