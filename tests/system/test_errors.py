"""The last handler of the command line: any exception, and any broken stream, is one sentence and an exit code."""

import errno
import os
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():  # typer uses names that click 8.5 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from regard import cli

COMMAND = f"{sys.executable} -c 'from regard.cli import main; main()'"
RUN = Path(__file__).parents[1] / "golden" / "runs" / "translate_luong" / "finished"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a shell command in which PROGRAM stands for the program."""
    return subprocess.run(
        ["bash", "-c", command.replace("PROGRAM", COMMAND)],
        capture_output=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        timeout=120,
        check=False,
    )


def fail(monkeypatch: pytest.MonkeyPatch, error: BaseException, *options: str) -> int:
    """Runs a command that raises this error; returns the exit code."""

    def raise_error(*arguments: object, **keywords: object) -> None:
        raise error

    monkeypatch.setattr("regard.catalogue.tables", raise_error)
    monkeypatch.setattr(sys, "argv", ["regard", *options, "list"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that was printed on stderr, without the program's name."""
    out, error = capsys.readouterr()
    assert out == ""
    assert error.endswith("\n")
    assert error.count("\n") == 1
    assert error.startswith("regard: ")
    return error.removeprefix("regard: ").removesuffix("\n")


# Ctrl-C while modules are imported

ROOT = Path(__file__).parents[2]
ENTRY = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]["regard"].split(":")


@pytest.mark.parametrize("start", [["-m", "regard"], ["-c", "from {} import {} as main; main()".format(*ENTRY)]])
@pytest.mark.parametrize(("module", "said"), [("typer", ""), ("torch", "stopped by SIGINT; regard doctor is not done")])
def test_ctrl_c_while_modules_are_imported_prints_no_traceback(
    start: list[str], module: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / f"{module}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n", "utf-8")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, *start, "doctor"],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": path},
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == (f"regard: {said}\n" if said else "")


# Unexpected errors


