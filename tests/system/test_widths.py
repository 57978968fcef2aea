"""In a terminal, no command prints a line that is wider than it, except for one word or one command to be copied."""

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from commands import Result, shared_commands
from regard import recipe as recipes
from regard.cli import COMMANDS

GOLDEN = Path(__file__).parents[1] / "golden" / "runs" / "translate_bahdanau" / "finished"
SEQUENCES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
COMMAND = re.compile(r"(regard|pip|python) \S")  # what may be wider, so that it can be copied


def run(width: int, *arguments: object, terminals: tuple[str, ...] = ("out", "error")) -> Result:
    environment = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": str(width)}
    return shared_commands()(
        *arguments, terminals=terminals, environment=environment, encoding="utf-8:strict", limit=60
    )


def too_wide(result: Result, width: int) -> list[str]:
    lines = SEQUENCES.sub("", result.out.decode() + result.error).replace("\r", "\n").split("\n")
    wide = [line.strip() for line in lines if cell_len(line.rstrip()) > width]
    return [line for line in wide if " " in line and not COMMAND.match(line)]


ARGUMENTS: dict[str, tuple[object, ...]] = {
    "list": ("list",),
    "show": ("show", "tatoeba_small"),
    "doctor": ("doctor", GOLDEN),
    "a wrong key": ("train", "dates", "learning_rate=0.01"),
    "a text in place of a file": ("predict", GOLDEN, "some text"),
    **{f"help of {name}": (name, "--help") for name in COMMANDS},
    **{f"data {name}": ("data", name) for name in recipes.names() if recipes.load(name).data.train},
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_lines_are_broken_between_words(arguments: tuple[object, ...]) -> None:
    result = run(60, *arguments)
    assert result.out or result.error
    assert too_wide(result, 60) == []


def test_alignments_and_scores_are_broken_between_words(tmp_path: Path) -> None:
    (tmp_path / "links.tsv").write_text("a b\tDET NOUN\t0-0 1-1\n", encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text("a b\tDET NOUN\n", encoding="utf-8")
    for arguments in (
        ("align", GOLDEN, tmp_path / "links.tsv"),
        ("score", GOLDEN, tmp_path / "pairs.tsv", "--errors", tmp_path / "errors.tsv", "--quiet"),
    ):
        result = run(60, *arguments)
        assert result.code == 0, result.error
        assert too_wide(result, 60) == []


@pytest.mark.parametrize("arguments", [("data", "g2p_small"), ("doctor",), ("list", "scores")])
def test_without_a_terminal_every_entry_is_one_line(arguments: tuple[str, ...]) -> None:
    piped, shown = run(60, *arguments, terminals=()), run(60, *arguments)
    lines = piped.out.decode().splitlines()
    assert max(map(len, lines)) > 60
    words = [word for word in shown.out.decode().split() if word != "\\"]
    assert words == piped.out.decode().split()
