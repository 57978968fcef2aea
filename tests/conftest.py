"""What every test stands on: shapes in signatures are checked, the cache is nobody's, chance is seeded."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import jaxtyping

CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"  # an int is a float, as in mypy
if find_spec("beartype"):  # where it is not installed, as on a machine lent for its GPU, shapes go unchecked
    jaxtyping.install_import_hook("regard", CHECKER)  # before anything of regard is imported

import pytest  # noqa: E402
import torch  # noqa: E402

missing = [name for name in ("hypothesis", "babel", "num2words") if not find_spec(name)]
collect_ignore = [  # likewise; none of these tests needs a GPU
    str(path)
    for path in Path(__file__).parent.rglob("test_*.py")
    if any(f"from {name}" in path.read_text(encoding="utf-8") for name in missing)
]

torch.set_num_threads(1)  # small tensors gain nothing from more, and bits depend on it


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
