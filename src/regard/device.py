"""Where tensors live."""

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from regard.errors import RecipeError

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # options of glibc's mallopt
PRECISIONS = ("auto", "float32", "bfloat16")  # of matrix products
AT_ONCE = 2  # batches that are worked on side by side; more of them wait for each other in Python

Given = TypeVar("Given")
Made = TypeVar("Made")


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n", 1)[0]
        raise RecipeError(f"the device {name!r} cannot be used ({reason}); choose auto, cpu or cuda") from error


def choose_precision(name: str, device: torch.device) -> str:
    """The precision of that name; `auto` is bfloat16 on a GPU that computes in it, and float32 elsewhere.

    Processors and older GPUs without instructions for bfloat16 emulate it, many times slower than float32.
    """
    if name != "auto":
        return name
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)  # Ampere and later
    return "bfloat16" if fast else "float32"


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


def side_by_side(work: Callable[[Given], Made], batches: Sequence[Given], model: nn.Module) -> Iterator[Made]:
    """What the model makes of each batch, in their order, without gradients.

    On the CPU two batches are worked on at once, each by half of torch's threads: a step of a search is small, and
    threads that share one wait for each other. Whoever looks on is told of one after another, by as many threads each,
    so that the results are the same bits.
    """
    threads, halves = torch.get_num_threads(), torch.get_num_threads() // AT_ONCE
    watched = any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    on_cpu = next(model.parameters()).device.type == "cpu"

    def quietly(batch: Given) -> Made:
        with torch.no_grad():  # which every thread must ask for itself
            return work(batch)

    if not on_cpu or not halves or len(batches) < AT_ONCE:
        yield from map(quietly, batches)
        return
    torch.set_num_threads(halves)
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            yield from map(quietly, batches) if watched else pool.map(quietly, batches)
    finally:
        torch.set_num_threads(threads)
