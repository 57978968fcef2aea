"""Commands that may take long show what they do on stderr, unless they are quiet; stdout is the same."""

import sys
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

import regard
from regard import console
from regard import recipe as recipes

with warnings.catch_warnings():  # of typer, when it is imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from regard.cli.align import align
    from regard.cli.compare import compare
    from regard.cli.force import force
    from regard.cli.score import score
    from regard.cli.vectors import vectors

SOURCES = ["ab ba", "b a b ab", "a", "bab ab ba a", "ba b"] * 8
SIZES = ["model.embedding=12", "model.encoder.dim=16", "model.decoder.dim=12", "model.attention.dim=8", "name=tiny"]
SHORT = ["train.updates=3", "train.validate=3", "train.batch_tokens=300", "train.device=cpu", "tokens.size=20"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("progress")
    pairs, links = (folder / name for name in ("pairs.tsv", "links.tsv"))
    pairs.write_text("".join(f"{text}\t{text.upper()}\n" for text in SOURCES), encoding="utf-8")
    links.write_text("".join(f"{text}\t{text.upper()}\t0-0\n" for text in SOURCES), encoding="utf-8")
    others = "".join(f"{text}\t{text}\n" for text in SOURCES)  # which no run was trained on
    (folder / "test.tsv").write_text(others, encoding="utf-8")
    (folder / "texts").write_text("\n".join(SOURCES), encoding="utf-8")
    for seed in (1, 2):
        settings = [*SIZES, *SHORT, f"data.train={pairs}", f"train.seed={seed}", f"name=tiny{seed}"]
        regard.train(recipes.parse("", "it", settings), runs=folder / "runs", quiet=True)
    return folder


Show = Callable[..., None]
COMMANDS: dict[str, tuple[Show, list[str]]] = {
    "score": (
        lambda folder, quiet: score(
            f"{folder}/runs/tiny1", [f"{folder}/test.tsv"], metric="bleu", errors=folder / "errors.tsv", quiet=quiet
        ),
        ["reading test.tsv", "encoding", "answering", "computing bleu", "comparing answers", "counting mistakes"],
    ),
    "score by edits": (
        lambda folder, quiet: score(
            f"{folder}/runs/tiny1", [f"{folder}/test.tsv"], metric="character_errors", quiet=quiet
        ),
        ["answering", "computing character_errors"],
    ),
    "align": (
        lambda folder, quiet: align(f"{folder}/runs/tiny1", [f"{folder}/links.tsv"], quiet=quiet),
        ["reading links.tsv", "reading links", "forcing outputs", "merging words"],
    ),
    "force": (
        lambda folder, quiet: force(f"{folder}/runs/tiny1", [f"{folder}/pairs.tsv"], quiet=quiet),
        ["reading pairs.tsv", "forcing outputs: 0 of 4"],
    ),
    "vectors": (
        lambda folder, quiet: vectors(f"{folder}/runs/tiny1", [f"{folder}/texts"], quiet=quiet),
        ["reading texts", "computing vectors: 0 of 4"],
    ),
    "compare": (
        lambda folder, quiet: compare(
            [f"{folder}/runs/tiny1", f"{folder}/runs/tiny2"],
            [f"{folder}/pairs.tsv"],
            metric="exact_match",
            out=[folder / "x.svg"],
            runs=folder / "runs",
            quiet=quiet,
        ),
        ["reading pairs.tsv", "answering", "computing exact_match", "scoring tiny1 on"],
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_slow_command_shows_what_it_does_and_stdout_is_the_same_with_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, name: str
) -> None:
    for module in ("regard.cli.force", "regard.cli.core"):
        monkeypatch.setattr(sys.modules[module], "CHUNK", 10)
    monkeypatch.setattr("regard.metrics.text.BLOCK", 10)
    ticks = count()
    monkeypatch.setattr(console.time, "perf_counter", lambda: 6.0 * next(ticks))  # each look at the clock takes long
    command, works = COMMANDS[name]
    command(folder, quiet=False)
    shown = capsys.readouterr()
    for work in works:
        assert work in shown.err
    command(folder, quiet=True)
    silent = capsys.readouterr()
    assert silent.err == ""
    assert silent.out == shown.out
    assert shown.out


def test_a_part_of_a_work_is_not_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr(console.time, "perf_counter", lambda: 6.0 * next(ticks))
    with console.ProgressLog():
        for _ in console.counted(range(3), "whole", size=1):
            with console.unwatched():
                assert list(console.counted(range(3), "part", size=1)) == [0, 1, 2]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["whole: 0 of 3", "whole: 1 of 3", "whole: 2 of 3"]
