"""Word alignment by attention: models of Tatoeba against links that people drew, in one table.

    REGARD_DATA=FOLDER python benchmarks/alignment.py [--pairs enfr enes] [--models transformer bahdanau]
        [--updates 4000] [--seconds 200] [--seed 1] [--out FOLDER]

FOLDER has tatoeba-eng-fra, tatoeba-eng-spa and word-alignment. For each pair and model, one run translates from English
and one into English; all train side by side, on a GPU if there is one, each in a process of its own, and stop after so
many updates or seconds. Then each run is forced to write the sentences of the gold set, and a row of the table is
printed for each way to read links from its attention (docs/measure.md#alignment). The last rows of a model join the
links of both directions.

Texts are prepared as those of the gold sets are: lower case, a space between words and marks, for the Hansards also
French contractions in full (`de le` for `du`, `le` for `l'`). Tatoeba's sentences are short, those of the gold sets
are not: so training also has each sentence a second time, joined with up to three others. No gold sentence is used in
training.
"""

import argparse
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parents[1]
FOLDERS = {"enfr": "tatoeba-eng-fra", "enes": "tatoeba-eng-spa"}
DIRECTIONS = ("forward", "reverse")  # from English, and into English
ELISIONS = {"l": "le", "d": "de", "j": "je", "n": "ne", "s": "se", "c": "ce", "m": "me", "t": "te"}
CONTRACTIONS = {"du": "de le", "des": "de les", "au": "à le", "aux": "à les"}
ENGLISH = [
    (r"\bcan't\b", "can not"),
    (r"\bwon't\b", "will not"),
    (r"n't\b", " not"),
    (r"\b(it|that|he|she|what|there|who|where|here|how)'s\b", r"\1 is"),
    (r"'m\b", " am"),
    (r"'re\b", " are"),
    (r"'ll\b", " will"),
    (r"'ve\b", " have"),
    (r"'d\b", " would"),
    (r"'s\b", " 's"),
]
SHARED = ["train.keep=last", "train.patience=0", "tokens.size=8000", "tokens.shared=true", "train.precision=auto"]
MODELS = {
    "transformer": [
        "tatoeba_transformer",
        *("model.attention.heads=4", "train.warmup=600", "train.average=3"),
    ],
    "bahdanau": [
        "tatoeba_luong",
        *("model.decoder.order=bahdanau", "model.attention.score=additive", "model.attention.dim=256"),
        *("model.encoder.layers=1", "model.decoder.layers=1", "train.learning_rate=0.002", "train.average=3"),
    ],
}
SMALL = {  # to try the script on a CPU
    "transformer": ["model.encoder.dim=64", "model.decoder.dim=64", "model.encoder.layers=2", "model.decoder.layers=2"],
    "bahdanau": ["model.encoder.dim=64", "model.decoder.dim=64", "model.embedding=64", "model.attention.dim=32"],
}


def english(text: str) -> str:
    """English in the words of the gold sets: no contractions but 's."""
    text = text.lower().replace("’", "'")
    for pattern, full in ENGLISH:
        text = re.sub(pattern, full, text)
    return spaced(text)


def french(text: str) -> str:
    """French in the words of the Hansards' gold set: elisions and contractions in full."""
    text = text.lower().replace("’", "'")
    text = re.sub(r"\b(lors|puis|jus|quoi|quel)?qu'", r"\1que ", text)
    text = re.sub(r"\b([ldjnscmt])'", lambda match: ELISIONS[match[1]] + " ", text)
    text = re.sub(r"\b(du|des|au|aux)\b", lambda match: CONTRACTIONS[match[1]], text)
    return spaced(text)


def spanish(text: str) -> str:
    """Spanish in lower case, with spaces around marks."""
    return spaced(text.lower())


def spaced(text: str) -> str:
    """The text with a space between words and marks; an apostrophe stays with the letters around it."""
    return " ".join(re.findall(r"'s\b|[\w]+(?:'[\w]+)*'?|\.\.\.|[^\w\s]", text))


WRITE: dict[str, Callable[[str], str]] = {"enfr": french, "enes": spanish}


def prepare(data: Path, pair: str, out: Path, limit: int | None) -> None:
    """Write training, dev and gold files of a pair in both directions."""
    for split in ("train", "valid"):
        with gzip.open(data / FOLDERS[pair] / f"{split}.tsv.gz", "rt", encoding="utf-8") as lines:
            rows = [line.rstrip("\n").split("\t")[:2] for line in lines][:limit]
        rows = [[english(source), WRITE[pair](target)] for source, target in rows]
        rows += joined(rows) if split == "train" else []
        for direction in DIRECTIONS:
            ordered = rows if direction == "forward" else [row[::-1] for row in rows]
            (out / f"{pair}.{direction}.{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in ordered))
    gold = list(gold_rows(data / "word-alignment", pair))[:limit]
    for direction in DIRECTIONS:
        lines_of_gold = ["\t".join(row if direction == "forward" else turned(row)) for row in gold]
        (out / f"{pair}.{direction}.gold.tsv").write_text("".join(f"{line}\n" for line in lines_of_gold))


def joined(rows: list[list[str]]) -> list[list[str]]:
    """All pairs again, two to four of them joined to one, as the sentences of the gold sets are longer."""
    choices, shuffled, groups = random.Random(1), list(rows), []
    choices.shuffle(shuffled)
    while shuffled:
        size = choices.randint(2, 4)
        group, shuffled = shuffled[-size:], shuffled[:-size]
        groups.append([" ".join(side) for side in zip(*group, strict=True)])
    return groups


def gold_rows(folder: Path, pair: str) -> Iterator[tuple[str, str, str]]:
    """Source, target and links, counted from 0, of a gold set, in lower case."""
    if pair == "enes":
        for name in ("train", "dev"):  # the names of the files; both are gold, and no model is trained on them
            for line in (folder / f"xlwa-enes.{name}.tsv").read_text("utf-8").splitlines():
                source, target, links = line.lower().split("\t")
                yield source, target, links
        return
    texts = (folder / "enfr.src-tgt").read_text("utf-8").lower().splitlines()
    for text, links in zip(texts, (folder / "enfr.gold").read_text("utf-8").splitlines(), strict=True):
        source, target = (" ".join(side.split()) for side in text.split("|||"))
        counted = re.sub(r"(\d+)([-p])(\d+)", lambda link: f"{int(link[1]) - 1}{link[2]}{int(link[3]) - 1}", links)
        yield source, target, counted


def turned(row: tuple[str, str, str]) -> tuple[str, str, str]:
    """A gold row for the other direction."""
    source, target, links = row
    return target, source, re.sub(r"(\d+)([-p])(\d+)", r"\3\2\1", links)


def begin(folder: Path, pair: str, model: str, direction: str, keys: list[str]) -> subprocess.Popen[bytes]:
    """Start the training of one run."""
    recipe, *settings = MODELS[model]
    name = f"{pair}-{model}-{direction}"
    data = [f"data.{key}={folder}/{pair}.{direction}.{split}.tsv" for key, split in (("train", "train"), ("dev", "valid"))]
    command = [sys.executable, "-m", "regard", "train", recipe, *settings, *SHARED, *data, "data.test="]
    command += [*keys, f"name={name}", f"runs={folder}/runs"]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment())


def environment() -> dict[str, str]:
    """The environment of the processes: this checkout, and one thread each."""
    return os.environ | {"PYTHONPATH": str(HERE / "src"), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
