"""Trains the recipes on Flickr8k side by side on one GPU, and prints one table of their scores.

    python benchmarks/flickr8k.py                      three seeds of soft, one of static, hard and transformer, on test
    python benchmarks/flickr8k.py --score dev --runs soft:1,soft:1:train.smoothing=0+model.decoder.dim=256
    python benchmarks/flickr8k.py --score dev --runs soft:1 --search beam=3 --search beam=5,length_penalty=0.7
    python benchmarks/flickr8k.py --score dev --runs soft:1:train.reward=cider_d,bleu_4+train.reward_rate=0.0001,soft:2

A run is NAME:SEED, with overrides after another colon, joined by `+`; --override is for all of them. With --search,
each run is scored with other settings of the search, too. Features of all pictures are computed once, before the first
run, so that the runs share them. Every run is a process of its own, and its messages go to OUT/NUMBER-NAME.log. Its
scores are printed when it ends, and all of them in a table at the end: BLEU-1 to BLEU-4, CIDEr-D and ROUGE-L, the
BLEU-4 on dev, and the seconds of training; then the signatures of the metrics.

The data is looked for in $REGARD_DATA; `regard data flickr8k_soft` says where it is from.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src"
RUNS = "soft:1,soft:2,soft:3,static:1,hard:1,transformer:1"
METRICS = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "cider_d", "rouge_l")
TITLES = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr-D", "ROUGE-L", "dev BLEU-1", "dev BLEU-4", "seconds")
SHARES = {"bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l"}  # printed in percent, as in papers

Result = dict[str, Any]  # the scores of a run, and what it is


class Training(NamedTuple):
    """One run: the end of its recipe's name, its seed, and overrides of its own."""

    name: str
    seed: int
    own: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> "Training":
        name, seed, *own = text.split(":", 2)
        return Training(name, int(seed), tuple(own[0].split("+")) if own else ())

    def overrides(self, shared: list[str]) -> list[str]:
        return [f"train.seed={self.seed}", f"name={self.name}-{self.seed}", *shared, *self.own]


def compute_features(runs: list[Training], overrides: list[str]) -> None:
    """Encode all pictures that the runs need, which puts their features into the cache."""
    from regard import recipe as recipes
    from regard.data.store import joined, sources
    from regard.tasks import TASKS

    done = set()
    for run in runs:
        recipe = recipes.load(f"flickr8k_{run.name}", run.overrides(overrides))
        if recipe.picture in done:
            continue
        done.add(recipe.picture)
        start, kind = time.perf_counter(), TASKS[recipe.task]
        kind.check(recipe)
        examples = kind.examples(recipe)
        task = kind.learn(recipe, examples.train)
        pictures = sorted(set(sources(joined([examples.train, examples.dev, examples.test]))))
        task.inputs.encode_all(pictures)
        print(f"features of {len(pictures):,} pictures: {time.perf_counter() - start:.0f} s", flush=True)


def train_and_score(run: Training, part: str, out: Path, overrides: list[str], searches: list[str]) -> None:
    """Train one run, and print a line of JSON for each of its scores: the work of one process."""
    import regard
    from regard import recipe as recipes

    recipe = recipes.load(f"flickr8k_{run.name}", run.overrides(overrides))
    start = time.perf_counter()
    stored = regard.train(recipe, runs=out)
    seconds = time.perf_counter() - start
    predictor = regard.load(stored)
    examples = predictor.task.examples(recipe)
    with predictor.running():
        dev = predictor.task.measure(predictor.model, examples.dev, "bleu_4", recipe.search)
    for search in ["", *searches]:
        searched = recipe
        for key in filter(None, search.split(",")):
            searched = recipes.override(searched, f"search.{key}")
        with predictor.running():
            scored = predictor.task.measure(predictor.model, getattr(examples, part), "bleu_4", searched.search)
        result = run._asdict() | {"search": search, "run": str(stored.path), "seconds": seconds}
        result["dev_bleu_1"], result["dev_bleu_4"] = dev.others["bleu_1"].value, dev.measured.value
        result["words"] = statistics.fmean(len(answer.text.split()) for answer in scored.answers)
        for metric, measured in {"bleu_4": scored.measured, **scored.others}.items():
            result[metric], result[f"{metric}_signature"] = measured
        print(json.dumps(result), flush=True)


