"""Trains and scores the speech recipes: an4 by attention alone and jointly with CTC, and the digits of FSDD.

    python benchmarks/speech.py                                   three seeds of each on an4, and one of the digits
    python benchmarks/speech.py --runs joint:1,joint:2 --score dev
    python benchmarks/speech.py --runs joint:1 --override train.updates=2000 --override model.encoder.layers=4
    python benchmarks/speech.py --search ctc=0.3,beam=20 --search ctc=0.5,beam=20

Runs train side by side in processes of their own, and share the GPU if there is one. A row of the table is printed as
soon as its run ends. A run that is finished in the folder --into is scored again and not trained, so searches can be
compared on dev without training. `benchmarks/prepare.py an4` and `fsdd` make the data: an4-pairs and fsdd-pairs, in
$REGARD_DATA or ./data.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

RECIPES = {"attention": "las_an4", "joint": "ctc_attention_an4", "digits": "fsdd_digits"}
DEFAULT = "attention:1,attention:2,attention:3,joint:1,joint:2,joint:3,digits:1"
METRICS = {"word_errors": "WER", "character_errors": "CER", "exact_match": "exact"}
PARTS = {"digits": {"dev": ("fsdd-pairs/dev.tsv",), "test": ("fsdd-pairs/test.tsv", "fsdd-pairs/strings.tsv")}}


class Job(NamedTuple):
    """A run to train and to score."""

    name: str
    seed: int
    overrides: tuple[str, ...]
    searches: tuple[str, ...]  # changes of the search, such as `ctc=0.3,beam=20`; empty for the recipe's own
    part: str
    into: Path


class Row(NamedTuple):
    """The scores of a run on one file."""

    run: str
    search: str
    file: str
    values: list[str]
    signatures: list[str]
    train_seconds: float
    score_seconds: float


def work(job: Job) -> list[Row]:
    """Train a run, unless it is finished already, and score it."""
    import regard
    from regard import metrics
    from regard.storage import Run
    from regard.tasks import TASKS

    name = f"{job.name}-{job.seed}"
    path = job.into / name
    if not (Run.at(path) and Run.open(path).finished()):
        own = (f"name={name}", f"train.seed={job.seed}")
        path = regard.train(RECIPES[job.name], *own, *job.overrides, runs=job.into, quiet=True).path
    predictor = regard.load(path)
    run, settings = predictor.run, predictor.task.recipe
    seconds = next((entry["train_seconds"] for entry in run.metrics() if "train_seconds" in entry), float("nan"))
    files = PARTS.get(job.name, {}).get(job.part) or getattr(settings.data, job.part)
    rows = []
    for file in files:
        examples = TASKS[settings.task].reader(settings)((file,)).examples
        sources, targets = zip(*((example.source, example.target) for example in examples), strict=True)
        for search in job.searches:
            changes = dict(parse(setting) for setting in search.split(",") if setting)
            started = time.perf_counter()
            answers = predictor.predict(sources, search=changes)
            taken = time.perf_counter() - started
            measured = [metrics.METRICS[metric]([answer.text for answer in answers], targets) for metric in METRICS]
            values, signatures = [f"{100 * each.value:.2f}" for each in measured], [each.signature for each in measured]
            rows.append(Row(path.name, search or "recipe", file, values, signatures, seconds, taken))
    return rows


def parse(setting: str) -> tuple[str, float]:
    key, _, value = setting.partition("=")
    return key, float(value) if "." in value else int(value)


def jobs(arguments: argparse.Namespace) -> list[Job]:
    chosen = [text.split(":") for text in arguments.runs.split(",")]
    if unknown := [name for name, _ in chosen if name not in RECIPES]:
        sys.exit(f"--runs: {unknown[0]} is none of {', '.join(RECIPES)}")
    overrides, searches = tuple(arguments.override), tuple(arguments.search) or ("",)
    return [Job(name, int(seed), overrides, searches, arguments.score, arguments.into) for name, seed in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default=DEFAULT, help="NAME:SEED,... of attention, joint, digits")
    parser.add_argument("--override", action="append", default=[], help="KEY=VALUE of every recipe")
    parser.add_argument("--search", action="append", default=[], help="KEY=VALUE,... of the search; several are scored")
    parser.add_argument("--score", choices=("dev", "test"), default="test")
    parser.add_argument("--into", type=Path, default=Path("runs/speech"), help="folder of the runs")
    parser.add_argument("--workers", type=int, default=8, help="runs side by side")
    arguments = parser.parse_args()
    print(f"| run | search | file | {' | '.join(METRICS.values())} | train s | search s |", flush=True)
    print("|---|---|---|" + "---:|" * (len(METRICS) + 2), flush=True)
    signatures: dict[str, list[str]] = {}
    failed = 0
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        working = {pool.submit(work, job): job for job in jobs(arguments)}
        for future in as_completed(working):
            if error := future.exception():
                failed += 1
                print(f"{working[future].name}:{working[future].seed}: {error}", file=sys.stderr, flush=True)
                continue
            for row in future.result():
                cells = [row.run, row.search, row.file, *row.values, f"{row.train_seconds:.0f}"]
                print(f"| {' | '.join(cells)} | {row.score_seconds:.1f} |", flush=True)
                signatures[row.file] = row.signatures
    for file, own in signatures.items():
        print(f"{file}: {', '.join(own)}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
