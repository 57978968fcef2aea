"""Writers for Weights & Biases and MLflow: what they record, and that resumed runs record no update twice."""

import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import regard
from commands import shared_commands
from regard import recipe as recipes
from regard.errors import CallbackError, MissingExtraError, RecipeError, RegardError
from regard.recipe import Recipe
from regard.storage import MODEL, Run
from regard.training import Callback
from regard.training.callbacks import Updated
from regard.training.writers import WRITERS, MLflow, WeightsAndBiases, writers

PAIRS = [(word, word[::-1]) for word in ["abc", "cab", "bca", "ab", "ba", "cc", "acb", "bb", "cba", "aa", "bac", "ca"]]
UPDATES = [10, 20, 30]  # those of which something is recorded
SIZES = ["model.embedding=8", "model.encoder.dim=12", "model.decoder.dim=10", "model.attention.dim=6"]
TINY = [*SIZES, "name=tiny", "train.device=cpu", "train.updates=30", "train.validate=20", "train.batch_tokens=20"]


def tiny(*overrides: str) -> Recipe:
    return recipes.parse("", "tiny", [*TINY, "search.max_ratio=0", "search.max_extra=3", *overrides])


class Records:
    """Stands in for the packages of both: keeps what each record got, as (update, name, value)."""

    def __init__(self) -> None:
        self.records: dict[str, list[tuple[int, str, Any]]] = {}
        self.parameters: dict[str, dict[str, Any]] = {}
        self.ends: list[Any] = []
        self.opened: list[dict[str, Any]] = []
        self.failures = 0  # writes that are to fail

    def add(self, record: str, update: int, name: str, value: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("no space left")
        self.records.setdefault(record, []).append((update, name, value))

    def points(self, record: str, name: str) -> list[int]:
        return [update for update, each, _ in self.records[record] if each == name]


class FakeRun:
    def __init__(self, kept: Records, id: str) -> None:
        self.kept, self.id, self.step = kept, id, 0

    def log(self, values: dict[str, Any], step: int, commit: bool) -> None:
        assert step > self.step
        assert commit, "a step that is not committed is lost in a kill"
        for name, value in values.items():
            self.kept.add(self.id, step, name, value)
        self.step = step

    def finish(self, exit_code: int) -> None:
        self.kept.ends.append(exit_code)


class FakeClient:
    """The methods of MlflowClient that are used."""

    def __init__(self, kept: Records, uri: str) -> None:
        self.kept = kept
        kept.opened.append({"uri": uri})

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id="1") if self.kept.parameters else None

    def create_experiment(self, name: str, artifacts: str | None) -> str:
        return "1"

    def search_runs(self, experiments: list[str], filter: str, max_results: int) -> list[Any]:
        found = [record for record in self.kept.parameters if filter == f"tags.`regard.run` = '{record}'"]
        return [SimpleNamespace(info=SimpleNamespace(run_id=record)) for record in found]

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        self.kept.parameters[tags["regard.run"]] = {}
        return SimpleNamespace(info=SimpleNamespace(run_id=tags["regard.run"]))

    def update_run(self, record: str, status: str) -> None:
        assert status == "RUNNING"

    def log_batch(self, record: str, params: Any = (), metrics: Any = ()) -> None:
        assert len(params) <= 100
        self.kept.parameters[record] |= {param.key: param.value for param in params}
        for metric in metrics:
            self.kept.add(record, metric.step, metric.key, metric.value)

    def log_text(self, record: str, text: str, name: str) -> None:
        self.kept.add(record, int(Path(name).stem), "samples", text)

    def set_terminated(self, record: str, status: str) -> None:
        self.kept.ends.append(status)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Records:
    records = Records()

    def init(id: str, config: dict[str, Any], **options: Any) -> FakeRun:
        records.opened.append(options)
        records.parameters[id] = config
        return FakeRun(records, id)

    wandb: Any = types.ModuleType("wandb")
    wandb.init, wandb.Settings, wandb.login = init, dict, lambda prompt, verify: prompt
    wandb.Table = lambda columns, rows: rows
    mlflow: Any = types.ModuleType("mlflow")
    mlflow.MlflowClient = lambda uri: FakeClient(records, uri)
    mlflow.entities = SimpleNamespace(
        Param=lambda key, value: SimpleNamespace(key=key, value=value),
        Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step),
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    for variable in ("WANDB_MODE", "MLFLOW_DISABLE_TELEMETRY", "MLFLOW_LOGGING_LEVEL"):
        monkeypatch.delenv(variable, raising=False)
    return records


@pytest.fixture(params=["wandb", "mlflow"])
def text(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}={tmp_path / 'records'}"


class Stopping(Callback):
    """Fails at an update, in some way."""

    def __init__(self, update: int, error: BaseException) -> None:
        self.update, self.error = update, error

    def on_update(self, event: Updated) -> None:
        if event.update == self.update:
            raise self.error


class Killed(BaseException):
    """Nothing is saved at it, as at a kill."""


