"""Fine-tunes an imported encoder on SST-2 and EWT, several seeds side by side, and scores every run on test.

    REGARD_DATA=DATA python benchmarks/fine_tuning.py FOLDER OUT                 FOLDER is MiniLM's (docs/import.md)
    REGARD_DATA=DATA python benchmarks/fine_tuning.py FOLDER OUT --seeds 1 2 3 train.learning_rate=0.00003

Overrides hold for all recipes. Times are those of training, with other processes on the same device; `--alone` trains
one run after another. Runs are stored in OUT, with the output of each training beside them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

RECIPES = ("sst2_minilm", "ewt_minilm")
REGARD = (sys.executable, "-m", "regard")


def regard(*arguments: str) -> str:
    return subprocess.run([*REGARD, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def start(recipe: str, seed: int, origin: str, out: Path, overrides: list[str]) -> subprocess.Popen[str]:
    command = [*REGARD, "train", recipe, f"name={recipe}_{seed}", f"train.start_from={origin}", f"train.seed={seed}"]
    log = (out / f"{recipe}_{seed}.log").open("w")
    return subprocess.Popen(
        [*command, *overrides, "--runs", str(out), "--json"], stdout=subprocess.PIPE, stderr=log, text=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("overrides", nargs="*", default=[])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--alone", action="store_true")
    arguments = parser.parse_intermixed_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    origin = regard("import", str(arguments.folder), "--name", "origin", "--runs", str(arguments.out)).strip()
    began, running, ended = time.perf_counter(), [], []
    for recipe in arguments.recipes:
        for seed in arguments.seeds:
            process = start(recipe, seed, origin, arguments.out, arguments.overrides)
            running.append((recipe, seed, process))
            if arguments.alone:
                process.wait()
    for recipe, seed, process in running:
        told, _ = process.communicate()
        if process.returncode:
            sys.exit(f"{recipe}, seed {seed}: failed; see {arguments.out / f'{recipe}_{seed}.log'}")
        result = json.loads(told)
        value, *_ = json.loads(regard("score", result["run"], "--json")).values()  # the recipe's metric comes first
        ended.append((recipe, seed, value, result["train_seconds"]))
    print(f"all in {time.perf_counter() - began:.0f} s\n\n| recipe | seed | test | seconds of training |")
    print("|---|---|---|---|")
    for recipe, seed, value, seconds in ended:
        print(f"| {recipe} | {seed} | {100 * value:.2f} | {seconds:.0f} |")
    for recipe in arguments.recipes:
        values = [100 * value for name, _, value, _ in ended if name == recipe]
        print(f"{recipe}: median {statistics.median(values):.2f}, from {min(values):.2f} to {max(values):.2f}")


if __name__ == "__main__":
    main()
