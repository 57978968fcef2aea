"""Where tensors live."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from regard.errors import RecipeError

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # options of glibc's mallopt


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n", 1)[0]
        raise RecipeError(f"the device {name!r} cannot be used ({reason}); choose auto, cpu or cuda") from error


@contextmanager
def memory_kept() -> Iterator[None]:
    """While in the block, memory that tensors leave on the CPU waits for the next ones.

    Else the C library gives large pieces back to the system and gets others, empty ones, page by page: every update
    anew, a sixth of its time. It is asked where it is glibc; others do as they do.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is None or not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(MMAP_MAX, 0)
    library.mallopt(TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        library.mallopt(MMAP_MAX, 65536)  # glibc's own defaults
        library.mallopt(TRIM_THRESHOLD, 128 * 1024)
        library.malloc_trim(0)
