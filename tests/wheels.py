"""The sdist and the wheel, and environments of their own with the wheel and the packages that it requires."""

import os
import subprocess
import sys
import tarfile
import venv
from importlib import metadata
from pathlib import Path

from commands import HIDDEN, Result
from regard import __version__
from requirements import named

ROOT = Path(__file__).parents[1]


def start(*command: object, folder: Path, timeout: float = 300, **variables: str) -> Result:
    """Runs a program that finds only the packages of its own environment."""
    kept = {name: value for name, value in os.environ.items() if name not in {*HIDDEN, "PYTHONPATH"}}
    arguments = list(map(str, command))
    done = subprocess.run(arguments, capture_output=True, cwd=folder, env=kept | variables, timeout=timeout)
    return Result(done.returncode, done.stdout, done.stderr.decode())


def run(*command: object, folder: Path, **variables: str) -> str:
    """The output of a program, see `start`, which must not fail."""
    result = start(*command, folder=folder, **variables)
    assert result.code == 0, result.error
    return result.out.decode()


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from what the sdist holds."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, folder=ROOT)
    sdist = folder / f"regard-{__version__}.tar.gz"
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / f"regard-{__version__}"
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=unpacked)
    return sdist, folder / f"regard-{__version__}-py3-none-any.whl"


def install(wheel: Path, folder: Path, *extras: str) -> Path:
    """The program `regard` of a new environment with the wheel and what it requires, alone or with some extras.

    What it requires by its own metadata, pip would fetch. Here these packages are links to those of this environment,
    so that no other package can be imported.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check")
    run(*pip, "--no-index", "--no-deps", wheel, folder=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (information,) = packages.glob("regard-*.dist-info")
    for name in set(named(metadata.Distribution.at(information).requires or [], ("", *extras))):
        for path in roots(name):
            link = packages / path.name
            if not link.exists():  # packages may share a folder
                link.symlink_to(path)
    return folder / "bin/regard"


def roots(name: str) -> list[Path]:
    """The folders and modules of an installed package, directly within site-packages; none if it is not installed."""
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return []
    names = {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}
    return [Path(str(distribution.locate_file(first))) for first in names if not first.endswith(".pth")]
