"""Checkpoints of JoeyNMT and OpenNMT-py: trained by these toolkits, imported, and compared translation by translation.

    python benchmarks/orphans.py --data MULTI30K --work FOLDER --joeynmt PYTHON --opennmt PYTHON [--updates 400]

MULTI30K has train, val and test_2016_flickr in .en.gz and .de.gz. Each PYTHON is an interpreter of an environment with
the toolkit. A Transformer and a recurrent model with attention are trained by the toolkit, on pieces; it translates the
1,000 test sentences, and the imported run translates them again. If translations differ, the model that both have says
which of the two is more likely. Neither side has a length penalty.
"""

import argparse
import gzip
import io
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

PARTS = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
PIECES = 2000
LONGEST = 60  # tokens of a translation, END included
WIDTH, HEADS, LAYERS, INNER = 64, 4, 2, 128
KINDS = ("transformer", "recurrent")
JOEYNMT = "import sys; from joeynmt.__main__ import main; sys.argv = ['joeynmt', *sys.argv[1:]]; main()"
OPENNMT = "import sys; from onmt.bin.{0} import main; sys.argv = ['onmt_{0}', *sys.argv[1:]]; main()"


def write_data(data: Path, folder: Path) -> None:
    """Write train, dev and test as pieces, one sentence in a line, and the list of pieces."""
    import sentencepiece

    if (folder / "pieces.txt").exists():
        return
    texts = {
        (part, side): gzip.decompress((data / f"{name}.{side}.gz").read_bytes()).decode().splitlines()
        for part, name in PARTS.items()
        for side in ("en", "de")
    }
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts["train", "en"] + texts["train", "de"]),
        model_writer=model,
        model_type="bpe",
        vocab_size=PIECES,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    for (part, side), lines in texts.items():
        pieces = (" ".join(processor.encode(line, out_type=str)) for line in lines)
        (folder / f"{part}.{side}").write_text("\n".join(pieces) + "\n")
    names = [processor.id_to_piece(number) for number in range(3, processor.get_piece_size())]
    (folder / "pieces.txt").write_text("\n".join(names) + "\n")


