"""Reads the bodies of requests within bounds: of size while they arrive, of time, and of all that are held at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from regard.serve.limits import Bounds, RefusedError, too_large

if TYPE_CHECKING:
    from fastapi import Request


class Bodies:
    """Counts the bytes of all bodies that are held, so that many large ones at once cannot fill the memory."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.held = 0

    @asynccontextmanager
    async def reading(self, request: "Request", most: int, what: str) -> AsyncIterator[bytes]:
        """In the block, the body of a request of at most so many bytes; it counts as held until the block is left."""
        check_announced(request, most, what)
        parts: list[bytes] = []
        size = 0
        try:
            try:
                async with asyncio.timeout(self.bounds.body_seconds):
                    async for part in request.stream():
                        size += len(part)
                        self.held += len(part)
                        self._check(size, most, what)
                        parts.append(part)
            except TimeoutError as error:
                slow = f"the body did not arrive within {self.bounds.body_seconds:g} seconds; send it faster, or less"
                raise RefusedError(408, slow) from error
            yield b"".join(parts)
        finally:
            self.held -= size

    def _check(self, size: int, most: int, what: str) -> None:
        """Refuse a body that is too large by now, or that does not fit beside all others."""
        if size > most:
            raise _too_large(what, f"more than {most:,}", most)
        if self.held > self.bounds.held_bytes:
            raise RefusedError(429, "too many large bodies arrive at the same time; try again", 1)


def check_announced(request: "Request", most: int, what: str) -> None:
    """Refuse a body whose Content-Length is no number or larger than the bound, before any of it is read."""
    announced = request.headers.get("content-length")
    if announced is None:
        return
    if not (announced.isascii() and announced.isdigit()):
        raise RefusedError(400, "the header Content-Length is not a number of bytes")
    if len(announced) > 18 or int(announced) > most:
        raise _too_large(what, announced[:30], most)


def _too_large(what: str, found: str, most: int) -> RefusedError:
    return too_large(f"{what} has", f"{found} bytes", f"{most:,} bytes", "send less at a time")
