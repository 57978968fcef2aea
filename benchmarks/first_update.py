"""Time from the command to the first line on the screen, and to the end of one update, with many pairs.

    python benchmarks/first_update.py [OLDER ...] [--pairs 1000000] [--rounds 3] [--tokens character word]

Trains one update of the recipe `dates` on generated pairs, each time in a process of its own; the dev set has ten
pairs, so that nearly all of the time is reading, tokenising and encoding. OLDER is the root of another checkout. All
are run once a round, one after another. Prints the median seconds, their spread, and the longest time without a new
line. Needs an idle machine.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parents[1]
WORDS = 20_000  # different words of the generated texts
WHAT = ("first line", "one update", "longest silence")


def write_pairs(path: Path, pairs: int) -> None:
    """Write pairs of texts with about seven words on each side."""
    numbers = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(pairs):
            words = [f"w{int(WORDS * numbers.random() ** 3)}" for _ in range(numbers.randint(4, 10))]
            file.write(f"{' '.join(words)}\t{' '.join(reversed(words))}\n")


def timed(root: Path, folder: Path, tokens: str) -> tuple[float, float, float]:
    """Seconds to the first output, to the end, and the longest time between two outputs, on stderr."""
    keys = [f"data.train={folder}/train.tsv", f"data.dev={folder}/dev.tsv", "train.updates=1", "train.validate=1"]
    keys += [f"tokens.source={tokens}", f"tokens.target={tokens}", "train.device=cpu", f"name=run{time.time_ns()}"]
    command = [sys.executable, "-m", "regard", "train", "dates", *keys, "--runs", str(folder / "runs")]
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    assert process.stderr is not None
    outputs = [start]
    while os.read(process.stderr.fileno(), 1 << 16):
        outputs.append(time.perf_counter())
    if process.wait():
        raise SystemExit(f"the training of {root} failed")
    end = time.perf_counter()
    gaps = [after - before for before, after in zip(outputs, [*outputs[1:], end], strict=True)]
    return outputs[1] - start, end - start, max(gaps)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("older", nargs="*", type=Path, help="roots of other checkouts")
    arguments.add_argument("--pairs", type=int, default=1_000_000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--tokens", nargs="*", default=["character", "word"])
    given = arguments.parse_args()
    roots = {**{str(root): root.resolve() for root in given.older}, "this": HERE}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_pairs(folder / "train.tsv", given.pairs)
        write_pairs(folder / "dev.tsv", 10)
        for tokens in given.tokens:
            times = {name: [] for name in roots}
            for _ in range(given.rounds):
                for name, root in roots.items():
                    times[name].append(timed(root, folder, tokens))
            for name in roots:
                for what, *values in zip(WHAT, *times[name], strict=True):
                    spread = f"({min(values):.2f} to {max(values):.2f})"
                    print(f"{tokens}, {name}: {what} {statistics.median(values):.2f} s {spread}", flush=True)


if __name__ == "__main__":
    main()
