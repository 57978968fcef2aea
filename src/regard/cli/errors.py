"""Turns any exception of a command into one sentence and an exit code, and keeps broken streams from doing harm."""

import io
import os
import signal
import sys

from regard import __version__
from regard.errors import (
    DataError,
    NotFiniteError,
    RecipeError,
    RegardError,
    ResourceError,
    StoppedError,
    StorageError,
    UnexpectedError,
    shown,
)
from regard.visible import guard_streams

STANDARD = (0, 1, 2)  # the descriptors of stdin, stdout and stderr


def prepare_streams() -> None:
    """Print in UTF-8, visibly in a terminal; drop messages if stderr is closed, StorageError if stdout is closed."""
    handle = os.open(os.devnull, os.O_RDWR)
    while handle in STANDARD:  # that of a closed stream, which would otherwise be given to the next file that is opened
        handle = os.open(os.devnull, os.O_RDWR)
    os.close(handle)
    sys.stderr = sys.stderr or io.StringIO()  # Python sets a closed stream to None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    guard_streams()
    if sys.stdout is None:
        raise StorageError("stdout is closed, so that nothing can be printed; send it to a file, or to /dev/null")


def finish_streams() -> None:
    """Write what is left in the buffers of stdout and stderr.

    If that fails, it is sent nowhere: Python would try again at its exit, and change the exit code.
    """
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def explain(error: BaseException, doing: str) -> RegardError:
    """The error with a sentence and an exit code; if it is unexpected, its details are written to the cache folder.

    `doing` is the command, such as "regard train".
    """
    if isinstance(error, RegardError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return StoppedError(signal.SIGINT, f"{doing} is not done")
    if isinstance(error, OSError):
        what = "a file or stream" if error.filename is None else shown(error.filename)
        return StorageError(f"{doing} cannot read or write {what}: {error.strerror or error}")
    if _is_out_of_memory(error):
        return ResourceError(f"there is not enough memory for {doing}; give it less to do, or a larger machine")
    number = os.urandom(4).hex()
    return UnexpectedError(doing, type(error).__name__, number, _write_details(error, number))


def is_reported_elsewhere(error: RegardError) -> bool:
    """Whether another one of several processes of a training, which torchrun has started, prints this error.

    Before the processes know each other, the first one of each machine prints: the others have the same files.
    """
    if error.is_reported is not None:
        return error.is_reported
    if not all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return False
    if isinstance(error, StoppedError | NotFiniteError):  # of all processes
        return os.environ["RANK"] != "0"
    return isinstance(error, RecipeError | DataError) and os.environ.get("LOCAL_RANK", os.environ["RANK"]) != "0"


def _is_out_of_memory(error: BaseException) -> bool:
    if "torch" not in sys.modules:  # its import takes seconds
        return isinstance(error, MemoryError)
    from regard.device import out_of_memory

    return out_of_memory(error)


def _write_details(error: BaseException, number: str) -> str:
    """Write the traceback to a file of the cache folder; returns where it is, or why it could not be written."""
    import platform
    import traceback

    from regard import storage

    made_with = f"regard {__version__}, Python {platform.python_version()}, {platform.platform()}"
    lines = [made_with, f"arguments: {sys.argv[1:]!r}", "", *traceback.format_exception(error)]
    content = "\n".join(lines).encode(errors="backslashreplace")
    try:
        return f"the details are in {storage.write_to_cache('errors', f'{number}.txt', content)}"
    except StorageError as problem:
        return f"the details could not be kept ({problem})"
