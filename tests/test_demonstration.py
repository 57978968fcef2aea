"""What `regard demo` writes and suggests; tests/system/test_demo.py runs the whole of it."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

from regard.errors import RecipeError
from regard.maps import AttentionMap
from regard.types import Prediction

MAP = AttentionMap(torch.eye(2), ("a", "b"), ("c", "d"))
PREDICTION = Prediction("cd", "ab", 0.0, ("a", "b"), MAP)


def test_the_page_is_the_first_of_the_files_that_are_written(tmp_path: Path) -> None:
    from regard.cli.demonstration import write_maps

    names = write_maps(tmp_path, PREDICTION)
    assert names == ["map.html", "map.svg", "map.png", "map.gif", "map.csv", "map.pharaoh"]
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    for name in ("map.html", "map.svg"):
        assert "cd → ab" in (tmp_path / name).read_text("utf-8")


def test_without_matplotlib_the_other_formats_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.cli.demonstration import write_maps

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write_maps(tmp_path, PREDICTION) == ["map.html", "map.svg", "map.csv", "map.pharaoh"]


def test_the_suggested_command_is_one_that_the_shell_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.cli.demonstration import own_command

    programs = tmp_path / "a clone/.venv/bin"
    programs.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a clone")
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", "")
    assert own_command() == ".venv/bin/python -m regard"
    script = programs / "regard"
    script.write_text("#!/bin/sh\n", "utf-8")
    script.chmod(0o755)
    assert own_command() == ".venv/bin/regard"
    monkeypatch.chdir(tmp_path)
    assert own_command() == "'a clone/.venv/bin/regard'"
    monkeypatch.setenv("PATH", str(programs))
    assert own_command() == "regard"


SHORT = ("train.updates=2", "train.validate=2", "data.size=60", "train.threads=1")
KEYS = {
    "caption": {"exact_match", "right_cells", "nouns"},
    "transcribe": {"token_errors", "time_error_seconds", "time_error_positions"},
    "forecast": {"crps", "true_crps", "crps_ratio", "coverage_90", "right_lags", "steps"},
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Demos that train for two updates and are scored on a few examples."""
    from regard import training

    train = training.train
    monkeypatch.setattr(training, "train", lambda recipe, **settings: train(recipe, *SHORT, **settings))
    for corpus in ("shapes", "tones", "waves"):
        monkeypatch.setattr(sys.modules[f"regard.data.corpora.{corpus}"], "TEST", 30)
    monkeypatch.setattr(sys.modules["regard.data.corpora.waves"], "DEV", 10)
    monkeypatch.setattr("regard.analysis.lags.SAMPLES", 40)


@pytest.mark.parametrize("what", KEYS)
@pytest.mark.usefixtures("short")
def test_a_demo_prints_its_quality_and_its_run_as_json(
    what: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from regard.cli.demo import demo

    demo(what, runs=tmp_path, as_json=True, quiet=True)
    result = json.loads(capfdbinary.readouterr().out)
    assert result.keys() == {"run", "train_seconds", "examples", *KEYS[what]}
    assert result["examples"] == 30
    assert all(isinstance(result[key], int | float) for key in KEYS[what])
    assert (Path(result["run"]) / "map.html").exists()


@pytest.mark.usefixtures("short")
def test_a_demo_shows_examples_of_every_group_a_map_and_the_next_command(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.cli.demo import demo

    monkeypatch.chdir(tmp_path)
    demo("caption", quiet=True)
    printed = capfdbinary.readouterr().out.decode()
    assert printed.startswith("The sources are pictures. Their names list the objects: COLOUR-SHAPE-ACROSS-DOWN-RADIUS")
    assert len(re.findall(r"^shapes:\S+ -> ", printed, re.M)) == 3
    assert "(for each word, the weights of the cells of the picture):\n" in printed
    assert re.search(
        r"^The heaviest cell of a noun shows its object: [01]\.\d+ of \d+ nouns \(cells drawn", printed, re.M
    )
    assert re.search(r"^Exact match on unseen scenes: [01]\.\d+ of 30, after \d+ s of training\. ", printed, re.M)
    assert "The run is in runs/shapes.\n" in printed
    assert printed.endswith(" look runs/shapes shapes:red-circle-8-8-6,blue-square-40-8-7\n")


@pytest.mark.usefixtures("short")
def test_the_demo_of_forecasts_prints_the_last_step_of_every_kind_of_series_and_a_map(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.cli.demo import demo

    monkeypatch.chdir(tmp_path)
    demo("forecast", quiet=True)
    printed = capfdbinary.readouterr().out.decode()
    kinds = re.findall(
        r"^waves:([a-z_]+)\S+, at 20\d\d-\S+ \d\d:00: median \S+, 90 % \S+ to\s\S+, observed", printed, re.M
    )
    assert kinds[0] == "lagged"
    assert sorted(kinds[1:]) == ["intermittent", "level_shifted", "seasonal", "trended"]
    assert re.search(r"beside the lag that generates the\sseries: [01]\.\d+\sof \d+ steps\n", printed)
    assert re.search(r"^Values inside the interval of 90 %: [01]\.\d+ \(true process: 0\.\d+\)$", printed, re.M)
    assert re.search(
        r"^CRPS on 30 unseen series: \d\.\d+, \d+\.\d+ times that of the true process, after", printed, re.M
    )
    assert printed.endswith(" look runs/waves waves:seasonal:7\n")


def test_an_unknown_demo_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    from regard.cli.demo import demo

    with pytest.raises(RecipeError, match=r"unknown demo 'captions'; choose from dates, caption, transcribe, forecast"):
        demo("captions", runs=tmp_path)
    assert list(tmp_path.iterdir()) == []
