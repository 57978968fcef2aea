"""Training speed on an idle machine and beside one busy process, of this checkout and others, in turn.

    python benchmarks/busy.py [OLDER ...] [--spins N ...] [--updates 60] [--rounds 5]

Trains the first updates of the recipe `dates` on the CPU, each time in a process of its own, alone and beside a process
that computes without end. OLDER is the root of another checkout; `--spins` runs this checkout with GOMP_SPINCOUNT set
to each number as well (0 is OMP_WAIT_POLICY=passive, 300000 what GNU OpenMP does by itself). Everything is run once a
round, one after another, so that a slow minute harms all alike. Prints median seconds with their spread, the busy speed
as a share of the idle speed, and the idle speed as a ratio to that of the first OLDER. Needs an idle machine.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
CHOSEN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")  # would speak for the user
TRAIN = """
import sys, tempfile
import regard
with tempfile.TemporaryDirectory() as folder:
    settings = [f"train.updates={sys.argv[1]}", f"train.validate={sys.argv[1]}", "train.device=cpu"]
    run = regard.train("dates", *settings, "search.max_ratio=0", "search.max_extra=1", runs=folder, quiet=True)
    print(run.metrics()[-1]["train_seconds"])
"""


def seconds(root: Path, spins: int | None, updates: int) -> float:
    """Of training so many updates with the checkout at `root`."""
    environment = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    environment["PYTHONPATH"] = str(root / "src")
    if spins is not None:
        environment["GOMP_SPINCOUNT"] = str(spins)
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(updates)], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("older", nargs="*", type=Path, help="roots of other checkouts")
    arguments.add_argument("--spins", nargs="*", type=int, default=[], help="settings of GOMP_SPINCOUNT to try")
    arguments.add_argument("--updates", type=int, default=60)
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    contenders: dict[str, tuple[Path, int | None]] = {str(root): (root.resolve(), None) for root in given.older}
    contenders |= {"this": (HERE, None)} | {f"this, {spins:,} spins": (HERE, spins) for spins in given.spins}
    idle: dict[str, list[float]] = {name: [] for name in contenders}
    busy: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(given.rounds):
        for name, (root, spins) in contenders.items():
            idle[name].append(seconds(root, spins, given.updates))
            other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                busy[name].append(seconds(root, spins, given.updates))
            finally:
                other.kill()
                other.wait()
    print(f"{given.updates} updates of dates, {os.cpu_count()} cores, {platform.processor() or platform.machine()}")
    first = statistics.median(idle[next(iter(contenders))])
    for name in contenders:
        alone, beside = statistics.median(idle[name]), statistics.median(busy[name])
        print(
            f"{name}: idle {alone:.2f} s ({min(idle[name]):.2f} to {max(idle[name]):.2f}), "
            f"busy {beside:.2f} s ({min(busy[name]):.2f} to {max(busy[name]):.2f}); "
            f"busy / idle speed {alone / beside:.2f}, idle speed to the first {first / alone:.3f}"
        )


if __name__ == "__main__":
    main()
