"""Contender `regard`: the loop's own update and the library's own search, on the work that `common` defines.

It stands beside the other peer_*.py of the comparison (see README.md here) and prints what they print.
"""

import json
import time
from typing import Any

import common
import torch

from regard import recipe as recipes
from regard import search
from regard.data import batching
from regard.data.tokenizers import TOKENIZERS
from regard.device import keep_freed_memory, side_by_side
from regard.models import store_by_columns
from regard.sources import Text
from regard.tasks.core import Pairs
from regard.tasks.transduce import Transduce
from regard.training.engine import Eager
from regard.training.session import Session
from regard.training.stopping import Stopper
from regard.types import END, Example, Step

SIZE = common.SIZE


def transformer() -> dict[str, Any]:
    """Vaswani et al. 2017, small: tied embeddings; dropout wherever the peers drop."""
    side = {
        "kind": "transformer",
        "dim": SIZE["d"],
        "layers": SIZE["layers"],
        "inner_dim": SIZE["ff"],
        "dropout": SIZE["dropout"],
        "inner_dropout": SIZE["dropout"],
    }
    attention = {"score": "scaled_dot", "heads": SIZE["heads"], "dropout": SIZE["dropout"]}
    return {"tied": True, "norm": "post", "encoder": side, "decoder": side, "attention": attention}


def recurrent(score: str) -> dict[str, Any]:
    """Luong et al. 2015 with input feeding: LSTMs, read in both directions."""
    side = {"cell": "lstm", "dim": SIZE["rnn_hidden"], "dropout": SIZE["dropout"]}
    attention = {"score": score, "dim": SIZE["rnn_hidden"]}
    decoder = {"order": "luong_feeding", **side}
    return {"embedding": SIZE["rnn_emb"], "encoder": side, "decoder": decoder, "attention": attention}


def recipe(arch: str, score: str) -> recipes.Recipe:
    """The model that the comparison names, and its training."""
    return recipes.fill(
        recipes.Recipe(),
        {
            "tokens": {"source": "word", "target": "word", "shared": arch == "transformer"},
            "model": transformer() if arch == "transformer" else recurrent(score),
            "train": {
                "batch_tokens": SIZE["batch_tokens"],
                "smoothing": SIZE["smoothing"],
                "learning_rate": 5e-4,
                "clip": 0.0,
                "device": "cpu",
            },
        },
        origin="the benchmark",
        prefix="",
    )


def translate(arch: str, score: str) -> Transduce:
    """The task, with the pieces of the comparison for a vocabulary."""
    stored = json.dumps({"kind": "word", "tokens": common.vocab()[4:]}).encode()
    words = TOKENIZERS["word"].from_bytes(stored)
    return Transduce(recipe(arch, score), Text(words), words)


def train(task: Transduce, warmup: int, updates: int, window: int) -> None:
    """Updates of `Eager`; batches are those that the plain PyTorch peers get, in their order."""
    sources, targets = common.load_ids()
    batches = common.token_batches(sources, targets, SIZE["batch_tokens"])
    sizes = [len(source) + 1 for source in sources]
    data = Pairs([Example("", "")] * len(sources), sources, targets, sizes)
    session = Session.begin(task.build(), task.recipe.train)
    rates: list[float] = []
    seconds, tokens = 0.0, 0
    for update in range(1, warmup + updates + 1):
        if update == warmup + 1 or len(rates) * window == update - warmup - 1 >= window:
            began, before = time.perf_counter(), session.progress.tokens
        Eager(task, session, data).update(batches, Stopper())  # type: ignore[arg-type]  # all it asks of batches is the next one
        if update > warmup and (update - warmup) % window == 0:
            seen, passed = session.progress.tokens - before, time.perf_counter() - began
            rates.append(seen / passed)
            tokens, seconds = tokens + seen, seconds + passed
    common.emit(
        tok_per_s=tokens / seconds,
        windows=rates,
        tokens_per_update=tokens / updates,
        loss=session.progress.total / session.progress.tokens,
        params=sum(each.numel() for each in session.model.parameters()),
        peak_rss_mb=common.peak_rss_mb(),
    )


def infer(task: Transduce, sentences: int, batch: int, beam: int, length: int) -> None:
    """Encoder and search, sentences of like length together, no output shorter or longer than `length`."""
    model = task.build().eval()
    store_by_columns(model)  # as `load` does
    step = model.decoder.step

    def never_ending(*given: Any) -> Step:
        said = step(*given)
        said.logits[..., END] = float("-inf")
        return said

    model.decoder.step = never_ending  # type: ignore[method-assign]
    sources, _ = common.load_ids("test_2016_flickr")
    rows = sorted(sources[:sentences], key=len)
    groups = [rows[start : start + batch] for start in range(0, len(rows), batch)]

    def decode(group: list[list[int]]) -> int:
        with torch.inference_mode():
            memory = model.encoder(batching.pad([[*row, END] for row in group]))
        found = search.beam(model.decoder, memory, width=beam, limits=[length] * len(group))
        assert all(best.map is not None for (best,) in found), "the map is part of every result"
        return sum(len(best.tokens) for (best,) in found)

    decode(groups[0])
    began = time.perf_counter()
    tokens = sum(side_by_side(decode, groups, model) if batch > 1 else map(decode, groups))  # one by one is latency
    common.infer_result(time.perf_counter() - began, len(rows), tokens)


def main() -> None:
    """As asked on the command line."""
    asked = common.args()
    common.set_threads()
    torch.manual_seed(1)
    task = translate(asked.arch, asked.attention)
    with keep_freed_memory():  # as the loop and the predictor do
        if asked.mode == "train":
            train(task, asked.warmup, asked.updates, asked.window)
        else:
            infer(task, asked.sentences, asked.batch, asked.beam, asked.length)


if __name__ == "__main__":
    main()
