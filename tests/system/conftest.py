"""Fixtures that run regard's command line: as the installed script, or faster in a fork of a warm process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).with_name("regard")
HIDDEN = ("FORCE_COLOR", "COLUMNS", "REGARD_DATA", "PYTHONDONTWRITEBYTECODE")  # variables removed for the commands


@dataclass(frozen=True)
class Result:
    """Exit code, stdout and stderr of a command."""

    code: int
    out: bytes
    error: str

    @property
    def lines(self) -> list[str]:
        """The lines of stdout; only a newline ends a line."""
        return self.out.decode().split("\n")[:-1]


Command = Callable[..., Result]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder, the working directory of commands by default."""
    return tmp_path_factory.mktemp("home")


def _environment(threads: int) -> dict[str, str]:
    """The environment of a user: without the variables that the test run sets for itself, except the cache."""
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return environment | {"OMP_NUM_THREADS": str(threads)}


@pytest.fixture(scope="session")
def script(home: Path, cache: Path) -> Command:
    """Runs the installed `regard ARGUMENTS`, without a terminal."""

    def run(
        *arguments: object, stdin: bytes = b"", folder: Path = home, timeout: float = 120, threads: int = 1
    ) -> Result:
        done = subprocess.run(
            [SCRIPT, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            cwd=folder,
            env=_environment(threads),
            timeout=timeout,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr.decode())

    return run


@pytest.fixture(scope="session")
def regard(home: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Runs the same `main` in a fork of a process that has imported torch, which saves seconds per command."""
    folder_of_streams = tmp_path_factory.mktemp("streams")
    streams = {name: folder_of_streams / name for name in ("stdin", "stdout", "stderr")}
    server = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("forks.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=_environment(threads=1),
        text=True,
    )

    def run(*arguments: object, stdin: bytes = b"", folder: Path = home) -> Result:
        streams["stdin"].write_bytes(stdin)
        task = {"arguments": list(map(str, arguments)), "folder": str(folder)}
        server.stdin.write(json.dumps(task | {name: str(path) for name, path in streams.items()}) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return Result(code, streams["stdout"].read_bytes(), streams["stderr"].read_text(encoding="utf-8"))

    with server:
        yield run
        server.stdin.close()
