"""The processes that train one model together: torchrun or Ray starts them, and each has its rank.

Small numbers and names travel between them as tensors on the CPU, by gloo, so that no GPU waits for them.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from regard.errors import (
    LostProcessError,
    NotFiniteError,
    RecipeError,
    RegardError,
    StoppedError,
    StorageError,
    shown,
)
from regard.recipe import Train

PARALLEL = ("auto", "ddp", "fsdp")  # values of train.parallel
STARTED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # variables that torchrun sets
# Texts of RuntimeErrors that mean: another process has ended or does not answer.
LOST_WORDS = ("gloo", "NCCL", "onnection closed", "onnection reset", "roken pipe", "Timed out waiting", "TCPStore")
ENDED, REPORTED = "regard/ended", "regard/reported"  # keys of the store that the processes share

Number = TypeVar("Number", int, float, Tensor)


class UnwrittenError(StorageError):
    """One of the processes could not write its part of a checkpoint; all of them raise this error."""


class Processes:
    """One process that trains alone; `Group` are several."""

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this process writes the run and reports."""
        return self.rank == 0

    def sum(self, number: Number) -> Number:
        """The sum over all processes of a number of this process."""
        return number

    def maximum(self, number: int) -> int:
        """The largest of the numbers of all processes."""
        return number

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """The value of one process, which can be written as JSON; those of the others are not used."""
        return value

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, by rank; they have one shape and type."""
        return [tensor]

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Give tensors the values that they have in the first process."""

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give each parameter the sum of its gradients in all processes."""

    def wait_for_all(self) -> None:
        """Go on when all processes have called it."""

    def wait_for_end_of_first(self) -> None:
        """Wait until the first process has reported why all end: torchrun ends it as soon as another one has ended."""


ALONE = Processes()


class Group(Processes):
    """The processes of torch's process group, also if it has only this one; `ends` says that it ends with them."""

    def __init__(self, *, ends: bool) -> None:
        self.rank, self.size, self.ends = dist.get_rank(), dist.get_world_size(), ends

    def sum(self, number: Number) -> Number:
        """The sum over all processes of a number, with all its digits; a tensor is summed on its device."""
        if isinstance(number, Tensor):
            total = number.clone()
            dist.all_reduce(total)
            return total
        counted = torch.tensor(number, dtype=torch.int64 if isinstance(number, int) else torch.float64)
        dist.all_reduce(counted)
        return type(number)(counted.item())

    def maximum(self, number: int) -> int:
        """The largest of the numbers of all processes."""
        largest = torch.tensor(number)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """The value of one process, sent as JSON: torch's own way to send objects is pickle."""
        content = torch.tensor(list(json.dumps(value).encode()) if self.rank == source else [], dtype=torch.uint8)
        size = torch.tensor(len(content))
        dist.broadcast(size, source)
        if self.rank != source:
            content = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(content, source)
        return json.loads(bytes(content.tolist()))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, by rank."""
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(tensors, tensor)
        return tensors

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Give tensors the values that they have in the first process."""
        for tensor in tensors:
            dist.broadcast(tensor, 0)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give each parameter the sum of its gradients in all processes, which all have gradients of the same ones."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        group = dist.distributed_c10d._get_default_group()
        group.allreduce_coalesced(gradients).wait()  # all at once: many are small

    def wait_for_all(self) -> None:
        """Go on when all processes have called it."""
        self.sum(0)

    def wait_for_end_of_first(self) -> None:
        """Wait until the first process has ended, which closes its connection to this one; nothing is ever sent."""
        if not self.first and self.ends:
            with suppress(RuntimeError):
                dist.recv(torch.empty(1), 0)


def _was_started_with_others() -> bool:
    """Whether torchrun, or something like it, has started this process."""
    return all(name in os.environ for name in STARTED)


@contextmanager
def joined(settings: Train) -> Iterator[Processes]:
    """In the block, this process trains together with the others that torchrun or Ray started beside it.

    With `train.parallel` = auto, a process that was started alone needs no group.
    """
    if dist.is_available() and dist.is_initialized():  # by Ray, which also ends it
        yield _known(settings, ends=False)
        return
    if settings.parallel == "auto" and (not _was_started_with_others() or os.environ["WORLD_SIZE"] == "1"):
        yield ALONE
        return
    check_reward(settings, int(os.environ.get("WORLD_SIZE", "1")))
    if not dist.is_available():
        raise RecipeError("this build of torch has no torch.distributed; leave out train.parallel, and use one process")
    _begin(settings)
    yield _known(settings, ends=True)
    dist.destroy_process_group()  # not after an error: see `wait_for_end_of_first`


