"""The mixture of `benchmarks/serve.py`: a server as it should be passes, and one that fails in any act does not."""

import asyncio
import os
import runpy
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from servers import golden, process

LOAD = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/serve.py"))
NAMES = {act.name for act in LOAD["acts"]("run")}


def mix(port: int, pid: int) -> Any:
    """The tally of a short mixture."""
    return asyncio.run(LOAD["mixed"](port, "run", pid, 1.0, 0.02))[1]


def mix_with(answer: Callable[[str], bytes]) -> Any:
    """The tally of a mixture with a server that answers each path with these bytes, and then closes."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # of clients that leave
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            sizes = [line.partition(":")[2] for line in head.splitlines() if line.startswith("Content-Length")]
            await reader.readexactly(int(sizes[0]) if sizes else 0)
            writer.write(answer(head.split()[1]))
        writer.close()

    async def mixture() -> Any:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        async with server:
            return (await LOAD["mixed"](server.sockets[0].getsockname()[1], "run", os.getpid(), 0.3, 0.02))[1]

    return asyncio.run(mixture())


def reply(status: int, body: bytes = b"") -> bytes:
    return f"HTTP/1.1 {status} x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_every_act_of_the_mixture_is_answered_as_it_expects() -> None:
    with process(f"run={golden('transformer')}") as server:
        tally = mix(server.port, server.process.pid)
    assert tally.failures == []
    assert {name for name, _ in tally.counts} == NAMES
    assert {outcome for name, outcome in tally.counts if name in ("good", "stream", "intervene", "all maps")} == {"200"}
    assert {outcome[0] for name, outcome in tally.counts if name in ("hostile", "upload")} == {"4"}
    assert all(f"{name}: " in str(tally) for name in NAMES)


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        (reply(500, b'{"error": "x"}'), "500"),
        (reply(503, b'{"error": "x"}'), "503"),
        (b"", "IncompleteReadError"),
        (reply(200, b"12345")[:-2], "IncompleteReadError"),
    ],
    ids=["500", "503", "nothing", "half"],
)
def test_a_server_that_fails_in_every_act_is_found(content: bytes, outcome: str) -> None:
    tally = mix_with(lambda path: content)
    assert {failure.partition(":")[0] for failure in tally.failures} >= NAMES - {"leave"}
    assert {how for _, how in tally.counts} - {"left"} == {outcome}


def test_a_bad_request_that_is_answered_and_an_error_that_nobody_saw_are_found() -> None:
    errors = b'regard_requests_total{path="/v1/predict",status="500"} 1.0\n'
    done = b'event: done\ndata: {}\n\n{"predictions": []}'
    prediction = b'{"predictions": [{"text": "a", "maps": [], "intervened": {}}]}'
    bodies = {"/metrics": errors, "/v1/stream": done}
    tally = mix_with(lambda path: reply(200, bodies.get(path, prediction)))
    assert {failure.partition(":")[0] for failure in tally.failures} == {"hostile", "upload", "metrics"}


def test_a_stream_that_ends_with_an_error_is_found() -> None:
    tally = mix_with(lambda path: reply(200, b"event: token\ndata: {}\n\nevent: error\ndata: {}\n\n"))
    assert any(failure.startswith("stream: 200 is not what it expects") for failure in tally.failures)
