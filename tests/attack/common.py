"""What the attacks share: tiny recipes, comparison of runs, and counts of the cases.

`make test` runs a sample of the cases, `make attack` (REGARD_ATTACK=whole) all of them.
"""

import copy
import functools
import hashlib
import json
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from commands import Commands, shared_commands

WHOLE = os.environ.get("REGARD_ATTACK") == "whole"
WALL_CLOCK = {"tokens_per_second", "seconds", "train_seconds"}
MANIFEST, METRICS, MODEL, RECIPE, STATE = (
    "manifest.json",
    "metrics.jsonl",
    "model.safetensors",
    "recipe.toml",
    "state.json",
)
OPTIMIZER, CHECKPOINTS, LOCK, LATEST = "optimizer.safetensors", "checkpoints", ".lock", "latest"

Case = TypeVar("Case")


def sample(cases: Iterable[Case], count: int) -> list[Case]:
    """All cases in `make attack`; otherwise about `count` of them, spread evenly."""
    cases = list(cases)
    if WHOLE or len(cases) <= count:
        return cases
    return [cases[index * len(cases) // count] for index in range(count)]


@dataclass
class Tried:
    """The cases of one attack: all are tried, and those that fail are reported together."""

    count: int = 0
    failed: list[str] = field(default_factory=list)

    @contextmanager
    def __call__(self, *case: object) -> Iterator[None]:
        """Try a case in the block."""
        self.count += 1
        try:
            yield
        except AssertionError as error:
            text = str(error)
            self.failed.append(f"{case}: {text if len(text) < 1200 else f'{text[:300]} ... {text[-800:]}'}")


@contextmanager
def trying(name: str, record_property: Callable[[str, object], None]) -> Iterator[Tried]:
    """Count the cases of the block, and the failed ones, under a name; tests/conftest.py prints a table at the end."""
    tried = Tried()
    yield tried
    record_property(name, tried.count)
    if tried.failed:
        record_property(f"{name}: failed", len(tried.failed))
    shown = "\n".join(tried.failed[: None if WHOLE else 12])
    assert not tried.failed, f"{len(tried.failed)} of {tried.count} cases failed:\n{shown}"


# ---- tiny recipes

SIZES = (
    *("model.embedding=4", "model.encoder.dim=6", "model.decoder.dim=6", "model.attention.dim=4"),
    *("train.updates=6", "train.validate=2", "train.batch_tokens=60", "train.threads=1", "train.device=cpu"),
    *("search.max_ratio=0", "search.max_extra=3", "model.encoder.dropout=0.1"),
)
PAIRS = ("data.train=train.tsv", "data.dev=dev.tsv", "data.test=dev.tsv")
TRANSFORMER = (
    *("model.encoder.kind=transformer", "model.decoder.kind=transformer", "model.encoder.inner_dim=8"),
    *("model.decoder.inner_dim=8", "model.attention.score=scaled_dot", "model.attention.heads=2"),
)
MELODIES = [("C4",), ("D4", "F4"), ("E4",), ("G4", "C4"), ("A4",), ("C5", "D4", "E4")]
LINES = ("data.train=lines.txt", "data.dev=lines.txt", "data.test=lines.txt")
KINDS = {
    "recurrent": (*PAIRS, "train.average=2", "train.sampling=0.5", "train.accumulate=2"),
    "transformer": (*PAIRS, *TRANSFORMER, "train.ema=0.8", "train.keep=last", "train.patience=5"),
    "subwords": (*PAIRS, "tokens.source=sentencepiece", "tokens.size=20", "model.decoder.order=luong"),
    "classifier": (
        *("task=classify", "metric=accuracy", "data.train=labels.tsv", "data.dev=labels.tsv", "data.test=labels.tsv"),
    ),
    "language_model": (
        *("task=language_model", "metric=perplexity", *LINES),
        *("model.decoder.order=none", "model.decoder.start=zeros", "model.decoder.cell=lstm"),
    ),
    "continued": (*PAIRS, "train.start_from=origin/recurrent"),
}
# Kinds whose files are attacked too. Kills and errors of the system are not tried on them: the same code writes their
# files.
ALL_KINDS = KINDS | {
    "tagger": (
        *("task=tag", "metric=tag_accuracy", "tokens.source=word", "tokens.target=word", "tag.letters.embedding=3"),
        *("tag.letters.dim=4", "data.train=tags.tsv", "data.dev=tags.tsv", "data.test=tags.tsv"),
    ),
    "answer": (
        *("task=answer", "tokens.source=word", "data.train=questions.tsv", "data.dev=questions.tsv"),
        *("data.test=questions.tsv", "train.batch_tokens=120"),
    ),
    "masked_lm": (
        *("task=masked_lm", "metric=perplexity", "tokens.source=word", *LINES, *TRANSFORMER, "model.positions=learned"),
        "model.longest=16",
    ),
    "plugin": (*PAIRS, "model.attention.score=manhattan", "model.decoder.order=luong"),
}
# Kinds whose source is no text: killed at random instants. Nothing else is tried on them, as above.
MEDIA_KINDS = {
    "picture": (
        *("source=picture", "tokens.target=word", "picture.size=20", "picture.channels=3", "picture.blocks=2"),
        *("data.train=scenes.tsv", "data.dev=scenes.tsv", "data.test=scenes.tsv", "model.encoder.kind=none"),
    ),
    "speech": (
        *("source=speech", "tokens.target=word", "speech.front=pyramid", "speech.bands=7", "speech.width=8"),
        *("speech.hop=0.05", "speech.band_masks=1", "speech.band_width=3", "train.ctc=0.3"),
        *("data.train=melodies.tsv", "data.dev=melodies.tsv", "data.test=melodies.tsv"),
    ),
    "forecast": (
        *("task=forecast", "metric=crps", "data.train=series.csv", "forecast.horizon=3", "forecast.context=5"),
        *("forecast.lags=1", "forecast.samples=7", "model.decoder.order=luong", "model.decoder.dropout=0.1"),
    ),
}
NO_DECODER = ("model.decoder", "search")
UNUSED = {  # keys that a task refuses
    "classifier": NO_DECODER,
    "language_model": ("model.encoder", "model.attention", "search.max_ratio"),
    "tagger": NO_DECODER,
    "answer": NO_DECODER,
    "masked_lm": NO_DECODER,
    "forecast": ("model.embedding", "model.encoder", "search"),
}


def settings(kind: str) -> list[str]:
    """The overrides of the recipe `reverse` for a tiny run of this kind."""
    keys = [f"name={kind}", "data.corpus=", *SIZES, *(ALL_KINDS | MEDIA_KINDS)[kind]]
    return [key for key in keys if not key.startswith(UNUSED.get(kind, ("-",)))]


def write_data(folder: Path) -> None:
    """Write the files that the tiny recipes read."""
    generator = random.Random(7)
    words = ["".join(generator.choices("abcdef", k=generator.randint(2, 5))) for _ in range(30)]
    (folder / "train.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    (folder / "dev.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words[:6]), encoding="utf-8")
    (folder / "labels.tsv").write_text("".join(f"{word}\t{word > 'c'}\n" for word in words), encoding="utf-8")
    (folder / "lines.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    sentences = [generator.sample(words, 3) for _ in range(20)]
    (folder / "tags.tsv").write_text("".join(f"{' '.join(row)}\tB-x I-x I-x\n" for row in sentences), encoding="utf-8")
    questions = "".join(f"{row[0]}\t{' '.join(row)}\t{row[2]}\n" for row in sentences)
    (folder / "questions.tsv").write_text(questions, encoding="utf-8")
    scenes = [f"shapes:red-circle-{9 + 5 * place}-20-6\ta circle at {place}\n" for place in range(9)]
    (folder / "scenes.tsv").write_text("".join(scenes), encoding="utf-8")
    melodies = [f"tones:{number}:{'-'.join(notes)}\t{' '.join(notes)}\n" for number, notes in enumerate(MELODIES)]
    (folder / "melodies.tsv").write_text("".join(melodies), encoding="utf-8")
    values = [f"{name},{step},{generator.uniform(1, 9):.2f}\n" for name in "abc" for step in range(30)]
    (folder / "series.csv").write_text("series,time,value\n" + "".join(values), encoding="utf-8")


def install_plugin(folder: Path) -> None:
    """Put the package tests/plugin_package into a folder, with one of its entries, as an installer would."""
    package = Path(__file__).parents[1] / "plugin_package"
    info = folder / "regard_small-0.3.dist-info"
    info.mkdir(parents=True)
    shutil.copy(package / "regard_small.py", folder)
    (info / "METADATA").write_text("Name: regard-small\nVersion: 0.3\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[regard]\nscores.manhattan = regard_small:Manhattan\n", encoding="utf-8")


@functools.cache
def commands() -> Commands:
    """The commands of this test process; in their folder are data, a plugin, and a run to start from."""
    own = copy.copy(shared_commands())
    write_data(own.folder)
    install_plugin(own.folder / "site")
    own.options = {"packages": str(own.folder / "site")}
    result = own(*train_arguments("recurrent", own.folder / "origin", "train.updates=1"))
    assert result.code == 0, result.error
    return own


def train_arguments(kind: str, runs: Path, *more: str) -> list[str]:
    """The arguments of a command that trains a tiny run of this kind in a folder."""
    return ["train", "reverse", *settings(kind), *more, "--runs", str(runs)]


@dataclass(frozen=True)
class Example:
    """A kind of run: one that was never interrupted, and one that was killed, with two checkpoints, before its end."""

    kind: str
    finished: Path
    unfinished: Path  # killed while it validated for the third time, after update 6
    operations: list[list[str]]  # of the command that trained the finished one
    cpu: float  # seconds that it took

    def copy_unfinished(self, folder: Path) -> Path:
        """A copy of the unfinished run, in a folder of its own that holds things of other people too."""
        plant_foreign_files(folder)
        return Path(shutil.copytree(self.unfinished, folder / self.kind, symlinks=True))

    def copy_finished(self, folder: Path) -> Path:
        """A copy of the finished run, in a folder of its own that holds things of other people too."""
        plant_foreign_files(folder)
        return Path(shutil.copytree(self.finished, folder / self.kind, symlinks=True))

    def assert_ends_equal(self, run: Path) -> None:
        """Resume the run; it must then be equal, bit for bit, to the one that was never interrupted."""
        result = commands()("train", "--resume", run)
        assert result.code == 0, (result.code, result.error)
        self.assert_equal(run)

    def assert_equal(self, run: Path) -> None:
        """The run is equal, bit for bit except times, to the one that was never interrupted."""
        for name, (own, other) in differences(run, self.finished).items():
            raise AssertionError(f"{name} differs: {own!r:.300} in place of {other!r:.300}")


@functools.cache
def example(kind: str) -> Example:
    """The example of a kind; trained at the first call."""
    folder = commands().folder / "examples" / kind
    folder.mkdir(parents=True)
    finished = commands()(*train_arguments(kind, folder / "finished"), watched=str(folder))
    assert finished.code == 0, finished.error
    last = ["regard.training.validation:evaluate", 3, [9]]
    killed = commands()(*train_arguments(kind, folder / "unfinished"), signals=[last])
    assert killed.code == -9, killed.error
    paths = folder / "finished" / kind, folder / "unfinished" / kind
    assert sorted(path.name for path in (paths[1] / CHECKPOINTS).iterdir()) == ["00000002", "00000004"]
    return Example(kind, *paths, finished.operations, finished.cpu)


def plant_foreign_files(folder: Path) -> None:
    """Write files of other people beside a run: names that look like temporary ones, and common ones."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".download.partial").mkdir()
    (folder / ".download.partial" / "thesis").write_bytes(b"years of work")
    (folder / ".notes.txt.7.partial").write_bytes(b"half a note")
    (folder / "recipe.toml").write_bytes(b"of somebody else")


# ---- comparison


def comparable(run: Path) -> dict[str, Any]:
    """The files of a run by path, without what depends on the clock or on chance: times, and the manifest's own id."""
    content: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if name.startswith(CHECKPOINTS) or ".damaged" in name or path.is_dir():
            continue  # what is damaged was set aside
        if not path.is_file():
            content[name] = "not a file"
        elif name == METRICS:
            entries = [json.loads(line) for line in path.read_bytes().splitlines()]
            content[name] = [{key: value for key, value in entry.items() if key not in WALL_CLOCK} for entry in entries]
        elif name == MANIFEST:
            content[name] = METRICS in json.loads(path.read_bytes())["files"]  # whether it is finished
        else:
            content[name] = path.read_bytes()
    return content


def differences(run: Path, other: Path) -> dict[str, tuple[Any, Any]]:
    """The files that differ between two runs, with both contents; None for a file that is missing."""
    own, others = comparable(run), comparable(other)
    return {
        name: (own.get(name), others.get(name))
        for name in sorted(own.keys() | others.keys())
        if own.get(name) != others.get(name)
    }


def snapshot(folder: Path, without: Sequence[Path] = ()) -> dict[str, tuple[Any, ...]]:
    """Kind, mode, content and time of change of everything in a folder, except some paths and what is below them."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(folder.rglob("*")):
        if any(path == other or other in path.parents for other in without):
            continue
        status = path.lstat()
        kind = stat.S_IFMT(status.st_mode)
        content: Any = None
        if stat.S_ISREG(status.st_mode):
            large = status.st_size > 1 << 24  # a sparse file
            content = status.st_size if large else path.read_bytes(), status.st_mtime_ns
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        found[path.relative_to(folder).as_posix()] = (kind, stat.S_IMODE(status.st_mode), content)
    return found


def good_checkpoints(run: Path) -> list[int]:
    """The updates of all checkpoints whose files have the digests of their manifest; checked without regard's code."""
    good = []
    for folder in sorted((run / CHECKPOINTS).glob("[0-9]*")):
        try:
            files = json.loads((folder / MANIFEST).read_bytes())["files"]
            intact = all(hashlib.sha256((folder / name).read_bytes()).hexdigest() in files[name] for name in files)
        except (OSError, ValueError):
            continue
        if intact and {MODEL, OPTIMIZER, STATE} <= files.keys() and folder.name.isdigit():
            good.append(int(folder.name))
    return good


def sealed(manifest: dict[str, Any]) -> bytes:
    """A manifest as JSON; the digest over the rest of it, if it has one, fits."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    if "sha256" in manifest:
        content["sha256"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps(content, indent=1).encode() + b"\n"


def sign(folder: Path) -> None:
    """Let the manifest of a folder fit its files, as somebody who crafts a run would."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    for name in manifest["files"]:
        if (folder / name).is_file():
            manifest["files"][name] = [hashlib.sha256((folder / name).read_bytes()).hexdigest()]
    (folder / MANIFEST).write_bytes(sealed(manifest))
