"""Servers for the tests: in this process, with golden runs, and in processes of their own, on loopback."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
httpx = pytest.importorskip("httpx")

import regard  # noqa: E402
from regard.predict import Predictor, load  # noqa: E402
from regard.serve.app import Service, build  # noqa: E402
from regard.serve.batcher import LOADING, Lane  # noqa: E402
from regard.serve.guard import Guard  # noqa: E402
from regard.serve.limits import Bounds  # noqa: E402
from regard.serve.metrics import Metrics  # noqa: E402

GOLDEN = Path(__file__).parent.parent / "golden/runs"
TASKS = {
    **{name: name for name in ("answer", "classify", "masked_lm", "tag", "forecast")},
    "lines": "language_model_lines",
    "window": "language_model_window",
    "bahdanau": "translate_bahdanau",
    "luong": "translate_luong",
    "gnmt": "translate_gnmt",
    "coverage": "translate_coverage",
    "transformer": "translate_transformer",
}


HOURS = [f"2020-01-{day:02}T{hour:02}:00" for day in range(1, 8) for hour in range(24)]
VALUES = [round(float(np.sin(step / 4)), 3) for step in range(len(HOURS))]
TABLE = "series,time,value\n" + "".join(f"s,{time},{value}\n" for time, value in zip(HOURS, VALUES, strict=True))


def golden(name: str) -> Path:
    return GOLDEN / TASKS[name] / "finished"


def inputs_of(name: str) -> list[str]:
    """The inputs of a golden run."""
    return [entry["source"] for entry in json.loads((GOLDEN / TASKS[name] / "expected.json").read_text())["answers"]]


class Local:
    """A server in this process, which is asked without a network."""

    def __init__(self, loads: dict[str, Callable[[], Predictor]], bounds: Bounds, token: str) -> None:
        metrics = Metrics()
        self.lanes = {name: Lane(name, load_run, bounds, metrics) for name, load_run in loads.items()}
        self.service = Service(self.lanes, bounds, metrics)
        self.guard: Guard = build(self.service, token=token)
        for lane in self.lanes.values():
            lane.start()

    def wait(self) -> None:
        """Wait until all runs are loaded."""
        end = time.monotonic() + 60
        while any(lane.state == LOADING for lane in self.lanes.values()) and time.monotonic() < end:
            time.sleep(0.005)

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Send one request."""

        async def send() -> Any:
            async with self.client() as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def client(self) -> Any:
        transport = httpx.ASGITransport(self.guard, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)

    def predict(self, **content: Any) -> Any:
        """Send a question as JSON."""
        return self.request("POST", "/v1/predict", json=content)

    def metric(self, name: str) -> float:
        """A figure of /metrics."""
        text = self.request("GET", "/metrics").text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    def stop(self) -> None:
        for lane in self.lanes.values():
            lane.stop()
        for lane in self.lanes.values():
            lane.join(10)
        self.service.pool.shutdown()


@pytest.fixture
def local() -> Iterator[Callable[..., Local]]:
    """Starts servers in this process, for runs by name or for functions that load them."""
    started: list[Local] = []

    def start(*names: str, token: str = "", wait: bool = True, bounds: Bounds | None = None, **loads: Any) -> Local:
        runs = {name: partial(load, golden(name)) for name in names} | loads
        started.append(Local(runs, bounds or Bounds(window=0.0), token))
        if wait:
            started[-1].wait()
        return started[-1]

    yield start
    for server in started:
        server.stop()


class Process(NamedTuple):
    """A server in a process of its own."""

    port: int
    process: "subprocess.Popen[str]"

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def memory(self) -> float:
        """Its resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1]) / 1024

    def metric(self, name: str) -> float:
        text = httpx.get(f"{self.address}/metrics").text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))

    def terminate(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[Process]:
    """A server that listens on a free port of loopback."""
    command = [sys.executable, "-m", "regard", "serve", *arguments, "--port", "0"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
    assert started.stderr is not None
    lines = []
    try:
        while not any(line.startswith("ready") for line in lines):
            lines.append(started.stderr.readline())
            assert lines[-1], lines
        port = next(int(line.strip().rpartition(":")[2]) for line in lines if line.startswith("listening"))
        yield Process(port, started)
    finally:
        started.kill()
        started.wait(30)
        started.stderr.close()


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
    folder = tmp_path_factory.mktemp("runs")
    (folder / "series.csv").write_text(TABLE)
    keys = (
        *(f"data.train={folder / 'series.csv'}", "data.corpus=", "forecast.horizon=6", "forecast.context=12"),
        *("forecast.samples=11", "model.decoder.dim=8", "train.updates=2", "train.device=cpu", "forecast.windows=1"),
    )
    return load(regard.train("waves", *keys, runs=folder, quiet=True))
