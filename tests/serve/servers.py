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
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np

from regard.predict import Predictor
from regard.serve.address import Address
from regard.serve.app import Service, build
from regard.serve.batcher import LOADING, Lane
from regard.serve.guard import Guard
from regard.serve.limits import Bounds
from regard.serve.metrics import Metrics

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

    def __init__(self, loads: dict[str, Callable[[], Predictor]], bounds: Bounds, token: str, host: str) -> None:
        metrics = Metrics()
        self.lanes = {name: Lane(name, load_run, bounds, metrics) for name, load_run in loads.items()}
        self.service = Service(self.lanes, bounds, metrics)
        self.guard: Guard = build(self.service, Address(host, token=token))
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
