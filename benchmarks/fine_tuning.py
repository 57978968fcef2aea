"""Fine-tunes an imported encoder on SST-2 and EWT, several seeds side by side, and scores every run on test.

    REGARD_DATA=DATA python benchmarks/fine_tuning.py FOLDER OUT                 FOLDER is MiniLM's (docs/import.md)
    REGARD_DATA=DATA python benchmarks/fine_tuning.py FOLDER OUT train.learning_rate=0.00003 --seeds 1 2 3

Overrides hold for all recipes. Times are those of training, with other processes on the same device; `--alone` trains
one run after another. Runs are stored in OUT, with the output of each training beside them.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO

RECIPES = ("sst2_minilm", "ewt_minilm")
REGARD = (sys.executable, "-m", "regard")


def regard(*arguments: str, log: int | IO[str] | None = None) -> str:
    return subprocess.run([*REGARD, *arguments], check=True, stdout=subprocess.PIPE, stderr=log, text=True).stdout


def train_and_score(recipe: str, seed: int, origin: str, out: Path, overrides: list[str]) -> tuple[float, float]:
    """The recipe's metric on test, in per cent, and the seconds of training."""
    name = f"{recipe}_{seed}"
    given = [f"name={name}", f"train.start_from={origin}", f"train.seed={seed}", *overrides]
    with (out / f"{name}.log").open("w") as log:
        result = json.loads(regard("train", recipe, *given, "--runs", str(out), "--json", log=log))
        value, *_ = json.loads(regard("score", result["run"], "--json", log=log)).values()  # the metric comes first
    return 100 * value, result["train_seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("overrides", nargs="*", default=[])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--alone", action="store_true")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    origin = regard("import", str(arguments.folder), "--name", "origin", "--runs", str(arguments.out)).strip()
    runs = [(recipe, seed) for recipe in arguments.recipes for seed in arguments.seeds]
    scores: dict[str, list[float]] = {}
    print("| recipe | seed | test | seconds of training |\n|---|---|---|---|")
    with ThreadPoolExecutor(1 if arguments.alone else len(runs)) as pool:
        started = {
            pool.submit(train_and_score, recipe, seed, origin, arguments.out, arguments.overrides): (recipe, seed)
            for recipe, seed in runs
        }
        for ended in as_completed(started):
            recipe, seed = started[ended]
            try:
                value, seconds = ended.result()
            except subprocess.CalledProcessError:
                print(f"| {recipe} | {seed} | failed; see {recipe}_{seed}.log | |", flush=True)
                continue
            scores.setdefault(recipe, []).append(value)
            print(f"| {recipe} | {seed} | {value:.2f} | {seconds:.0f} |", flush=True)
    for recipe, values in scores.items():
        middle = f"mean {statistics.mean(values):.2f}, median {statistics.median(values):.2f}"
        print(f"{recipe}: {middle}, from {min(values):.2f} to {max(values):.2f}")


if __name__ == "__main__":
    main()
