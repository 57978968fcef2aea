"""Requests and replies about blocks of lines as tables, which Ray Data sends to other machines and back.

It imports no torch, so that a process on Ray that encodes texts starts at once and needs little memory.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from regard.data.encoding import Encoder


def to_table(parts: Sequence[bytes]) -> Any:
    """A table of one row: the parts of a request or a reply, which a table of numpy would cut at their last zeros."""
    import pyarrow

    return pyarrow.table({"parts": pyarrow.array([parts], pyarrow.list_(pyarrow.large_binary()))})


def from_table(table: Any) -> Iterator[list[bytes]]:
    """The parts of each row."""
    yield from table["parts"].to_pylist()


def answer(request: Any, setup: tuple[bytes, ...]) -> Any:
    """The work of a task: the reply to a request."""
    (parts,) = from_table(request)
    return to_table(_encoder(setup).reply(parts))


@lru_cache(maxsize=1)
def _encoder(setup: tuple[bytes, ...]) -> Encoder:
    return Encoder.of_setup(setup)
