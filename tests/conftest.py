"""What every test stands on: shapes in signatures are checked, the cache is nobody's, chance is seeded."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import jaxtyping

import regard  # noqa: F401  before torch: it chooses how threads wait, here and in subprocesses

# Small tensors gain nothing from more threads, and bits depend on them; `make test` runs the laws with two as well.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read as torch loads, in what tests start too

CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"  # an int is a float, as in mypy
if find_spec("beartype"):  # where it is not installed, shapes go unchecked
    jaxtyping.install_import_hook("regard", CHECKER)  # before any of its modules is imported
CHECKED = ("laws", "kernels", "attention", "search", "tasks")  # the other folders' tests train, as fast as users do

import pytest  # noqa: E402
import torch  # noqa: E402

from regard.kernels import choose  # noqa: E402

missing = [name for name in ("hypothesis", "babel", "num2words") if not find_spec(name)]
collect_ignore = [  # likewise; none of these tests needs a GPU
    str(path)
    for path in Path(__file__).parent.rglob("test_*.py")
    if any(f"from {name}" in path.read_text(encoding="utf-8") for name in missing)
]


FIRST = ("system", "tests", "tasks", "training", "golden", "data")  # long files first, so that workers end together


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let long files run first."""
    rank = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(item.path.parent.name, len(rank)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check shapes in the tests that hold them; skip tests of fast paths (marker `takes`) if none is taken.

    With JAXTYPING_DISABLE in the environment no shapes are checked.
    """
    if "JAXTYPING_DISABLE" not in os.environ:
        jaxtyping.config.update("jaxtyping_disable", item.path.parent.name not in CHECKED)
    if item.get_closest_marker("takes") and choose.are_definitions_only():
        pytest.skip("REGARD_PLAIN=1: definitions run in place of the fast paths that this test is about")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What regard caches in the test run, subprocesses included, is kept apart from the user's own."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("REGARD_CACHE")
    os.environ["REGARD_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["REGARD_CACHE"]
    else:
        os.environ["REGARD_CACHE"] = before


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test draws the same numbers, alone or in company."""
    torch.manual_seed(0)
