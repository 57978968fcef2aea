"""What stands before every request: who may ask, how many at once, and the security headers of every response."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, MutableMapping
from typing import Any

from regard.serve.answers import to_json
from regard.serve.limits import Bounds, RefusedError
from regard.serve.metrics import Metrics

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
OPEN = ("/health", "/ready")  # what anybody may ask: they tell nothing but that the server is there
PROTECTED = ("/v1/", "/metrics")  # what needs the token; the page itself is public, and asks for it
PART = 65_536  # bytes of a body that are sent at once; the next are sent when the client has read most of them
UNKNOWN = "other"  # the path of requests to no endpoint, in metrics


class Guard:
    """The application around the endpoints: checks host, origin and token, and adds headers to every response."""

    def __init__(
        self, app: App, metrics: Metrics, bounds: Bounds, *, token: str, hosts: Collection[str] | None, paths: set[str]
    ) -> None:
        self.app, self.metrics, self.bounds = app, metrics, bounds
        self.in_flight = 0
        self.draining = False
        self._token, self._hosts, self._paths = token.encode(), hosts, paths  # hosts: None for any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it before its body is read."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, is_read = time.perf_counter(), 500, scope["method"] in ("GET", "HEAD")

        async def receiving() -> Message:
            nonlocal is_read
            message = await receive()
            is_read |= message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                there = {name for name, _ in message["headers"]}
                added = [
                    (name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in there
                ]
                if self.draining or not is_read:  # the rest of a body that is refused is not waited for
                    added.append((b"connection", b"close"))
                message = {**message, "headers": [*message["headers"], *added]}
            for part in parts_of(message):
                async with asyncio.timeout(self.bounds.deadline):  # of a client that does not read
                    await send(part)

        self.in_flight += 1
        try:
            self._check(scope)
            await self.app(scope, receiving, sending)
        except RefusedError as refused:
            await refuse(refused, sending)
        except TimeoutError:  # the server closes the connection, since the response is not whole
            return
        finally:
            self.in_flight -= 1
            path = scope["path"] if scope["path"] in self._paths else UNKNOWN
            self.metrics.request(path, status, time.perf_counter() - began)

    def _check(self, scope: Scope) -> None:
        """Refuse a request from another site, without the token, or beyond what the server takes on."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", "").lower(), headers.get(b"origin")
        if self._hosts is not None and host.rpartition(":")[0] not in self._hosts and host not in self._hosts:
            raise RefusedError(
                421, "this server answers only requests to localhost; start it with --host to change that"
            )
        if origin is not None and origin.lower().partition("://")[2] != host:
            raise RefusedError(403, "requests from the pages of other sites are not answered")
        path = scope["path"]
        if path.startswith(PROTECTED) and self._token and not self._is_token(headers.get(b"authorization", "")):
            raise RefusedError(401, "the token is missing or wrong; send the header Authorization: Bearer TOKEN")
        if path in OPEN:
            return
        if self.draining:
            raise RefusedError(503, "the server is stopping; try again later", 5)
        if self.in_flight > self.bounds.requests:
            raise RefusedError(503, f"{self.bounds.requests:,} requests are being answered; try again later", 1)

    def _is_token(self, given: str) -> bool:
        """Whether a header holds the token; in a time that does not depend on how much of it is right."""
        kind, _, token = given.partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode("latin-1"), self._token)


def parts_of(message: Message) -> Iterator[Message]:
    """The messages that are sent for one: several for a large body, so that flow control can hold back its rest."""
    body, more = message.get("body", b""), message.get("more_body", False)
    if len(body) <= PART:
        yield message
        return
    for start in range(0, len(body), PART):
        end = start + PART
        yield {**message, "body": body[start:end], "more_body": more or end < len(body)}


async def refuse(refused: RefusedError, send: Send) -> None:
    """Send the response of a request that is refused."""
    body = to_json({"error": str(refused)})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.retry_after is not None:
        headers.append((b"retry-after", str(refused.retry_after).encode()))
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
