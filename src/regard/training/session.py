"""The state of training: model, optimizer, averages, random generators, progress; saved and restored bit for bit."""

import json
import math
import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from regard import memory, models
from regard.errors import CorruptError, StoppedError, shown
from regard.recipe import Train
from regard.storage import METRICS, MODEL, Checkpoint
from regard.storage.runs import parse_json
from regard.training.averaging import Averager, under
from regard.training.processes import ALONE, Processes

OPTIMIZER, STATE = "optimizer.safetensors", "state.json"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what the optimizer keeps of each parameter
MOST_GPUS = 64  # whose random generators a checkpoint can hold
MOST_PROCESSES = 1024  # likewise
ADDED = {"norms": 0.0, "normed": 0}  # counters that older checkpoints do not have, none of them


@dataclass
class Progress:
    """Counters of training, stored in every checkpoint."""

    update: int = 0  # number of updates done
    validated: int = 0  # update of the last validation
    lowest: float = math.inf  # lowest dev loss so far; if train.best_by = metric, that metric, negated if high is good
    best_loss: float = math.inf  # dev loss of the best validation: the lower one decides between equal metrics
    waited: int = 0  # validations since the dev loss or the metric was lowest for the first time
    total: float = 0.0  # summed loss since the last validation
    tokens: int = 0  # target tokens since the last validation
    metrics_size: int = 0  # size of the metrics file in bytes; on resume, what was written later is cut off
    norms: float = 0.0  # summed norms of gradients since the last validation
    normed: int = 0  # number of updates whose norm is in that sum
    seconds: float = 0.0  # of training so far, in all processes together; no result depends on it
    rewards: float = 0.0  # summed rewards since the last validation
    rewarded: int = 0  # outputs whose reward is in that sum
    validations: int = 0  # validations so far, also one that is not done yet: each has a snapshot for train.average
    interval: float = 0.0  # seconds of training since the last validation, in all processes: those of `tokens`

    @staticmethod
    def of(checkpoint: Checkpoint, settings: Train) -> "Progress":
        """The counters in a checkpoint; CorruptError if they are not numbers that training can have stored."""
        path = checkpoint.path / STATE
        stored = parse_json(checkpoint.read(STATE), dict, path)
        stored.setdefault("best_loss", -math.inf)  # of older versions, which kept the earlier of equal metrics
        if not stored.keys() & ADDED.keys():
            stored = stored | ADDED
        stored.setdefault("validations", settings.validations(checkpoint.update))  # older versions did not store it,
        for name in ("seconds", "rewards"):  # nor these
            stored.setdefault(name, 0.0)
        stored.setdefault("rewarded", 0)
        has_interval = "interval" in stored  # nor this, which is estimated below
        stored.setdefault("interval", 0.0)
        for counter in fields(Progress):
            value = stored.get(counter.name)
            if type(value) is not counter.type or not (0 <= value < 1 << 63 if type(value) is int else value == value):
                raise CorruptError(f"{path} is damaged: {counter.name} is {shown(value)}")
        if unknown := stored.keys() - {counter.name for counter in fields(Progress)}:
            raise CorruptError(f"{path} is damaged: it has an unknown counter {shown(min(unknown))}")
        progress = Progress(**stored)
        for name, seconds in (("seconds", progress.seconds), ("interval", progress.interval)):
            if not 0.0 <= seconds < math.inf:
                raise CorruptError(f"{path} is damaged: {name} is {seconds}")
        if progress.update != checkpoint.update:
            raise CorruptError(f"{checkpoint.path} is damaged: it holds update {progress.update:,}")
        if progress.validated > progress.update or (progress.validated < progress.update and not progress.tokens):
            raise CorruptError(f"{path} is damaged: its counters do not fit together")
        if not has_interval:  # by the mean time of an update
            progress.interval = progress.seconds * (progress.update - progress.validated) / max(1, progress.update)
        return progress

    def begin_interval(self) -> None:
        """A validation is done: begin the sums anew."""
        self.validated, self.total, self.tokens, self.norms, self.normed = self.update, 0.0, 0, 0.0, 0
        self.rewards, self.rewarded = 0.0, 0
        self.interval = 0.0

    def mean_loss(self) -> float:
        """The mean loss for each target token since the last validation."""
        return self.total / max(1, self.tokens)

    def mean_norm(self) -> float | None:
        """The mean norm of the gradients since the last validation; None if none was read yet."""
        return self.norms / self.normed if self.normed else None

    def mean_reward(self) -> float | None:
        """The mean reward of the outputs drawn since the last validation; None if none was drawn."""
        return self.rewards / self.rewarded if self.rewarded else None


