"""Load a trained run, and predict or score with it: the public interface."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from regard import memory, models, plugins
from regard import recipe as recipes
from regard.attention import intervene as interventions_of
from regard.attention.intervene import Feed, Intervention
from regard.data.audio import Recording
from regard.data.pictures import is_image
from regard.device import choose_device, current, explain_out_of_memory, keep_freed_memory, only_shapes
from regard.errors import RecipeError, shown
from regard.models import CROSS, Seq2Seq
from regard.recipe import Search
from regard.storage import Run
from regard.tasks import AnyTask, Scored, Transduce, task_of
from regard.tasks.intervened import Intervened, compare, resolve
from regard.trust import Sentences, changed_by, sentences, with_sentences
from regard.types import Example, Prediction

LARGEST_SEED = 2**62  # torch takes 64 bits, and the seeds of further outputs are larger
MOST_OUTPUTS = 1000  # for each text, as the limit of search.beam
# The work and the remedy in the message about too little memory.
ANSWERING = "an answer", "lower the beam (--beam), give shorter texts, or use a device with more memory"


class Predictor:
    """A trained model with its task: predicts outputs for texts, with attention maps, and scores examples."""

    def __init__(self, run: Run, task: AnyTask, model: nn.Module, trust: str = "") -> None:
        self.run = run
        self.task = task
        self.model = model
        self.trust = trust  # how far its maps may be trusted, in a sentence; empty if that was not measured

    @cached_property
    def attends(self) -> bool:
        """Whether the model attends to a source."""
        return any(place.name == CROSS for place in models.sites(self.model).values())

    @property
    def sentences(self) -> Sentences:
        """The sentences under the maps of this run: as measured, or that they were not."""
        return sentences(self.task.recipe.task, self.trust, attends=self.attends)

    @property
    def active_interventions(self) -> tuple[Intervention, ...]:
        """The interventions that act in the model now."""
        return models.active(self.model)

    def trust_of_recorded(self, changes: Sequence[Intervention]) -> str:
        """The sentence under maps that `record` takes: of this run, or that these interventions changed its model."""
        return (changed_by(changes) if changes else self.sentences).other

    def with_trust(self, prediction: Prediction) -> Prediction:
        """A prediction of this run with the result of its measurement, and the sentence of each map.

        A measurement belongs to the model as it was trained: under interventions, the sentence names these instead.
        """
        if changes := self.active_interventions:
            return with_sentences(prediction, changed_by(changes))
        prediction = replace(prediction, trust=self.trust) if self.trust else prediction
        return with_sentences(prediction, self.sentences)

    def __repr__(self) -> str:
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return f"Predictor({str(self.run.path)!r}, task {self.task.recipe.task}, {parameters:,} parameters)"

    def predict(
        self,
        texts: Sequence[Any],
        *,
        beam: int | None = None,
        n_best: int = 1,
        search: Mapping[str, Any] | None = None,
        seed: int = 0,
        all_maps: bool = False,
    ) -> list[Prediction]:
        """Predict the best output for each text, with its map; settings that are not given come from the recipe.

        If the run reads pictures, an input is the name of a file, a path, an array (height x width x 3), a tensor
        (3 x height x width) or an image of Pillow. If it reads recordings, a name, a path or a `Recording`.
        With `n_best` above 1, the other outputs are the prediction's `alternatives`; a larger `n_best` never changes
        the first output. `search` changes keys of the recipe's `search` section: `{"temperature": 0.8}` samples outputs
        at random, with `seed`, instead of beam search. With `all_maps`, the best output of each text also has `maps`:
        those of all sites, layers and heads. This changes no output: they are recorded in one more pass.
        An input that is too long gets an empty output, and the prediction's `problem` says so.
        """
        if isinstance(texts, str):
            raise RecipeError("predict takes a list of texts; write predict([text])")
        if _is_one(texts):
            raise RecipeError(f"predict takes a list of inputs, not one {type(texts).__name__}; write predict([input])")
        if not 1 <= n_best <= MOST_OUTPUTS:
            most = f"at least 1 and at most {MOST_OUTPUTS:,}"
            raise RecipeError(f"n_best is the number of outputs for each text, {most}, not {shown(n_best)}")
        if not 0 <= seed <= LARGEST_SEED:
            raise RecipeError(f"seed is at least 0 and at most {LARGEST_SEED:,}, not {shown(seed)}")
        settings = self.search_settings(search or {}, beam)
        inputs = [self.task.accept(value, f"input {number:,}") for number, value in enumerate(texts, start=1)]
        with self.running():
            answers = self.task.answer(self.model, inputs, settings, n_best, seed, all_maps=all_maps)
        return [self._explained(value, answer) for value, answer in zip(inputs, answers, strict=True)]

    def intervene(
        self,
        text: Any,
        interventions: Sequence[Intervention | str] | Intervention | str,
        *,
        target: str | None = None,
        beam: int | None = None,
        search: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> Intervened:
        """Predict for one input without and with interventions: both predictions, with all their maps, and their diff.

        Interventions are `Silence`, `Force`, `Uniform`, `Permute`, `Erase`, `Swap` and `Feed`, or short texts such as
        "silence decoder.cross_attention layer=2 head=3". Rows, columns and positions are counted from 1, as in the maps
        of the prediction, or are words that are there once. With `target`, this output is forced both times.
        """
        chosen = interventions_of.read(interventions)
        if not chosen:
            raise RecipeError("there is no intervention; give one, such as 'erase 3'")
        source = self.task.accept(text, "the input")
        if target is not None and (beam is not None or search):
            raise RecipeError("beam and search are for a search, but target gives the output; leave one of them out")

        def answer(source: str) -> Prediction:
            if target is not None:
                return self._force(source, target)
            return self.predict([source], beam=beam, search=search, seed=seed, all_maps=True)[0]

        before = answer(source)
        if before.problem or not source.strip():
            raise RecipeError(f"there is nothing to change: the input is {before.problem or 'blank'}")
        read, rest = self._fed(chosen, source), [one for one in chosen if not isinstance(one, Feed)]
        site = next((place.name for place in models.sites(self.model).values()), None)
        resolved = resolve(self.task, read, site, before.tokens, rest)
        can_force = isinstance(self.task, Transduce) and bool(before.text.strip())
        scored = self._force(source, before.text) if can_force else None
        with models.intervene(self.model, *resolved):
            after = answer(read)
            forced = self._force(read, before.text) if can_force else None
        if scored is None or forced is None or scored.tokens != before.tokens:  # a text may have several tokenizations
            scored = forced = None
        fed = [one for one in chosen if isinstance(one, Feed)]
        if fed:  # by reading the other source, so that it is not among the active interventions
            said = changed_by([*self.active_interventions, *fed, *resolved])
            after = with_sentences(replace(after, trust=""), said)
            forced = None if forced is None else with_sentences(replace(forced, trust=""), said)
        diff = compare(before, after, scored, forced, aligned=self.task.aligned)
        return Intervened((*fed, *resolved), before, after, diff, forced)

    def _force(self, source: str, target: str) -> Prediction:
        """A given output, forced, with all maps."""
        if not isinstance(self.task, Transduce) or not isinstance(self.model, Seq2Seq):
            raise RecipeError(f"a run of the task {self.task.recipe.task!r} forces no output; leave target out")
        with self.running():
            return self.with_trust(self.task.force(self.model, [Example(source, target)], all_maps=True)[0])

    def _fed(self, changes: Sequence[Intervention], source: str) -> str:
        """The source whose memory the decoder gets: that of `Feed`, or the input's own."""
        fed = [one for one in changes if isinstance(one, Feed)]
        if not fed:
            return source
        if not isinstance(self.task, Transduce) or len(fed) > 1 or not isinstance(fed[0].source, str):
            raise RecipeError(f"{fed[-1]}: a run that reads a source and writes a text can be fed one other source")
        return self.task.accept(fed[0].source, "the source to feed")

    def _explained(self, value: str, answer: Prediction) -> Prediction:
        """The answer to an input; if it is empty because the input is too long, its `problem` says so."""
        answer = self.with_trust(answer)
        if answer.text or not self.task.too_long(value):
            return answer
        return replace(answer, problem=f"more than {self.task.longest:,} tokens")

    def score(self, examples: Sequence[Example], *, metric: str | None = None, beam: int | None = None) -> Scored:
        """Score the run on examples, in total and by group, with its recipe's metric or another that fits the task."""
        recipe = self.task.recipe
        settings = self.search_settings({}, beam)
        with self.running():
            return self.task.measure(self.model, examples, metric or recipe.metric, settings)

    def search_settings(self, changes: Mapping[str, Any], beam: int | None) -> Search:
        """The search settings of the recipe with some changes; refuses a key that the task does not use."""
        changes = dict(changes) if beam is None else {**changes, "beam": beam}
        recipe = self.task.recipe
        for key in changes:
            if not self.task.uses(f"search.{key}"):
                raise RecipeError(f"task = {recipe.task} does not use search.{key}; leave it out")
        settings = recipes.fill(recipe.search, changes, "predict", "search.")
        for key in ("top_k", "top_p"):
            if key in changes and not settings.temperature:
                how = "set a temperature above 0, too, such as temperature=1.0"
                raise RecipeError(f"search.{key} is for sampling, and search.temperature = 0 is beam search; {how}")
        return settings

    @contextmanager
    def running(self) -> Iterator[None]:
        """The context in which the model runs: its GPU, `keep_freed_memory`, and a clear error if memory runs out."""
        with keep_freed_memory(), current(next(self.model.parameters()).device), explain_out_of_memory(*ANSWERING):
            yield


