"""Devices, precision, memory and threads: where and how tensors are computed."""

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode

from regard.errors import RecipeError, ResourceError, shown

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # options of glibc's mallopt
# Files with the memory limit of a container in bytes (control groups, versions 2 and 1); "max" if there is none.
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
PRECISIONS = ("auto", "float32", "bfloat16")  # names for the precision of matrix products
AT_ONCE = 2  # batches that run in parallel; more would wait for each other in Python (the GIL)
# Texts of RuntimeErrors that mean: out of memory.
MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "ALLOC_FAILED")

Input = TypeVar("Input")
Output = TypeVar("Output")


def uses_threads(device: torch.device) -> bool:
    """Whether a device computes on threads of its own: the CPU. A GPU computes in batches what they do one by one."""
    return device.type == "cpu"


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        one = torch.ones(1, device=name)
        one.item()  # fails on a device without memory or computation, such as meta
        return one.device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n", 1)[0][:200]
        choices = "choose auto, cpu, cuda or cuda:N"
        raise RecipeError(f"the device {shown(name)} cannot be used ({reason}); {choices}") from error


@contextmanager
def only_shapes() -> Iterator[None]:
    """Modules that are built in this context are on the meta device: they have shapes, and no memory for weights."""
    with torch.device("meta"), _WithoutValues():
        yield


class _WithoutValues(TorchFunctionMode):
    """Leaves out initial values for which torch would import its compiler on the meta device, for about a second.

    Any arithmetic needs it, too: whoever makes a table in a module leaves it out if it is on the meta device.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = getattr(function, "__name__", ""), set(kwargs or {})
        if function is torch.arange and args and all(type(arg) is int for arg in args) and options <= {"dtype"}:
            return torch.empty(len(range(*args)), **{"dtype": torch.int64, **(kwargs or {})})
        if function is torch.randn and args and not options & {"generator", "out", "device"}:
            return torch.empty(*args, **(kwargs or {}))
        if name == "normal_":  # of nn.init, and of tensors
            return args[0] if args else kwargs["tensor"]
        if name == "std":
            return args[0].new_empty(())
        return function(*args, **(kwargs or {}))


def choose_precision(name: str, device: torch.device) -> str:
    """The precision of that name; `auto` is bfloat16 on a GPU that supports it, and float32 elsewhere.

    Processors and older GPUs without instructions for bfloat16 emulate it, many times slower than float32.
    """
    if name != "auto":
        return name
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)  # Ampere and later
    return "bfloat16" if fast else "float32"


def name_processor() -> str:
    """The kind of this machine's processor, and the instructions that torch uses; Linux names the kind in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    kind = names[0] if names else platform.processor() or platform.machine()
    return f"{kind}, {torch.backends.cpu.get_cpu_capability()}"


def name_gpu(device: torch.device) -> str:
    """The kind of a GPU, its memory and its compute capability; `none` for the CPU."""
    if device.type != "cuda":
        return "none"
    kind = torch.cuda.get_device_properties(device)
    return f"{kind.name}, {kind.total_memory / 2**30:.0f} GiB, compute capability {kind.major}.{kind.minor}"


def memory(device: torch.device) -> int:
    """The bytes of memory that a device has, free or not; for the CPU at most the limit of its container."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_container_limits()])


def _container_limits() -> list[int]:
    """The memory limits of the container that this process runs in."""
    limits = []
    for name in MEMORY_LIMITS:
        try:
            with open(name, encoding="ascii") as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):  # there is no such file, or no limit
            continue
    return limits


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Within the block, CPU memory that tensors free is kept for the next tensors, not returned to the system.

    By default the C library returns large blocks to the operating system and gets new ones page by page, at every
    update: a sixth of its time. This works only with glibc (`mallopt`); other C libraries are left as they are.
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


def current(device: torch.device) -> AbstractContextManager[None]:
    """Within the block, this GPU is the current one, for streams, graphs and kernels that name no device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, and not, for example, an illegal memory access.

    Torch has no exception class for this on the CPU, so the text is checked too. When the capture of a CUDA graph ends,
    it may raise another error after the first one, so the cause of the error is checked as well.
    """
    known = isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in MEMORY_WORDS)
    earlier = error.__cause__ or error.__context__
    return known or (earlier is not None and out_of_memory(earlier))


@contextmanager
def explain_out_of_memory(doing: str, how_to_fix: str) -> Iterator[None]:
    """Turn an out-of-memory error in the block into a ResourceError that names the work and how to fix it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise ResourceError(f"there is not enough memory for {doing}; {how_to_fix}") from error


