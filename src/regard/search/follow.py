"""Lets a caller follow a search while it runs, or end it: a function is called at each step, and may raise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from regard.search.hypotheses import Beams

_follower: ContextVar[Callable[[Beams], None] | None] = ContextVar("_follower", default=None)
_check: ContextVar[Callable[[], None] | None] = ContextVar("_check", default=None)


@contextmanager
def following(tell: Callable[[Beams], None]) -> Iterator[None]:
    """In the block, searches call `tell` with their live hypotheses, each time they have a new word.

    The last row of a hypothesis's map is that of its last word. A hypothesis that ends now is not live any more. What
    `tell` raises ends the search. Searches of several batches may run in two threads (`map_in_parallel`), which then
    call `tell` at the same time.
    """
    token = _follower.set(tell)
    try:
        yield
    finally:
        _follower.reset(token)


def report(beams: Beams) -> None:
    """Call the functions that follow and check the searches of this context; searches do so at every step."""
    tell = _follower.get()
    if tell is not None:
        tell(beams)
    check_step()


@contextmanager
def checking(check: Callable[[], None]) -> Iterator[None]:
    """In the block, searches and forecasts call `check` between two steps; what it raises ends them.

    As in `following`, two threads may call it at the same time.
    """
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


def check_step() -> None:
    """Call the function that checks the steps of this context, if there is one; forecasts do so at every step."""
    check = _check.get()
    if check is not None:
        check()