@dataclass
class Clock:
    """Measures wall-clock time for reports; training does not depend on it."""

    began: float = field(default_factory=time.perf_counter)
    interval: float = field(default_factory=time.perf_counter)
    before: float = 0.0  # seconds of training in earlier processes, if the run is resumed
    interval_before: float = 0.0  # those since the last validation: its tokens are counted over all processes, too

    def start_interval(self) -> None:
        """Begin a new interval for `rate`, after a validation."""
        self.interval, self.interval_before = time.perf_counter(), 0.0

    def interval_seconds(self) -> float:
        """Seconds of training since the last validation, with those of earlier processes."""
        return self.interval_before + time.perf_counter() - self.interval

    def seconds(self) -> float:
        """Seconds of training so far, with those of earlier processes."""
        return self.before + time.perf_counter() - self.began

    def rate(self, tokens: int) -> float:
        """Tokens per second, for this number of tokens since the last validation; 0 if the clock stood still."""
        seconds = self.interval_seconds()
        return tokens / seconds if seconds > 0 else 0.0


@dataclass
class Session:
    """A model in training with its optimizer, weight averages and progress; the clock is not stored."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    averager: Averager
    progress: Progress = field(default_factory=Progress)
    clock: Clock = field(default_factory=Clock)
    processes: Processes = ALONE  # that train the model together
    losses: nn.Module | None = None  # with several processes: computes the loss of a batch, see engine.distributed
    is_sharded: bool = False  # whether this process has only a part of the model

    @staticmethod
    def begin(
        model: nn.Module, settings: Train, processes: Processes = ALONE, losses: nn.Module | None = None
    ) -> "Session":
        """A session before its first update, with a new AdamW optimizer.

        The first of several processes draws the random numbers that it would draw alone, and the others draw others.
        """
        if not processes.first:
            _seed(settings.seed, processes.rank, 0)
        device = next(model.parameters()).device
        on_gpu = device.type == "cuda"
        optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=torch.zeros((), device=device) if on_gpu else 0.0,  # a tensor: a captured update reads its current value
            betas=(0.9, 0.98),
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=on_gpu,
        )
        averager = Averager(model, decay=settings.ema, last=settings.average)
        is_sharded = losses is not None and settings.parallel == "fsdp"
        return Session(model, optimizer, averager, processes=processes, losses=losses, is_sharded=is_sharded)

    @contextmanager
    def undone_if_stopped(self) -> Iterator[None]:
        """If the block raises StoppedError, restore random generators and buffers; weights must not change in it."""
        generators = _generators()
        buffers = [(buffer, buffer.clone()) for buffer in stored_buffers(self.model)]
        try:
            yield
        except StoppedError:
            _set_generators(generators)
            for buffer, before in buffers:
                buffer.copy_(before)
            raise

    def average(self, *, judged: bool) -> None:
        """Average the weights after an update; `judged` says whether a validation follows."""
        self.averager.after_update(self.model, judged=judged)
        self.progress.validations += judged

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of all parameter groups."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def files(self) -> dict[str, bytes]:
        """The files of a checkpoint, by name, with the whole state of the session, except what `write_shards` writes.

        All processes call it, and only the first one gets files.
        """
        generators = {f"generator.{name}": state for name, state in self._all_generators().items()}
        if not self.processes.first:
            return {}
        averages = {f"average.{name}": average for name, average in self.averager.tensors().items()}
        tensors = averages | generators | ({} if self.is_sharded else self._optimizer_tensors())
        return {
            **({} if self.is_sharded else {MODEL: save_tensors(models.weights(self.model))}),
            OPTIMIZER: save_tensors({name: tensor.contiguous().clone() for name, tensor in tensors.items()}),
            STATE: json.dumps(asdict(self.progress)).encode(),
        }

    def write_shards(self, folder: Path) -> None:
        """Write this process's parts of weights and optimizer; the folder is that of the first process.

        All processes call it at the same time.
        """
        from regard.training import shards  # imports the compiler of torch, for a second

        weights = {f"model.{name}": tensor for name, tensor in models.weights(self.model).items()}
        shards.write(weights | self._optimizer_tensors(), Path(self.processes.broadcast(str(folder))))

    def restore(self, checkpoint: Checkpoint, settings: Train) -> None:
        """Load the whole state from a checkpoint; CorruptError if one of its files is damaged, and nothing changes.

        If the model is sharded, `load_shards` must follow, in all processes.
        """
        if checkpoint.update > settings.updates:
            raise CorruptError(f"{checkpoint.path} is damaged: the run ends after {settings.updates:,} updates")
        if checkpoint.has_file(METRICS):  # not so in checkpoints of older versions
            checkpoint.metrics()
        progress = Progress.of(checkpoint, settings)
        weights = {} if self.is_sharded else models.read_weights(checkpoint, self.model)
        if self.is_sharded and self.processes.first:
            from regard.training import shards

            shards.check(checkpoint, memory.of_training(self.model, settings))
        tensors = self._read_state(checkpoint, progress.validations)
        if not self.is_sharded:
            models.load_weights(self.model, weights)
            self._load_optimizer(tensors)
        device = next(self.model.parameters()).device
        self.averager.load({name: average.to(device) for name, average in under("average.", tensors).items()})
        self._set_own_generators(under("generator.", tensors), settings.seed, progress.update)
        self.progress = progress

    def load_shards(self, checkpoint: Checkpoint) -> None:
        """Load the parts of weights and optimizer that this process has; any number of processes may have written them.

        All processes call it at the same time.
        """
        from regard.training import shards

        weights = {f"model.{name}": tensor for name, tensor in models.weights(self.model).items()}
        stored = {name for name in shards.stored_names(checkpoint) if not name.startswith("generator.")}
        moments = {
            f"optimizer.{name}.{key}": torch.zeros((), dtype=torch.float32)
            if key == "step"
            else torch.zeros_like(parameter)
            for name, parameter in self.model.named_parameters()
            for key in MOMENTS
            if f"optimizer.{name}.step" in stored
        }
        if different := stored ^ (weights | moments).keys():
            raise CorruptError(f"the shards of {checkpoint.path} do not fit the run's recipe: {shown(min(different))}")
        shards.read(weights | moments, checkpoint)
        self._load_optimizer(moments)

    def _all_generators(self) -> dict[str, Tensor]:
        """The random generators of the first process as `_generators` names them, and those of the others by rank."""
        states = _generators() if self.processes.first else {}
        for name, own in _current_generators().items() if self.processes.size > 1 else ():
            for rank, state in enumerate(self.processes.gather(own)):
                states |= {_of_rank(rank, name): state} if rank else {}
        return states

    def _set_own_generators(self, states: Mapping[str, Tensor], seed: int, update: int) -> None:
        """Set the random generators of this process; it gets new ones if there were fewer processes before."""
        rank = self.processes.rank
        if rank == 0:
            _set_generators(states)
        elif _of_rank(rank, "cpu") not in states:
            _seed(seed, rank, update)
        else:
            torch.set_rng_state(states[_of_rank(rank, "cpu")])
            if torch.cuda.is_available() and _of_rank(rank, "cuda") in states:
                torch.cuda.set_rng_state(states[_of_rank(rank, "cuda")])

    def _read_state(self, checkpoint: Checkpoint, validations: int) -> dict[str, Tensor]:
        """The tensors of optimizer, averages and random generators: all that must be there, and none besides."""
        required, optional = self._expected(validations)
        allowed = required | {name: tensor for group in optional for name, tensor in group.items()}
        tensors = models.read_tensors(checkpoint, OPTIMIZER, allowed)
        for group in (required, *optional):
            missing = group.keys() - tensors.keys()
            if missing and (group is required or len(missing) < len(group)):
                raise CorruptError(f"{checkpoint.path / OPTIMIZER} does not fit the run's recipe: no {min(missing)}")
        for name, state in under("generator.", tensors).items():
            kind = name.rpartition(".")[2]  # without the rank
            try:
                if kind == "cpu" or int(kind.removeprefix("cuda") or 0) < torch.cuda.device_count():
                    torch.Generator(re.sub("([0-9])", r":\1", kind, count=1)).set_state(state)
            except RuntimeError as error:
                raise CorruptError(f"{checkpoint.path / OPTIMIZER} is damaged: generator.{name}: {error}") from error
        return tensors

    def _expected(self, validations: int) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
        """Tensors that a checkpoint holds besides the weights, and groups of which it holds all or none.

        A parameter without a gradient has no state in the optimizer, and there may be any number of GPUs. Tensors on
        the meta device give shapes and types.
        """
        averages = self.averager.expected(self.model, validations)
        required = {f"average.{name}": like for name, like in averages.items()} | {
            "generator.cpu": torch.get_rng_state()
        }
        step = torch.empty((), dtype=torch.float32, device="meta")
        moments = [
            {f"optimizer.{name}.{key}": step if key == "step" else own for key in MOMENTS}
            for name, own in self.model.named_parameters()
            if not self.is_sharded
        ]
        state, own_state = torch.empty(16, dtype=torch.uint8, device="meta"), required["generator.cpu"].to("meta")
        generators = {f"generator.cuda{index}": state for index in range(MOST_GPUS)}
        for rank in range(1, MOST_PROCESSES):
            generators |= {
                f"generator.{_of_rank(rank, 'cpu')}": own_state,
                f"generator.{_of_rank(rank, 'cuda')}": state,
            }
        return required, moments + [{name: like} for name, like in generators.items()]

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimizer's state as tensors, each named by the parameter it belongs to."""
        names = dict(enumerate(name for name, _ in self.model.named_parameters()))
        state: Mapping[int, Mapping[str, Any]] = self.optimizer.state_dict()["state"]
        return {f"optimizer.{names[index]}.{key}": value for index, row in state.items() for key, value in row.items()}

    def _load_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the optimizer's state from tensors that `_optimizer_tensors` named."""
        state = self.optimizer.state_dict()
        rows = enumerate(name for name, _ in self.model.named_parameters())
        state["state"] = {index: row for index, name in rows if (row := under(f"optimizer.{name}.", tensors))}
        self.optimizer.load_state_dict(state)


