"""The sdist and the wheel: what they hold, and that the wheel works in an environment of its own, without a network."""

import tarfile
import tomllib
import zipfile
from pathlib import Path

from regard import __version__
from regard import recipe as recipes
from requirements import named
from wheels import ROOT, roots, run, start

SOURCES = ROOT / "src"
THREADS = {"OMP_NUM_THREADS": "1"}


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


def test_the_wheel_works_in_an_environment_of_its_own(program: Path, tmp_path: Path) -> None:
    assert run(program, "--version", folder=tmp_path) == f"regard {__version__}\n"
    where = run(program.with_name("python"), "-c", "import regard; print(regard.__file__)", folder=tmp_path)
    assert Path(where.strip()).is_relative_to(program.parents[1])
    listed = run(program, "list", "recipes", folder=tmp_path)
    assert all(f"\n  {name} " in listed for name in recipes.names())


def test_no_module_of_an_extra_can_be_imported_there(program: Path, tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    extras = set(named(optional)) - set(named(project["dependencies"]))
    modules = {path.name.removesuffix(".py") for name in extras for path in roots(name)}
    modules = {name for name in modules if name.isidentifier()}
    assert {"babel", "num2words", "matplotlib", "PIL", "fastapi", "transformers", "onnx", "ray", "pytest"} <= modules
    code = "import sys; from importlib.util import find_spec; print(*filter(find_spec, sys.argv[1:]))"
    names = ("torch", *sorted(modules))
    assert run(program.with_name("python"), "-c", code, *names, folder=tmp_path) == "torch\n"


def test_all_modules_of_regard_can_be_imported_without_extras(program: Path, tmp_path: Path) -> None:
    """All but the kernels in Triton, which comes with torch's CUDA builds."""
    code = """
import importlib, pkgutil, regard
for module in pkgutil.walk_packages(regard.__path__, "regard."):
    if module.name != "regard.__main__":
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            print(module.name, error.name)
print("all")
"""
    *failed, last = run(program.with_name("python"), "-c", code, folder=tmp_path).splitlines()
    assert last == "all"
    assert all(line.startswith("regard.kernels.gpu.") and line.endswith(" triton") for line in failed), failed


def test_the_wheel_alone_trains_and_draws_a_map(program: Path, tmp_path: Path) -> None:
    """The demo of dates needs the extra `corpora`, see test_demo.py, and says so; `reverse` needs none."""
    refused = start(program, "demo", folder=tmp_path)
    sentence = "regard: the corpus 'dates' needs the package Babel; install it with: pip install 'regard[corpora]'"
    assert (refused.code, refused.out) == (2, b"")
    assert refused.error.splitlines()[-1].startswith(sentence)
    assert not (tmp_path / "runs").exists()
    sizes = ("model.embedding=8", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=8")
    short = ("data.size=200", "train.updates=4", "train.validate=4", "search.max_ratio=1")
    assert run(program, "train", "reverse", *sizes, *short, "-q", folder=tmp_path, **THREADS) == "runs/reverse\n"
    look = ("look", "runs/reverse", "abc", "--target", "cba", "-o", "map.html")
    run(program, *look, folder=tmp_path, **THREADS)
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    viewer = (SOURCES / "regard/show/viewer/matrix.js").read_text(encoding="utf-8")
    assert max(viewer.split("\n"), key=len) in page
