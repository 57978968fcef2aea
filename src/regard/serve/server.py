"""Runs the server: loads the runs, listens, and on SIGTERM answers what it has accepted before it ends."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from regard.errors import StoppedError, StorageError, shown
from regard.predict import load
from regard.serve.address import Address, check
from regard.serve.app import Service, build
from regard.serve.batcher import STOPPED, Lane
from regard.serve.guard import Guard
from regard.serve.limits import Bounds
from regard.serve.metrics import Metrics

if TYPE_CHECKING:
    from uvicorn import Config

SIGNALS = (signal.SIGTERM, signal.SIGINT)
TICK = 0.02  # seconds between two looks at what is left to do
BACKLOG = 2048  # connections that wait to be accepted
IDLE = 15  # seconds after which a connection without requests is closed
HEADER_BYTES = 32_768  # of the first line and the headers of a request


def serve(runs: Mapping[str, str], address: Address, bounds: Bounds, say: Callable[[str], None]) -> None:
    """Serve runs by name until SIGTERM or SIGINT; `say` gets lines for people."""
    check(address)
    metrics = Metrics()
    lanes = {name: Lane(name, partial(load, path), bounds, metrics) for name, path in runs.items()}
    service = Service(lanes, bounds, metrics)
    guard = build(service, address)
    with _listening(address) as listener:
        port = listener.getsockname()[1]
        say(f"listening on http://{f'[{address.host}]' if ':' in address.host else address.host}:{port}")
        asyncio.run(_serve(service, guard, listener, say))


@contextmanager
def _listening(address: Address) -> Iterator[socket.socket]:
    """The socket that requests come to."""
    try:
        family, *_, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(where[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        how = "choose another --port or --host"
        raise StorageError(
            f"the address {shown(address.host)} port {address.port} cannot be listened on "
            f"({error.strerror or error}); {how}"
        ) from error
    with listener:
        yield listener


async def _serve(service: Service, guard: Guard, listener: socket.socket, say: Callable[[str], None]) -> None:
    """Answer requests until a signal comes, then those that were accepted, within the bound; then end."""
    server = http_server(guard, service.bounds)
    signals = hear_signals()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    lanes = [*service.lanes.values()]
    for lane in lanes:
        lane.start()
    try:
        await _until_stopped(service, signals, say)
        say("stopping: accepted requests are answered first; a second signal stops at once")
        guard.draining = True
        await _drain(service, guard, signals)
    finally:
        for lane in lanes:
            lane.stop()
        server.should_exit = True
        await serving
        for lane in lanes:
            await asyncio.to_thread(lane.join, 2.0)
        service.pool.shutdown(wait=False, cancel_futures=True)
    say("stopped")


def hear_signals() -> "asyncio.Queue[int]":
    """A queue that gets the number of each signal that asks the server to stop.

    `add_signal_handler` of asyncio would lose a signal that comes while the pipe that wakes the loop is full, as it is
    if many requests end at once.
    """
    loop, signals = asyncio.get_running_loop(), asyncio.Queue[int]()

    def hear(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(signals.put_nowait, number)

    for number in SIGNALS:
        signal.signal(number, hear)
    return signals


async def _until_stopped(service: Service, signals: "asyncio.Queue[int]", say: Callable[[str], None]) -> None:
    """Wait for a signal; raises the error of a run that cannot be loaded."""
    while not service.is_ready and signals.empty():
        for lane in service.lanes.values():
            if lane.problem is not None:
                raise lane.problem
        await asyncio.sleep(TICK)
    if service.is_ready:
        say(f"ready: {', '.join(service.lanes)}")
    await signals.get()


async def _drain(service: Service, guard: Guard, signals: "asyncio.Queue[int]") -> None:
    """Wait until all accepted requests are answered, or the time for that is over; a second signal ends it."""
    end = asyncio.get_running_loop().time() + service.bounds.drain
    while asyncio.get_running_loop().time() < end:
        if not signals.empty():
            raise StoppedError(signals.get_nowait(), "requests that were being answered are dropped")
        if not guard.in_flight and all(lane.is_idle or lane.state == STOPPED for lane in service.lanes.values()):
            return
        await asyncio.sleep(TICK)


def http_server(guard: Guard, bounds: Bounds) -> Any:
    """The HTTP server, which leaves signals to `_serve`."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    return Server(_config(guard, bounds))


def _config(guard: Guard, bounds: Bounds) -> "Config":
    """The settings of the HTTP server: no access log, no names of software, and times for headers and idling."""
    from uvicorn import Config

    return Config(
        guard,
        http=_protocol(bounds.header_seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=HEADER_BYTES,
    )


def _protocol(seconds: float) -> type[asyncio.Protocol]:
    """HTTP/1.1 by h11, which closes a connection whose headers do not arrive in time."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class TimedProtocol(H11Protocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.timer = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            is_waiting = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
            if self.timer is not None and not is_waiting:
                self.timer.cancel()
                self.timer = None
            elif self.timer is None and is_waiting:
                self.timer = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self.timer is not None:
                self.timer.cancel()

    return TimedProtocol
