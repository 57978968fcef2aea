"""Load on `regard serve`: one client against many, more than it can take, and a long mixture; only on 127.0.0.1.

`python benchmarks/serve.py RUN` starts a server for the run, sends requests to it, and prints:

- throughput and times of 1 client and of `--clients`, each for `--seconds`, their ratio, and the memory then;
- what clients get that ask for `--over` times as much as the queue holds: only 200, 429 and 503 with Retry-After;
- with `--mixed SECONDS`, the memory of the server during a mixture of good, hostile and cancelled requests.

A failure, such as an unexpected status or memory that grows by more than a tenth, ends it with exit code 1.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")
LONGEST_START = 120.0  # seconds
ALLOWED = {200, 429, 503}
MOST_GROWTH = 1.1  # memory after a load, as a multiple of that before


class Reply(NamedTuple):
    """The status of a response, its headers and its body."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """A connection that is kept open; the least that HTTP/1.1 needs, so that the client takes little of the cores."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes, kind: str = "application/json") -> Reply:
        """Send a request and read the response."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        start = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in start[1:])}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        if headers.get("connection") == "close":
            await self.close()
        return Reply(int(start[0].split()[1]), headers, content)

    async def close(self) -> None:
        """Close it; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Figures(NamedTuple):
    """What a number of clients got."""

    clients: int
    seconds: float
    times: list[float]
    statuses: Counter[int]

    def __str__(self) -> str:
        good = self.statuses[200]
        ordered = sorted(self.times) or [float("nan")]
        middle, late = statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))]
        return (
            f"{self.clients:>4} clients: {good / self.seconds:8.1f} answers a second, median {1000 * middle:6.1f} ms, "
            f"99 % within {1000 * late:6.1f} ms, statuses {dict(sorted(self.statuses.items()))}"
        )


def question(generator: random.Random, run: str, **settings: object) -> bytes:
    """A request with a date."""
    text = f"{generator.randint(1, 28)} {generator.choice(MONTHS)} {generator.randint(1900, 2099)}"
    return json.dumps({"run": run, "inputs": [text], **settings}).encode()


async def load(port: int, run: str, clients: int, seconds: float, inputs: int = 1) -> Figures:
    """Let clients ask one question after another for some time."""
    end, times, statuses = time.perf_counter() + seconds, [], Counter[int]()

    async def ask(number: int) -> None:
        connection, generator = Connection(port), random.Random(number)
        while time.perf_counter() < end:
            body = json.loads(question(generator, run))
            body["inputs"] *= inputs
            began = time.perf_counter()
            reply = await connection.post("/v1/predict", json.dumps(body).encode())
            times.append(time.perf_counter() - began)
            statuses[reply.status] += 1
            if reply.status != 200:
                if "retry-after" not in reply.headers:
                    statuses[-reply.status] += 1  # a negative status: Retry-After is missing
                await asyncio.sleep(0.02)
        await connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(ask(number) for number in range(clients)))
    return Figures(clients, time.perf_counter() - began, times, statuses)


async def mixed(port: int, run: str, pid: int, seconds: float, pause: float) -> list[float]:
    """A mixture of requests for some time; returns the memory of the server in MB, about every tenth of it.

    `pause` is the time in seconds between two acts of a client.
    """
    end, samples = time.perf_counter() + seconds, []

    async def repeat(number: int, act: Callable[[Connection, random.Random], Awaitable[None]]) -> None:
        generator = random.Random(number)
        while time.perf_counter() < end:
            connection = Connection(port)
            try:
                await act(connection, generator)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                await connection.close()
            await asyncio.sleep(pause)

    async def measure() -> None:
        while time.perf_counter() < end:
            await asyncio.sleep(seconds / 12)
            samples.append(memory(pid))

    async with asyncio.TaskGroup() as group:
        group.create_task(measure())
        for number, act in enumerate(acts(run) * 3):
            group.create_task(repeat(number, act))
    return samples


