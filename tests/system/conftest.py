"""Fixtures that run regard's command line: as the installed script, or faster in a fork of a warm process.

Also as the program of the wheel, in an environment of its own.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import wheels
from commands import Result, shared_commands, user_environment

SCRIPT = Path(sys.executable).with_name("regard")

Command = Callable[..., Result]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder, the working directory of commands by default."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def script(home: Path) -> Command:
    """Runs the installed `regard ARGUMENTS`, without a terminal."""

    def run(
        *arguments: object, stdin: bytes = b"", folder: Path = home, timeout: float = 120, threads: int = 1
    ) -> Result:
        done = subprocess.run(
            [SCRIPT, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            cwd=folder,
            env=user_environment() | {"OMP_NUM_THREADS": str(threads)},
            timeout=timeout,
            check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr.decode())

    return run


@pytest.fixture(scope="session")
def regard(home: Path) -> Command:
    """Runs the same `main` in a fork of a process that has imported torch, which saves seconds per command."""

    def run(*arguments: object, stdin: bytes = b"", folder: Path = home) -> Result:
        return shared_commands()(*arguments, stdin=stdin, folder=folder, limit=120)

    return run


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel."""
    return wheels.build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def program(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `regard` of an environment with the wheel and no extra."""
    return wheels.install(built[1], tmp_path_factory.mktemp("bare"))
