"""Trains every attentive order x score x scope, and more, and prints what each reaches: `make sweep`.

Exact match on unseen strings, after the same training: `reverse` with global and local-p attention, `copy` with
local-m, and the sparse normalisers with the additive score. `--sample N` trains every N-th combination only.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

ORDERS = ("bahdanau", "luong", "luong_feeding")
SCORES = ("dot", "scaled_dot", "general", "multiplicative", "concat", "additive", "cosine", "gaussian")
TARGET = 0.99
UPDATES = 1000


class Combination(NamedTuple):
    """One training."""

    corpus: str
    order: str
    score: str
    scope: str = "global"
    normalizer: str = "softmax"

    def overrides(self) -> list[str]:
        return [
            f"model.decoder.order={self.order}",
            f"model.attention.score={self.score}",
            f"model.attention.scope={self.scope}",
            f"model.attention.normalizer={self.normalizer}",
            f"train.updates={UPDATES}",
            "train.validate=200",
            "train.threads=1",
            "train.device=cpu",
        ]


def combinations() -> list[Combination]:
    found = [
        Combination("reverse", order, score, scope)
        for order in ORDERS
        for scope in ("global", "local_p")
        for score in SCORES
    ]
    found += [Combination("copy", order, "additive", "local_m") for order in ORDERS]
    found += [
        Combination("reverse", order, "additive", "global", each)
        for order in ORDERS
        for each in ("sparsemax", "entmax15")
    ]
    return found


def reach(combination: Combination) -> tuple[Combination, float, float]:
    """The exact match that a combination reaches, and the seconds its training took."""
    import regard
    from regard.tasks import Translate

    with tempfile.TemporaryDirectory() as runs:
        started = time.perf_counter()
        run = regard.train(combination.corpus, *combination.overrides(), runs=runs, quiet=True)
        seconds = time.perf_counter() - started
        scored = regard.load(run, device="cpu").score(Translate.examples(run.recipe()).test)
    return combination, scored.measured.value, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=1, help="train every N-th combination only")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="combinations that contain this word")
    arguments = parser.parse_args()
    chosen = [each for each in combinations()[:: arguments.sample] if arguments.only in " ".join(each)]
    print(
        "| corpus | order | score | scope | normaliser | exact match | seconds |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    missed = 0
    with ProcessPoolExecutor(arguments.workers) as pool:
        for combination, value, seconds in pool.map(reach, chosen):
            missed += value < TARGET
            print("| " + " | ".join(combination) + f" | {value:.4f} | {seconds:.0f} |", flush=True)
    print(json.dumps({"combinations": len(chosen), f"below {TARGET}": missed}))
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
