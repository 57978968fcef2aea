"""Records a training for Weights & Biases: `regard train RECIPE --log wandb=PROJECT`, or as a callback."""

import os
from collections.abc import Sequence
from typing import Any

from regard.errors import MissingExtraError, RegardError
from regard.training.callbacks import Ended, Started
from regard.training.writers.core import Growing, Point, parameters

OFFLINE = "offline"


class WeightsAndBiases(Growing):
    """Records runs in a project of Weights & Biases, in files under ./wandb that `wandb sync` uploads.

    Nothing is uploaded unless the environment says so (WANDB_MODE=online), and nobody is asked to log in. A resumed
    run goes on in the record of its id.
    """

    place, example = "project", "dates"

    def __init__(self, project: str) -> None:
        super().__init__()
        self.project = project
        self.wandb, self.run = _package(), None
        self.mode = os.environ.get("WANDB_MODE", OFFLINE)
        if self.mode == "online" and not self.wandb.login(prompt=False, verify=False):
            how = "set WANDB_API_KEY, run `wandb login`, or leave WANDB_MODE out to record offline"
            raise RegardError(f"WANDB_MODE=online needs a key of Weights & Biases, and there is none; {how}")

    def open(self, event: Started) -> None:
        """Open the record with the id of the run."""
        self.run = self.wandb.init(
            project=self.project,
            id=event.run.id or None,
            name=event.run.path.name,
            config=parameters(event.recipe) | {"parameters": event.parameters, "device": event.device},
            mode=self.mode,
            resume=None if self.mode == OFFLINE else "allow",
            settings=self.wandb.Settings(console="off", silent=True),
        )

    def write(self, points: Sequence[Point]) -> None:
        """Log the numbers of each point at its update, and samples as a table."""
        assert self.run is not None
        for point in points:
            logged: dict[str, Any] = dict(point.values)
            if point.samples:
                rows = [[each.source, each.expected, each.output] for each in point.samples]
                logged["samples"] = self.wandb.Table(["source", "expected", "output"], rows)
            self.run.log(logged, step=point.update, commit=True)  # otherwise it waits for a later step

    def close(self, event: Ended) -> None:
        """Finish the record; one that can be resumed has the exit code 1."""
        assert self.run is not None
        self.run.finish(exit_code=int(not event.finished))


def _package() -> Any:
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("wandb", "wandb", "recording for Weights & Biases") from None
    return wandb
