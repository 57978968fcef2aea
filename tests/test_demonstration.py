"""What `regard demo` writes and suggests; tests/system/test_demo.py runs the whole of it."""

import sys
from pathlib import Path

import pytest
import torch

from regard.maps import AttentionMap

pytestmark = pytest.mark.filterwarnings(
    "ignore:'click:DeprecationWarning"
)  # typer imports names that click 8.5 deprecates
MAP = AttentionMap(torch.eye(2), ("a", "b"), ("c", "d"))


def test_the_page_is_the_first_of_the_files_that_are_written(tmp_path: Path) -> None:
    from regard.cli.demonstration import write_maps

    names = write_maps(tmp_path, MAP)
    assert names == ["map.html", "map.svg", "map.png", "map.csv", "map.pharaoh"]
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())


def test_without_matplotlib_the_other_formats_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.cli.demonstration import write_maps

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write_maps(tmp_path, MAP) == ["map.html", "map.svg", "map.csv", "map.pharaoh"]


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
