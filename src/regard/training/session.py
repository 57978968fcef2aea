"""All that training changes as it goes on, to be saved and taken up again bit for bit."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from regard import models
from regard.errors import CorruptError, StoppedError
from regard.recipe import Train
from regard.storage import MODEL, Folder
from regard.training.averaging import Averager, under

OPTIMIZER, STATE = "optimizer.safetensors", "state.json"


@dataclass
class Progress:
    """Where training stands."""

    update: int = 0  # updates done
    validated: int = 0  # the last update that was validated
    lowest: float = math.inf  # dev loss so far
    waited: int = 0  # validations since then
    total: float = 0.0  # loss since the last validation
    tokens: int = 0  # target tokens since then
    metrics_size: int = 0  # bytes of metrics that belong to all this


@dataclass
class Session:
    """A model that learns."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    averager: Averager
    progress: Progress = field(default_factory=Progress)

    @staticmethod
    def begin(model: nn.Module, settings: Train) -> "Session":
        """Before the first update."""
        device = next(model.parameters()).device
        on_gpu = device.type == "cuda"
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=torch.zeros((), device=device) if on_gpu else 0.0,  # a captured update reads it anew each time
            betas=(0.9, 0.98),
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=on_gpu,
        )
        return Session(model, optimizer, Averager(model, decay=settings.ema, last=settings.average))

    @contextmanager
    def undone_if_stopped(self) -> Iterator[None]:
        """Undo what a block that is stopped has drawn and summed up: generators and buffers; weights are not its."""
        generators = _generators()
        buffers = [(buffer, buffer.clone()) for buffer in _stored_buffers(self.model)]
        try:
            yield
        except StoppedError:
            _set_generators(generators)
            for buffer, before in buffers:
                buffer.copy_(before)
            raise

    def set_rate(self, rate: float) -> None:
        """The learning rate from now on."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def files(self) -> dict[str, bytes]:
        """The whole session, for a checkpoint."""
        tensors = self._optimizer_tensors() | {
            f"average.{name}": each for name, each in self.averager.tensors().items()
        }
        tensors |= {f"generator.{name}": each for name, each in _generators().items()}
        return {
            MODEL: save_tensors(models.weights(self.model)),
            OPTIMIZER: save_tensors({name: each.contiguous().clone() for name, each in tensors.items()}),
            STATE: json.dumps(asdict(self.progress)).encode(),
        }

    def restore(self, checkpoint: Folder) -> None:
        """Go on from a checkpoint."""
        content = {name: checkpoint.read(name) for name in (MODEL, OPTIMIZER, STATE)}  # all checked before any is used
        progress = Progress(**json.loads(content[STATE]))
        if progress.update != int(checkpoint.path.name):
            raise CorruptError(f"{checkpoint.path} is damaged: it holds update {progress.update:,}")
        tensors = load_tensors(content[OPTIMIZER])
        device = next(self.model.parameters()).device
        models.load_weights(self.model, load_tensors(content[MODEL]))
        self._load_optimizer(tensors)
        self.averager.load({name: each.to(device) for name, each in under("average.", tensors).items()})
        _set_generators(under("generator.", tensors))
        self.progress = progress

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        names = dict(enumerate(name for name, _ in self.model.named_parameters()))
        state: Mapping[int, Mapping[str, Any]] = self.optimizer.state_dict()["state"]
        return {f"optimizer.{names[index]}.{key}": each for index, row in state.items() for key, each in row.items()}

    def _load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        state = self.optimizer.state_dict()
        rows = enumerate(name for name, _ in self.model.named_parameters())
        state["state"] = {index: row for index, name in rows if (row := under(f"optimizer.{name}.", tensors))}
        self.optimizer.load_state_dict(state)


@dataclass
class Clock:
    """Wall-clock figures; they are told, and play no part in training."""

    began: float = field(default_factory=time.perf_counter)
    interval: float = field(default_factory=time.perf_counter)

    def start_interval(self) -> None:
        """A validation is over."""
        self.interval = time.perf_counter()

    def seconds(self) -> float:
        """Since training began, in this process."""
        return time.perf_counter() - self.began

    def rate(self, tokens: int) -> float:
        """Tokens a second since the last validation."""
        return tokens / (time.perf_counter() - self.interval)


def _stored_buffers(model: nn.Module) -> list[Tensor]:
    """The buffers that a checkpoint holds; tables that are computed anew are not among them."""
    return [
        buffer
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]


def _generators() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def _set_generators(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        here = range(torch.cuda.device_count())  # there may be fewer GPUs than when they were saved, or more
        for index, state in _of_gpus(states).items():
            if index in here:
                torch.cuda.set_rng_state(state, index)


def _of_gpus(states: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """The states of generators by the number of their GPU."""
    return {int(name.removeprefix("cuda")): state for name, state in states.items() if name.startswith("cuda")}