def test_a_record_has_parameters_curves_samples_and_the_score(tmp_path: Path, kept: Records, text: str) -> None:
    run = regard.train(tiny(), pairs=PAIRS, runs=tmp_path, quiet=True, callbacks=writers([text], tmp_path))
    assert list(kept.records) == list(kept.parameters) == [run.id]
    values = kept.parameters[run.id]
    assert str(values["model.encoder.dim"]) == "12"
    assert str(values["train.updates"]) == "30"
    assert len(values) > 150
    assert not any("self_attention" in name for name in values)  # none of these keys is set
    for name in ("loss", "learning_rate", "tokens_per_second", "gradient_norm"):
        assert kept.points(run.id, f"train/{name}") == UPDATES
    for name in ("dev_loss", "dev_exact_match", "attention_entropy"):
        assert kept.points(run.id, f"validation/{name}") == [20, 30]
    assert kept.points(run.id, "samples") == [20, 30]
    *validations, last = run.metrics()
    losses = [value for _, name, value in kept.records[run.id] if name == "validation/dev_loss"]
    assert losses == [entry["dev_loss"] for entry in validations]
    assert (30, "dev/exact_match", last["exact_match"]) in kept.records[run.id]
    assert kept.ends in ([0], ["FINISHED"])


@pytest.mark.parametrize("error", [ValueError("a mistake"), Killed()], ids=["stopped", "killed"])
@pytest.mark.parametrize("update", [5, 15, 20, 21, 27])
def test_a_resumed_run_has_every_point_once(
    tmp_path: Path, kept: Records, text: str, update: int, error: BaseException
) -> None:
    stopping = [*writers([text], tmp_path), Stopping(update, error)]
    with pytest.raises((CallbackError, Killed)):
        regard.train(tiny(), pairs=PAIRS, runs=tmp_path, quiet=True, callbacks=stopping)
    run = regard.resume(tmp_path / "tiny", pairs=PAIRS, quiet=True, callbacks=writers([text], tmp_path))
    assert list(kept.records) == [run.id]
    assert kept.points(run.id, "train/loss") == UPDATES
    assert kept.points(run.id, "validation/dev_loss") == [20, 30]
    assert kept.points(run.id, "dev/exact_match") == [30]


def test_a_record_that_cannot_be_written_leaves_the_run_resumable(tmp_path: Path, kept: Records, text: str) -> None:
    plain = regard.train(tiny("name=plain"), pairs=PAIRS, runs=tmp_path, quiet=True)
    kept.failures = 1000
    with pytest.raises(CallbackError, match=r"failed at update 21 \(OSError: no space left\); 21 updates are saved"):
        regard.train(tiny(), pairs=PAIRS, runs=tmp_path, quiet=True, callbacks=writers([text], tmp_path))
    run = regard.resume(tmp_path / "tiny", pairs=PAIRS, quiet=True)
    assert run.read(MODEL) == plain.read(MODEL)


def test_points_of_a_write_that_failed_are_written_when_the_training_ends(
    tmp_path: Path, kept: Records, text: str
) -> None:
    kept.failures = 1
    with pytest.raises(CallbackError, match="no space left"):
        regard.train(tiny(), pairs=PAIRS, runs=tmp_path, quiet=True, callbacks=writers([text], tmp_path))
    run = regard.resume(tmp_path / "tiny", pairs=PAIRS, quiet=True, callbacks=writers([text], tmp_path))
    assert kept.points(run.id, "train/loss") == UPDATES
    assert kept.points(run.id, "validation/dev_loss") == [20, 30]


def test_nothing_is_uploaded_and_nobody_is_asked_to_log_in(
    tmp_path: Path, kept: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "tiny")

    def opened() -> dict[str, Any]:
        started = SimpleNamespace(run=SimpleNamespace(id="7", path=run.path), recipe=tiny(), parameters=3, device="cpu")
        WeightsAndBiases("project").open(started)  # type: ignore[arg-type]
        return kept.opened[-1]

    assert (opened()["mode"], opened()["project"], opened()["resume"]) == ("offline", "project", None)
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(RegardError, match=r"^WANDB_MODE=online needs a key .*; set WANDB_API_KEY, run `wandb login`"):
        opened()
    monkeypatch.setattr(sys.modules["wandb"], "login", lambda prompt, verify: not prompt)
    assert (opened()["mode"], opened()["resume"]) == ("online", "allow")


def test_mlflow_writes_to_a_folder_or_to_the_store_of_an_address(tmp_path: Path, kept: Records) -> None:
    MLflow(tmp_path / "a" / "b")._connect()
    assert kept.opened[-1]["uri"] == f"sqlite:///{tmp_path}/a/b/mlflow.db"
    assert (tmp_path / "a/b").is_dir()
    MLflow("http://host:5000")._connect()
    assert kept.opened[-1]["uri"] == "http://host:5000"


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_without_its_package_a_sentence_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"^recording for .* needs .*pip install 'regard\[{name}\]'"):
        writers([f"{name}=x"], Path("runs"))


def test_with_ray_it_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    for text in ("tensorboard=boards", "wandb=dates", "mlflow=records"):
        result = shared_commands()("train", "reverse", "--ray", "local", "--log", text, folder=tmp_path)
        assert result.code == 2
        assert result.error == "regard: --ray takes no --dry-run, --log or --exact; leave them out\n"
    assert [*tmp_path.iterdir()] == []
    assert "Not with --ray" in shared_commands()("train", "--help").out.decode()


def test_what_is_no_writer_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"^unknown writer 'wandbb'; choose from tensorboard, wandb, mlflow; did you"):
        writers(["wandbb=x"], Path("runs"))
    for name, kind in WRITERS.items():
        with pytest.raises(RecipeError, match=rf"^--log '{name}' names no {kind.place}; write: --log {name}="):
            writers([name], Path("runs"))
