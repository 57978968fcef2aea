"""The public face of a trained run: load it, ask it, look at how it looked."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from regard import storage
from regard.device import choose_device
from regard.errors import CorruptError, RecipeError, pick
from regard.metrics import METRICS, Measured
from regard.models import Seq2Seq
from regard.storage import Run
from regard.tasks import TASKS, Translate
from regard.types import Example, Prediction


class Scored(NamedTuple):
    """A run's score on examples, and on each group of them."""

    metric: str
    measured: Measured
    groups: dict[str, float]


class Predictor:
    """A trained model that answers texts."""

    def __init__(self, run: Run, task: Translate, model: Seq2Seq) -> None:
        self.run = run
        self.task = task
        self.model = model

    def predict(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        n_best: int = 1,
        length_penalty: float | None = None,
    ) -> list[Prediction]:
        """The best output for each text, with its map; what is not given is as the recipe says.

        With `n_best` above 1 the others are the prediction's `alternatives`.
        """
        if isinstance(texts, str):
            raise RecipeError("predict takes a list of texts; write predict([text])")
        if (beam is not None and beam < 1) or (length_penalty is not None and not length_penalty >= 0):
            raise RecipeError(f"a beam is 1 or wider, a length penalty 0 or more, not {beam} and {length_penalty}")
        settings = self.task.recipe.search
        settings = replace(
            settings,
            beam=max(settings.beam, n_best) if beam is None else beam,
            length_penalty=settings.length_penalty if length_penalty is None else length_penalty,
        )
        return self.task.answer(self.model, texts, settings, n_best)

    def score(self, examples: Sequence[Example], *, metric: str | None = None, beam: int | None = None) -> Scored:
        """How well the outputs for the examples' sources match their targets, in all and by group."""
        name = metric or self.task.recipe.metric
        measure = pick(METRICS, name, "metric")
        answers = self.predict([example.source for example in examples], beam=beam)
        outputs = [answer.text for answer in answers]
        grouped: dict[str, list[tuple[str, str]]] = {}
        for output, example in zip(outputs, examples, strict=True):
            grouped.setdefault(example.group, []).append((output, example.target))
        groups = {group: measure(*zip(*pairs, strict=True)).value for group, pairs in grouped.items() if group}
        return Scored(name, measure(outputs, [example.target for example in examples]), groups)


def load(run: Run | str | Path, device: str = "auto") -> Predictor:
    """The predictor of a run directory."""
    run = run if isinstance(run, Run) else Run.open(run)
    recipe = run.recipe()
    task = pick(TASKS, recipe.task, "task").restore(recipe, run.read)
    model = task.build()
    try:
        model.load_state_dict(load_tensors(run.read(storage.MODEL)))
    except (RuntimeError, SafetensorError) as error:
        raise CorruptError(f"{run.path / storage.MODEL} does not fit the run's recipe: {error}") from error
    model.to(choose_device(device)).eval()
    return Predictor(run, task, model)
