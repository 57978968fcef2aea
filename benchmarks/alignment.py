"""Word alignment by attention: models of Tatoeba against links that people drew, in one table.

    REGARD_DATA=FOLDER python benchmarks/alignment.py [--pairs enfr enes] [--models transformer bahdanau]
        [--updates 4000] [--seconds 220] [--seed 1] [--out FOLDER]

FOLDER has tatoeba-eng-fra, tatoeba-eng-spa and word-alignment. For each pair and model, one run translates from English
and one into English; all train side by side, on a GPU if there is one, each in a process of its own, and stop after so
many updates or seconds. Then each run is forced to write the sentences of the gold set, and a row of the table is
printed for each way to read links from its attention (docs/measure.md#alignment). The last rows of a model join the
links of both directions.

Texts are prepared as those of the gold sets are: lower case, a space between words and marks, for the Hansards also
French contractions in full (`de le` for `du`, `le` for `l'`). Tatoeba's sentences are short, those of the gold sets
are not: so training also has each sentence a second time, joined with up to three others. No gold sentence is used in
training, unless --with-sentences adds those of the gold sets, without their links, as statistical aligners do.
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
REPEATED = 5  # times that the gold sentences are in the training data, with --with-sentences
DEV = 500  # pairs of the dev set that are used
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
SHARED = [
    *("train.keep=last", "tokens.size=8000", "train.schedule=inverse_sqrt", "train.warmup=500", "train.average=1"),
    "search.beam=1",
]
MODELS = {
    "transformer": ["tatoeba_transformer", "model.encoder.dropout=0.1", "model.decoder.dropout=0.1"],
    "bahdanau": [
        *("tatoeba_luong", "model.decoder.order=bahdanau", "model.attention.score=additive", "model.attention.dim=256"),
        *("model.encoder.layers=1", "model.decoder.layers=1"),
    ],
    "luong": ["tatoeba_luong"],
}
SMALL = {  # to try the script on a CPU
    "transformer": ["model.encoder.dim=64", "model.decoder.dim=64", "model.encoder.layers=2", "model.decoder.layers=2"],
    "luong": ["model.encoder.dim=64", "model.decoder.dim=64", "model.embedding=64"],
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


def prepare(data: Path, pair: str, out: Path, limit: int | None, with_sentences: bool = False) -> None:
    """Write training, dev and gold files of a pair in both directions; those that a folder has already stay."""
    if (out / f"{pair}.reverse.gold.tsv").exists():  # the last file
        return
    gold = list(gold_rows(data / "word-alignment", pair))[:limit]
    for split in ("train", "valid"):
        with gzip.open(data / FOLDERS[pair] / f"{split}.tsv.gz", "rt", encoding="utf-8") as lines:
            rows = [line.rstrip("\n").split("\t")[:2] for line in lines][:limit]
        rows = [[english(source), WRITE[pair](target)] for source, target in rows[: DEV if split == "valid" else None]]
        rows += joined(rows) if split == "train" else []
        if with_sentences and split == "train":
            rows += [[source, target] for source, target, _ in gold] * REPEATED
        for direction in DIRECTIONS:
            ordered = rows if direction == "forward" else [row[::-1] for row in rows]
            with gzip.open(out / f"{pair}.{direction}.{split}.tsv.gz", "wt", encoding="utf-8") as file:
                file.writelines("\t".join(row) + "\n" for row in ordered)
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


def begin(folder: Path, name: str, keys: list[str]) -> subprocess.Popen[bytes]:
    """Start the training of the run PAIR-MODEL-DIRECTION."""
    pair, model, direction = name.split("-")
    recipe, *settings = MODELS[model]
    stem = f"{folder}/{pair}.{direction}"
    files = [f"data.train={stem}.train.tsv.gz", f"data.dev={stem}.valid.tsv.gz"]
    command = [sys.executable, "-m", "regard", "train", recipe, "--runs", f"{folder}/runs", "--quiet"]
    command += [*settings, *SHARED, *files, "data.test=", *keys, f"name={name}"]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment())


def align(folder: Path, pair: str, model: str) -> subprocess.Popen[bytes]:
    """Start reading the links of a model's two runs."""
    runs = [f"{folder}/runs/{pair}-{model}-{direction}" for direction in DIRECTIONS]
    command = [sys.executable, "-m", "regard", "align", runs[0], f"{folder}/{pair}.forward.gold.tsv", "--heads"]
    with (folder / f"{pair}-{model}.log").open("wb") as log:
        output = subprocess.PIPE
        return subprocess.Popen(
            [*command, "--reverse", runs[1], "--json"], stdout=output, stderr=log, env=environment()
        )


