"""Checkpoints of JoeyNMT: trained by this toolkit, imported, and compared translation by translation.

    python benchmarks/orphans.py --joey PYTHON --work FOLDER [--updates 300]

PYTHON is an interpreter of an environment with the toolkit. The data are generated sentences and their reversed
translations. A Transformer and a recurrent model with attention are trained by the toolkit, which also translates the
test sentences; the imported runs translate them again.
"""

import argparse
import json
import random
import subprocess
from pathlib import Path

TRANSLATE = """
import sys
from joeynmt.__main__ import main
sys.argv = ["joeynmt", "translate", sys.argv[1]]
main()
"""


def write_data(folder: Path, pairs: int = 4000) -> list[str]:
    """Write train, dev and test; returns the test sources."""
    generator = random.Random(1)
    words = [f"w{number}" for number in range(60)]
    lines = []
    for _ in range(pairs):
        source = [generator.choice(words) for _ in range(generator.randint(2, 9))]
        lines.append((" ".join(source), " ".join(word.upper() for word in reversed(source))))
    parts = {"train": lines[:-400], "dev": lines[-400:-200], "test": lines[-200:]}
    for name, part in parts.items():
        for side, suffix in enumerate(("src", "trg")):
            (folder / f"{name}.{suffix}").write_text("\n".join(pair[side] for pair in part) + "\n")
    return [source for source, _ in parts["test"]]


def joey_config(folder: Path, kind: str, updates: int, beam: int) -> dict:
    """The configuration of a small JoeyNMT model."""
    side = {"level": "word", "max_length": 100, "voc_min_freq": 1}
    embeddings = {"embedding_dim": 32, "scale": kind == "transformer", "dropout": 0.0}
    if kind == "transformer":
        part = {"type": "transformer", "num_layers": 2, "num_heads": 4, "hidden_size": 32, "ff_size": 64}
        part |= {"dropout": 0.1, "layer_norm": "pre", "embeddings": embeddings}
        model = {"tied_embeddings": False, "tied_softmax": True, "encoder": part, "decoder": dict(part)}
    else:
        encoder = {"type": "recurrent", "rnn_type": "gru", "embeddings": embeddings, "hidden_size": 24}
        encoder |= {"bidirectional": True, "num_layers": 1, "dropout": 0.1}
        decoder = {"type": "recurrent", "rnn_type": "gru", "embeddings": embeddings, "hidden_size": 40}
        decoder |= {"num_layers": 1, "dropout": 0.1, "input_feeding": True, "hidden_dropout": 0.1}
        decoder |= {"init_hidden": "bridge", "attention": "bahdanau"}
        model = {"tied_embeddings": False, "tied_softmax": False, "encoder": encoder, "decoder": decoder}
    special = {"unk_token": "<unk>", "unk_id": 0, "pad_token": "<pad>", "pad_id": 1}
    special |= {"bos_token": "<s>", "bos_id": 2, "eos_token": "</s>", "eos_id": 3}
    return {
        "name": kind,
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder / kind),
        "use_cuda": False,
        "fp16": False,
        "random_seed": 1,
        "num_workers": 0,
        "data": {
            **{name: str(folder / name) for name in ("train", "dev", "test")},
            "dataset_type": "plain",
            "src": {"lang": "src", **side},
            "trg": {"lang": "trg", **side},
            "special_symbols": special,
        },
        "testing": {"beam_size": beam, "beam_alpha": 0, "batch_size": 20, "batch_type": "sentence"}
        | {"max_output_length": 30, "eval_metrics": ["bleu"], "n_best": 1},
        "training": {
            "optimizer": "adam",
            "learning_rate": 0.003,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 50,
            "loss": "crossentropy",
            "batch_size": 40,
            "batch_type": "sentence",
            "normalization": "tokens",
            "epochs": 100,
            "updates": updates,
            "validation_freq": updates,
            "logging_freq": 100,
            "overwrite": True,
            "print_valid_sents": [],
            "early_stopping_metric": "loss",
            "keep_best_ckpts": 1,
        },
        "model": {"initializer": "xavier_uniform", **model},
    }


def joey(python: str, folder: Path, kind: str, updates: int, sources: list[str]) -> None:
    """Train a JoeyNMT model, import it, and compare the translations of both."""
    for beam in (1, 5):
        config = folder / f"{kind}-{beam}.yaml"
        config.write_text(json.dumps(joey_config(folder, kind, updates, beam)))  # JSON is YAML
        if beam == 1 and not (folder / kind / "best.ckpt").exists():
            with (folder / f"{kind}.log").open("w") as log:
                command = [python, "-m", "joeynmt", "train", str(config), "--skip-test"]
                subprocess.run(command, check=True, stdout=log, stderr=log)
        theirs = folder / f"{kind}-{beam}.theirs"
        if not theirs.exists():
            with (folder / "test.src").open() as given, theirs.open("w") as output:
                command = [python, "-c", TRANSLATE, str(config)]
                subprocess.run(command, check=True, stdin=given, stdout=output, stderr=subprocess.DEVNULL)
        report(f"JoeyNMT {kind}", folder, folder / kind, beam, sources, theirs.read_text().splitlines())


def report(name: str, folder: Path, model: Path, beam: int, sources: list[str], theirs: list[str]) -> None:
    """Import a model, translate, and print how many translations are the same."""
    import regard
    from regard.interop import IMPORTS

    run, _ = IMPORTS["joeynmt"](model, "joey", folder / "runs")
    predictions = regard.load(run).predict(sources, beam=beam)
    same = sum(own.text == other for own, other in zip(predictions, theirs, strict=True))
    maps = sum(own.map is not None for own in predictions)
    print(f"{name}, beam {beam}: {same} of {len(sources)} translations are the same; {maps} have a map")


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--joey", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=300)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    sources = write_data(options.work)
    for kind in ("transformer", "recurrent"):
        joey(options.joey, options.work, kind, options.updates, sources)


if __name__ == "__main__":
    main()
