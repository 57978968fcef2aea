"""Nothing raw reaches a terminal: hostile texts, names and messages are visible there, and unchanged in pipes."""

import hashlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from common import WHOLE, commands

from commands import Result
from regard import visible
from regard.console import ProgressLog, track
from regard.visible import VisibleStream, guarded, make_visible

with warnings.catch_warnings():  # typer uses names that click 8.5 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from regard.cli.core import to_json

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"
# Title and clipboard of the terminal, a link, colours, C1 sequences, BEL, DEL, right-to-left and zero-width characters.
ESCAPES = (
    "\x1b]0;owned\x07\x1b]52;c;bHMK\x07\x1b]8;;file:etc\x1b\\\x1b[31m\x9b2J\x90q\x7f\u202e\u2066\u200b\ufeff\ufe0f"
)
RAW = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ud800-\udfff]"
)
OURS = re.compile(r"\x1b\[(?:38;2;\d+;\d+;\d+|0)m")  # the colours of a map
BAR = re.compile(r"\x1b\[(?:[\d;]*m|\?25[lh]|2K|\d*A)")  # colours, cursor and lines of a progress bar
NAME = f"run{ESCAPES}"  # of a folder
BOTH, UTF8 = ("out", "error"), "utf-8:strict"


Run = Callable[..., Result]
Count = Callable[[str, object], None]


