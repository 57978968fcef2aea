"""Many pairs on few cores: preparation, its memory, the first update, the step; beside Eole's data pipeline.

    python benchmarks/corpus.py generate FOLDER --pairs 10000000     # about 1 GB, in shards
    python benchmarks/corpus.py prepare FOLDER                        # read and encode all shards with an empty cache
    python benchmarks/corpus.py first FOLDER                          # the first update of a training, cached
    python benchmarks/corpus.py step FOLDER                           # a million pairs: the step, stored and in memory
    python benchmarks/corpus.py formats                               # numpy's memmap beside Arrow
    python benchmarks/corpus.py compare FOLDER --eole PYTHON          # a million pairs, interleaved with Eole

The text is generated from a seed: 50,000 made-up words by Zipf's law, 4 to 12 in a sentence; the target has a word for
each word of the source, in another order. The tokenizer is sentencepiece of 8,000 tokens for both sides, learned from
200,000 pairs and cached before anything is measured. Memory is the resident set of the process and of all its children,
summed every 50 ms; pages that they share, such as those of the store, are counted in each.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

WORDS, SHARD, SAMPLE = 50_000, 500_000, 1_000_000
LETTERS = np.asarray([*"aeioutnrslcdmpbgkv"])
HERE = Path(__file__).resolve()


def words(seed: int) -> list[str]:
    """Made-up words, all different."""
    generator, made = np.random.default_rng(seed), dict[str, None]()
    while len(made) < WORDS:
        made["".join(generator.choice(LETTERS, generator.integers(2, 10)))] = None
    return [*made]


def pairs(count: int) -> Iterator[tuple[str, str]]:
    """The pairs; the first ones are the same for any count."""
    sources, targets = words(1), words(2)
    shares = 1 / np.arange(1, WORDS + 1) ** 0.9
    bounds = np.cumsum(shares / shares.sum())
    generator = np.random.default_rng(3)
    for start in range(0, count, 100_000):
        sizes = generator.integers(4, 13, 100_000)
        chosen = np.searchsorted(bounds, generator.random(sizes.sum())).clip(max=WORDS - 1).tolist()
        end = 0
        for size in sizes[: count - start].tolist():
            begin, end = end, end + size
            own = chosen[begin:end]
            yield " ".join([sources[word] for word in own]), " ".join([targets[word] for word in [*own[2:], *own[:2]]])


def generate(folder: Path, count: int) -> None:
    """Write the shards, and the sample as a shard of its own and as two parallel files."""
    (folder / "shards").mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        sample = [stack.enter_context((folder / name).open("w")) for name in ("sample.tsv", "sample.src", "sample.tgt")]
        shard = None
        for number, (source, target) in enumerate(pairs(count)):
            if number % SHARD == 0:
                if shard is not None:
                    shard.close()
                shard = (folder / "shards" / f"{number // SHARD:03}.tsv").open("w")
            line = f"{source}\t{target}\n"
            shard.write(line)
            if number < SAMPLE:
                for file, text in zip(sample, (line, f"{source}\n", f"{target}\n"), strict=True):
                    file.write(text)
        shard.close()
    size = sum(path.stat().st_size for path in (folder / "shards").iterdir())
    print(f"{count:,} pairs, {size:,} bytes in {folder / 'shards'}")


def recipe_for(folder: Path, *overrides: str, sample: bool = False):
    """A small Transformer, on all shards or on the sample."""
    from regard import recipe as recipes

    names = folder / "sample.tsv" if sample else f"{folder}/shards/*.tsv"
    return recipes.load(
        "multi30k_tiny",
        [
            *(f"data.train={names}", "data.dev=", "data.test=", "name=corpus", "metric=exact_match"),
            *("tokens.source=sentencepiece", "tokens.target=sentencepiece", "tokens.shared=true", "tokens.size=8000"),
            *("tokens.sample=200000", "data.store_from=0", "train.device=cpu", "train.precision=float32"),
            *("train.updates=1", "train.validate=1", "train.validate_examples=0", "train.keep=last"),
            "train.batch_tokens=2000",
            *overrides,
        ],
    )


def learned(recipe):
    """The examples, and the task with its tokenizers."""
    from regard.tasks import task_class

    kind = task_class(recipe.task)
    examples = kind.examples(recipe)
    return examples, kind.learn(recipe, examples.train)


def keep_tokenizers(cache: Path) -> None:
    """Remove everything from a cache but tokenizers."""
    for path in cache.iterdir() if cache.exists() else ():
        if path.name != "tokenizers":
            shutil.rmtree(path)


def cache_tokenizer(folder: Path, *, sample: bool) -> None:
    """Learn the tokenizer of the sample or of all pairs, if it is not cached; both take that of the sample."""
    run("learn", folder, *(["--sample"] if sample else []))


# measured in a process of their own


def learn(folder: Path, *, sample: bool) -> None:
    """Fill the cache with the tokenizer."""
    _, task = learned(recipe_for(folder, sample=sample))
    (folder / "tokenizer.model").write_bytes(task.target.to_bytes())
    print(json.dumps({}))


def encode(folder: Path, *, sample: bool) -> None:
    """Read and encode with the cached tokenizer, plan the first epoch, and print the pairs a second."""
    recipe = recipe_for(folder, sample=sample)
    from regard import tasks  # noqa: F401  the time of imports is not counted, nor is Eole's
    from regard.data.batching import Batches

    before = time.perf_counter()
    examples, task = learned(recipe)
    seconds = {"scan": time.perf_counter() - before}
    data = task.within_length(task.encode(examples.train))
    seconds["encode"] = time.perf_counter() - before - seconds["scan"]
    examples.digest()
    total = time.perf_counter() - before
    batches = Batches(data.lengths(), 4000, 1)
    task.collate(data, batches[0])
    seconds["plan"] = time.perf_counter() - before - total
    tokens = int(len(data.sources.numbers) + len(data.targets.numbers))
    print(
        json.dumps(
            {"pairs": len(examples.train), "pairs_per_second": len(examples.train) / total, "tokens": tokens, **seconds}
        )
    )


def first(folder: Path) -> None:
    """Train for one update, and print the seconds from the start of the process until then."""
    import regard

    class Done(regard.Callback):
        def on_update(self, event: object) -> None:
            began = float(os.environ["BEGAN"])
            print(json.dumps({"first_update": time.time() - began}), flush=True)
            os._exit(0)

    with TemporaryDirectory() as runs:
        regard.train(recipe_for(folder), runs=runs, callbacks=[Done()])


def step(folder: Path) -> None:
    """Alternate updates on the sample, mapped from the store and in memory; print the ratio of their times."""
    import torch

    from regard.data.batching import Batches
    from regard.training.engine.eager import Eager
    from regard.training.session import Session

    torch.set_num_threads(2)
    settings = ("train.updates=1000000", "model.encoder.dim=64", "model.decoder.dim=64", "train.batch_tokens=1000")
    engines, times = {}, {"stored": [], "memory": []}
    for name, store in (("stored", "data.store_from=0"), ("memory", "data.store_from=100000000000")):
        examples, task = learned(recipe_for(folder, *settings, store, sample=True))
        data = task.within_length(task.encode(examples.train)).without_texts()
        torch.manual_seed(1)
        session = Session.begin(task.build(), task.recipe.train)
        engines[name] = Eager(task, session, data), Batches(data.lengths(), 1000, 1), data
    from regard.training.stopping import Stopper

    stopper = Stopper()
    collate = {"stored": [], "memory": []}
    for number in range(40):
        for name in (("stored", "memory"), ("memory", "stored"))[number % 2]:
            engine, batches, data = engines[name]
            before = time.perf_counter()
            engine.task.collate(data, batches[number + 1000])
            collate[name].append(time.perf_counter() - before)
            torch.manual_seed(number)  # both drop the same units
            before = time.perf_counter()
            engine.update(batches, stopper)
            times[name].append(time.perf_counter() - before)
    one, other = (engines[name][0].session.model.state_dict() for name in times)
    assert all(torch.equal(one[key], other[key]) for key in one), "other bits"
    print(
        json.dumps(
            {
                "step_ratio": statistics.median(a / b for a, b in zip(times["stored"], times["memory"], strict=True)),
                "step_ms": 1000 * statistics.median(times["stored"]),
                "collate_ratio": statistics.median(
                    a / b for a, b in zip(collate["stored"], collate["memory"], strict=True)
                ),
                "same_bits": True,
            }
        )
    )


# measuring


class Memory(threading.Thread):
    """The largest sum of the resident memory of a process and its children, and of the part that is not of files."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.resident, self.anonymous = pid, 0, 0

    def run(self) -> None:
        while Path(f"/proc/{self.pid}").exists():
            sums = [0, 0]
            for pid in tree(self.pid):
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{pid}/status").read_text()
                    for place, key in enumerate(("VmRSS:", "RssAnon:")):
                        sums[place] += next(
                            (1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith(key)), 0
                        )
            self.resident, self.anonymous = max(self.resident, sums[0]), max(self.anonymous, sums[1])
            time.sleep(0.05)


