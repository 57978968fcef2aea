"""A real server on loopback: hostile bodies, clients that go away, SIGTERM, and its memory."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest
from media import picture_file, wav
from servers import TABLE, Process, golden, inputs_of, process

from regard.data.corpora.shapes import render as render_shapes
from regard.data.corpora.tones import render as render_tones
from regard.predict import Predictor
from regard.serve.guard import Guard
from regard.serve.limits import Bounds
from regard.serve.metrics import Metrics
from regard.serve.server import SIGNALS, hear_signals, http_server

ROOT = Path(__file__).parent.parent.parent
HEAD = "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
LONG = {  # two batches of a search, which run in two threads where torch has two; takes most of a minute
    "inputs": ["zqxjkvw" * 9] * 34,
    "beam": 4,
    "search": {"max_ratio": 5, "max_extra": 1000, "length_penalty": 5},
}
ENDLESS = {  # a stream of some 3,000 tokens, which takes many seconds
    "run": "gnmt",
    "inputs": ["the fox " * 30],
    "search": {"max_ratio": 10, "max_extra": 1000},
}
SLOW = {"inputs": ["the fox " * 30], "beam": 10, "search": {"max_extra": 1000}}  # takes about a second


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with process(*(f"{name}={golden(name)}" for name in ("luong", "bahdanau", "gnmt"))) as started:
        yield started


def raw(port: int, content: bytes, seconds: float = 20.0) -> str:
    """Send bytes; returns what comes back until the connection is closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(content)
        parts = []
        try:
            while part := connection.recv(65_536):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts).decode("latin-1")


def ask(server: Process, **content: object) -> object:
    return httpx.post(f"{server.address}/v1/predict", json={"run": "luong", **content}, timeout=60)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_lines_of_the_docs_are_answered(
    pictures: Predictor, recordings: Predictor, forecasts: Predictor, tmp_path: Path
) -> None:
    """Every line of docs/serve.md, in the shell, in a folder with the files that it names."""
    page = (ROOT / "docs/serve.md").read_text("utf-8")
    lines = [line for line in page.splitlines() if line.startswith("curl ")]
    assert len(lines) == 6
    (tmp_path / "photo.jpg").write_bytes(picture_file(render_shapes("shapes:red-circle-8-8-6"), "JPEG"))
    (tmp_path / "speech.wav").write_bytes(wav(*render_tones("tones:7:C4-E4-G4")))
    (tmp_path / "series.csv").write_text(TABLE)
    media = {"captions": pictures, "speech": recordings, "waves": forecasts}
    runs = {"dates": golden("bahdanau"), **{name: predictor.run.path for name, predictor in media.items()}}
    environment = {**os.environ, "no_proxy": "localhost", "REGARD_TOKEN": "unused"}
    answers = []
    with process(*(f"{name}={path}" for name, path in runs.items())) as started:
        for line in lines:
            command = line.replace("localhost:8000", f"localhost:{started.port}").replace(
                "curl ", "curl -sS --fail ", 1
            )
            asked = subprocess.run(
                ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
            )
            assert asked.returncode == 0, (line, asked.stderr)
            answers.append(asked.stdout)
    dates, stream, *others = answers
    assert stream.rstrip().rpartition("\n")[2].startswith('data: {"run": "dates"')
    caption, speech, series, described = map(json.loads, others)
    for name, answer in zip(runs, (json.loads(dates), caption, speech, series), strict=True):
        assert answer["run"] == name
        assert "error" not in answer["predictions"][0]
    assert caption["predictions"][0]["attention"]
    assert [run["name"] for run in described["runs"]] == [*runs]


def test_a_gigabyte_is_refused_when_it_is_announced(server: Process) -> None:
    answer = raw(server.port, f"{HEAD}Content-Length: 1000000000\r\n\r\n".encode())
    assert answer.startswith("HTTP/1.1 413 ")
    assert "the JSON body has 1000000000 bytes, at most 1,000,000 bytes" in answer


