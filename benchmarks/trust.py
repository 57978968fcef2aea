"""Does `regard measure` separate? Agreement of trained runs, with shuffled attention, and of untrained models.

    REGARD_DATA=FOLDER python benchmarks/trust.py RUN... [--examples 100] [--seeds 3]

For each run, prints the agreement of its maps with erasing source positions (docs/measure.md), with a 95 % interval
over examples: as it is; with the weights of a map permuted (the floor); with attention that is permuted in the model
itself; and of as many untrained models of the same recipe.

Attention is permuted in three ways. `reshuffled at each call` gives each pass its own order: the pass of the map, the
pass of the whole source, and every pass without a position. So the map cannot agree with the changes, whatever the
model computes. `permute seed=N` has one order of places for all passes, by the seed and the output step; in the pass
without a token, those after it move up by one place, so a part of the order changes. `order of tokens, seed N` has one
order of tokens for all passes, and only the erased token leaves it. So the map shows weights that every pass uses.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

import regard
from regard import Permute, Predictor
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
from regard.attention.intervene import HeadIntervention
from regard.attention.normalizers import Pairs
from regard.attention.scopes import Weights
from regard.maps import AttentionMap
from regard.models import CROSS, Seq2Seq
from regard.tasks import Transduce
from regard.tasks.core import evenly
from regard.tasks.transduce import Forced
from regard.types import Example


def examples_of(predictor: Predictor, count: int) -> Sequence[Example]:
    """Examples of the test set of a run, spread evenly over it."""
    task = predictor.task
    test = task.recipe.data.test
    return evenly(task.reader(task.recipe)(test).examples if test else task.examples(task.recipe).test, count)


def agreed(erased: Sequence[Erased]) -> Estimate:
    """The agreement of the maps with erasing."""
    return estimate(agreement([one.map.weights for one in erased], [one.changes for one in erased]))


@dataclass(frozen=True)
class PermuteTokens(HeadIntervention):
    """Gives each token of a source the weight of another one; END keeps its own. For batches of one source."""

    name = "permute_tokens"
    seed: int = 0
    erased: int | None = None  # the token of the whole source that the pass does not read

    def replaced(self, call: Weights) -> Pairs:
        """The weights in the order of the tokens of each row."""
        queries, keys = call.weights.shape[-2:]
        orders = np.stack([self.order(call.start + row, keys) for row in range(queries)])
        return call.weights.gather(-1, torch.from_numpy(orders).to(call.weights.device).expand(call.weights.shape))

    def order(self, row: int, keys: int) -> np.ndarray:
        """For each key, the key whose weight it gets; without the erased one, which is cut out of its cycle."""
        count = keys + (self.erased is not None)
        order = np.append(np.random.default_rng([self.seed, row, count]).permutation(count - 1), count - 1)
        if self.erased is None:
            return order
        order[order == self.erased] = order[self.erased]
        rest = np.delete(order, self.erased)
        return rest - (rest > self.erased)


def erasures_in_order(predictor: Predictor, example: Example, seed: int) -> Erased:
    """As `erasures` for one text, with attention in one order of its tokens in all passes."""
    task, model = predictor.task, predictor.model
    assert isinstance(task, Transduce)
    assert isinstance(model, Seq2Seq)
    data = task.encode([example])
    item = list(data.sources[0])

    def forced(source: list[int], erased: int | None) -> Forced:
        own = replace(data, sources=[source], sizes=np.array([task.inputs.size(source)]))
        with regard.intervene(predictor, PermuteTokens(CROSS, seed=seed, erased=erased)), predictor.running():
            return task.forced(model, own)[0]

    whole = forced(item, None)
    without = [forced(item[:place] + item[place + 1 :], place).log_probs for place in range(len(item))]
    assert whole.map is not None
    labels = whole.map.rows[:-1], whole.map.columns[: len(item)]
    kept = AttentionMap(whole.map.weights[:-1, : len(item)], *labels)
    return Erased(kept, (whole.log_probs - torch.stack(without)).T[:-1].cpu())


def show(run: str, kind: str, found: Estimate) -> None:
    """Print one agreement."""
    print(f"{run}: {kind:<24} {found}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3, help="untrained models, and orders of `permute`")
    given = parser.parse_args()
    for name in given.runs:
        predictor = regard.load(name)
        examples = examples_of(predictor, given.examples)
        erased = erasures(predictor, examples)
        show(name, "trained", agreed(erased))
        random = torch.Generator().manual_seed(1)
        in_window = has_window(predictor.model)
        permuted = [permuted_columns(one.map.weights, random, in_window=in_window) for one in erased]
        show(name, "permuted map", estimate(agreement(permuted, [one.changes for one in erased])))
        with regard.intervene(predictor, Reshuffle(CROSS)):
            show(name, "reshuffled at each call", agreed(erasures(predictor, examples)))
        for seed in range(1, given.seeds + 1):
            with regard.intervene(predictor, Permute(CROSS, seed=seed)):
                show(name, f"permute seed={seed}", agreed(erasures(predictor, examples)))
        if isinstance(predictor.task, Transduce) and predictor.task.source is not None and not in_window:
            for seed in range(1, given.seeds + 1):
                in_order = [erasures_in_order(predictor, example, seed) for example in examples]
                show(name, f"order of tokens, seed {seed}", agreed(in_order))
        for seed in range(1, given.seeds + 1):
            torch.manual_seed(seed)
            fresh = predictor.task.build().eval().to(next(predictor.model.parameters()).device)
            untrained = Predictor(predictor.run, predictor.task, fresh)
            show(name, f"untrained, seed {seed}", agreed(erasures(untrained, examples)))


if __name__ == "__main__":
    main()
