"""Writers: callbacks that record the course of a training for other tools, `regard train RECIPE --log NAME=PLACE`."""

from collections.abc import Sequence
from pathlib import Path

from regard.errors import RecipeError, pick, shown
from regard.training.writers.core import Writer
from regard.training.writers.mlflow import MLflow
from regard.training.writers.tensorboard import TensorBoard
from regard.training.writers.wandb import WeightsAndBiases

WRITERS: dict[str, type[TensorBoard | WeightsAndBiases | MLflow]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}

__all__ = ["WRITERS", "MLflow", "TensorBoard", "WeightsAndBiases", "writers"]


def writers(texts: Sequence[str], runs: Path) -> list[Writer]:
    """The writers of texts such as `tensorboard=boards`, a name and the place to write to, for a run in `runs`."""
    made: list[Writer] = []
    for text in texts:
        name, _, place = text.partition("=")
        kind = pick(WRITERS, name, "writer")
        if not place:
            raise RecipeError(f"--log {shown(text)} names no {kind.place}; write: --log {name}={kind.example}")
        writer = kind(place)
        if isinstance(writer, TensorBoard):
            writer.check_runs(runs)
        made.append(writer)
    return made
