"""The public face of a trained run: load it, ask it, look at how it looked."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors

from regard import alignment, storage
from regard import recipe as recipes
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
    alignment: dict[str, Measured]  # by reading; empty where no gold links are known


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
        search: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> list[Prediction]:
        """The best output for each text, with its map; what is not given is as the recipe says.

        With `n_best` above 1 the others are the prediction's `alternatives`. `search` changes keys of the recipe's
        section of that name: `{"temperature": 0.8}` draws outputs at random, by `seed`, and does not search.
        """
        if isinstance(texts, str):
            raise RecipeError("predict takes a list of texts; write predict([text])")
        settings = recipes.fill(self.task.recipe.search, search or {}, "predict", "search.")
        width = max(settings.beam, n_best) if beam is None else beam
        settings = recipes.fill(settings, {"beam": width}, "predict", "search.")
        return self.task.answer(self.model, texts, settings, n_best, seed)

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
        total = measure(outputs, [example.target for example in examples])
        return Scored(name, total, groups, alignment.measure(answers, examples))


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
