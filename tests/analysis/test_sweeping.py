"""Sweeps: which runs they train, in which processes, and that they can be stopped and go on."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import regard
from commands import SOURCES, shared_commands, user_environment
from regard import recipe as recipes
from regard.analysis import sweeping
from regard.analysis.sweeping import share_cores, split_overrides
from regard.errors import RecipeError, RegardError
from regard.storage import Run

SIZES = ("model.embedding=8", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=4", "train.device=cpu")
SMALL = (*SIZES, "train.validate=50", "train.batch_tokens=60", "search.max_ratio=0", "search.max_extra=3")
LIMIT = 120.0  # seconds that a process may take


@pytest.fixture
def data(tmp_path: Path) -> str:
    words = ["abc", "cab", "bca", "ab", "ba", "cc", "acb", "bb", "cba", "aa", "bac", "ca"]
    (tmp_path / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words), encoding="utf-8")
    return f"data.train={tmp_path}/pairs.tsv"


# the grid


def test_values_in_brackets_are_tried_and_others_hold_for_all() -> None:
    fixed, axes = split_overrides(["train.seed=[1, 2]", "name=x", 'data.train=["a,b.tsv", c.tsv]', "tokens.size = [7]"])
    assert fixed == ["name=x"]
    assert axes == {"train.seed": ["1", "2"], "data.train": ['"a,b.tsv"', "c.tsv"], "tokens.size": ["7"]}
    nested = split_overrides(['train.reward=[["bleu", "chrf"], bleu]'])[1]
    assert nested == {"train.reward": ['["bleu", "chrf"]', "bleu"]}
    quoted = split_overrides(["""data.train=["it's.tsv",b.tsv,]"""])[1]
    assert quoted == {"data.train": ['"it\'s.tsv"', "b.tsv"]}


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["train.seed=1"], "nothing to sweep: give a key several values, such as"),
        (["train.seed=[1,2"], "'train.seed=[1,2' begins a list, and has no ] at its end; write train.seed="),
        (["train.seed=[]"], "train.seed has no value in the sweep"),
        (["train.seed=[1,2,1]"], "train.seed has 1 twice in the sweep"),
        (['train.seed=[1,2"]'], "'train.seed=.1,2\"]' has a quote or a bracket without its end"),
        (["data.train=[it's.tsv,b.tsv]"], '"data.train=.it\'s.tsv,b.tsv]" has a quote or a bracket without its end'),
        (["data.train=[x[1.tsv,b.tsv]"], "'data.train=.x.1.tsv,b.tsv]' has a quote or a bracket without its end"),
        (["train.seed=[1]", "train.seed=[2]"], "train.seed has two lists of values in the sweep"),
        (["name=[a,b]"], "runs of a sweep are named by their values; give one name"),
        (["train.sed=[1,2]"], "unknown key 'train.sed' in the overrides"),
        (["train.seed=[x,y]"], "train.seed in the overrides is a whole number, not 'x'"),
        (["train.seed=[" + ",".join(map(str, range(1001))) + "]"], "the sweep has 1,001 combinations, at most 1,000"),
    ],
)
def test_what_is_no_grid_is_refused_before_anything_is_written(
    tmp_path: Path, overrides: list[str], sentence: str
) -> None:
    with pytest.raises(RecipeError, match=f"^{sentence.replace('[', '.')}"):
        regard.sweep("reverse", *overrides, runs=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


def test_runs_have_readable_names() -> None:
    axes = {"model.encoder.dim": ["8", "16"], "model.decoder.dim": ["8"], "data.train": ["../a b/c.tsv"]}
    base = recipes.load("reverse", ["data.corpus="])
    named, failed = sweeping._cells(base, axes)
    assert not failed
    cells = {name: entrant.recipe.name for name, entrant in named.items()}
    end = "model.decoder.dim=8 train=../a b/c.tsv"
    assert list(cells) == [f"reverse model.encoder.dim={dim} {end}" for dim in (8, 16)]
    assert next(iter(cells.values())) == "reverse+model.encoder.dim-8+model.decoder.dim-8+train-.._a_b_c.tsv"
    long, _ = sweeping._cells(base, {"data.train": ["x" * 200, "y" * 200]})
    names = {entrant.recipe.name for entrant in long.values()}
    assert len(names) == 2
    assert max(map(len, names)) <= 100


def test_a_combination_that_cannot_be_trained_is_left_out() -> None:
    named, failed = sweeping._cells(recipes.load("reverse"), {"model.attention.heads": ["1", "3"]})
    assert list(named) == ["reverse heads=1"]
    assert list(failed) == ["reverse heads=3"]
    assert "heads" in failed["reverse heads=3"]


@pytest.mark.parametrize(
    ("cores", "count", "jobs", "expected"),
    [
        (2, 6, 0, (2, 1)),
        (16, 3, 0, (3, 5)),
        (16, 100, 0, (8, 2)),
        (2, 6, 4, (4, 1)),
        (8, 1, 0, (1, 8)),
        (4, 0, 0, (1, 4)),
    ],
)
def test_cores_are_shared(
    monkeypatch: pytest.MonkeyPatch, cores: int, count: int, jobs: int, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert share_cores(count, jobs) == expected
    assert share_cores(count, 0, on_gpu=True)[0] == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert share_cores(count, jobs) == (expected[0], 3)


# the processes


def test_a_run_that_fails_does_not_stop_the_others_and_what_is_finished_is_not_trained_again(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (*SMALL, data, "train.updates=4", "train.warmup=0")
    arguments = (*settings, "train.learning_rate=[0.01,1e37]")
    first = regard.sweep("reverse", *arguments, runs=tmp_path / "runs")
    assert [entry.name for entry in first.entries] == ["reverse learning_rate=0.01"]
    assert list(first.failed) == ["reverse learning_rate=1e37"]
    # Whether a loss, a gradient or a search is the first that is not finite depends on the rounding of the processor.
    assert re.search(r"^update [2-4]: .* lower train.learning_rate", first.failed["reverse learning_rate=1e37"])
    assert "reverse learning_rate=1e37 failed: " in first.table()
    assert [line.get("failed", "") != "" for line in first.to_dicts()] == [False, True]
    run = first.entries[0].run
    assert run.path == tmp_path / "runs/reverse+learning_rate-0.01"
    before = run.path.stat().st_mtime_ns
    plain = regard.train("reverse", *settings, "train.learning_rate=0.01", runs=tmp_path, quiet=True)
    assert plain.metrics()[-1]["exact_match"] == run.metrics()[-1]["exact_match"]
    capsys.readouterr()
    again = regard.sweep("reverse", *arguments, runs=tmp_path / "runs")
    assert run.path.stat().st_mtime_ns == before
    assert again.entries[0].measured == first.entries[0].measured
    assert "reverse learning_rate=0.01: trained before, on the same data" in capsys.readouterr().err


def test_the_command_prints_json_draws_the_picture_and_says_what_failed(tmp_path: Path, data: str) -> None:
    changes = (*SMALL, data, "train.updates=4", "model.attention.score=[dot,dott]")
    result = shared_commands()("sweep", "reverse", *changes, "--json", "-o", "x.svg", folder=tmp_path, limit=LIMIT)
    assert result.code == 2
    trained, left_out = map(json.loads, result.lines)
    assert (trained["name"], trained["run"]) == ("reverse score=dot", "runs/reverse+score-dot")
    assert left_out["failed"].startswith("unknown score 'dott'")
    assert (tmp_path / "x.svg").read_text(encoding="utf-8").startswith("<svg")
    assert result.error.endswith("regard: 1 run of the sweep failed: reverse score=dott\n")


def processes_under(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True).stdout
    return [int(number) for number in found.split()]


def wait_for(what: object, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at the processes of Linux")
def test_a_sweep_that_is_killed_or_stopped_goes_on(tmp_path: Path, data: str) -> None:
    runs = tmp_path / "runs"
    arguments = ["reverse", *SMALL, data, "train.seed=[1,2]"]
    names = [runs / f"reverse+seed-{seed}" for seed in (1, 2)]

    def start() -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "regard", "sweep", *arguments, "train.updates=1000000", "--runs", str(runs)]
        environment = user_environment() | {"PYTHONPATH": str(SOURCES)}
        process = subprocess.Popen([*command, "--jobs", "2"], stderr=subprocess.PIPE, text=True, env=environment)
        try:
            wait_for("trainings", lambda: all((name / "metrics.jsonl").exists() for name in names))
            wait_for("validations", lambda: all((name / "metrics.jsonl").read_bytes() for name in names))
        except AssertionError:
            process.kill()
            raise
        return process

    process = start()
    children = processes_under(process.pid)
    assert len(children) == 2
    process.kill()
    process.communicate()
    wait_for("the children to stop", lambda: not any(map(is_alive, children)))
    saved = [Run.open(name).newest_update() for name in names]
    assert min(saved) > 0
    process = start()
    children = processes_under(process.pid)
    wait_for("both children", lambda: len(processes_under(process.pid)) == 2)
    children = processes_under(process.pid)
    process.terminate()  # like Ctrl-C, which shells let background jobs ignore
    error = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert "0 of 2 runs finished, the others are saved; the same command goes on" in error.replace("\n", " ")
    assert not any(map(is_alive, children))
    assert sorted(path.name for path in runs.iterdir()) == ["latest", *(name.name for name in names)]
    assert all(Run.open(name).newest_update() >= update for name, update in zip(names, saved, strict=True))
    assert json.loads((names[0] / "metrics.jsonl").read_text().splitlines()[0])["update"] == 50


def test_if_all_fail_the_first_error_is_raised(tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RegardError, match=r"^no run of the sweep could be trained; reverse seed=1: its process ended"):
        regard.sweep("reverse", *SMALL, data, "train.seed=[1]", runs=tmp_path, quiet=True)
