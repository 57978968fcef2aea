"""Trains 57 combinations of order, score, scope and normaliser, and prints what each reaches: `make sweep`.

Exact match on unseen strings, after the same training: `reverse` with global and local-p attention, `copy` with
local-m, and the sparse normalisers with the additive score. `--sample N` trains every N-th combination only; with
`--keep FILE` what is done is written there as it ends, and a sweep that was stopped goes on.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

ORDERS = ("bahdanau", "luong", "luong_feeding")
SCORES = ("dot", "scaled_dot", "general", "multiplicative", "concat", "additive", "cosine", "gaussian")
TARGET = 0.99
SETTINGS = (
    "model.encoder.cell=lstm",
    "model.encoder.dim=256",
    "model.decoder.cell=lstm",
    "model.decoder.dim=256",
    "train.updates=3000",
    "train.learning_rate=0.003",
    "train.validate=1500",
    "train.threads=1",
)


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
            *SETTINGS,
        ]


class Reached(NamedTuple):
    """What came of it: exact match on the test strings, and the seconds of training."""

    value: float
    seconds: float


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


def reach(combination: Combination, *more: str) -> Reached:
    """Train a combination, with further overrides, and score it."""
    import regard
    from regard.tasks import TASKS

    with tempfile.TemporaryDirectory() as runs:
        started = time.perf_counter()
        run = regard.train(combination.corpus, *combination.overrides(), *more, runs=runs, quiet=True)
        seconds = time.perf_counter() - started
        recipe = run.recipe()
        scored = regard.load(run).score(TASKS[recipe.task].examples(recipe).test)
    return Reached(scored.measured.value, seconds)


def done_before(path: Path | None) -> dict[Combination, Reached]:
    """What an earlier sweep with these settings left in the file."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    mine = [row for row in rows if row["settings"] == list(SETTINGS)]
    return {Combination(*row["combination"]): Reached(*row["reached"]) for row in mine}


def keep(path: Path, combination: Combination, reached: Reached) -> None:
    row = {"settings": SETTINGS, "combination": combination, "reached": reached}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=1, help="train every N-th combination only")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="combinations that contain these words")
    parser.add_argument("--keep", type=Path, help="file of what is done")
    arguments = parser.parse_args()
    words = arguments.only.split()
    chosen = [each for each in combinations()[:: arguments.sample] if all(word in each for word in words)]
    reached = done_before(arguments.keep)
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        training = {pool.submit(reach, each): each for each in chosen if each not in reached}
        for future in as_completed(training):
            combination, result = training[future], future.result()
            reached[combination] = result
            print(
                f"{' '.join(combination)}: {result.value:.4f} after {result.seconds:.0f} s", file=sys.stderr, flush=True
            )
            if arguments.keep:
                keep(arguments.keep, combination, result)
    print("| corpus | order | score | scope | normaliser | exact match | seconds |\n|---|---|---|---|---|---|---|")
    for each in chosen:
        print("| " + " | ".join(each) + f" | {reached[each].value:.4f} | {reached[each].seconds:.0f} |")
    missed = sum(reached[each].value < TARGET for each in chosen)
    print(json.dumps({"combinations": len(chosen), f"below {TARGET}": missed}))
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
