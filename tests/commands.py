"""Runs `regard ARGUMENTS` from the sources under test, in forks of a process that has imported torch: see forks.py."""

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[1] / "src"
HIDDEN = {"FORCE_COLOR", "COLUMNS", "REGARD_DATA", "REGARD_ATTACK", "PYTHONDONTWRITEBYTECODE"}
LIMIT = 10.0  # seconds after which a command hangs
MEMORY = 500 << 20  # bytes that a command on a tiny run may use beyond those of the process it was forked from
DOCUMENTED = {0, 2, 3, 4, 5, 6}  # exit codes of commands that no signal stopped; 70, an unexpected error, is a failure


def user_environment() -> dict[str, str]:
    """The environment of a user: without the variables that the test run sets for itself, except the cache."""
    variables = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return variables | {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Result:
    """How a command ended: exit code (minus the signal's number if a signal ended it), output, operations on files."""

    code: int
    out: bytes
    error: str
    hung: bool = False
    operations: list[list[str]] = field(default_factory=list)  # [name, path] of each
    seconds: float = field(default=0, compare=False)
    cpu: float = field(default=0, compare=False)
    memory: int = field(default=0, compare=False)  # bytes beyond those of the process that it was forked from

    @property
    def lines(self) -> list[str]:
        """The lines of stdout; only a newline ends a line."""
        return self.out.decode().split("\n")[:-1]

    def assert_behaved(self, codes: Iterable[int] = DOCUMENTED) -> None:
        """No hang, no signal, no traceback; an exit code that is documented; if it is not 0, a sentence."""
        assert not self.hung, f"it hung for more than {LIMIT} seconds: {self.error}"
        assert "Traceback" not in self.error, self.error
        assert self.code in set(codes), (self.code, self.error)
        assert self.memory < MEMORY, f"{self.memory >> 20} MiB"
        if self.code:
            assert self.error.rstrip("\n").split("\n")[-1].startswith("regard: "), self.error


class Commands:
    """Starts commands and waits for them; their options are the keys in forks.py."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}  # of all commands
        self.folder = Path(tempfile.mkdtemp(prefix="regard-commands-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self.server = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("forks.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=user_environment() | {"PYTHONPATH": str(SOURCES)},
            cwd=self.folder,
            text=True,
        )
        atexit.register(self.server.kill)

    def _ask(self, **task: Any) -> Any:
        self.server.stdin.write(json.dumps(task) + "\n")
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def start(self, *arguments: object, folder: Path | None = None, stdin: bytes = b"", **options: Any) -> int:
        """Start a command; returns its process id."""
        task = {"arguments": list(map(str, arguments)), "folder": str(folder or self.folder)}
        return self._ask(start=task | {"stdin": os.fsdecode(stdin)} | self.options | options)

    def wait(self, process: int, limit: float = LIMIT) -> Result:
        """Wait until a command ends."""
        answer = self._ask(wait=process, limit=limit)
        return Result(**answer | {"out": os.fsencode(answer["out"])})

    def __call__(self, *arguments: object, limit: float = LIMIT, **options: Any) -> Result:
        return self.wait(self.start(*arguments, **options), limit)


@functools.cache
def shared_commands() -> Commands:
    """Those of all tests in this process."""
    return Commands()


def printed(folder: Path, *arguments: object, stdin: str = "") -> str:
    """What a command prints on stdout, in this working directory; it must succeed."""
    result = shared_commands()(*arguments, folder=folder, stdin=stdin.encode(), limit=120)
    assert result.code == 0, result.error
    return result.out.decode()