@pytest.fixture(scope="module")
def regard(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a command with terminals or pipes as stdout and stderr."""
    home = tmp_path_factory.mktemp("home")
    environment = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "80"}
    options = {"environment": environment, "packages": str(hostile_package(home)), "folder": home}

    def run(
        *arguments: object,
        terminals: Sequence[str] = BOTH,
        stdin: str = "",
        encoding: str = UTF8,
        variables: Mapping[str, str] = {},
    ) -> Result:
        changed = options | {"environment": environment | variables}
        return commands()(*arguments, terminals=terminals, stdin=stdin.encode(), encoding=encoding, **changed)

    return run


def hostile_package(folder: Path) -> Path:
    """A folder with an installed package whose entry has a hostile name."""
    info = folder / "site" / "hostile-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: hostile{ESCAPES[:6]}\nVersion: 1{ESCAPES}\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[regard]\nscores.soft{ESCAPES} = hostile:Score\n", encoding="utf-8")
    return folder / "site"


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden run under a hostile name whose output token NOUN is hostile."""
    run = tmp_path_factory.mktemp("hostile") / NAME
    shutil.copytree(GOLDEN / "translate_bahdanau" / "finished", run)
    tokens = json.loads((run / "target.tokens").read_text(encoding="utf-8"))
    tokens["tokens"][tokens["tokens"].index("NOUN")] = f"NOUN{ESCAPES}"
    content = json.dumps(tokens).encode()
    (run / "target.tokens").write_bytes(content)
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"]["target.tokens"] = [hashlib.sha256(content).hexdigest()]
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return run


def check(result: Result, *, own: re.Pattern[str]) -> str:
    """All that reached the terminals, as text; nothing is raw but the sequences `own` in stdout, and bars in stderr."""
    text = result.out.decode() + result.error
    for stream, ours in ((result.out.decode(), own), (result.error, BAR)):
        raw = RAW.search(ours.sub("", stream))
        assert raw is None, f"{raw[0]!r} in {text!r}"
    assert "Traceback" not in text
    return text


SOURCE = json.loads((GOLDEN / "translate_bahdanau" / "expected.json").read_text(encoding="utf-8"))["answers"][0][
    "source"
]
TINY = (
    "train.updates=3",
    "train.validate=3",
    "train.device=cpu",
    "model.encoder.dim=8",
    "model.decoder.dim=8",
    "model.embedding=8",
    "model.attention.dim=8",
)
SHOW_BARS = ("train", "score", "force", "vectors", "align", "compare")  # commands that print beside a bar
COMMANDS = {
    "predict": ("predict", "RUN", "--text", SOURCE),
    "predict many": ("predict", "RUN", "-"),
    "predict json": ("predict", "RUN", "--text", SOURCE + ESCAPES, "--json"),
    "look": ("look", "RUN", SOURCE + ESCAPES),
    "look json": ("look", "RUN", SOURCE + ESCAPES, "--json"),
    "look all": ("look", "RUN", SOURCE, "--target", f"DET{ESCAPES}", "--all", "--pieces"),
    "force": ("force", "RUN", "FILE"),
    "force tokens": ("force", "RUN", "FILE", "--tokens"),
    "force json": ("force", "RUN", "FILE", "--json", "-o", "PAGE"),
    "score": ("score", "RUN", "FILE"),
    "score errors": ("score", "RUN", "FILE", "--errors", "LIST"),
    "score errors json": ("score", "RUN", "FILE", "--errors", "LIST", "--json"),
    "align": ("align", "RUN", "GOLD"),
    "near": ("near", "RUN", "FILE", "--text", SOURCE + ESCAPES),
    "near json": ("near", "RUN", "FILE", "--text", SOURCE, "--json"),
    "vectors json": ("vectors", "RUN", "FILE", "--json"),
    "data": ("data", "RECIPE"),
    "data json": ("data", "RECIPE", "--json"),
    "doctor": ("doctor", "RUN"),
    "compare": ("compare", "RUN", "--data", "FILE", "--out", "PICTURE"),
    "compare json": ("compare", "RUN", "--data", "FILE", "--out", "PICTURE", "--json"),
    "train": ("train", "reverse", *TINY, "data.train=FILE", "--runs", "RUNS"),
    "train json": ("train", "reverse", *TINY, "data.train=FILE", "--runs", "RUNS", "--json"),
    "list": ("list", "scores"),
    "list json": ("list", "scores", "--json"),
    "no such run": ("predict", f"no{ESCAPES}"),
    "no such file": ("predict", "RUN", f"no{ESCAPES}"),
    "no such table": ("list", f"no{ESCAPES}"),
    "no such recipe": ("train", f"no{ESCAPES}"),
    "no such key": ("train", "dates", f"no{ESCAPES}=1"),
    "no such command": (f"no{ESCAPES}",),
    "no such option": ("predict", f"--no{ESCAPES}"),
    "a bad value": ("predict", "RUN", "--beam", f"no{ESCAPES}"),
    "an extra argument": ("near", "RUN", "FILE", f"more{ESCAPES}", "--text", "a"),
    "no such ending": ("look", "RUN", "a", "-o", f"x.no{ESCAPES}"),
    "no such site": ("look", "RUN", SOURCE, "--site", f"no{ESCAPES}"),
    "not UTF-8": ("predict", "no\udcff\udc1b"),
}
QUICK = (
    "predict",
    "predict many",
    "look",
    "look all",
    "force tokens",
    "score errors",
    "near",
    "data",
    "compare",
    "list",
)
SAMPLE = [name for name in COMMANDS if WHOLE or name in QUICK or name.startswith(("no ", "a "))]


@pytest.fixture(scope="module")
def filled(hostile_run: Path) -> Callable[[str], list[str]]:
    """The arguments of a command, with a run, files and a recipe under hostile names."""
    folder = hostile_run.parent
    file = folder / f"lines{NAME}.tsv"
    file.write_text(f"{SOURCE}\tDET NOUN{ESCAPES} PUNCT\n" * 3, encoding="utf-8")
    gold = folder / f"gold{NAME}.tsv"
    gold.write_text(f"{SOURCE}\tDET NOUN{ESCAPES} PUNCT\t0-0\n" * 3, encoding="utf-8")
    recipe = folder / f"{NAME}.toml"
    about = re.sub("[\x00-\x1f\x7f]", "", ESCAPES)  # the others are refused in TOML
    text = f'# {about}\nname = "x"\n[data]\ntrain = ["{about}.tsv"]\n'
    recipe.write_text(text, encoding="utf-8")
    places = {
        "RUN": hostile_run,
        "FILE": file,
        "GOLD": gold,
        "RECIPE": recipe,
        "RUNS": folder / f"runs{NAME}",
        "PICTURE": folder / f"{NAME}.svg",
        "PAGE": folder / f"{NAME}.html",
        "LIST": folder / f"{NAME}.list",
    }
    return lambda name: [
        re.sub("RUNS|RUN|FILE|GOLD|RECIPE|PICTURE|PAGE|LIST", lambda word: str(places[word[0]]), argument)
        for argument in COMMANDS[name]
    ]


@pytest.mark.parametrize("name", SAMPLE)
def test_nothing_raw_reaches_a_terminal(
    regard: Run, filled: Callable[[str], list[str]], record_property: Count, name: str
) -> None:
    record_property("commands with hostile texts on a terminal", 1)
    result = regard(*filled(name), stdin=f"{SOURCE}\n" * 3)
    text = check(result, own=BAR if name.startswith(SHOW_BARS) else OURS)
    assert text.strip()
    assert result.code == (2 if name.startswith(("no ", "a ", "an ", "not ", "data")) else 0), text


# Variables by which rich decides whether a stream is a terminal, whatever it really is.
VARIABLES = (
    *({"FORCE_COLOR": value} for value in ("", "0", "1")),
    *({"TTY_COMPATIBLE": value} for value in ("0", "1")),
    *({"TTY_INTERACTIVE": value} for value in ("0", "1")),
    *({"TERM": value} for value in ("", "dumb", "unknown")),
    *({"NO_COLOR": "1"}, {"JUPYTER_COLUMNS": "20"}, {"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "0"}),
)
UNDER_VARIABLES = ("train", "no such run", "no such command", "compare")


@pytest.mark.parametrize("variables", VARIABLES, ids=lambda variables: " ".join(map("=".join, variables.items())))
@pytest.mark.parametrize("name", UNDER_VARIABLES if WHOLE else UNDER_VARIABLES[:2])
def test_no_variable_lets_raw_text_reach_a_terminal(
    regard: Run, filled: Callable[[str], list[str]], record_property: Count, name: str, variables: Mapping[str, str]
) -> None:
    record_property("commands with hostile texts under a variable of rich", 1)
    for terminals in (BOTH, ("error",)):
        result = regard(*filled(name), terminals=terminals, variables=variables)
        error = BAR.sub("", result.error)
        assert RAW.search(error) is None, error
        assert "owned" in error


def test_outputs_paths_and_messages_stay_legible(regard: Run, hostile_run: Path) -> None:
    seen = make_visible(f"NOUN{ESCAPES}")
    assert all(part in seen for part in ("\\u202e", "\\x9b", "␛", "␇"))
    assert seen.encode() in regard("predict", hostile_run, "--text", SOURCE).out
    assert seen.replace(" ", "␣")[:12].encode() in regard("look", hostile_run, SOURCE).out
    assert make_visible(NAME) in regard("predict", hostile_run.with_name(NAME + "2")).error


def test_each_stream_decides_for_itself(regard: Run, hostile_run: Path) -> None:
    missing = str(hostile_run) + "2"
    raw, seen = f"NOUN{ESCAPES}".encode(), make_visible(f"NOUN{ESCAPES}").encode()
    result = regard("predict", hostile_run, "--text", SOURCE, terminals=["error"])
    assert raw in result.out
    result = regard("predict", hostile_run, "--text", SOURCE, terminals=["out"])
    assert seen in result.out
    assert missing in regard("predict", missing, terminals=["out"]).error
    check(regard("predict", missing, terminals=["error"]), own=OURS)


@pytest.mark.parametrize("name", ["predict", "predict many", "predict json", "near", "data", "list", "no such run"])
def test_bytes_in_a_pipe_are_unchanged(
    regard: Run, filled: Callable[[str], list[str]], record_property: Count, name: str
) -> None:
    record_property("commands with hostile texts in a pipe", 1)
    result = regard(*filled(name), stdin=f"{SOURCE}\n" * 3, terminals=())
    hostile = {"near": SOURCE, "data": str(filled(name)[1]), "list": f"soft{ESCAPES}", "no such run": f"no{ESCAPES}"}
    wanted = hostile.get(name, f"NOUN{ESCAPES}")
    text = result.out.decode() + result.error
    if name == "predict json":
        assert wanted in json.loads(result.out)["text"]
    elif name != "data":  # which names the recipe's files, and none of them is there
        assert wanted in text


def test_bytes_of_a_name_that_is_not_utf8_are_unchanged_in_a_pipe(regard: Run) -> None:
    result = regard("predict", "no\udcff", terminals=())
    assert b"no\xff" in os.fsencode(result.error)


@pytest.mark.parametrize("encoding", ["ascii:strict", "utf-8:strict", "latin-1:strict"])
@pytest.mark.parametrize("terminals", [(), BOTH])
def test_no_encoding_makes_printing_fail(regard: Run, encoding: str, terminals: Sequence[str]) -> None:
    argument = "\udcff\x1b[31m日\x9b\u202e"
    for command in (["list", argument], [argument]):
        result = regard(*command, terminals=terminals, encoding=encoding)
        assert result.code == 2
        assert "Traceback" not in result.error
        if terminals:
            text = os.fsencode(result.error).decode("latin-1" if encoding.startswith("latin") else "utf-8")
            assert not re.search("[\x1b\x9b\u202e]", text)


@pytest.mark.skipif(not WHOLE, reason="more than one chunk of lines takes seconds")
def test_every_line_beside_a_progress_bar_is_printed(regard: Run, hostile_run: Path) -> None:
    text = check(regard("predict", hostile_run, "-", stdin=f"{SOURCE}\n" * 2001), own=BAR)
    assert text.count(make_visible(f"NOUN{ESCAPES}")) == 2001


# Suggested commands


def suggested(result: Result, command: str) -> list[str]:
    """The arguments that a shell takes from a command that a message suggests."""
    assert f"regard {command} " in result.error, result.error
    return shlex.split(result.error[result.error.index(f"regard {command} ") :])


def test_suggested_commands_are_quoted(regard: Run, tmp_path: Path) -> None:
    stopped = tmp_path / "a; touch owned $(touch owned) `touch owned` 'b' \"c\" #"
    shutil.copytree(GOLDEN / "translate_luong" / "stopped", stopped)
    for command in (("predict", stopped, "--text", "a"), ("compare", stopped)):
        assert suggested(regard(*command, terminals=()), "train")[:4] == ["regard", "train", "--resume", str(stopped)]
    (tmp_path / "pairs.tsv").write_text("a b\tA B\nb c\tB C\n" * 5, encoding="utf-8")
    runs = tmp_path / stopped.name.replace("a;", "runs;")
    result = regard("train", "reverse", *TINY, f"data.train={tmp_path / 'pairs.tsv'}", "--runs", runs, terminals=())
    run = result.out.decode().removesuffix("\n")
    assert suggested(result, "look")[:3] == ["regard", "look", run]
    assert suggested(result, "look")[3] in ("a b", "b c")  # the source of a dev pair
    (tmp_path / "pairs.tsv").write_text("a b\tA B\n" * 5, encoding="utf-8")  # so that there is no dev set any more
    assert suggested(regard("score", run, terminals=()), "score") == ["regard", "score", run, "FILE.tsv"]


# The streams and the progress bar, without a process.


class Screen(io.StringIO):
    """A terminal that keeps what was written."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def show(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal in place of stdout and stderr."""
    screen = Screen()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


HOSTILE_LINE = f"[bold]runs[/bold] [red] :smile: {ESCAPES}"


@pytest.mark.parametrize("is_guarded", [False, True])
def test_messages_beside_a_progress_bar_are_visible(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    screen = show(monkeypatch)
    if is_guarded:
        monkeypatch.setattr(sys, "stderr", guarded(screen))
        monkeypatch.setattr(sys, "stdout", guarded(screen))
    streams = sys.stdout, sys.stderr
    log = ProgressLog()
    with log:
        log.begin("learning", 3)
        log.show(1, "loss 0.500")
        log.say(HOSTILE_LINE + "\nforged")
        sys.stderr.write(f"a warning {ESCAPES}\n")
        sys.stdout.write(f"a result {ESCAPES}\n")
    for number in track(range(2), "predicting"):
        sys.stdout.write(f"line {number} {HOSTILE_LINE}\n")
    assert (sys.stdout, sys.stderr) == streams
    text = BAR.sub("", screen.getvalue()).replace("\r", "")
    assert RAW.search(text) is None, text
    assert "[bold]runs[/bold] [red] :smile: ␛]0;owned␇" in text
    assert "␊forged" in text
    assert "line 1 [bold]runs[/bold]" in text


@pytest.mark.parametrize("variables", [{"FORCE_COLOR": ""}, {"TTY_COMPATIBLE": "0"}])
def test_messages_are_visible_in_a_terminal_that_rich_takes_for_a_file(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]
) -> None:
    screen = show(monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with ProgressLog() as log:
        log.begin(f"learning{ESCAPES}", 3)
        log.say(HOSTILE_LINE)
        log.show(1)
    assert RAW.search(screen.getvalue()) is None, screen.getvalue()
    assert "␛]0;owned␇" in screen.getvalue()


def test_results_stay_on_stdout_if_rich_takes_a_file_for_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar on stderr takes what is written to a terminal on stdout; here it would take it into the file."""
    screen, file = show(monkeypatch), io.StringIO()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", file)
    for number in track(range(2), "predicting"):
        sys.stdout.write(f"line {number}\n")
    assert screen.getvalue() == "line 0\nline 1\n"


def test_messages_in_a_file_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    ProgressLog().say(HOSTILE_LINE)
    ProgressLog(quiet=True).say("not printed")
    ProgressLog(quiet=True).warn("printed")
    assert file.getvalue() == f"{HOSTILE_LINE}\nprinted\n"


def test_a_quiet_bar_swallows_no_results(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = show(monkeypatch)
    for number in track(range(3), "predicting", quiet=True):
        sys.stdout.write(f"{number}\n")
    assert screen.getvalue() == "0\n1\n2\n"


def test_a_guarded_stream_is_the_terminal_but_for_what_it_writes() -> None:
    screen = Screen()
    stream = guarded(screen)
    stream.writelines(["a\tb\n", "\x1b"])
    assert screen.getvalue() == "a\tb\n␛"
    assert isinstance(stream, VisibleStream)
    assert guarded(stream) is stream
    assert stream.isatty()
    assert visible.unguarded(stream) is screen
    file = io.StringIO()
    assert guarded(file) is file


def test_every_invisible_character_is_shown(record_property: Count) -> None:
    hidden = [
        *(chr(code) for code in range(0x20)),
        *(chr(code) for code in range(0x7F, 0xA0)),
        *"\u00ad\u034f\u061c\u115f\u1160\u17b4\u180e\u200b\u200f\u2028\u202e\u2060\u2064\u2800\u3164\ufe0f\ufeff\uffa0",
        *"\U000e0001\U000e0041\U000e0100\ud800\udcff\U000fffff"[:-1],
    ]
    record_property("invisible characters", len(hidden))
    for character in hidden:
        seen = make_visible(f"a{character}b")
        assert seen.isprintable()
        assert len(seen) >= 3
        assert character not in seen
    assert make_visible("plain é 日本 🙂 й") == "plain é 日本 🙂 й"


EMOJI = ("👩‍💻", "👩🏽‍🚀", "👨‍👩‍👧", "🏳️‍🌈", "❤️‍🔥", "☺️", "©️", "1️⃣", "🇫🇷")


def test_joiners_and_selectors_are_hidden_in_emoji_alone() -> None:
    assert make_visible(" ".join(EMOJI)) == " ".join(EMOJI)
    for text in ("a\u200db", "a\ufe0f", "1\ufe0f", "क्\u200dष", "🙂\u200d", "🙂\u200da", "a\u200d🙂", "\ufe0f\u200d🙂"):
        assert not re.search("[\u200d\ufe0f]", make_visible(text)), ascii(text)
    assert make_visible("🙂\ufe0f\ufe0f") == "🙂\ufe0f\\ufe0f"
    assert make_visible("🙂\u200d\u200d🙂") == "🙂\\u200d\\u200d🙂"
    assert make_visible("👩\u200d💻\u202e\n", visible.WITHIN_TEXTS) == "👩\u200d💻\\u202e\n"


def test_json_stays_json_with_bytes_that_are_not_utf8() -> None:
    content = {"text": "a\udcffb\ud800"}
    line = to_json(content)
    assert json.loads(line.encode()) == content