def tree(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def run(what: str, folder: Path, *arguments: str, python: str = sys.executable) -> dict[str, float]:
    """Run a measurement in a process of its own; its result, with the peak memory in MiB and the seconds in all."""
    cache = folder / ("sample-cache" if "--sample" in arguments else "cache")
    environment = os.environ | {"BEGAN": repr(time.time()), "REGARD_CACHE": str(cache)}
    command = [python, str(HERE), what, str(folder), *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        memory = Memory(process.pid)
        memory.start()
        output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{what} failed")
    seconds = time.time() - float(environment["BEGAN"])
    sizes = {"peak_mib": memory.resident / 2**20, "anonymous_mib": memory.anonymous / 2**20}
    return json.loads(output.splitlines()[-1]) | sizes | {"seconds": seconds}


def show(name: str, result: dict[str, float]) -> None:
    """Print a result on one line."""
    parts = (f"{key} {value:,.3f}" if isinstance(value, float) else f"{key} {value:,}" for key, value in result.items())
    print(f"{name}: {', '.join(parts)}", flush=True)


def compare(folder: Path, eole: str, rounds: int) -> None:
    """Read and encode the sample in turn with Eole's pipeline and with regard, on two processes each."""
    cache_tokenizer(folder, sample=True)
    ratios = []
    for _ in range(rounds):
        theirs = run("eole", folder, python=eole)
        keep_tokenizers(folder / "sample-cache")
        ours = run("encode", folder, "--sample")
        ratios.append(ours["pairs_per_second"] / theirs["pairs_per_second"])
        show("eole", theirs)
        show("regard", ours)
        print(f"ratio {ratios[-1]:.2f}", flush=True)
    print(
        f"median ratio {statistics.median(ratios):.2f} of {len(ratios)} rounds ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def eole(folder: Path) -> None:
    """Eole's data pipeline on the sample: sentencepiece, ids, buckets, batches as tensors, in two worker processes."""
    import sentencepiece
    from eole.config.run import TrainConfig
    from eole.constants import CorpusTask
    from eole.inputters.dynamic_iterator import build_dynamic_dataset_iter
    from eole.inputters.inputter import build_vocab
    from eole.transforms import get_transforms_cls, make_transforms

    model = str(folder / "tokenizer.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    pieces = [processor.IdToPiece(index) for index in range(4, processor.GetPieceSize())]
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("\n".join(piece for piece in pieces if piece.strip()) + "\n", encoding="utf-8")
    config = TrainConfig(
        data={
            "corpus_1": {
                "path_src": str(folder / "sample.src"),
                "path_tgt": str(folder / "sample.tgt"),
                "transforms": ["sentencepiece"],
            }
        },
        transforms=["sentencepiece"],
        transforms_configs={"sentencepiece": {"src_subword_model": model, "tgt_subword_model": model}},
        src_vocab=str(vocabulary),
        tgt_vocab=str(vocabulary),
        share_vocab=True,
        skip_empty_level="silent",
        overwrite=True,
        seed=1,
        model={"architecture": "transformer", "layers": 1, "heads": 1, "hidden_size": 8},
        training={
            "model_path": str(folder / "eole-model"),
            "num_workers": 2,
            "bucket_size": SAMPLE // 16,  # so that eight buckets of each worker are the whole sample
            "batch_type": "tokens",
            "batch_size": 4000,
            "batch_size_multiple": 1,
            "train_steps": 1,
            "compute_dtype": "fp32",
        },
    )
    vocabs = build_vocab(config, {"src": [], "tgt": []})
    transforms = make_transforms(config, get_transforms_cls(["sentencepiece"]), vocabs)
    before = time.perf_counter()
    count = 0
    for batch, _ in build_dynamic_dataset_iter(config, transforms, vocabs, task=CorpusTask.TRAIN):
        count += len(batch["src"])
        if count >= 0.9 * SAMPLE:  # the pipeline begins anew at the end, and drops equal sources of a bucket
            break
    print(json.dumps({"pairs": count, "pairs_per_second": count / (time.perf_counter() - before)}), flush=True)
    os._exit(0)  # its workers would go on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("corpus"))
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--eole", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sample", action="store_true")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.what == "generate":
        generate(folder, options.pairs)
    elif options.what == "prepare":
        cache_tokenizer(folder, sample=False)
        keep_tokenizers(folder / "cache")
        show("prepare", run("encode", folder))
        show("again, cached", run("encode", folder))
    elif options.what == "compare":
        compare(folder, options.eole, options.rounds)
    elif options.what == "first":
        for _ in range(options.rounds):
            show("first", run("first-update", folder))
    elif options.what == "step":
        cache_tokenizer(folder, sample=True)
        for _ in range(options.rounds):
            show("step", run("steps", folder, "--sample"))
    elif options.what == "formats":
        formats()
    else:
        inner = {"first-update": first, "steps": step, "eole": eole}
        if options.what in inner:
            inner[options.what](folder)
        else:
            {"learn": learn, "encode": encode}[options.what](folder, sample=options.sample)


def formats(rows: int = 2_000_000) -> None:
    """Build, open and read token rows of random lengths in random order: numpy's memmap and Arrow; CPU time."""
    import pyarrow as pa

    generator = np.random.default_rng(1)
    lengths = generator.integers(5, 40, rows)
    ends = np.cumsum(lengths)
    ids = generator.integers(0, 8000, ends[-1]).astype(np.uint16)
    order = generator.integers(0, rows, 200_000).tolist()
    with TemporaryDirectory() as folder:
        plain, arrow = f"{folder}/ids", f"{folder}/rows.arrow"
        before = time.process_time()
        ids.tofile(plain)
        mapped = np.memmap(plain, np.uint16, mode="r").view(np.ndarray)
        starts = ends - lengths
        seconds = {"memmap, write and open": time.process_time() - before}
        before = time.process_time()
        for row in order:
            mapped[starts.item(row) : ends.item(row)].tolist()
        seconds["memmap, 200,000 rows as lists"] = time.process_time() - before
        before = time.process_time()
        offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
        table = pa.table({"ids": pa.ListArray.from_arrays(offsets, pa.array(ids))})
        with pa.OSFile(arrow, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        column = pa.ipc.open_file(pa.memory_map(arrow)).read_all()["ids"].chunk(0)
        seconds["arrow, write and open"] = time.process_time() - before
        before = time.process_time()
        for row in order:
            column[row].as_py()
        seconds["arrow, 200,000 rows as lists"] = time.process_time() - before
        before = time.process_time()
        for row in order:
            column[row].values.to_numpy().tolist()
        seconds["arrow, 200,000 rows through numpy"] = time.process_time() - before
    show("formats", seconds)


if __name__ == "__main__":
    main()
