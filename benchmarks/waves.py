"""Trains the recipe waves and compares its forecasts with the true process, kind by kind, and its looks with the lags.

    python benchmarks/waves.py                                          three seeds, scored on test
    python benchmarks/waves.py --score dev ";" train.updates=4000 ";" model.decoder.dim=96 train.learning_rate=0.002

Variants are lists of KEY=VALUE with `;` between them. All variants and seeds train side by side, in processes of their
own (--jobs), on the CPU with --threads each. Settings are to be chosen by --score dev.
"""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple


class Job(NamedTuple):
    """A run to train and to score."""

    keys: tuple[str, ...]
    seed: int
    part: str
    into: Path
    threads: int
    device: str


class Row(NamedTuple):
    """What was measured of a run."""

    label: str
    seed: int
    ratio: float  # CRPS divided by that of the truth
    coverage: float
    lags: float
    by_kind: dict[str, float]  # ratio of each kind of series
    by_lag: dict[int, float]
    seconds: float


def work(job: Job) -> Row:
    """Train a run and score it."""
    import torch

    import regard
    from regard.analysis.lags import excess, lags
    from regard.data.corpora import waves

    torch.set_num_threads(job.threads)
    keys = (f"train.device={job.device}", f"train.threads={job.threads}", f"train.seed={job.seed}")
    started = time.perf_counter()
    run = regard.train("waves", *keys, *job.keys, runs=job.into, quiet=True)
    seconds = time.perf_counter() - started
    predictor = regard.load(run)
    examples = getattr(waves(seed=1, size=0), job.part)
    groups = dict.fromkeys(example.group for example in examples)
    scores, looks = excess(predictor, examples), lags(predictor, examples)
    by_kind = {}
    for group in groups:
        one = excess(predictor, [example for example in examples if example.group == group])
        by_kind[group] = one.crps / one.true_crps
    ratio = scores.crps / scores.true_crps
    label = " ".join(job.keys) or "recipe"
    return Row(label, job.seed, ratio, scores.coverage, looks.share, by_kind, looks.by_lag, seconds)


def line(row: Row) -> str:
    kinds = " ".join(f"{kind} {ratio:.3f}" for kind, ratio in row.by_kind.items())
    looks = " ".join(f"{lag}: {share:.2f}" for lag, share in row.by_lag.items())
    scores = f"CRPS ratio {row.ratio:.4f}, coverage {row.coverage:.3f}, lags {row.lags:.3f}"
    return f"{row.label}, seed {row.seed}: {scores} ({kinds}; {looks}; {row.seconds:.0f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="variants, with ';' between them")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--score", choices=["dev", "test"], default="test")
    parser.add_argument("--into", type=Path, default=Path("runs/waves_variants"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each run")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_intermixed_args()
    variants: list[list[str]] = [[]]
    for key in arguments.keys:
        if key == ";":
            variants.append([])
        else:
            variants[-1].append(key)
    rest = (arguments.score, arguments.into, arguments.threads, arguments.device)
    jobs = [Job(tuple(keys), int(seed), *rest) for keys in variants for seed in arguments.seeds.split(",")]
    failed = 0
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        started = {pool.submit(work, job): job for job in jobs}
        for future in as_completed(started):
            if error := future.exception():  # one run must not end the others
                failed += 1
                print(f"{' '.join(started[future].keys)}: {type(error).__name__}: {error}", flush=True)
                continue
            print(line(future.result()), flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
    main()
