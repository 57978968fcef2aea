"""Load on `regard serve`: one client against many, more than it can take, and a long mixture; only on 127.0.0.1.

`python benchmarks/serve.py RUN` starts a server for the run, sends requests to it, and prints:

- throughput and times of 1 client and of `--clients`, each for `--seconds`, their ratio, and the memory then;
- what clients get that ask for `--over` times as much as the queue holds: only 200, 429 and 503 with Retry-After;
- with `--mixed SECONDS`, the memory of the server during a mixture of acts: good requests, streams, interventions, all
  maps, hostile requests, uploads that the run does not read, and clients that leave; and how often each ended how.

Anything but what each act expects, such as another status, a broken connection or an answer that is not whole, an error
of the server that no client saw, or memory that grows by more than a tenth, ends it with exit code 1.
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
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")
LONGEST_START = 120.0  # seconds
LONGEST_ANSWER = 60.0  # seconds that a client of the mixture waits
LISTED = 5  # failures that are printed
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
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return await self.send(head.encode() + body)

    async def get(self, path: str) -> Reply:
        """Get a resource."""
        return await self.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    async def send(self, request: bytes) -> Reply:
        """Send the bytes of a request and read the response."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        writer.write(request)
        await writer.drain()
        start = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in start[1:])}
        is_chunked = headers.get("transfer-encoding") == "chunked"
        content = await (
            read_chunks(reader) if is_chunked else reader.readexactly(int(headers.get("content-length", 0)))
        )
        if headers.get("connection") == "close":
            await self.close()
        return Reply(int(start[0].split()[1]), headers, content)

    async def close(self) -> None:
        """Close it; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A body in chunks, each after its size in hexadecimal digits; an empty one is the last."""
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")
    return b"".join(parts)


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


class Request(NamedTuple):
    """A request of the mixture."""

    body: bytes
    path: str = "/v1/predict"
    kind: str = "application/json"


class Act(NamedTuple):
    """What a client of the mixture does with one connection, and which replies it expects."""

    name: str
    request: Callable[[random.Random], Request]
    is_expected: Callable[[Reply], bool]
    times: int = 1  # requests with one connection
    stays: float = LONGEST_ANSWER  # seconds; with fewer than that, it leaves at a random moment before