_threads_lock = threading.Lock()  # held while the number of threads is being changed


def _use_threads(count: int, others: int) -> None:
    """Let torch use `count` threads for the operations of this thread, and `others` for those of new threads.

    Torch keeps a number for each thread that asked for it, and one for new threads. `set_num_threads` sets both, so
    another thread sets the second one back to `others`.
    """
    with _threads_lock:
        torch.get_num_threads()  # the first call of a thread resets its number, so it must come before the setter
        torch.set_num_threads(count)
        setter = threading.Thread(target=torch.set_num_threads, args=(others,))
        setter.start()
        setter.join()


@contextmanager
def one_thread() -> Iterator[None]:
    """In the block, torch uses one thread: for small operations, in which several would mostly wait for each other."""
    with _threads_lock:
        threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    _use_threads(1, threads)
    try:
        yield
    finally:
        _use_threads(threads, threads)


_worker = threading.local()


def _begin_worker(count: int, others: int, cancelled: threading.Event) -> None:
    """Prepare a thread of the pool: its number of torch threads, and the event that cancels its work."""
    _worker.cancelled = cancelled
    _use_threads(count, others)


def check_cancelled() -> None:
    """Raise CancelledError if the caller of this worker thread has stopped; searches call it at every step."""
    cancelled: threading.Event | None = getattr(_worker, "cancelled", None)
    if cancelled is not None and cancelled.is_set():
        raise CancelledError


def map_in_parallel(work: Callable[[Input], Output], batches: Sequence[Input], model: nn.Module) -> Iterator[Output]:
    """Call `work` with each batch, without gradients; on the CPU two batches run in parallel. Results keep the order.

    Each of the two batches uses half of torch's threads: a step of a search is small, so threads that share one step
    mostly wait for each other. With forward hooks registered, batches run one after another, also with half of the
    threads, so that the results are the same bits. Several threads may call this function at the same time. Each batch
    runs in a copy of the caller's context variables, so that `search.following` reaches it.
    """
    with _threads_lock:
        threads = torch.get_num_threads()
    half = threads // AT_ONCE
    hooks = [module._forward_hooks or module._forward_pre_hooks for module in model.modules()]
    has_hooks = modules._has_any_global_hook() or any(hooks)
    on_cpu = next(model.parameters()).device.type == "cpu"

    def without_gradients(batch: Input) -> Output:
        with torch.no_grad():  # a setting of each thread, so it must be set in the worker
            return work(batch)

    if not on_cpu or not half or len(batches) < AT_ONCE:
        yield from map(without_gradients, batches)
    elif has_hooks:
        _use_threads(half, threads)
        try:
            yield from map(without_gradients, batches)
        finally:
            _use_threads(threads, threads)
    else:
        cancelled = threading.Event()
        contexts = [copy_context() for _ in batches]  # one thread at a time can be in a context

        def in_context(context: Context, batch: Input) -> Output:
            return context.run(without_gradients, batch)

        with ThreadPoolExecutor(AT_ONCE, initializer=_begin_worker, initargs=(half, threads, cancelled)) as pool:
            try:
                yield from pool.map(in_context, contexts, batches)
            except BaseException:
                cancelled.set()  # else leaving the pool would wait for the batches that still run
                raise


def map_on_threads(work: Callable[[Input], Output], items: Sequence[Input]) -> Iterator[Output]:
    """Call `work` with each item, without gradients, as many at once as torch has threads, each on one of them.

    So no result depends on the number of threads. Results keep the order.
    """

    def without_gradients(item: Input) -> Output:
        with torch.no_grad():
            return work(item)

    with _threads_lock:
        threads = torch.get_num_threads()
    if threads == 1 or len(items) == 1:
        with one_thread():
            yield from map(without_gradients, items)
        return
    with ThreadPoolExecutor(threads, initializer=_use_threads, initargs=(1, threads)) as pool:
        yield from pool.map(without_gradients, items)


def precision(name: str, device: torch.device) -> torch.autocast:
    """Within the block, matrix products use that precision; sums, norms and weights stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=choose_precision(name, device) == "bfloat16")
