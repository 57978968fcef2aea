"""CPU speed of this checkout against another one, by many short pairs of runs.

    python benchmarks/paired.py OLDER [--seconds 20] [--models bahdanau transformer] [--work train greedy beam5 single]

OLDER is the root of another checkout. Both train and decode the same small models on the corpus `reverse`, each in a
process of its own that keeps its model. The two run in turn, a fraction of a second each, so that a slow moment of the
machine changes both times of a pair. Prints the median over all pairs of the speed of this checkout divided by the
speed of OLDER, with a 95 % interval and quartiles. Needs an otherwise idle machine.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parents[1]
WORKER = """
import random, sys, tempfile, time
import torch, regard
from regard import recipe as recipes
from regard.data.batching import Batches
from regard.tasks import TASKS

MODELS = {
    "bahdanau": ["model.decoder.order=bahdanau"],
    "transformer": [
        *("model.encoder.kind=transformer", "model.decoder.kind=transformer", "model.encoder.dim=256"),
        *("model.decoder.dim=256", "model.encoder.layers=3", "model.decoder.layers=3"),
        *("model.attention.score=scaled_dot", "model.attention.heads=4", "train.learning_rate=0.0005"),
    ],
}
kind = sys.argv[1]
keys = [
    *MODELS[kind],
    *("train.updates=20", "train.validate=20", "data.size=400", "train.device=cpu", "train.batch_tokens=1000"),
    *("search.max_ratio=1", "search.max_extra=2"),
]
predictor = regard.load(regard.train("reverse", *keys, runs=tempfile.mkdtemp(), quiet=True), device="cpu")
letters = random.Random(1)
texts = ["".join(letters.choice("abcdefghij") for _ in range(12)) for _ in range(64)]

recipe = recipes.load("reverse", keys)
examples = TASKS[recipe.task].examples(recipe).train
torch.manual_seed(1)
task = TASKS[recipe.task].learn(recipe, examples)
model, data = task.build().train(), task.encode(examples)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
plan = Batches(data.lengths(), 1000, 1)
batches = [task.collate(data, plan[number]) for number in range(2 if kind == "transformer" else 4)]


def train():
    for batch in batches:
        optimizer.zero_grad()
        (task.loss(model, batch) / task.tokens(batch)).backward()
        optimizer.step()


work = {
    "train": train,
    "greedy": lambda: predictor.predict(texts, beam=1),
    "beam5": lambda: predictor.predict(texts[:32], beam=5),
    "single": lambda: [predictor.predict([text]) for text in texts[:4]],
}
for name in work:
    work[name]()
print("ready", flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    work[line.strip()]()
    print(time.perf_counter() - start, flush=True)
"""


def begin(root: Path, model: str) -> subprocess.Popen[str]:
    """Start a worker with the checkout at `root`, and wait until it is ready."""
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-c", WORKER, model]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    return worker


def seconds(worker: subprocess.Popen[str], work: str) -> float:
    """The time that a worker takes for a piece of work."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{work}\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("older", type=Path, help="root of the other checkout")
    arguments.add_argument("--seconds", type=float, default=20.0, help="for each kind of work")
    arguments.add_argument("--models", nargs="*", default=["bahdanau", "transformer"])
    arguments.add_argument("--work", nargs="*", default=["train", "greedy", "beam5", "single"])
    given = arguments.parse_args()
    for model in given.models:
        workers = {"older": begin(given.older.resolve(), model), "this": begin(HERE, model)}
        for work in given.work:
            ratios: list[float] = []
            end = time.monotonic() + given.seconds
            while time.monotonic() < end:
                order = ("older", "this") if len(ratios) % 2 else ("this", "older")
                times = {name: seconds(workers[name], work) for name in order}
                ratios.append(times["older"] / times["this"])
            middle = statistics.median(ratios)
            deviation = 1.4826 * statistics.median(abs(ratio - middle) for ratio in ratios)
            interval = 1.96 * 1.2533 * deviation / len(ratios) ** 0.5  # of the median, by normal errors
            low, _, high = statistics.quantiles(ratios)
            spread = f"{len(ratios)} pairs, quartiles {low:.2f} and {high:.2f}"
            print(f"{model:12} {work:7} {middle:.3f} +- {interval:.3f}, {spread}", flush=True)
        for worker in workers.values():
            worker.kill()


if __name__ == "__main__":
    main()
