"""DeepAR of regard and of GluonTS on M4 hourly, on the CPU: windows per second in interleaved rounds, and quality.

    python benchmarks/peer_gluonts.py PEER_PYTHON             five rounds of 60 updates each, then 1,000 updates of both
    python benchmarks/peer_gluonts.py PEER_PYTHON --rounds 1 --quality 0

PEER_PYTHON is the python of an environment with GluonTS, outside this project:

    pip install torch==2.13.0 'gluonts[torch]==0.17.0' lightning==2.6.1 pytorch-lightning==2.6.1

Both sides have the same number of layers, hidden size, dropout, context, batch and threads, and forecast the official
test window of 48 hours by 100 sample paths; regard's metrics score both. regard is its recipe deepar_m4_hourly, which
validates on the last 48 hours of training and does not learn from them; GluonTS learns from them, too, with its own
defaults in all else (lags, features, Student's t, learning rate). Each training is a process of its own, which begins
when the machine is idle, or after a minute. The data is looked for in $REGARD_DATA or ./data.
"""

import argparse
import csv
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HORIZON, CONTEXT, BATCH, HIDDEN, LAYERS, DROPOUT, PATHS = 48, 168, 64, 96, 2, 0.1, 100
SEASON, WARM = 24, 10  # hours; updates before the clock starts
SIDES = ("regard", "gluonts")
SOURCE = Path(__file__).resolve().parent.parent / "src"
METRICS = ("weighted_quantile_loss", "crps", "smape", "mase", "coverage_50", "coverage_80", "coverage_90")


def series(part: str) -> dict[str, list[float]]:
    """The values of each series of M4 hourly, by name."""
    folder = Path(os.environ.get("REGARD_DATA", "data"), "m4-hourly")
    with gzip.open(folder / f"Hourly-{part}.csv.gz", "rt") as file:
        _, *rows = csv.reader(file)
    return {name: [float(value) for value in values if value] for name, *values in rows}


def speed(times: list[float]) -> float:
    """Windows per second, from the time at the end of each update."""
    return BATCH * (len(times) - WARM) / (times[-1] - times[WARM - 1])


def regard_side(updates: int, seed: int, threads: int, paths: Path | None) -> dict[str, float]:
    """Train the recipe deepar_m4_hourly, and write its sample paths if a file is named."""
    import numpy as np

    import regard

    times: list[float] = []

    class Clock(regard.Callback):
        def on_update(self, event: object) -> None:
            times.append(time.perf_counter())

    keys = [f"train.updates={updates}", f"train.seed={seed}", f"train.threads={threads}", "train.device=cpu"]
    if paths is None:  # the clock is for updates: one validation, after them
        keys += [f"train.validate={updates}", "train.validate_examples=1", "train.warmup=10", "forecast.samples=2"]
    with tempfile.TemporaryDirectory() as runs:
        begun = time.perf_counter()
        run = regard.train("deepar_m4_hourly", *keys, runs=runs, quiet=True, callbacks=[Clock()])
        seconds = time.perf_counter() - begun
        if paths is not None:
            predictor = regard.load(run)
            test = predictor.task.examples(run.recipe()).test
            answers = predictor.score(test).answers
            by_name = {answer.source: answer.paths.numpy() for answer in answers}
            np.save(paths, np.stack([by_name[name] for name in series("train")]))
    return {"windows": speed(times), "seconds": seconds}


