"""The sdist and the wheel: what they hold, and that the wheel works in an environment of its own, without a network."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from commands import HIDDEN
from regard import __version__
from regard import recipe as recipes

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"


def run(*command: object, folder: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in {*HIDDEN, "PYTHONPATH"}}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=folder, env=kept | variables, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from what the sdist holds."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, folder=ROOT)
    sdist = folder / f"regard-{__version__}.tar.gz"
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / f"regard-{__version__}"
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=unpacked)
    return sdist, folder / f"regard-{__version__}-py3-none-any.whl"


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
    information = f"regard-{__version__}.dist-info"
    own = {path for path in (SOURCES / "regard").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {name for name in names if not name.startswith(f"{information}/")} == {
        path.relative_to(SOURCES).as_posix() for path in own
    }
    assert {f"{information}/{name}" for name in ("METADATA", "entry_points.txt", "licenses/LICENSE")} <= names
    needed = {"py.typed", "recipes/dates.toml", "show/viewer/viewer.js", "serve/page/index.html"}
    assert {f"regard/{name}" for name in needed} <= names


def test_the_sdist_has_what_the_wheel_is_built_from_and_no_runs(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/regard/__init__.py"} <= names
    assert not [name for name in names if name.startswith(("runs/", ".venv/", "dist/"))]


@pytest.fixture(scope="module")
def program(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `regard` of a new environment with the wheel; other packages are those of this environment.

    They are found by their path alone: its .pth files are not read, so that an editable install of regard is not seen.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check")
    run(*pip, "--no-index", "--no-deps", built[1], folder=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return folder / "bin/regard"


def test_the_wheel_works_in_an_environment_of_its_own(program: Path, tmp_path: Path) -> None:
    assert run(program, "--version", folder=tmp_path) == f"regard {__version__}\n"
    where = run(program.with_name("python"), "-c", "import regard; print(regard.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(program.parents[1])
    listed = run(program, "list", "recipes", folder=tmp_path)
    assert all(f"\n  {name} " in listed for name in recipes.names())


def test_the_wheel_trains_and_shows_a_map(program: Path, tmp_path: Path) -> None:
    """As the demo does, in a moment: it would take a minute."""
    sizes = ("model.embedding=8", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=8")
    short = ("data.size=200", "train.updates=4", "train.validate=4", "search.max_ratio=1")
    threads, look = {"OMP_NUM_THREADS": "1"}, ("look", "runs/dates", "4 May 1986", "--target", "1986-05-04")
    assert run(program, "train", "dates", *sizes, *short, "-q", folder=tmp_path, **threads) == "runs/dates\n"
    run(program, *look, "-o", "map.html", folder=tmp_path, **threads)
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    viewer = (SOURCES / "regard/show/viewer/matrix.js").read_text(encoding="utf-8")
    assert max(viewer.split("\n"), key=len) in page