def joeynmt_config(folder: Path, kind: str, updates: int, beam: int) -> dict:
    """The configuration of a small JoeyNMT model."""
    side = {"level": "word", "max_length": 200, "voc_file": str(folder / "joeynmt.vocab"), "voc_limit": 100_000}
    words = ["<unk>", "<pad>", "<s>", "</s>", *(folder / "pieces.txt").read_text().split()]
    (folder / "joeynmt.vocab").write_text("\n".join(words) + "\n")
    embeddings = {"embedding_dim": WIDTH, "scale": kind == "transformer", "dropout": 0.1}
    part = {"type": kind, "embeddings": embeddings, "hidden_size": WIDTH, "dropout": 0.1}
    if kind == "transformer":
        part |= {"num_layers": LAYERS, "num_heads": HEADS, "ff_size": INNER, "layer_norm": "pre"}
        model = {"tied_embeddings": True, "tied_softmax": True, "encoder": part, "decoder": dict(part)}
    else:
        part |= {"rnn_type": "lstm", "num_layers": 1}
        encoder = part | {"bidirectional": True, "hidden_size": WIDTH // 2}
        decoder = part | {"input_feeding": True, "hidden_dropout": 0.1, "init_hidden": "bridge"}
        decoder |= {"attention": "bahdanau"}
        model = {"tied_embeddings": False, "tied_softmax": False, "encoder": encoder, "decoder": decoder}
    special = {"unk_token": "<unk>", "unk_id": 0, "pad_token": "<pad>", "pad_id": 1}
    special |= {"bos_token": "<s>", "bos_id": 2, "eos_token": "</s>", "eos_id": 3}
    return {
        "name": kind,
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder / f"joeynmt-{kind}"),
        "use_cuda": False,
        "fp16": False,
        "random_seed": 1,
        "num_workers": 0,
        "data": {
            **{name: str(folder / name) for name in PARTS},
            "dataset_type": "plain",
            "src": {"lang": "en", **side},
            "trg": {"lang": "de", **side},
            "sample_dev_subset": 50,
            "special_symbols": special,
        },
        "testing": {"beam_size": beam, "beam_alpha": 0, "batch_size": 20, "batch_type": "sentence"}
        | {"max_output_length": LONGEST, "eval_metrics": ["bleu"], "n_best": 1},
        "training": {
            "optimizer": "adam",
            "learning_rate": 0.003 if kind == "transformer" else 0.01,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 100,
            "loss": "crossentropy",
            "batch_size": 1000,
            "batch_type": "token",
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


def joeynmt(python: str, folder: Path, kind: str, updates: int, beam: int) -> tuple[Path, list[str]]:
    """Train a model of JoeyNMT, unless it is there, and translate; returns its folder and its translations."""
    model, config = folder / f"joeynmt-{kind}", folder / f"joeynmt-{kind}-{beam}.yaml"
    config.write_text(json.dumps(joeynmt_config(folder, kind, updates, beam)))  # JSON is YAML
    if not (model / "best.ckpt").exists():
        execute(python, JOEYNMT, ["train", config, "--skip-test"], folder / f"joeynmt-{kind}.log")
    output = folder / f"joeynmt-{kind}-{beam}.txt"
    if not output.exists():
        execute(python, JOEYNMT, ["translate", config], output, folder / "test.en")
    return model, output.read_text().splitlines()


def opennmt(python: str, folder: Path, kind: str, updates: int, beam: int) -> tuple[Path, list[str]]:
    """Train a model of OpenNMT-py, unless it is there, and translate; returns its file and its translations."""
    model = folder / f"opennmt-{kind}_step_{updates}.pt"
    if not model.exists():
        vocabulary = str(folder / "pieces.txt")
        config = {
            "data": {"corpus": {"path_src": str(folder / "train.en"), "path_tgt": str(folder / "train.de")}},
            "src_vocab": vocabulary,
            "tgt_vocab": vocabulary,
            "share_vocab": True,
            "save_model": str(folder / f"opennmt-{kind}"),
            "save_checkpoint_steps": updates,
            "train_steps": updates,
            "valid_steps": 10 * updates,
            "report_every": 100,
            "seed": 1,
            "num_workers": 0,
            "batch_type": "tokens",
            "batch_size": 1000,
            "batch_size_multiple": 1,
            "normalization": "tokens",
            "accum_count": [1],
            "optim": "adam",
            "learning_rate": 0.03,
            "decay_method": "rsqrt",
            "warmup_steps": 100,
            "dropout": [0.1],
            "attention_dropout": [0.1],
            "model_dtype": "fp32",
            "hidden_size": WIDTH,
            "word_vec_size": WIDTH,
            "param_init": 0.0,
            "param_init_glorot": True,
        }
        if kind == "transformer":
            config |= {"encoder_type": kind, "decoder_type": kind, "position_encoding": True, "heads": HEADS}
            config |= {"enc_layers": LAYERS, "dec_layers": LAYERS, "transformer_ff": INNER}
            config |= {"share_embeddings": True, "share_decoder_embeddings": True}
        else:
            config |= {"encoder_type": "brnn", "decoder_type": "rnn", "rnn_type": "LSTM", "input_feed": 1}
            config |= {"enc_layers": 1, "dec_layers": 1, "global_attention": "mlp"}
        path = folder / f"opennmt-{kind}.yaml"
        path.write_text(json.dumps(config))
        execute(python, OPENNMT.format("train"), ["-config", path], folder / f"opennmt-{kind}.log")
    output = folder / f"opennmt-{kind}-{beam}.txt"
    if not output.exists():
        options = ["-model", model, "-src", folder / "test.en", "-output", output, "-gpu", "-1", "-beam_size", beam]
        options += ["-length_penalty", "none", "-max_length", LONGEST, "-max_length_ratio", 0, "-batch_size", 20]
        execute(python, OPENNMT.format("translate"), options, folder / f"opennmt-{kind}-{beam}.log")
    return model, output.read_text().splitlines()


TOOLKITS = {"joeynmt": joeynmt, "opennmt": opennmt}


def execute(python: str, code: str, arguments: Sequence[object], log: Path, stdin: Path | None = None) -> None:
    """Run Python code of a toolkit; its output goes to a file that appears at the end."""
    # OpenNMT-py stores objects of Python, which its torch reads only if it is told to trust them.
    environment = os.environ | {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    environment.pop("PYTHONPATH", None)  # that of regard
    partial = log.with_name(f"{log.name}.partial")
    errors = log.with_name(f"{log.name}.errors")
    with open(stdin or os.devnull) as given, partial.open("w") as output, errors.open("w") as error:
        command = [python, "-c", code, *map(str, arguments)]
        subprocess.run(command, check=True, stdin=given, stdout=output, stderr=error, env=environment, cwd=log.parent)
    partial.rename(log)


def compare(toolkit: str, kind: str, folder: Path, model: Path, beam: int, theirs: list[str]) -> None:
    """Import a model, translate, and print how many translations are the same, and which of the others are likelier."""
    import regard
    from regard.interop import IMPORTS
    from regard.types import Example

    run, _ = IMPORTS[toolkit](model, f"{toolkit}-{kind}", folder / "runs")
    predictor = regard.load(run)
    sources = (folder / "test.en").read_text().splitlines()
    predictions = predictor.predict(sources, beam=beam, search={"max_ratio": 0.0, "max_extra": LONGEST})
    ours = [prediction.text for prediction in predictions]
    theirs = [text.replace("<unk>", "⁇") for text in theirs]
    different = [number for number, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
    maps = sum(prediction.map is not None for prediction in predictions)
    cut = [number for number in different if len(theirs[number].split()) >= LONGEST]  # it has no end
    gains = [
        predictions[number].score - predictor.task.force(predictor.model, [Example(sources[number], text)])[0].score
        for number in different
        if number not in cut and (text := theirs[number])
    ]
    print(
        f"{toolkit} {kind}, beam {beam}: {len(ours) - len(different):,} of {len(ours):,} translations are the same "
        f"({len(set(theirs)):,} different ones, {maps:,} with a map); of {len(different)} others, {len(cut)} of the "
        f"toolkit's are cut at {LONGEST} tokens; log P of regard's minus the toolkit's: "
        f"{', '.join(f'{gain:+.4f}' for gain in sorted(gains)) or 'none to compare'}",
        flush=True,
    )
    for number in different[:1]:
        print(f"  regard:    {ours[number]}\n  {toolkit + ':':10} {theirs[number]}", flush=True)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=400)
    for toolkit in TOOLKITS:
        parser.add_argument(f"--{toolkit}", metavar="PYTHON")
    options = parser.parse_args()
    folder = options.work.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_data(options.data, folder)
    for toolkit, work in TOOLKITS.items():
        if python := getattr(options, toolkit):
            for kind in KINDS:
                for beam in (1, 5):
                    model, theirs = work(python, folder, kind, options.updates, beam)
                    compare(toolkit, kind, folder, model, beam, theirs)


if __name__ == "__main__":
    main()