def gluonts_side(updates: int, seed: int, threads: int, paths: Path | None) -> dict[str, float]:
    """Train GluonTS's DeepAREstimator, and write its sample paths if a file is named."""
    import logging
    import warnings

    import lightning.pytorch as lightning
    import numpy as np
    import pandas
    import torch
    from gluonts.dataset.common import ListDataset
    from gluonts.torch import DeepAREstimator

    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(threads)
    lightning.seed_everything(seed, verbose=False)
    times: list[float] = []

    class Clock(lightning.Callback):
        def on_train_batch_end(self, *_: object) -> None:
            times.append(time.perf_counter())

    each_epoch = 50 if paths is not None else updates  # as its default, or without a validation in between
    with tempfile.TemporaryDirectory() as folder:
        estimator = DeepAREstimator(
            freq="h",
            prediction_length=HORIZON,
            context_length=CONTEXT,
            num_layers=LAYERS,
            hidden_size=HIDDEN,
            dropout_rate=DROPOUT,
            batch_size=BATCH,
            num_batches_per_epoch=each_epoch,
            num_parallel_samples=PATHS,
            trainer_kwargs={
                "max_epochs": max(1, updates // each_epoch),
                "accelerator": "cpu",
                "callbacks": [Clock()],
                "logger": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "default_root_dir": folder,
            },
        )
        start = pandas.Period("2020-01-01 00:00", freq="h")  # M4 gives no times
        data = ListDataset([{"start": start, "target": values} for values in series("train").values()], freq="h")
        begun = time.perf_counter()
        predictor = estimator.train(data)
        seconds = time.perf_counter() - begun
        if paths is not None:
            np.save(paths, np.stack([forecast.samples for forecast in predictor.predict(data)]))
    return {"windows": speed(times), "seconds": seconds}


def wait_until_quiet(seconds: float = 2.0, most: float = 60.0) -> None:
    """Wait until no process computes for a while: what one leaves behind must not slow the next one down."""
    until = time.monotonic() + most
    while time.monotonic() < until:
        before = used_seconds()
        time.sleep(seconds)
        if used_seconds() - before < 0.05 * seconds:
            return


def used_seconds() -> float:
    """The seconds that all cores have computed since the machine started; Linux counts them."""
    user, nice, system, *_ = Path("/proc/stat").read_text("ascii").split()[1:]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


def call(python: str, side: str, updates: int, threads: int, paths: Path | None = None) -> dict[str, float]:
    """One training of one side, in a process of its own."""
    command = [python, __file__, python, "--side", side, "--updates", str(updates), "--threads", str(threads)]
    command += ["--paths", str(paths)] if paths else []
    wait_until_quiet()
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(SOURCE) if side == "regard" else ""}
    ended = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, text=True)
    return json.loads(ended.stdout.splitlines()[-1])


def quality(paths: Path) -> dict[str, float]:
    """Regard's metrics of sample paths."""
    import numpy as np

    from regard.metrics import METRICS as TABLE
    from regard.metrics.forecasts import Forecasts

    histories, observed = ([np.asarray(values) for values in series(part).values()] for part in ("train", "test"))
    judged = Forecasts([*np.load(paths).astype(np.float64)], observed, histories, SEASON)
    return {metric: TABLE[metric](judged, "").value for metric in METRICS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", metavar="PEER_PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=60, help="of a training that is timed")
    parser.add_argument("--quality", type=int, default=1000, help="updates of the trainings that are scored; 0: none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--paths", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        train = {"regard": regard_side, "gluonts": gluonts_side}[arguments.side]
        print(json.dumps(train(arguments.updates, 1, arguments.threads, arguments.paths)))
        return
    pythons = {"regard": sys.executable, "gluonts": arguments.python}
    speeds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(1, arguments.rounds + 1):
        for side in SIDES:
            speeds[side].append(call(pythons[side], side, arguments.updates, arguments.threads)["windows"])
        print(
            f"round {number}: " + ", ".join(f"{side} {speeds[side][-1]:,.0f} windows/s" for side in SIDES), flush=True
        )
    medians = {side: statistics.median(values) for side, values in speeds.items() if values}
    for side, median in medians.items():
        print(f"{side}: median {median:,.0f} windows/s ({min(speeds[side]):,.0f} to {max(speeds[side]):,.0f})")
    if medians:
        print(f"ratio of the medians: {medians['regard'] / medians['gluonts']:.2f}", flush=True)
    if not arguments.quality:
        return
    sys.path.insert(0, str(SOURCE))
    with tempfile.TemporaryDirectory() as folder:
        for side in SIDES:
            paths = Path(folder, f"{side}.npy")
            trained = call(pythons[side], side, arguments.quality, arguments.threads, paths)
            scores = ", ".join(f"{metric} {value:.4f}" for metric, value in quality(paths).items())
            print(f"{side}, {arguments.quality:,} updates in {trained['seconds']:.0f} s: {scores}", flush=True)


if __name__ == "__main__":
    main()