def stored_buffers(model: nn.Module) -> list[Tensor]:
    """The persistent buffers of a model, which checkpoints hold; non-persistent ones are computed again on load."""
    return [
        buffer
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]


def _generators() -> dict[str, Tensor]:
    """The states of torch's random generators, of the CPU and of all GPUs."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def _current_generators() -> dict[str, Tensor]:
    """The states of the random generators that this process uses: of the CPU, and of its GPU."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def _of_rank(rank: int, name: str) -> str:
    """The name of a random generator of the process with that rank."""
    return f"rank{rank}.{name}"


def _seed(seed: int, rank: int, update: int) -> None:
    """Begin the random numbers of a process that no checkpoint has."""
    torch.manual_seed(random.Random(f"generator {seed} {rank} {update}").getrandbits(63))


@contextmanager
def generators_restored() -> Iterator[None]:
    """After the block, torch's random generators are as before: what was drawn in it changes no training."""
    before = _generators()
    try:
        yield
    finally:
        after = _generators()
        if any(not torch.equal(state, after[name]) for name, state in before.items()):
            _set_generators(before)


def _set_generators(states: Mapping[str, Tensor]) -> None:
    """Set torch's random generators to states from `_generators`."""
    torch.set_rng_state(states["cpu"])
    for index in range(torch.cuda.device_count()):
        if f"cuda{index}" in states:  # there may be fewer or more GPUs than when the states were saved
            torch.cuda.set_rng_state(states[f"cuda{index}"], index)
