"""Records a training for MLflow: `regard train RECIPE --log mlflow=FOLDER`, or as a callback."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import storage
from regard.errors import MissingExtraError
from regard.training.callbacks import Ended, Started
from regard.training.writers.core import Growing, Point, parameters

EXPERIMENT = "regard"
RUN_ID = "regard.run"  # the tag with the id of the run
DATABASE, ARTIFACTS = "mlflow.db", "artifacts"
MOST_METRICS, MOST_PARAMETERS = 1000, 100  # that a store takes at once


class MLflow(Growing):
    """Records runs in an SQLite database in a folder, or in the store of a tracking URI such as http://host:5000.

    A resumed run goes on in the record with its id; parameters are written once.
    """

    place, example = "folder", "mlflow"

    def __init__(self, place: str | Path) -> None:
        super().__init__()
        self.client_class, self.entities = _package()
        self.place_of_store = str(place)
        self.client: Any = None
        self.record = ""  # MLflow's id of the record

    def open(self, event: Started) -> None:
        """Continue the record of the run, or begin one with the values of the recipe."""
        self.client, artifacts = self._connect()
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        where = experiment.experiment_id if experiment else self.client.create_experiment(EXPERIMENT, artifacts)
        found = self.client.search_runs([where], f"tags.`{RUN_ID}` = '{event.run.id}'", max_results=1)
        if found and event.run.id:
            self.record = found[0].info.run_id
            self.client.update_run(self.record, status="RUNNING")
            return
        tags = {RUN_ID: event.run.id, "regard.folder": str(event.run.path), "regard.device": event.device}
        self.record = self.client.create_run(where, run_name=event.run.path.name, tags=tags).info.run_id
        values = parameters(event.recipe) | {"parameters": event.parameters}
        params = [self.entities.Param(name, str(value)) for name, value in values.items()]
        for start in range(0, len(params), MOST_PARAMETERS):
            self.client.log_batch(self.record, params=params[start : start + MOST_PARAMETERS])

    def _connect(self) -> tuple[Any, str | None]:
        """The client of the store, and where artifacts go; a tracking server knows that itself."""
        if "://" in self.place_of_store:
            return self.client_class(self.place_of_store), None
        folder = Path(self.place_of_store).absolute()
        storage.make_folder(folder)
        return self.client_class(f"sqlite:///{folder / DATABASE}"), (folder / ARTIFACTS).as_uri()

    def write(self, points: Sequence[Point]) -> None:
        """Log the numbers of points, and samples as texts."""
        now = int(1000 * time.time())
        metrics = [
            self.entities.Metric(name, value, now, point.update)
            for point in points
            for name, value in point.values.items()
        ]
        for start in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(self.record, metrics=metrics[start : start + MOST_METRICS])
        for point in points:
            if point.samples:
                lines = (f"{each.source}\t{each.expected}\t{each.output}\n" for each in point.samples)
                self.client.log_text(self.record, "".join(lines), f"samples/{point.update:08}.txt")

    def close(self, event: Ended) -> None:
        """Say whether the run is finished, or was stopped and can be resumed."""
        self.client.set_terminated(self.record, "FINISHED" if event.finished else "KILLED")


def _package() -> tuple[Any, Any]:
    """MLflow's class of clients and its module of entities; it reports its use to nobody, unless the user says so."""
    for variable, value in {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}.items():
        os.environ.setdefault(variable, value)
    try:
        from mlflow import MlflowClient, entities
    except ImportError:
        raise MissingExtraError("mlflow", "mlflow", "recording for MLflow") from None
    return MlflowClient, entities