def start(number: int, run: str, arguments: argparse.Namespace) -> list[Result]:
    """Call `train_and_score` in a process of its own; its messages go to a log."""
    log = arguments.out / f"{number}-{Training.parse(run).name}.log"
    command = [sys.executable, __file__, "--one", run, "--score", arguments.score, "--out", str(arguments.out)]
    for name in ("override", "search"):
        command += [word for text in getattr(arguments, name) for word in (f"--{name}", text)]
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(arguments.threads)}
    with log.open("wb") as errors:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, env=environment, check=False)
    if ended.returncode:
        print(f"{run} failed with code {ended.returncode}; see {log}", flush=True)
        return []
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith(b"{")]


def label(result: Result, *, with_seed: bool = True) -> str:
    seed = [f"seed {result['seed']}"] if with_seed else []
    return " ".join([result["name"], *seed, *result["own"], *result["search"].split(",")]).strip()


def row(result: Result) -> str:
    cells = [f"{100 * result[metric]:.2f}" if metric in SHARES else f"{result[metric]:.3f}" for metric in METRICS]
    dev = [f"{100 * result[metric]:.2f}" for metric in ("dev_bleu_1", "dev_bleu_4")]
    return " | ".join([*cells, *dev, f"{result['seconds']:.0f}"])


def table(results: list[Result]) -> str:
    """A line for each run, and the mean of several seeds."""
    groups = defaultdict(list)
    for result in sorted(results, key=lambda result: (result["name"], result["own"], result["search"], result["seed"])):
        groups[label(result, with_seed=False)].append(result)
    lines = [f"| run | {' | '.join(TITLES)} |", f"|---|{'---|' * len(TITLES)}"]
    for name, group in groups.items():
        lines += [f"| {label(result)} | {row(result)} |" for result in group]
        if len(group) > 1:
            keys = (*METRICS, "dev_bleu_1", "dev_bleu_4", "seconds")
            mean = {key: statistics.fmean(result[key] for result in group) for key in keys}
            lines.append(f"| {name} mean of {len(group)} | {row(mean)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default=RUNS, help="NAME:SEED[:KEY=VALUE+KEY=VALUE], with commas between")
    parser.add_argument("--score", choices=["dev", "test"], default="test")
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    parser.add_argument("--search", action="append", default=[], metavar="KEY=VALUE,...", help="score with these, too")
    parser.add_argument("--out", type=Path, default=Path("runs/flickr8k"))
    parser.add_argument("--jobs", type=int, default=6, help="runs at the same time")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each run")
    parser.add_argument("--one", type=Training.parse, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        train_and_score(arguments.one, arguments.score, arguments.out, arguments.override, arguments.search)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs = re.split(r",(?=\w+:\d)", arguments.runs)  # a list in an override has commas, too
    compute_features([*map(Training.parse, runs)], arguments.override)
    results: list[Result] = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        begun = [pool.submit(start, number, run, arguments) for number, run in enumerate(runs, start=1)]
        for ended in as_completed(begun):
            for result in ended.result():
                print(f"{label(result)}: {row(result)}  {result['run']}", flush=True)
                results.append(result)
    if results:
        print(f"\nFlickr8k {arguments.score}: {' '.join(arguments.override) or 'the recipes as they are'}\n")
        print(table(results))
        print("\n" + "\n".join(str(results[0][f"{metric}_signature"]) for metric in METRICS))
    sys.exit(not all(ended.result() for ended in begun))


if __name__ == "__main__":
    sys.path.insert(0, str(SOURCE))
    main()
