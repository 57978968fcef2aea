"""Trains the recipe shapes and measures its captions, and whether attention is at the objects that they name.

    python benchmarks/shapes.py [KEY=VALUE ...]      runs/shapes, on the CPU with two threads

Prints the seconds of training, exact match on test, and the share of object words whose heaviest cell shows the object.
"""

import sys
import time
from collections.abc import Sequence

import regard
from regard.analysis.grounding import grounding
from regard.data.corpora import shapes

KEYS = ("train.device=cpu", "train.threads=2")


def main(keys: Sequence[str]) -> None:
    start, busy = time.perf_counter(), time.process_time()
    run = regard.train("shapes", *KEYS, *keys)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    predictor, test = regard.load(run, "cpu"), shapes(seed=1, size=0).test
    scored = predictor.score(test)
    print(f"training: {seconds:.0f} s, {busy:.0f} s of processor time")
    print(f"exact match on {len(test):,} test scenes: {scored.measured.value:.3f}")
    if predictor.predict([test[0].source])[0].map is None:
        print("no attention map")
    else:
        attention = grounding(predictor, test)
        where = f"{attention.share:.3f} of {attention.words:,} object words (chance {attention.chance:.3f})"
        print(f"heaviest cell right: {where}")


if __name__ == "__main__":
    main(sys.argv[1:])