def environment() -> dict[str, str]:
    """The environment of the processes: this checkout, and one thread each."""
    return os.environ | {"PYTHONPATH": str(HERE / "src"), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def show(model: str, output: bytes, log: str, begun: float) -> None:
    """Print the rows of a model of one pair, or the end of its log if there are none."""
    if not output:
        print(f"{model}: no links were read: {log[-500:]}", flush=True)
        return
    for row in json.loads(output)["readings"]:
        chosen = " / ".join(dict.fromkeys(row["chosen"]))
        print(f"{model:<18} {row['name']:<46} {row['alignment_error_rate']:.4f}  {chosen}", flush=True)
    print(f"{model}: read after {time.monotonic() - begun:.0f} s", flush=True)


def validated(folder: Path, name: str) -> str:
    """The last validation of a run; empty if it was stopped before the first one."""
    path = folder / "runs" / name / "metrics.jsonl"
    lines = [line for line in path.read_text().splitlines() if '"update"' in line] if path.is_file() else []
    if not lines:
        return ""
    last = json.loads(lines[-1])
    return f"update {last['update']:,}, dev loss {last['dev_loss']:.3f}"


def follow(folder: Path, names: list[str], processes: dict[str, subprocess.Popen[bytes]], end: float) -> None:
    """Wait for the trainings, stop them at `end`, and read and print the links of each model as its two runs end."""
    begun = time.monotonic()
    waiting = list(dict.fromkeys(name.rpartition("-")[0] for name in names))
    reading: dict[str, subprocess.Popen[bytes]] = {}
    while waiting or reading:
        time.sleep(0.2)
        if time.monotonic() > end:
            end = float("inf")
            for name in names:
                processes[name].send_signal(
                    signal.SIGTERM
                )  # regard saves its state; the last validation's weights count
        for model in list(waiting):
            own = [f"{model}-{direction}" for direction in DIRECTIONS]
            if any(processes[name].poll() is None for name in own):
                continue
            waiting.remove(model)
            for name in own:
                state = validated(folder, name) or f"no validation: {(folder / f'{name}.log').read_text()[-500:]}"
                print(f"{name}: {state}, after {time.monotonic() - begun:.0f} s", flush=True)
            if all(validated(folder, name) for name in own):
                reading[model] = processes[model] = align(folder, *model.split("-"))
        for model, process in list(reading.items()):
            if process.poll() is not None:
                assert process.stdout is not None
                log = (folder / f"{model}.log").read_text()
                show(model, process.stdout.read(), log, begun)
                del reading[model]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs="*", default=list(FOLDERS), choices=list(FOLDERS))
    parser.add_argument("--models", nargs="*", default=["transformer", "bahdanau"], choices=list(MODELS))
    parser.add_argument("--updates", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=220.0, help="after which training is stopped")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keys", nargs="*", default=[], help="further settings of all recipes, such as train.batch_tokens=4096"
    )
    parser.add_argument("--with-sentences", action="store_true", help="train on the gold sentences, too, without links")
    parser.add_argument(
        "--out", type=Path, help="a folder to keep the files in, whose texts are used again; else a temporary one"
    )
    parser.add_argument("--only-texts", action="store_true", help="prepare the texts in --out, and end")
    parser.add_argument("--small", action="store_true", help="tiny models on few sentences, to try the script")
    given = parser.parse_args()
    begun = time.monotonic()
    data = Path(os.environ.get("REGARD_DATA", "data"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for pair in given.pairs:
            prepare(data, pair, folder, 40 if given.small else None, given.with_sentences)
        print(f"texts prepared after {time.monotonic() - begun:.0f} s", flush=True)
        if given.only_texts:
            return
        keys = [
            f"train.updates={given.updates}",
            f"train.seed={given.seed}",
            f"train.validate={max(1, given.updates // 16)}",
        ]
        names = [f"{pair}-{model}-{way}" for pair in given.pairs for model in given.models for way in DIRECTIONS]
        processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name in names:
                small = SMALL[name.split("-")[1]] if given.small else []
                processes[name] = begin(folder, name, [*keys, *small, *given.keys])
            follow(folder, names, processes, begun + given.seconds)
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.kill()
        print(f"all done after {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
