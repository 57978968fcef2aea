"""Training steps a GPU makes: a Transformer of 6+6 layers, d 512, ff 1024, on full batches of random ids, captured.

    python benchmarks/gpu_training.py [--no-compile]

Prints target tokens a second, the median of five times twenty updates; each is a whole update with dropout, clipping
and AdamW, as `regard train` makes it with train.precision = bfloat16.
"""

import argparse
import statistics
import time

import torch

from regard import recipe as recipes
from regard.data.batching import Batches
from regard.data.tokenizers import Word
from regard.tasks.core import Pairs
from regard.tasks.translate import Translate
from regard.training.capture import Captured
from regard.training.session import Session
from regard.types import SPECIALS, Example

VOCABULARY, TOKENS, LENGTH = 10_000, 16_384, 32
STACK = {"kind": "transformer", "dim": 512, "layers": 6, "inner_dim": 1024, "dropout": 0.3}


def engine(*, compiled: bool) -> tuple[Captured, Batches]:
    """Captured updates of a fresh model, and batches of random ids without padding."""
    recipe = recipes.Recipe(
        model=recipes.Model(
            tied=True,
            encoder=recipes.Encoder(**STACK),
            attention=recipes.Attention(score="scaled_dot", heads=4),
            decoder=recipes.Decoder(**STACK),
        ),
        tokens=recipes.Tokens(shared=True, source="word", target="word", size=VOCABULARY),
        train=recipes.Train(batch_tokens=TOKENS, precision="bfloat16", compile=compiled, smoothing=0.1),
    )
    words = Word([f"w{index}" for index in range(VOCABULARY - len(SPECIALS))])
    task = Translate(recipe, words, words)
    rows = torch.randint(len(SPECIALS), VOCABULARY, (2, TOKENS // LENGTH * 4, LENGTH - 1)).tolist()
    data = Pairs([Example("", "")] * len(rows[0]), *rows)
    gpu = torch.device("cuda")
    session = Session.begin(task.build().to(gpu), recipe.train)
    return Captured(task, session, data, gpu), Batches(data.lengths(), TOKENS, 1, few_shapes=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-compile", action="store_true", help="captured alone, without torch.compile")
    compiled = not parser.parse_args().no_compile
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    began = time.perf_counter()
    learner, batches = engine(compiled=compiled)
    for _ in range(5):
        learner.learn(batches, 1e-4)
    torch.cuda.synchronize()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, set up in {time.perf_counter() - began:.0f} s")
    rates = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(20):
            learner.learn(batches, 1e-4)
        torch.cuda.synchronize()
        rates.append(20 * TOKENS / (time.perf_counter() - began))
    learner.ask()
    print(f"{statistics.median(rates):,.0f} target tokens/s ({min(rates):,.0f} to {max(rates):,.0f})")


if __name__ == "__main__":
    main()