@pytest.mark.parametrize("error", [RuntimeError("odd"), RecursionError(), ZeroDivisionError(), AssertionError("a\nb")])
def test_an_unexpected_error_is_a_sentence_and_its_details_are_kept(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    assert fail(monkeypatch, error) == 70
    said = re.fullmatch(
        r"regard list met an unexpected error \((\w+), number ([0-9a-f]{8})\); the details are in (.+); "
        "regard --debug COMMAND prints them; please report it with the number",
        sentence(capsys),
    )
    assert said
    assert said[1] == type(error).__name__
    assert Path(said[3]) == tmp_path / "cache" / "errors" / f"{said[2]}.txt"
    details = Path(said[3]).read_text(encoding="utf-8")
    assert "Traceback" in details
    assert "arguments: ['list']" in details


@pytest.mark.parametrize("folder", ["/dev/null/x", "x" * 300])
def test_details_that_cannot_be_kept_are_said_to_be_lost(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", folder)
    assert fail(monkeypatch, RuntimeError("odd")) == 70
    assert "the details could not be kept (" in sentence(capsys)


def test_debug_prints_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(monkeypatch, RuntimeError("odd"), "--debug") == 70
    error = capsys.readouterr().err
    assert error.startswith("Traceback")
    assert "RuntimeError: odd" in error
    assert error.splitlines()[-1].startswith("regard: ")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MemoryError(), 6, "there is not enough memory for regard list"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 6, "there is not enough memory for regard list"),
        (KeyboardInterrupt(), 130, "stopped by SIGINT; regard list is not done"),
        (OSError(errno.ENOSPC, "No space left on device"), 4, "a file or stream: No space left on device"),
        (OSError(errno.EMFILE, "Too many open files", "runs"), 4, "'runs': Too many open files"),
        (PermissionError(errno.EACCES, "Permission denied", "a\x1bb"), 4, r"'a\x1bb': Permission denied"),
    ],
)
def test_an_error_of_the_machine_is_a_sentence(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail(monkeypatch, error) == code
    assert message in sentence(capsys)


def test_too_many_open_files_while_runs_are_listed_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def scandir(path: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(sys, "argv", ["regard", "predict", str(tmp_path / "none"), "--text", "a"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code in (2, 4)
    sentence(capsys)


# Broken streams


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ("PROGRAM list > /dev/full", 4, b"regard list cannot read or write a file or stream: No space left on device"),
        ("PROGRAM --help > /dev/full", 4, b"No space left on device"),
        ("PROGRAM list >&-", 4, b"stdout is closed"),
        ("PROGRAM list nothing 2> /dev/full", 2, b""),
        ("PROGRAM list nothing 2>&-", 2, b""),
        ("PROGRAM list <&-", 0, b""),
        ("PROGRAM list >&- 2>&- <&-", 4, b""),
        ("set -o pipefail; PROGRAM list | true", None, b""),
        ("COLUMNS=abc LINES=-1 REGARD_DATA=$(printf %5000s) PROGRAM list", 0, b""),
        ("PROGRAM list $'\\xff'", 2, b"unknown table"),
        ("PROGRAM $'\\xff'", 2, b"No such command"),
        ("PROGRAM train $'\\xff.toml' $'a\\xff=1'", 2, b"cannot be read"),
    ],
)
def test_a_broken_stream_or_argument_is_a_sentence(command: str, code: int | None, error: bytes) -> None:
    done = shell(command)
    assert code is None or done.returncode == code, done.stderr
    assert error in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    if code and error:
        assert b"regard: " in done.stderr or b"Usage" in done.stderr


def test_streams_and_arguments_of_predictions_that_are_not_utf8() -> None:
    """One process imports torch for all of them."""
    lines = [
        f"import sys; run = {str(RUN)!r}",
        "from regard import cli",
        "def call(*arguments):",
        "    sys.argv = ['regard', *arguments]",
        "    try: cli.main()",
        "    except SystemExit as end: print(end.code, file=sys.stderr)",
        "call('look', run, 'abc')",
        "call('predict', run, '--text', '\\udcff')",
        "call('near', run, 'x', '--text', '\\udcff')",
        "call('look', run, '\\udcff')",
        "call('predict', run)",
        "call('predict', 'a' * 300, '--text', 'a')",
        "call('predict', '\\udcff/b', '--text', 'a')",
        "call('predict', run, '--text', 'a', '--seed', '9' * 4000)",
        "call('predict', run, '--text', 'a', '--n-best', '1000000')",
        "call('predict', run, '--text', 'a', '--search', 'beam=1000000')",
    ]
    program = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "$PROGRAM" <&-'],
        env=os.environ | {"PROGRAM": "\n".join(lines), "PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        timeout=120,
    )
    error = program.stderr.decode(errors="replace")
    assert program.returncode == 0, error
    assert "Traceback" not in error
    codes = [int(line) for line in error.splitlines() if line.isdigit()]
    assert codes == [0, 2, 2, 2, 2, 4, 2, 2, 2, 2], error
    assert "█" in program.stdout.decode("utf-8")
    assert "stdin is closed" in error


def test_a_runs_folder_that_is_not_utf8_is_used_and_printed_byte_by_byte(tmp_path: Path) -> None:
    words = ["".join(chr(97 + (seed * place) % 8) for place in (1, 3, 5)) for seed in range(30)]
    (tmp_path / "pairs.tsv").write_text("".join(f"{word}\t{word}\n" for word in words), encoding="utf-8")
    tiny = "model.embedding=4 model.encoder.dim=4 model.decoder.dim=4 model.attention.dim=4 train.updates=1 name=t"
    files = f"cd {tmp_path}; export PYTHONIOENCODING=ascii; "
    done = shell(f"{files} PROGRAM train dates data.train=pairs.tsv {tiny} train.device=cpu --runs $'\\xff\\xe9'")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"\xff\xe9/t\n"
    assert b"Traceback" not in done.stderr
