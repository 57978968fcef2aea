"""Where tensors live."""

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules import module as modules

from regard.errors import RecipeError, ResourceError

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # options of glibc's mallopt
PRECISIONS = ("auto", "float32", "bfloat16")  # of matrix products
AT_ONCE = 2  # batches that are worked on side by side; more of them wait for each other in Python
MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "ALLOC_FAILED")

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
        raise RecipeError(f"the device {name!r} cannot be used ({reason}); choose auto, cpu, cuda or cuda:N") from error


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


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """While in the block, whatever names no GPU of its own (streams, graphs, kernels) is on this one."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield


def out_of_memory(error: BaseException) -> bool:
    """Whether it is that, and not, say, an illegal memory access; torch has no class of its own for the CPU's.

    The end of a CUDA graph's capture may raise another error after it: then it is the first that counts.
    """
    known = isinstance(error, torch.OutOfMemoryError | MemoryError) or any(said in str(error) for said in MEMORY_WORDS)
    before = error.__cause__ or error.__context__
    return known or (before is not None and out_of_memory(before))


@contextmanager
def enough_memory(doing: str, remedy: str) -> Iterator[None]:
    """Say in a sentence what ran out of memory in the block, and what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise ResourceError(f"there is not enough memory for {doing}; {remedy}") from error


_counting = threading.Lock()  # held while the number of threads is not what another thread should read


def _use_threads(count: int, others: int) -> None:
    """Let this thread's operations have `count` threads each; torch keeps a number for each thread that asked for it.

    It also keeps one that new threads begin with, and sets it with any other: that one stays `others`.
    """
    with _counting:
        torch.get_num_threads()  # a thread that asks for the first time begins anew, whatever it set before
        torch.set_num_threads(count)
        setter = threading.Thread(target=torch.set_num_threads, args=(others,))
        setter.start()
        setter.join()


_worker = threading.local()


def _begin_worker(count: int, others: int, cancelled: threading.Event) -> None:
    _worker.cancelled = cancelled
    _use_threads(count, others)


def check_cancelled() -> None:
    """End the work of this thread if nobody waits for its result any more: long searches call it at every step."""
    cancelled: threading.Event | None = getattr(_worker, "cancelled", None)
    if cancelled is not None and cancelled.is_set():
        raise CancelledError


def side_by_side(work: Callable[[Given], Made], batches: Sequence[Given], model: nn.Module) -> Iterator[Made]:
    """What the model makes of each batch, in their order, without gradients.

    On the CPU two batches are worked on at once, each by half of torch's threads: a step of a search is small, and
    threads that share one wait for each other. With forward hooks registered, batches run one after another, by as
    many threads each, so that the results are the same bits. Several threads may call this at once.
    """
    with _counting:
        threads = torch.get_num_threads()
    halves = threads // AT_ONCE
    watched = modules._has_any_global_hook() or any(
        each._forward_hooks or each._forward_pre_hooks for each in model.modules()
    )
    on_cpu = next(model.parameters()).device.type == "cpu"

    def quietly(batch: Given) -> Made:
        with torch.no_grad():  # which every thread must ask for itself
            return work(batch)

    if not on_cpu or not halves or len(batches) < AT_ONCE:
        yield from map(quietly, batches)
        return
    if not watched:
        cancelled = threading.Event()
        with ThreadPoolExecutor(AT_ONCE, initializer=_begin_worker, initargs=(halves, threads, cancelled)) as pool:
            try:
                yield from pool.map(quietly, batches)
            except BaseException:
                cancelled.set()  # else the pool would wait until the batches under way are done
                raise
        return
    _use_threads(halves, threads)
    try:
        yield from map(quietly, batches)
    finally:
        _use_threads(threads, threads)


@contextmanager
def precision(name: str, device: torch.device) -> Iterator[None]:
    """Matrix products in that precision while in the block; sums, norms and weights stay in single precision."""
    with torch.autocast(device.type, torch.bfloat16, enabled=choose_precision(name, device) == "bfloat16"):
        yield
