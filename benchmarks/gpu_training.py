"""Training steps a GPU makes, captured, on full batches of random ids.

    python benchmarks/gpu_training.py [transformer | bahdanau | luong | luong_feeding | gnmt | gnmt_v2]
                                      [--profile] [--group] [--interleaved]

`transformer` has 6+6 layers, d 512, ff 1024, dropout, 16k tokens a batch, and goes through torch.compile. The others
read with a BiLSTM of 2 x 512 and write with an LSTM of 512 (gnmt: two, as few as it can have), look additively, and
have 128 sentences of 28 tokens a batch and no dropout. Vocabulary 10,000. Prints target tokens a second, the median of
five times twenty updates; each is a whole update with clipping and AdamW, as `regard train` makes it with
train.precision = bfloat16. `--profile` prints the kernels of an update instead. With `--group` the process trains as
one of several would (train.parallel = ddp): NCCL sums gradients, tokens and losses within the graph. `--interleaved`
times both ways in turns.
"""

import argparse
import statistics
import time

import torch

from regard import recipe as recipes
from regard.data.batching import Batches
from regard.data.tokenizers import Word
from regard.sources import Text
from regard.tasks.core import Pairs
from regard.tasks.transduce import Transduce
from regard.training.engine import Captured
from regard.training.processes import ALONE, Processes, joined
from regard.training.session import Session
from regard.training.stopping import Stopper
from regard.types import SPECIALS, Example

VOCABULARY = 10_000
STOPPER = Stopper()  # which nobody asks to stop
STACK = {"kind": "transformer", "dim": 512, "layers": 6, "inner_dim": 1024, "dropout": 0.3}
ORDERS = ("bahdanau", "luong", "luong_feeding", "gnmt", "gnmt_v2")


def recipe(name: str) -> tuple[recipes.Recipe, int]:
    """The model of that name with its training, and the length of every sentence."""
    tokens = recipes.Tokens(shared=True, source="word", target="word", size=VOCABULARY)
    if name in ORDERS:
        model = recipes.Model(
            embedding=512,
            encoder=recipes.Encoder(cell="lstm", dim=1024),
            attention=recipes.Attention(score="additive", dim=512),
            decoder=recipes.Decoder(order=name, cell="lstm", dim=512, layers=2 if "gnmt" in name else 1),
        )
        train = recipes.Train(batch_tokens=128 * 28, learning_rate=1e-4, precision="bfloat16", smoothing=0.1)
        return recipes.Recipe(model=model, tokens=tokens, train=train), 28
    model = recipes.Model(
        tied=True,
        encoder=recipes.Encoder(**STACK),
        attention=recipes.Attention(score="scaled_dot", heads=4),
        decoder=recipes.Decoder(**STACK),
    )
    train = recipes.Train(batch_tokens=16_384, learning_rate=1e-4, precision="bfloat16", compile=True, smoothing=0.1)
    return recipes.Recipe(model=model, tokens=tokens, train=train), 32


def engine(name: str, processes: Processes) -> tuple[Captured, Batches]:
    """Captured updates of a fresh model, and batches of random ids without padding."""
    chosen, length = recipe(name)
    words = Word([f"w{index}" for index in range(VOCABULARY - len(SPECIALS))])
    task = Transduce(chosen, Text(words), words)
    count = chosen.train.batch_tokens // length * 4
    rows = torch.randint(len(SPECIALS), VOCABULARY, (2, count, length - 1)).tolist()
    data = Pairs([Example("", "")] * count, *rows, [length] * count)
    session = Session.begin(task.build().cuda(), chosen.train, processes)
    batches = Batches(data.lengths(), chosen.train.batch_tokens, 1, few_shapes=True)
    return Captured(task, session, data), batches


def profile(learner: Captured, batches: Batches) -> None:
    """The kernels of an update, by their time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            learner.update(batches, STOPPER)
        torch.cuda.synchronize()
    kernels = sorted(seen.key_averages(), key=lambda each: -each.self_device_time_total)
    print(f"{sum(each.self_device_time_total for each in kernels) / 3000:.3f} ms in kernels")
    for each in kernels[:40]:
        print(f"{each.self_device_time_total / 3000:8.3f} ms {each.count // 3:5} x {each.key[:100]}")


def rate(learner: Captured, batches: Batches) -> float:
    """Target tokens a second over twenty updates."""
    began = time.perf_counter()
    for _ in range(20):
        learner.update(batches, STOPPER)
    torch.cuda.synchronize()
    return 20 * learner.settings.batch_tokens / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", choices=("transformer", *ORDERS), default="transformer")
    parser.add_argument("--profile", action="store_true", help="tell the kernels of an update")
    parser.add_argument("--group", action="store_true", help="train as one of several processes, by NCCL")
    parser.add_argument("--interleaved", action="store_true", help="time a process alone and one in a group in turns")
    asked = parser.parse_args()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    with joined(recipes.Train(parallel="ddp" if asked.group or asked.interleaved else "auto")) as group:
        ways = {"alone": ALONE, "in a group": group} if asked.interleaved else {asked.model: group}
        began = time.perf_counter()
        learners = {way: engine(asked.model, processes) for way, processes in ways.items()}
        for learner, batches in learners.values():
            for _ in range(5):
                learner.update(batches, STOPPER)
        torch.cuda.synchronize()
        print(
            f"torch {torch.__version__}, {torch.cuda.get_device_name()}, set up in {time.perf_counter() - began:.0f} s"
        )
        if asked.profile:
            profile(*learners[asked.model])
            return
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(5):
            for way, (learner, batches) in learners.items():
                rates[way].append(rate(learner, batches))
        for way, (learner, _) in learners.items():
            learner.end()
            own = rates[way]
            print(f"{way}: {statistics.median(own):,.0f} target tokens/s ({min(own):,.0f} to {max(own):,.0f})")


if __name__ == "__main__":
    main()
