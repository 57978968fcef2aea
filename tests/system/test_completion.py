"""Shell completion: names, keys and values in bash, zsh and fish; and that it does not wait for torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commands import SOURCES, user_environment
from regard import recipe as recipes
from regard.attention.scores import SCORES

PROGRAM = f"""#!{sys.executable}
import atexit, os, sys
heavy = {{"torch", "numpy", "sentencepiece"}}
atexit.register(lambda: os.write(2, " ".join(sorted(heavy & set(sys.modules))).encode()))
sys.argv[0] = "regard"
from regard.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program `regard` and three folders in runs, two of which are runs."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "bin").mkdir()
    (folder / "bin/regard").write_text(PROGRAM, encoding="utf-8")
    (folder / "bin/regard").chmod(0o755)
    for name in ("first", "second"):
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "manifest.json").touch()
    (folder / "runs/other").mkdir()
    return folder


def run(place: Path, *command: str, **variables: str) -> str:
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = user_environment() | {"PYTHONPATH": str(SOURCES), "PATH": path, "HOME": str(place)} | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", f"imported, which is slow: {done.stderr}"
    return done.stdout


def complete(place: Path, *words: str) -> list[str]:
    """What bash gets for the last of these words."""
    variables = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    return run(place, "regard", _REGARD_COMPLETE="complete_bash", **variables).split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("regard swe", ["sweep"]),
        ("regard train dat", ["dates"]),
        ("regard train --res", ["--resume"]),
        ("regard train dates train.up", ["train.updates=420"]),  # the value of the recipe
        ("regard train dates model.attention.sco", ["model.attention.score=additive", "model.attention.scope=global"]),
        ("regard sweep dates model.attention.score", [f"model.attention.score={name}" for name in SCORES]),
        ("regard show dates model.tied=t", ["model.tied=true"]),
        ("regard config dates model.encoder.self_attention.score = scaled", ["scaled_dot"]),  # as bash splits it
        ("regard train dates model.attention.score =", list(SCORES)),
        ("regard compare dates runs/s", ["runs/second"]),
        ("regard compare dates model.tied=", ["model.tied=true", "model.tied=false"]),
        ("regard predict runs/f", ["runs/first"]),
        ("regard list sco", ["scores", "scopes"]),
    ],
)
def test_names_keys_and_values_are_completed(place: Path, words: str, expected: list[str]) -> None:
    assert sorted(complete(place, *words.split(" "))) == sorted(expected)


def test_runs_are_those_of_the_folder(place: Path) -> None:
    assert complete(place, "regard", "look", "") == ["first", "second"]
    (place / "elsewhere/third").mkdir(parents=True)
    (place / "elsewhere/third/manifest.json").touch()
    assert complete(place, "regard", "compare", "--runs", "elsewhere", "elsewhere/") == ["elsewhere/third"]
    assert complete(place, "regard", "train", "") == recipes.names()


BASH = """
eval "$(_REGARD_COMPLETE=source_bash regard)"
COMP_WORDS=(regard train da) COMP_CWORD=2
_regard_completion regard
echo "${COMPREPLY[*]}"
"""
ZSH = """
compdef() { : }
_arguments() { print -r -- "$@" }
eval "$(_REGARD_COMPLETE=source_zsh regard)"
words=(regard train da) CURRENT=3
_regard_completion
"""
FISH = 'source (_REGARD_COMPLETE=source_fish regard | psub); complete -C "regard train da"'


@pytest.mark.parametrize(("shell", "script"), [("bash", BASH), ("zsh", ZSH), ("fish", FISH)])
def test_shells_read_the_script(place: Path, shell: str, script: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    expected = {"zsh": '*: :(("dates"))'}.get(shell, "dates")
    assert run(place, shell, *options, "-c", script).strip() == expected