def _begin(settings: Train) -> None:
    """Make the process group, on the GPU of this process if it has one."""
    options: dict[str, Any] = {}
    if not _was_started_with_others():
        from torch._C._distributed_c10d import HashStore

        options = {"store": HashStore(), "rank": 0, "world_size": 1}
    on_gpu = settings.device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=settings.timeout), **options)
    except (RuntimeError, ValueError) as error:
        reason = shown(str(error).split("\n", 1)[0])
        raise LostProcessError(
            f"the processes of the training did not find each other ({reason}); start all again"
        ) from error


def check_reward(settings: Train, count: int) -> None:
    """Refuse train.reward if there is more than one process."""
    if settings.reward and count > 1:
        raise RecipeError(f"train.reward is for one process, not {count}; leave it out, or start one process")


def _known(settings: Train, *, ends: bool) -> Processes:
    """The processes of the group there is."""
    group = Group(ends=ends)
    check_reward(settings, group.size)
    return ALONE if settings.parallel == "auto" and group.size == 1 else group


@contextmanager
def failing_together(processes: Processes) -> Iterator[None]:
    """If the block fails in any process, raise an error in all; the first process reports it.

    Each process raises its own error, and one without any that of the first process that has failed. All processes
    enter the block, and none calls another one in it.
    """
    own: RegardError | None = None
    try:
        yield
    except RegardError as error:
        own = error
    shared = _shared_error(processes, own)
    if shared is not None:
        processes.wait_for_end_of_first()
        raise shared


def _shared_error(processes: Processes, own: RegardError | None) -> RegardError | None:
    """The error to raise in this process if any process has one; None if none has."""
    failed = processes.maximum(processes.size - processes.rank if own else 0)
    if not failed:
        return None
    rank = processes.size - failed
    signal = own.number if isinstance(own, StoppedError) else 0
    sentence, code, number = processes.broadcast([str(own), own.exit_code, signal] if own else None, rank)
    if own is None:
        own = StoppedError(number) if number else RegardError(f"process {rank} of {processes.size}: {sentence}")
        own.exit_code = code
    own.is_reported = not processes.first
    return own


@contextmanager
def told_if_lost(processes: Processes, saved: Callable[[], str]) -> Iterator[None]:
    """If another process is lost in the block, raise LostProcessError, which ends with `saved`; one process reports it.

    A process that fails with an error of its own says so to the others, which then end without a word. An error that
    all processes have is reported by the first.
    """
    try:
        yield
    except UnwrittenError as error:
        unwritten = StorageError(f"{error}; {saved()}")
        unwritten.is_reported = not processes.first
        processes.wait_for_end_of_first()
        raise unwritten from error
    except BaseException as error:
        if processes.size == 1:
            raise
        if isinstance(error, RegardError) and error.is_reported is not None:  # all processes have one
            processes.wait_for_end_of_first()
            raise
        if isinstance(error, StoppedError | NotFiniteError):  # in all processes
            processes.wait_for_end_of_first()
            raise
        if isinstance(error, OSError) and not is_lost(error):
            error = _storage_error(error)
        if not is_lost(error):
            _tell_others(error)
            raise error
        raise LostProcessError(
            f"another process of the training has ended, or has not answered in time; {saved()}",
            is_reported=not _may_report(processes),
        ) from error


def _tell_others(error: BaseException) -> None:
    """Let the others know that this process ends by an error of its own; the first one that does so reports it."""
    with suppress(RuntimeError):  # the store has ended with the first process
        _store().set(ENDED, "1")
        is_reported = _store().add(REPORTED, 1) > 1
        if isinstance(error, RegardError):
            error.is_reported = is_reported


def _storage_error(error: OSError) -> StorageError:
    """The error of regard for one of a file: only those of regard can say that another process reports them."""
    what = "a file or stream" if error.filename is None else shown(error.filename)
    storage_error = StorageError(f"the training cannot read or write {what}: {error.strerror or error}")
    storage_error.__cause__ = error
    return storage_error


def is_lost(error: BaseException) -> bool:
    """Whether an error means that another process has ended or does not answer: torch has no class for all of these."""
    words = isinstance(error, RuntimeError) and any(word in str(error) for word in LOST_WORDS)
    return words or isinstance(error, dist.DistError)


def _may_report(processes: Processes) -> bool:
    """Whether no other process reports what has happened; the store may have ended with the first process."""
    try:
        return not _store().check([ENDED]) and _store().add(REPORTED, 1) == 1
    except RuntimeError:
        return processes.rank == 1


def _store() -> Any:
    """The store of the process group."""
    return dist.distributed_c10d._get_default_store()