def intervene(model: Predictor | nn.Module, *interventions: Intervention | str) -> AbstractContextManager[None]:
    """In the block, interventions change what a model or the model of a predictor computes, in forward and in search.

    Layers, heads, rows, columns and source positions are counted from 1; see `models.intervene`. They act on every
    input; `Predictor.intervene` compares one input before and after, and finds words.
    """
    return models.intervene(model.model if isinstance(model, Predictor) else model, *interventions)


def _is_one(value: object) -> bool:
    """Whether this is a single input, and not a sequence of inputs."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "OU"  # an array of texts or of objects is a sequence
    return isinstance(value, Recording | Tensor | os.PathLike) or is_image(value)


def load(run: Run | str | Path, device: str = "auto") -> Predictor:
    """Load the predictor of a run; `run` is a Run or the path of its directory."""
    run = run if isinstance(run, Run) else Run.open(run)
    task, chosen = task_of(run), choose_device(device)
    with plugins.loading(run.needs()):
        with only_shapes():  # the run may be a stranger's, and its model larger than its weights
            shapes = models.with_lora(task.build(), task.recipe.train.lora_rank)
        memory.check_model(shapes, chosen)
        weights = models.stored_weights(run, shapes)
        with explain_out_of_memory("the model", "use a device with more memory"):
            model = task.build()
            models.load_weights(model, models.merged(weights))
            model.to(chosen).eval()
    models.store_by_columns(model)
    return Predictor(run, task, model, run.trust())
