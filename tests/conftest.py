"""Setup of all tests: shapes in signatures are checked if asked for, the cache is a temporary folder, a fixed seed."""

import os
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import jaxtyping

import regard  # noqa: F401  before torch: it sets how OpenMP threads wait, also in subprocesses

# Small tensors gain nothing from more threads, and the last bits depend on their number; `make test` also runs the
# laws with two threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported, also in subprocesses

CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"  # an int may be a float, as in mypy
# With REGARD_CHECK_SHAPES=1, shapes in signatures are checked; tests then take a third longer.
if os.environ.get("REGARD_CHECK_SHAPES") and find_spec("beartype"):
    jaxtyping.install_import_hook("regard", CHECKER)  # before any of its modules is imported

import pytest  # noqa: E402
import torch  # noqa: E402

from regard.kernels import choose  # noqa: E402

missing = [name for name in ("hypothesis", "babel", "num2words") if not find_spec(name)]
collect_ignore = [  # tests that import a missing package; none of them needs a GPU
    str(path)
    for path in Path(__file__).parent.rglob("test_*.py")
    if any(f"from {name}" in path.read_text(encoding="utf-8") for name in missing)
]

if "hypothesis" not in missing:
    from hypothesis import HealthCheck, settings

    # A law is about results, not about time, which depends on what else the machine does. All runs try the same cases.
    slow = [HealthCheck.too_slow]
    settings.register_profile("laws", deadline=None, suppress_health_check=slow, derandomize=True)
    settings.load_profile("laws")


FIRST = ("attack", "system", "tests", "tasks", "training", "golden", "data")  # long files first: workers end together


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files first."""
    rank = {name: index for index, name in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(item.path.parent.name, len(rank)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many cases each attack has tried: the tests of tests/attack record their numbers as properties."""
    counts: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            counts.update({name: count for name, count in report.user_properties if isinstance(count, int)})
    for name, count in sorted(counts.items()):
        terminalreporter.write_line(f"{name:<50} {count:>6,}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of fast paths (marker `takes`) if only definitions run."""
    if item.get_closest_marker("takes") and choose.are_definitions_only():
        pytest.skip("REGARD_PLAIN=1: definitions run in place of the fast paths that this test is about")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set a temporary cache folder for the test run and its subprocesses, so that the user's own is not used."""
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
    """Set the seed, so that a test draws the same numbers whether it runs alone or after others."""
    torch.manual_seed(0)
