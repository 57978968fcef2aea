"""Does `regard measure` separate? Agreement of trained runs, with shuffled attention, and of untrained models.

    REGARD_DATA=FOLDER python benchmarks/trust.py RUN... [--examples 100] [--seeds 3]

For each run, prints the agreement of its maps with erasing source positions (docs/measure.md), with a 95 % interval
over examples: as it is; with the weights of a map permuted (the floor); with attention that is permuted in the model
itself, at every step of every pass; and of as many untrained models of the same recipe.
"""

import argparse
from collections.abc import Sequence

import torch

import regard
from regard import Predictor
from regard.analysis.measure import (
    Erased,
    Estimate,
    Reshuffle,
    agreement,
    erasures,
    estimate,
    has_window,
    permuted_columns,
)
from regard.models import CROSS
from regard.tasks.core import evenly
from regard.types import Example


def examples_of(predictor: Predictor, count: int) -> Sequence[Example]:
    """Examples of the test set of a run, spread evenly over it."""
    task = predictor.task
    test = task.recipe.data.test
    return evenly(task.reader(task.recipe)(test).examples if test else task.examples(task.recipe).test, count)


def agreed(erased: Sequence[Erased]) -> Estimate:
    """The agreement of the maps with erasing."""
    return estimate(agreement([one.map.weights for one in erased], [one.changes for one in erased]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3, help="untrained models")
    given = parser.parse_args()
    for name in given.runs:
        predictor = regard.load(name)
        examples = examples_of(predictor, given.examples)
        erased = erasures(predictor, examples)
        print(f"{name}: trained            {agreed(erased)}", flush=True)
        random = torch.Generator().manual_seed(1)
        in_window = has_window(predictor.model)
        permuted = [permuted_columns(one.map.weights, random, in_window=in_window) for one in erased]
        print(
            f"{name}: permuted map       {estimate(agreement(permuted, [one.changes for one in erased]))}", flush=True
        )
        with regard.intervene(predictor, Reshuffle(CROSS)):
            print(f"{name}: shuffled attention {agreed(erasures(predictor, examples))}", flush=True)
        for seed in range(1, given.seeds + 1):
            torch.manual_seed(seed)
            fresh = predictor.task.build().eval().to(next(predictor.model.parameters()).device)
            untrained = Predictor(predictor.run, predictor.task, fresh)
            print(f"{name}: untrained, seed {seed}  {agreed(erasures(untrained, examples))}", flush=True)


if __name__ == "__main__":
    main()
