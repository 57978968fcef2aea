"""The estimate of memory: it counts what training surely takes, and refuses what cannot fit before anything is made."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from regard import device as devices
from regard import memory
from regard.analysis import doctor
from regard.device import choose_device
from regard.errors import RecipeError, ResourceError
from regard.predict import load
from regard.recipe import Train
from regard.training import train
from regard.training.session import Clock, Session

CPU = torch.device("cpu")
RUN = Path(__file__).parent / "golden" / "runs" / "translate_luong" / "finished"


class Small(nn.Module):
    """A model with parameters, one of them twice, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(3, 5)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.zeros(7, 11), persistent=False)


PARAMETERS = 4 * (3 * 5 + 5 + 5)
BUFFERS = 4 * 7 * 11


def test_a_model_takes_its_parameters_and_buffers_also_on_the_meta_device() -> None:
    with torch.device("meta"):
        shapes = Small()
    assert memory.of_model(Small()) == memory.of_model(shapes) == PARAMETERS + BUFFERS


@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        (Train(updates=4), 4),
        (Train(updates=4, ema=0.9), 5),
        (Train(updates=6, validate=2, average=3), 7),
        (Train(updates=6, validate=2, ema=0.9, average=3), 8),
        (Train(updates=5, validate=2, average=1000), 7),  # there are only three validations
    ],
)
def test_training_takes_no_less_than_the_estimate(settings: Train, copies: int) -> None:
    model = Small()
    assert memory.of_training(model, settings) == BUFFERS + copies * PARAMETERS
    session = Session.begin(model, settings)
    for update in range(1, settings.updates + 1):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        session.optimizer.step()
        judged = update % settings.validate == 0 or update == settings.updates
        session.averager.after_update(model, judged=judged)
    kept = [*session._optimizer_tensors().values(), *session.averager.tensors().values()]
    gradients = [parameter.grad for parameter in model.parameters()]
    assert sum(tensor.nbytes for tensor in [*kept, *gradients]) >= (copies - 1) * PARAMETERS


def test_the_limit_of_a_container_counts_if_it_is_lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    physical = devices.memory(CPU)
    assert physical > 2**28
    for content, expected in (("12345\n", 12345), ("max\n", physical), (f"{2**63}\n", physical), ("", physical)):
        (tmp_path / "memory.max").write_text(content, encoding="ascii")
        monkeypatch.setattr(
            devices, "MEMORY_LIMITS", (*devices.MEMORY_LIMITS, str(tmp_path / "memory.max"), str(tmp_path / "none"))
        )
        assert devices.memory(CPU) == expected
        assert doctor.examine().machine["memory"] == f"{expected / 2**30:,.1f} GiB"


def test_a_model_that_cannot_fit_is_refused_before_a_run_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = ("model.embedding=4", "model.encoder.dim=4", "model.decoder.dim=4", "model.attention.dim=4")
    few = ("data.corpus=reverse", "data.size=50", "train.updates=1", "train.device=cpu", "search.max_extra=2")
    monkeypatch.setattr(memory, "of_training", lambda model, settings: 2**60)
    with pytest.raises(ResourceError, match=r"training \(weights, .* at least .* GiB of memory, but cpu has"):
        train("reverse", *tiny, *few, runs=tmp_path / "runs", quiet=True)
    monkeypatch.setattr(devices, "memory", lambda device: 1000)
    with pytest.raises(ResourceError, match="the model would take at least"):
        train("reverse", *tiny, *few, runs=tmp_path / "runs", quiet=True)
    with pytest.raises(ResourceError, match="the model would take at least"):
        load(RUN)
    assert list(tmp_path.iterdir()) == []


def test_a_device_without_memory_is_refused() -> None:
    with pytest.raises(RecipeError, match="the device 'meta' cannot be used"):
        choose_device("meta")
    assert choose_device("cpu") == CPU


def test_a_clock_that_stands_still_gives_a_rate_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", lambda: 7.0)
    assert Clock().rate(100) == 0.0
    assert replace(Clock(), interval=2.0).rate(100) == 20.0
