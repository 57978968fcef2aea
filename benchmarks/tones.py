"""Trains the recipe tones and measures its transcripts, and whether attention is at the onsets of the notes.

    python benchmarks/tones.py [KEY=VALUE ...]      runs/tones, on the CPU with two threads

Prints the seconds of training, the share of wrong tokens on test, and the median error of a note's time.
"""

import sys
import time
from collections.abc import Sequence

import regard
from regard.analysis.timing import timing
from regard.data.corpora import tones

KEYS = ("train.device=cpu", "train.threads=2")


def main(keys: Sequence[str]) -> None:
    start, busy = time.perf_counter(), time.process_time()
    run = regard.train("tones", *KEYS, *keys)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    predictor, test = regard.load(run, "cpu"), tones(seed=1, size=0).test
    scored, times = predictor.score(test), timing(predictor, test)
    print(f"training: {seconds:.0f} s, {busy:.0f} s of processor time")
    print(f"token errors on {len(test):,} test melodies: {scored.measured.value:.2%}")
    where = f"{times.seconds:.3f} s, {times.positions:.2f} positions, of {times.notes:,} notes"
    print(f"median error of the time of a note: {where}")


if __name__ == "__main__":
    main(sys.argv[1:])
