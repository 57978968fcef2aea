"""Records by the packages of TensorBoard, Weights & Biases and MLflow, read back; what is not installed is skipped.

TensorBoard and MLflow have readers. Weights & Biases has none for its files but the upload, so the test has one.
"""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import regard
from regard import recipe as recipes
from regard.errors import CallbackError
from regard.storage import Run
from regard.training import Callback
from regard.training.callbacks import Updated
from regard.training.writers import TensorBoard, writers

# Packages warn of what their own packages deprecate.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

PAIRS = [("abc", "cba"), ("cab", "bac"), ("bca", "acb"), ("ab", "ba"), ("cc", "cc"), ("acb", "bca"), ("bb", "bb")]
SIZES = ["model.embedding=8", "model.encoder.dim=12", "model.decoder.dim=10", "model.attention.dim=6"]
LENGTHS = ["train.updates=40", "train.validate=20", "train.batch_tokens=20", "search.max_ratio=0", "search.max_extra=3"]
RECIPE = recipes.parse("", "tiny", [*SIZES, *LENGTHS, "name=tiny", "train.device=cpu"])
POINTS, VALIDATIONS = [10, 20, 30, 40], [20, 40]
BLOCK, COMPLETE = 32_768, (1, 4)  # of a file of Weights & Biases: bytes, and the kinds of pieces that end a record


class Record(NamedTuple):
    """What is read back."""

    curves: dict[str, dict[int, float]]  # values by name and update
    parameters: dict[str, str]
    samples: dict[int, str]  # texts by update


class Fail(Callback):
    """Fails at an update."""

    def __init__(self, update: int, error: BaseException) -> None:
        self.update, self.error = update, error

    def on_update(self, event: Updated) -> None:
        if event.update == self.update:
            raise self.error


def of_tensorboard(place: Path) -> Record:
    """By the reader that TensorBoard shows curves with: it hides points after a checkpoint from which a run went on."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(place / "tiny")).Reload()
    curves: dict[str, dict[int, float]] = {}
    for name in events.Tags()["scalars"]:
        points = events.Scalars(name)
        curves[name] = {point.step: point.value for point in points}
        assert len(curves[name]) == len(points), f"an update is twice in {name}"

    def texts(name: str) -> dict[int, str]:
        return {
            event.step: event.tensor_proto.string_val[0].decode() for event in events.Tensors(f"{name}/text_summary")
        }

    lines = texts("recipe")[0].splitlines()
    recipe = recipes.parse("\n".join(line.removeprefix("    ") for line in lines), "recipe")
    return Record(curves, {key: str(value) for key, value in recipes.values(recipe).items()}, texts("samples"))


def of_wandb(place: Path) -> Record:
    """The records of `offline-run-*`, in the format of its files: the log format of LevelDB, with its own messages."""
    curves: dict[str, dict[int, float]] = {}
    parameters: dict[str, str] = {}
    samples: dict[int, str] = {}
    folders = sorted(place.parent.glob("wandb/offline-run-*"))
    for record in (record for folder in folders for path in folder.glob("*.wandb") for record in stored(path)):
        if record.WhichOneof("record_type") == "run":
            assert (record.run.display_name, record.run.project) == ("tiny", place.name)
            parameters = {item.key: item.value_json for item in record.run.config.update}
        elif record.WhichOneof("record_type") == "history":
            values = {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
            }
            update = values["_step"]
            for name, value in values.items():
                if name.startswith(("train/", "validation/", "dev/")):
                    assert update not in curves.get(name, {}), f"update {update} is twice in {name}"
                    curves.setdefault(name, {})[update] = value
            if path := values.get("samples/path") or values.get("samples", {}).get("path"):
                (file,) = place.parent.glob(f"wandb/offline-run-*/files/{path}")
                samples[update] = file.read_text()
    return Record(curves, parameters, samples)


def stored(path: Path) -> Iterator[Any]:
    """The messages of a file of Weights & Biases."""
    from wandb.proto import wandb_internal_pb2

    content, place, message = path.read_bytes(), 7, b""
    assert content.startswith(b":W&B")
    while place + 7 <= len(content):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        message += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in COMPLETE:
            yield wandb_internal_pb2.Record.FromString(message)
            message = b""


def of_mlflow(place: Path) -> Record:
    """By MLflow's client of the database, and from its folder of artifacts."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'regard'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("tiny", "FINISHED")
    curves: dict[str, dict[int, float]] = {}
    for name in run.data.metrics:
        history = client.get_metric_history(run.info.run_id, name)
        curves[name] = {metric.step: metric.value for metric in history}
        assert len(curves[name]) == len(history), f"an update is twice in {name}"
    files = client.list_artifacts(run.info.run_id, "samples")
    folder = place / "artifacts" / run.info.run_id / "artifacts"
    samples = {int(Path(file.path).stem): (folder / file.path).read_text() for file in files}
    return Record(curves, run.data.params, samples)


