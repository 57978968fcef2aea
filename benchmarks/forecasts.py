"""Trains the recipes of forecasts side by side, and prints one table of their scores, with the baselines.

    python benchmarks/forecasts.py                     three seeds on M4 hourly with and without attention; the others
    python benchmarks/forecasts.py --runs deepar_ett:1,deepar_ett:1:model.decoder.order=none --score dev
    python benchmarks/forecasts.py --runs deepar_m4_hourly:1 --override train.updates=2000

A run is RECIPE:SEED, with overrides after another colon, joined by `+`. Runs train in processes of their own, and share
the GPU if there is one. A row is printed as soon as its run ends, and at the end a table with the mean of several
seeds. The data is looked for in $REGARD_DATA or ./data; `regard data deepar_m4_hourly` says where it is from.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

M4 = (
    "deepar_m4_hourly:{}",
    "deepar_attention_m4_hourly:{}",
    "deepar_attention_m4_hourly:{}:model.decoder.kind=transformer+train.learning_rate=0.001",
)
SEEDS = (1, 2, 3)
OTHERS = tuple(
    f"{name}:1{own}" for name in ("deepar_exchange", "deepar_ett") for own in ("", ":model.decoder.order=none")
)
RUNS = ",".join([*(name.format(seed) if "{}" in name else f"{name}:{seed}" for name in M4 for seed in SEEDS), *OTHERS])
TITLES = {
    "weighted_quantile_loss": "WQL",
    "crps": "CRPS",
    "smape": "sMAPE",
    "mase": "MASE",
    "msis": "MSIS",
    "nd": "ND",
    "nrmse": "NRMSE",
    "coverage_50": "50 %",
    "coverage_80": "80 %",
    "coverage_90": "90 %",
}
PERCENT = {"smape", "coverage_50", "coverage_80", "coverage_90"}


class Job(NamedTuple):
    """A run to train and to score."""

    recipe: str
    seed: int
    own: tuple[str, ...]
    overrides: tuple[str, ...]
    part: str
    into: Path
    threads: int

    @property
    def label(self) -> str:
        return " ".join([self.recipe, *self.own])


class Row(NamedTuple):
    """The scores of a run or of a baseline, by metric."""

    label: str
    seed: int  # 0 for a baseline
    values: dict[str, float]
    dev: float
    windows: float  # for training, per second
    seconds: float


def work(job: Job) -> list[Row]:
    """Train a run and score it; the rows of the run and of the baselines."""
    import torch

    import regard
    from regard import recipe as recipes

    torch.set_num_threads(job.threads)
    name = f"{job.recipe}-{job.seed}" + "".join(f"-{override.split('=')[-1]}" for override in job.own)
    overrides = [f"train.seed={job.seed}", f"name={name}", *job.overrides, *job.own]
    recipe = recipes.load(job.recipe, overrides)
    run = regard.train(recipe, runs=job.into, quiet=True)
    predictor = regard.load(run)
    examples = getattr(predictor.task.examples(run.recipe()), job.part)
    scored = predictor.score(examples)
    values = {scored.metric: scored.measured.value} | {name: one.value for name, one in scored.others.items()}
    last = run.metrics()
    speed = statistics.median(entry["tokens_per_second"] for entry in last if "tokens_per_second" in entry)
    steps = predictor.task.shape.steps
    ended = last[-1]
    rows = [Row(job.label, job.seed, values, ended[recipe.metric], speed / steps, ended["train_seconds"])]
    if job.seed == 1 and not job.own:
        for rule, scores in predictor.task.baselines(examples).items():
            label = f"{job.recipe}: {rule}"
            rows.append(Row(label, 0, {name: one.value for name, one in scores.items()}, 0.0, 0.0, 0.0))
    return rows


def cells(row: Row) -> str:
    def cell(name: str) -> str:
        if name not in row.values:
            return "-"
        return f"{100 * row.values[name]:.2f}" if name in PERCENT else f"{row.values[name]:.4f}"

    speed = [f"{row.dev:.4f}", f"{row.windows:,.0f}", f"{row.seconds:.0f}"] if row.seed else ["", "", ""]
    return " | ".join([*map(cell, TITLES), *speed])


def table(rows: list[Row]) -> str:
    """A line for each run, and mean and deviation of several seeds."""
    groups = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.label, row.seed)):
        groups[row.label].append(row)
    lines = [f"| run | {' | '.join(TITLES.values())} | dev | windows/s | s |", f"|---|{'---|' * (len(TITLES) + 3)}"]
    for label, group in groups.items():
        lines += [f"| {label}{f', seed {row.seed}' if row.seed else ''} | {cells(row)} |" for row in group]
        if len(group) > 1:
            for noun, join in (("mean", statistics.fmean), ("deviation", statistics.stdev)):
                values = {name: join(row.values[name] for row in group) for name in TITLES}
                rest = [join(number) for number in zip(*(row[3:] for row in group), strict=True)]
                lines.append(f"| **{label}, {noun} of {len(group)}** | {cells(Row(label, 1, values, *rest))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default=RUNS, help="RECIPE:SEED[:KEY=VALUE+KEY=VALUE], with commas between")
    parser.add_argument("--score", choices=["dev", "test"], default="test")
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE", help="for all runs")
    parser.add_argument("--into", type=Path, default=Path("runs/forecasts"))
    parser.add_argument("--jobs", type=int, default=16, help="runs at the same time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each run")
    arguments = parser.parse_args()
    jobs = []
    for text in arguments.runs.split(";" if ";" in arguments.runs else ","):  # lags have commas
        recipe, seed, *own = text.split(":", 2)
        overrides = tuple(own[0].split("+")) if own else ()
        jobs.append(
            Job(
                recipe, int(seed), overrides, (*arguments.override,), arguments.score, arguments.into, arguments.threads
            )
        )
    begun, rows, failed = time.perf_counter(), [], 0
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        started = {pool.submit(work, job): job for job in jobs}
        for future in as_completed(started):
            try:
                found = future.result()
            except Exception as error:  # one run must not end the others
                print(f"{started[future].label}: {type(error).__name__}: {error}", flush=True)
                failed += 1
                continue
            rows += found
            print(f"{found[0].label}, seed {found[0].seed}: {cells(found[0])}", flush=True)
    print(f"\n{arguments.score}, {' '.join(arguments.override)} ({time.perf_counter() - begun:.0f} s in all)\n")
    print(table(rows))
    sys.exit(failed > 0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
    main()