@dataclass
class Tally:
    """How the acts of a mixture ended."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, act: str, outcome: str, failure: str = "") -> None:
        """Count an outcome, and note what was wrong with it."""
        self.counts[act, outcome] += 1
        if failure:
            self.failures.append(f"{act}: {outcome} {failure}")

    def missing(self, acts: list[Act]) -> list[str]:
        """The acts without any reply, of those whose clients wait for one."""
        replied = {name for name, outcome in self.counts if outcome.isdigit()}
        return [act.name for act in acts if act.stays == LONGEST_ANSWER and act.name not in replied]

    def __str__(self) -> str:
        names = dict.fromkeys(sorted(name for name, _ in self.counts))
        rows = [
            f"{name}: "
            + ", ".join(f"{count:,} x {how}" for (own, how), count in sorted(self.counts.items()) if own == name)
            for name in names
        ]
        return "; ".join(rows)


async def perform(act: Act, port: int, generator: random.Random, tally: Tally) -> None:
    """Do an act once, with a connection of its own."""
    connection, leaves = Connection(port), act.stays < LONGEST_ANSWER
    try:
        for _ in range(act.times):
            request = act.request(generator)
            async with asyncio.timeout(generator.random() * act.stays if leaves else act.stays):
                reply = await connection.post(request.path, request.body, request.kind)
            wrong = "" if act.is_expected(reply) else f"is not what it expects: {reply.body[:200]!r}"
            tally.add(act.name, str(reply.status), wrong)
    except TimeoutError:
        tally.add(act.name, "left", "" if leaves else f"after {act.stays:g} seconds without an answer")
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        tally.add(act.name, type(error).__name__, "broke the connection")
    finally:
        await connection.close()


async def mixed(port: int, run: str, pid: int, seconds: float, pause: float) -> tuple[list[float], Tally]:
    """A mixture of acts for some time: the memory of the server in MB, about every tenth of it, and how they ended.

    `pause` is the time in seconds between two acts of a client.
    """
    end, samples, tally = time.perf_counter() + seconds, [], Tally()

    async def repeat(number: int, act: Act) -> None:
        generator = random.Random(number)
        while time.perf_counter() < end:
            await perform(act, port, generator, tally)
            await asyncio.sleep(pause)

    async def measure() -> None:
        while time.perf_counter() < end:
            await asyncio.sleep(seconds / 12)
            samples.append(memory(pid))

    chosen = acts(run)
    async with asyncio.TaskGroup() as group:
        group.create_task(measure())
        for number, act in enumerate(chosen * 3):
            group.create_task(repeat(number, act))
    tally.failures += [f"{name}: no reply" for name in tally.missing(chosen)]
    tally.failures += await server_errors(port)
    return samples, tally


async def server_errors(port: int) -> list[str]:
    """The errors of the server in its own metrics: also those that no client waited for."""
    connection = Connection(port)
    try:
        reply = await connection.get("/metrics")
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        return [f"metrics: {type(error).__name__}"]
    finally:
        await connection.close()
    if reply.status != 200:
        return [f"metrics: {reply.status}"]
    pattern = r'^regard_requests_total\{.*status="5\d\d".*$'
    return [f"metrics: {line}" for line in re.findall(pattern, reply.body.decode(), re.MULTILINE)]


def acts(run: str) -> list[Act]:
    """The acts of the mixture; those of good requests are there several times."""

    def good(generator: random.Random) -> Request:
        beam = generator.choice([1, 1, 1, 4])
        return Request(question(generator, run, maps=generator.random() < 0.3, beam=beam))

    def stream(generator: random.Random) -> Request:
        return Request(question(generator, run, maps=generator.random() < 0.3), "/v1/stream")

    def intervene(generator: random.Random) -> Request:
        change = generator.choice(["erase 1", "uniform", "permute seed=1"])
        return Request(question(generator, run, interventions=[change], view=generator.random() < 0.3))

    def all_maps(generator: random.Random) -> Request:
        return Request(question(generator, run, all_maps=True, view=generator.random() < 0.5))

    def leave(generator: random.Random) -> Request:
        if generator.random() < 0.5:
            return Request(question(generator, run), "/v1/stream")
        return Request(question(generator, run, n_best=8))

    def hostile(generator: random.Random) -> Request:
        bodies = [b"[" * 100_000, b"{" + b'"a":' * 50_000, json.dumps({"inputs": ["x" * 50_000]}).encode()]
        return Request(generator.choice([*bodies, os.urandom(300_000)]))

    def upload(generator: random.Random) -> Request:
        return Request(os.urandom(50_000), f"/v1/predict?run={run}", generator.choice(["image/png", "audio/wav"]))

    return [
        *[Act("good", good, answered("text"), times=20)] * 3,
        Act("stream", stream, streamed),
        Act("intervene", intervene, answered("intervened")),
        Act("all maps", all_maps, answered("maps")),
        Act("leave", leave, lambda reply: reply.status == 200, stays=0.02),
        Act("hostile", hostile, refused),
        Act("upload", upload, refused),
    ]


def answered(key: str) -> Callable[[Reply], bool]:
    """Whether a reply is one whole prediction with this key."""

    def is_answer(reply: Reply) -> bool:
        try:
            (prediction,) = json.loads(reply.body)["predictions"]
        except (ValueError, KeyError):
            return False
        return reply.status == 200 and key in prediction

    return is_answer


def streamed(reply: Reply) -> bool:
    """Whether a reply is a whole stream, which ends with the answer and not with an error."""
    names = re.findall(rb"^event: (\w+)$", reply.body, re.MULTILINE)
    return reply.status == 200 and names[-1:] == [b"done"] and set(names[:-1]) <= {b"token"}


def refused(reply: Reply) -> bool:
    """Whether a reply is the refusal of a bad request, with a sentence."""
    return 400 <= reply.status < 500 and reply.status != 429 and b'"error"' in reply.body


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
        good &= set(over.statuses) <= ALLOWED and over.statuses[200] > 0
    if arguments.mixed:
        async with server(arguments.run) as (port, pid):
            _, first = await mixed(port, "run", pid, min(10.0, arguments.mixed), arguments.pause)  # warms up
            began = cpu_seconds(pid)
            samples, tally = await mixed(port, "run", pid, arguments.mixed, arguments.pause)
            told = f"the server computed {cpu_seconds(pid) - began:.0f} s"
            memories = ", ".join(f"{each:.0f}" for each in samples)
            print(f"     mixed load for {arguments.mixed:g} s, {told}, MB: {memories}")
            print(f"     how often each act ended how: {tally}")
            failures = [*first.failures, *tally.failures]
            for failure in failures[:LISTED]:
                print(f"     FAILED {failure}")
            good &= not failures
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
