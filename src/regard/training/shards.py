"""Shards: the parts of a sharded model and its optimizer in a checkpoint, one file of each process.

torch.distributed.checkpoint writes and reads them, as safetensors, whose headers say which part of which tensor they
hold. Its usual format describes the parts in a pickle, which regard neither writes nor reads.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from regard.errors import CorruptError, shown
from regard.storage import Checkpoint
from regard.training.processes import UnwrittenError

ENDING = ".safetensors"
LARGEST_HEADER = 64 << 20  # bytes of the header of a file


def whole(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, in every process; any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def write(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write the parts that this process has of all tensors; all processes call it at the same time.

    UnwrittenError in all of them if one cannot write.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer)
    except CheckpointException as error:  # torch derives it from BaseException
        raise UnwrittenError(f"{folder.parent} cannot be written: {_reason(error)}") from error


def check(checkpoint: Checkpoint, most: int) -> None:
    """Raise CorruptError if a shard, with tensors of `most` bytes, is not the one that was written, or is another's."""
    listed = checkpoint.manifest().files
    for path in checkpoint.path.glob(f"*{ENDING}"):
        if path.name not in listed:
            raise CorruptError(f"{path} is not a part of the checkpoint; move it elsewhere")
    for name in listed:
        if name.endswith(ENDING):
            checkpoint.read(name, most + LARGEST_HEADER)


def stored_names(checkpoint: Checkpoint) -> set[str]:
    """The names of the tensors of which a checkpoint holds parts."""
    try:
        return set(HuggingFaceStorageReader(str(checkpoint.path)).read_metadata().state_dict_metadata)
    except Exception as error:  # whatever a header may lack
        raise _damaged(checkpoint, error) from error


def read(tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Fill the tensors with the parts that this process has of them, whoever wrote these; all processes call it."""
    try:
        stored = HuggingFaceStorageReader(str(checkpoint.path)).read_metadata().state_dict_metadata
        for name, tensor in tensors.items():
            entry = stored[name]
            if not isinstance(entry, TensorStorageMetadata) or entry.size != tensor.size():
                raise CorruptError(f"{checkpoint.path} is damaged: {name} has not the shape of the model's")
            if entry.properties.dtype != tensor.dtype:
                raise CorruptError(f"{checkpoint.path} is damaged: {name} is of {entry.properties.dtype}")
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(checkpoint.path)))
    except CorruptError:
        raise
    except CheckpointException as error:  # in all processes
        damaged = CorruptError(f"the shards of {checkpoint.path} are damaged: {_reason(error)}")
        damaged.is_reported = dist.get_rank() > 0
        raise damaged from error
    except Exception as error:
        raise _damaged(checkpoint, error) from error
    for name, tensor in tensors.items():
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        if not torch.isfinite(local).all():
            raise CorruptError(f"{checkpoint.path} is damaged: {name} holds NaN or infinite numbers")


def _damaged(checkpoint: Checkpoint, error: Exception) -> CorruptError:
    return CorruptError(f"the shards of {checkpoint.path} are damaged: {shown(str(error))}")


def _reason(error: CheckpointException) -> str:
    """The first process that has failed, and why: the system's words if it could not read or write a file."""
    rank = min(error.failures)
    cause = error.failures[rank][0]
    reason = isinstance(cause, OSError) and cause.strerror
    return f"process {rank}: {reason or shown(str(cause))}"