def test_a_gigabyte_in_chunks_is_refused_when_the_bound_is_reached(server: Process) -> None:
    before = server.memory()
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        sent = 0
        try:
            while sent < 1_000_000_000:
                connection.sendall(chunk)
                sent += len(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 20_000_000
    assert server.memory() < before + 30
    assert ask(server, inputs=["a"]).status_code == 200


@pytest.mark.parametrize("length", ["-1", "1e3", "x", "9" * 100])
def test_a_content_length_that_is_no_number_is_refused(server: Process, length: str) -> None:
    assert raw(server.port, f"{HEAD}Content-Length: {length}\r\n\r\n".encode()).startswith(("HTTP/1.1 4",))


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 1000,
        b"GET " + b"/a" * 50_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n"
        + b"".join(b"X-%d: y\r\n" % number for number in range(20_000))
        + b"\r\n",
        b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
        HEAD.encode() + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_request_is_refused(server: Process, content: bytes) -> None:
    answer = raw(server.port, content)
    assert answer.startswith("HTTP/1.1 4") or not answer
    assert httpx.get(f"{server.address}/health").status_code == 200


def test_random_bytes_as_bodies_never_get_a_5xx(server: Process) -> None:
    kinds = (
        "application/json",
        "image/png",
        "audio/wav",
        "text/csv",
        "application/octet-stream",
        "multipart/form-data",
    )
    for number in range(60):
        kind, body = kinds[number % len(kinds)], os.urandom(number * 31)
        path = f"{server.address}/v1/{'stream' if number % 2 else 'predict'}?run=luong"
        response = httpx.post(path, content=body, headers={"content-type": kind})
        assert 400 <= response.status_code < 500, response.text
        assert set(response.json()) == {"error"}


QUICK = (
    "import sys; from regard.serve import address, limits, server; "
    "server.serve({'luong': sys.argv[1]}, address.Address(port=0), "
    "limits.Bounds(body_seconds=0.5, header_seconds=0.5, drain=0.3), lambda line: print(line, flush=True))"
)


def test_slow_bodies_slow_headers_and_slow_drains_are_ended() -> None:
    started = subprocess.Popen([sys.executable, "-c", QUICK, str(golden("luong"))], stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        port = int(started.stdout.readline().strip().rpartition(":")[2])
        assert started.stdout.readline().startswith("ready")
        began = time.monotonic()
        answer = raw(port, f"{HEAD}Content-Length: 100\r\n\r\n{{".encode())
        assert answer.startswith("HTTP/1.1 408 ")
        assert "did not arrive within 0.5 seconds" in answer
        assert raw(port, b"POST /v1/pre") == ""
        assert raw(port, b"") == ""
        assert time.monotonic() - began < 10
        body = json.dumps({**SLOW, "beam": 16, "n_best": 16})
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            time.sleep(0.3)
            started.send_signal(signal.SIGTERM)
            assert started.wait(20) == 0
    finally:
        started.kill()
        started.wait(20)
        started.stdout.close()


def test_a_large_answer_is_held_back_while_its_client_does_not_read_and_then_given_up() -> None:
    """One client reads all of it; the other stops after its head, and gets less than all when it reads on too late."""
    content = os.urandom(1_000_000) * 20  # more than the system holds of it for the server

    async def answer(scope: object, receive: object, send: Callable[[object], Awaitable[None]]) -> None:
        length = (b"content-length", str(len(content)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": content})

    @contextlib.asynccontextmanager
    async def visit(port: int) -> AsyncIterator[asyncio.StreamReader]:
        """A connection that has read the head of the answer; the system holds little of the rest for it."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.connect(("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            yield reader
        finally:
            writer.close()

    async def serve() -> None:
        bounds = Bounds(deadline=1.0)
        guard = Guard(answer, Metrics(), bounds, token="", hosts=None, paths=set())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server, port = http_server(guard, bounds), listener.getsockname()[1]
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                async with asyncio.timeout(60), visit(port) as reader:
                    assert await reader.read(-1) == content
                async with asyncio.timeout(60), visit(port) as reader:
                    await asyncio.sleep(0.3)
                    assert guard.in_flight == 1
                    while guard.in_flight:
                        await asyncio.sleep(0.02)
                    assert len(await reader.read(-1)) < len(content)
            finally:
                server.should_exit = True
                await serving

    asyncio.run(serve())


def test_the_work_of_clients_that_go_away_is_not_done(server: Process) -> None:
    """The queue is filled with slow work by clients that are gone at once; then a request is answered soon."""
    before = server.metric("regard_dropped_total")

    async def leave() -> None:
        body = json.dumps({"run": "luong", **SLOW}).encode()
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        for number, (_, writer) in enumerate(opened):
            own = body.replace(b'"beam": 10', b'"beam": %d' % (number % 10 + 3))  # not to be joined
            writer.write(f"{HEAD}Content-Length: {len(own)}\r\n\r\n".encode() + own)
            await writer.drain()
        await asyncio.sleep(0.3)
        for _, writer in opened:
            writer.transport.abort()

    asyncio.run(leave())
    assert ask(server, inputs=["a"]).status_code == 200
    wait_until(lambda: not server.metric("regard_queue_inputs"))
    assert server.metric("regard_dropped_total") - before >= 10
    assert server.metric("regard_requests_in_flight") == 1  # that of the metrics


FOLLOWING = """
import sys, httpx
headers = {"content-type": "application/json"}
with httpx.stream("POST", sys.argv[1], content=sys.argv[2], headers=headers, timeout=60) as response:
    for line in response.iter_lines():
        print(line, flush=True)
"""


def test_a_killed_client_leaves_no_work_behind(server: Process) -> None:
    """Two clients are killed while they read streams, of which each would go on for many seconds."""
    before = server.metric("regard_dropped_total")
    for number in (1, 2):
        command = [sys.executable, "-c", FOLLOWING, f"{server.address}/v1/stream", json.dumps(ENDLESS)]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert client.stdout is not None
        assert client.stdout.readline() == "event: token\n"
        assert server.metric("regard_requests_in_flight") == 2  # it, and that of the metrics
        assert server.metric("regard_dropped_total") == before + number - 1
        client.kill()
        client.wait(10)
        client.stdout.close()
        wait_until(lambda number=number: server.metric("regard_dropped_total") == before + number)
    wait_until(lambda: server.metric("regard_requests_in_flight") == 1)
    assert ask(server, run="gnmt", inputs=["a"]).status_code == 200


def test_batches_in_two_threads_end_when_their_client_is_gone_and_when_the_server_is_stopped() -> None:
    body = json.dumps(LONG).encode()
    content = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body
    arguments = (f"bahdanau={golden('bahdanau')}", "--drain", "1")
    with process(*arguments, OMP_NUM_THREADS="2") as server:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                connection.sendall(content)
                wait_until(lambda: server.metric("regard_requests_in_flight") == 2)  # it, and that of the metrics
                time.sleep(0.5)  # until the search has begun
        began = time.monotonic()
        assert httpx.post(f"{server.address}/v1/predict", json={"inputs": ["a"]}, timeout=60).status_code == 200
        assert time.monotonic() - began < 15
        assert server.metric("regard_dropped_total") == 2
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(content)
            wait_until(lambda: server.metric("regard_requests_in_flight") == 2)
            time.sleep(0.5)
            began = time.monotonic()
            assert server.terminate() == 0
            assert time.monotonic() - began < 15


def test_requests_of_a_server_that_was_held_up_are_forgotten_when_their_clients_are_gone(server: Process) -> None:
    """More clients come and go while the server does not run than it takes on at once."""
    body = json.dumps({"run": "luong", "inputs": ["a b"]}).encode()
    content = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body
    server.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(1_200):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
                connection.sendall(content)
    finally:
        server.process.send_signal(signal.SIGCONT)
    wait_until(lambda: httpx.get(f"{server.address}/metrics", timeout=60).status_code == 200)
    wait_until(lambda: server.metric("regard_requests_in_flight") == 1 and not server.metric("regard_queue_inputs"))
    assert ask(server, inputs=["a"]).status_code == 200


def test_a_signal_is_heard_while_many_requests_end() -> None:
    """The pipe that wakes the loop is full: asyncio's own handlers would lose the signal."""

    async def hear() -> int:
        signals = hear_signals()
        for _ in range(5_000):
            asyncio.get_running_loop().call_soon_threadsafe(int)
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(signals.get(), 20)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        assert asyncio.run(hear()) == signal.SIGTERM
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_memory_comes_back(server: Process) -> None:
    """Bodies or answers that were kept would be 40 MB and more; the warm-up has each number of outputs once."""
    texts = inputs_of("bahdanau") * 16
    bad = {"run": "bahdanau", "inputs": ["x" * 900_000]}

    async def load(rounds: int) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            for number in range(rounds):
                content = {"run": "bahdanau", "inputs": texts, "maps": True, "n_best": 1 + number % 5}
                asked = [
                    client.post(f"{server.address}/v1/predict", json=each) for each in (content, content, bad, bad)
                ]
                assert [response.status_code for response in await asyncio.gather(*asked)] == [200, 200, 413, 413]

    def after(rounds: int) -> float:
        asyncio.run(load(rounds))
        time.sleep(0.5)
        return server.memory()

    before = after(5)
    assert after(35) <= 1.1 * before


def test_the_client_of_the_docs_runs(server: Process, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/serve.md").read_text("utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert len([line for line in block.splitlines() if line.strip()]) == 8
    exec(block.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}").replace('"dates"', '"luong"'), {})
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_health_check_of_the_container_asks_whether_the_server_is_ready(server: Process) -> None:
    (content,) = re.findall(r"^HEALTHCHECK CMD (.*)$", (ROOT / "Dockerfile").read_text("utf-8"), re.M)
    python, option, code = json.loads(content)
    assert (python, option) == ("python", "-c")
    for port, is_healthy in ((server.port, True), (free_port(), False)):
        check = [sys.executable, option, code.replace("8000", str(port))]
        asked = subprocess.run(check, capture_output=True, timeout=60)
        assert (asked.returncode == 0) is is_healthy, asked.stderr


def free_port() -> int:
    """A port of loopback on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "regard", "serve", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})


def test_mistakes_on_the_command_line_get_a_sentence(tmp_path: Path, server: Process) -> None:
    run = str(golden("luong"))
    for arguments, code, sentence in (
        ((run, "--host", "0.0.0.0"), 2, "can be reached from other machines, so a token is needed; set one with"),
        ((run, run), 2, "two runs are named finished; give one another name"),
        ((str(tmp_path),), 2, str(tmp_path)),
        ((run, "--port", str(server.port)), 4, "cannot be listened on"),
    ):
        ended = command(*arguments)
        assert ended.returncode == code, ended.stderr
        assert sentence in ended.stderr
        assert "Traceback" not in ended.stderr


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition; an error if it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def test_a_token_is_needed_and_not_shown_and_sigterm_lets_accepted_requests_be_answered() -> None:
    """The requests wait for a long one while the signal comes; then the client of that one goes away."""
    good = {"authorization": "Bearer s3cret"}

    def posted(question: dict[str, object]) -> socket.socket:
        body = json.dumps(question).encode()
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        connection.sendall(f"{HEAD}Authorization: Bearer s3cret\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        return connection

    def wait_for(count: int) -> None:
        line = f"regard_requests_in_flight {count}"
        wait_until(lambda: line in httpx.get(f"{server.address}/metrics", headers=good, timeout=60).text)

    with (
        process(f"bahdanau={golden('bahdanau')}", "--drain", "60", REGARD_TOKEN="s3cret") as server,
        contextlib.ExitStack() as stack,
    ):
        assert httpx.post(f"{server.address}/v1/predict", json={"inputs": ["a"]}).status_code == 401
        long = posted(LONG)
        wait_for(2)  # it, and that of the metrics
        clients = [posted({"inputs": ["a b"]}) for _ in range(8)]
        wait_for(10)
        server.process.send_signal(signal.SIGTERM)
        long.close()
        answers = [client.makefile("rb").readline() for client in clients]
        assert server.process.wait(60) == 0
        assert answers == [b"HTTP/1.1 200 OK\r\n"] * 8
        assert server.process.stderr is not None
        assert "s3cret" not in server.process.stderr.read()


def test_at_last_ctrl_c_ends_with_0(server: Process) -> None:
    """The last test, since it ends the server of all others."""
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(30) == 0