READERS: dict[str, Callable[[Path], Record]] = {"tensorboard": of_tensorboard, "wandb": of_wandb, "mlflow": of_mlflow}


@pytest.fixture(params=READERS)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an installed writer, of which nothing is uploaded."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    package = pytest.importorskip(request.param)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    for variable in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / "settings"))
    yield request.param
    if request.param == "wandb":
        package.teardown()  # otherwise it keeps the working directory of its first run


def logging(name: str, folder: Path) -> list[Any]:
    """The writer to a folder; a project of Weights & Biases is no path."""
    return [*writers([f"{name}={folder / 'records'}" if name != "wandb" else "wandb=records"], folder)]


def train(name: str, folder: Path, *callbacks: Callback) -> Run:
    every = [*logging(name, folder), *callbacks]
    return regard.train(RECIPE, pairs=PAIRS, runs=folder / "runs", quiet=True, callbacks=every)


def resume(name: str, folder: Path) -> Run:
    return regard.resume(folder / "runs" / "tiny", pairs=PAIRS, quiet=True, callbacks=logging(name, folder))


def assert_whole(record: Record, run: Run) -> None:
    """It has all points, those of metrics.jsonl with the same numbers, the recipe, and samples."""
    *validations, last = run.metrics()
    for name in ("loss", "gradient_norm", "learning_rate", "tokens_per_second"):
        assert sorted(record.curves[f"train/{name}"]) == POINTS
    for name in validations[0].keys() - {"update"}:
        expected = {entry["update"]: entry[name] for entry in validations}
        assert record.curves[f"validation/{name}"] == pytest.approx(expected, rel=1e-6)
    assert sorted(record.curves["validation/dev_loss"]) == VALIDATIONS
    assert record.curves["dev/exact_match"] == {40: pytest.approx(last["exact_match"])}
    assert record.parameters["model.encoder.dim"] == "12"
    assert sorted(record.samples) == VALIDATIONS
    for text in record.samples.values():
        assert any(source in text and target in text for source, target in PAIRS)


def test_a_record_is_read_back(name: str, tmp_path: Path) -> None:
    run = train(name, tmp_path)
    assert_whole(READERS[name](tmp_path / "records"), run)


def test_a_run_that_was_stopped_goes_on_in_its_record(name: str, tmp_path: Path) -> None:
    with pytest.raises(CallbackError):
        train(name, tmp_path, Fail(37, ValueError("a mistake")))
    run = resume(name, tmp_path)
    assert_whole(READERS[name](tmp_path / "records"), run)


def test_tensorboard_hides_what_was_written_after_the_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoard(tmp_path / "records")
    killed = [board, Fail(37, GeneratorExit())]  # nothing is saved at it, as at a kill
    with pytest.raises(GeneratorExit):
        regard.train(RECIPE, pairs=PAIRS, runs=tmp_path / "runs", quiet=True, callbacks=killed)
    board.writer.close()  # its thread has written the point of update 30
    assert of_tensorboard(tmp_path / "records").curves["train/loss"].keys() == {10, 20, 30}
    run = resume("tensorboard", tmp_path)
    assert_whole(of_tensorboard(tmp_path / "records"), run)
