"""Fixtures of the tests of the server; without the packages that it needs, they are left out."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

import regard
from regard.predict import Predictor, load

if TYPE_CHECKING:
    from servers import Local

NEEDED = ("fastapi", "uvicorn", "prometheus_client", "httpx")
collect_ignore_glob = [] if all(map(find_spec, NEEDED)) else ["test_*.py"]


@pytest.fixture
def local() -> "Iterator[Callable[..., Local]]":
    """Starts servers in this process, for runs by name or for functions that load them."""
    from servers import Local, golden

    from regard.serve.limits import Bounds

    started: list[Local] = []

    def start(
        *names: str, token: str = "", host: str = "127.0.0.1", wait: bool = True, bounds: Any = None, **loads: Any
    ) -> Local:
        runs = {name: partial(load, golden(name)) for name in names} | loads
        started.append(Local(runs, bounds or Bounds(window=0.0), token, host))
        if wait:
            started[-1].wait()
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    keys = (
        *("data.size=96", "picture.channels=3", "picture.blocks=3", "model.embedding=12", "train.device=cpu"),
        *("model.encoder.dim=12", "model.decoder.dim=12", "model.attention.dim=12", "train.updates=2"),
        *("train.batch_tokens=640", "train.validate_examples=4"),
    )
    return load(regard.train("shapes", *keys, runs=tmp_path_factory.mktemp("runs"), quiet=True))


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    keys = (
        *("data.size=20", "model.embedding=6", "model.encoder.dim=8", "model.decoder.dim=8", "model.attention.dim=6"),
        *("speech.bands=12", "speech.width=8", "train.device=cpu", "train.batch_tokens=200", "train.updates=2"),
        *("search.max_ratio=0", "search.max_extra=3", "train.validate_examples=2"),
    )
    return load(regard.train("tones", *keys, runs=tmp_path_factory.mktemp("runs"), quiet=True))


@pytest.fixture(scope="session")
def forecasts(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    from servers import TABLE

    folder = tmp_path_factory.mktemp("runs")
    (folder / "series.csv").write_text(TABLE)
    keys = (
        *(f"data.train={folder / 'series.csv'}", "data.corpus=", "forecast.horizon=6", "forecast.context=12"),
        *(
            "forecast.samples=11",
            "model.decoder.order=luong",
            "model.decoder.dim=8",
            "train.updates=2",
            "train.device=cpu",
            "forecast.windows=1",
        ),
    )
    return load(regard.train("waves", *keys, runs=folder, quiet=True))