def acts(run: str) -> list[Callable[[Connection, random.Random], Awaitable[None]]]:
    """The kinds of requests in the mixture."""

    async def good(connection: Connection, generator: random.Random) -> None:
        for _ in range(20):
            beam = generator.choice([1, 1, 1, 4])
            await connection.post("/v1/predict", question(generator, run, maps=generator.random() < 0.3, beam=beam))

    async def stopped(connection: Connection, generator: random.Random) -> None:
        task = asyncio.create_task(connection.post("/v1/predict", question(generator, run, n_best=8)))
        await asyncio.sleep(generator.random() * 0.02)
        task.cancel()

    async def hostile(connection: Connection, generator: random.Random) -> None:
        bodies = [b"[" * 100_000, b"{" + b'"a":' * 50_000, json.dumps({"inputs": ["x" * 50_000]}).encode()]
        reply = await connection.post("/v1/predict", generator.choice([*bodies, os.urandom(300_000)]))
        assert 400 <= reply.status < 500 or reply.status == 503, reply  # 503: too many requests at once

    return [good, good, good, stopped, hostile]


def cpu_seconds(pid: int) -> float:
    """The time that a process has computed, which hardly depends on what else the machine does."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> float:
    """The resident memory of a process in MB."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


@asynccontextmanager
async def server(run: str, *options: str) -> AsyncIterator[tuple[int, int]]:
    """The port and the number of the process of a server; it must end with exit code 0 after SIGTERM."""
    command = [sys.executable, "-m", "regard", "serve", f"run={run}", "--port", "0", *options]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    lines = []
    async with asyncio.timeout(LONGEST_START):
        while not lines or not lines[-1].startswith("ready"):
            lines.append((await process.stderr.readline()).decode())
            assert lines[-1], f"the server did not start: {''.join(lines)}"
    port = int(next(line for line in lines if line.startswith("listening")).strip().rpartition(":")[2])
    rest = asyncio.create_task(process.stderr.read())  # a full pipe would block the server
    try:
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 60)
        print(f"     SIGTERM: exit code {code}; {len((await rest).splitlines())} lines of messages")
        assert code == 0


async def measure(arguments: argparse.Namespace) -> bool:
    """Print all figures; returns whether they are as they should be."""
    print(f"run {arguments.run}, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    async with server(arguments.run) as (port, pid):
        await load(port, "run", 4, 1.0)  # warms up
        before = memory(pid)
        times = [cpu_seconds(pid)]
        one = await load(port, "run", 1, arguments.seconds)
        times.append(cpu_seconds(pid))
        many = await load(port, "run", arguments.clients, arguments.seconds)
        times.append(cpu_seconds(pid))
        print(one, many, sep="\n")
        each = [1000 * (times[place + 1] - times[place]) / own.statuses[200] for place, own in enumerate((one, many))]
        print(
            f"     the server computes {each[0]:.2f} ms and {each[1]:.2f} ms for an answer, {each[0] / each[1]:.1f} : 1"
        )
        ratio = (many.statuses[200] / many.seconds) / (one.statuses[200] / one.seconds)
        await asyncio.sleep(1)
        after = memory(pid)
        print(f"     ratio {ratio:.1f}, memory {before:.0f} MB before, {after:.0f} MB after")
        good = set(many.statuses) == {200} and ratio >= 3 and after <= MOST_GROWTH * before
    async with server(arguments.run, "--queue", str(arguments.clients)) as (port, _):
        over = await load(port, "run", arguments.over * arguments.clients, arguments.seconds)
        print(f"{over}, with a queue of {arguments.clients}")
        good &= set(over.statuses) <= ALLOWED
    if arguments.mixed:
        async with server(arguments.run) as (port, pid):
            await mixed(port, "run", pid, min(10.0, arguments.mixed), arguments.pause)  # warms up
            began = cpu_seconds(pid)
            samples = await mixed(port, "run", pid, arguments.mixed, arguments.pause)
            told = f"the server computed {cpu_seconds(pid) - began:.0f} s"
            memories = ", ".join(f"{each:.0f}" for each in samples)
            print(f"     mixed load for {arguments.mixed:g} s, {told}, MB: {memories}")
            third = len(samples) // 3
            good &= statistics.mean(samples[-third:]) <= MOST_GROWTH * statistics.mean(samples[:third])
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--over", type=int, default=4)
    parser.add_argument("--mixed", type=float, default=0)
    parser.add_argument("--pause", type=float, default=0.01, help="seconds between two acts of a client of the mixture")
    good = asyncio.run(measure(parser.parse_args()))
    print("as promised" if good else "NOT as promised")
    sys.exit(not good)


if __name__ == "__main__":
    main()
