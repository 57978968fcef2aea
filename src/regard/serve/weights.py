"""Estimates the attention weights that a question holds while it is answered, before any work is done for it.

A search keeps a map for each of its hypotheses, and a recording has the maps of all sites, layers and heads. Both are
estimated for outputs as long as the search allows.
"""

from collections.abc import Sequence
from typing import NamedTuple

from regard.models import DECODER_SELF, ENCODER_SELF, POOLING, sites
from regard.predict import Predictor
from regard.recipe import Search
from regard.tasks import AnyTask, Forecasting, Tag, Transduce
from regard.tasks.core import TextTask
from regard.tasks.language_model import LanguageModelling


class Size(NamedTuple):
    """The positions of one input, or of one part of a long recording, and the largest number of its output tokens."""

    source: int
    steps: int


class Weights(NamedTuple):
    """The largest numbers of attention weights of one question."""

    searched: int  # of the hypotheses of its searches
    recorded: int  # of all sites, layers and heads, for the best output of each input, in all its recordings
    certain: int  # those of one recording that do not depend on the length of the output


NONE = Weights(0, 0, 0)


def sizes_of(task: AnyTask, inputs: Sequence[str], settings: Search) -> list[list[Size]]:
    """The sizes of the parts of each input."""
    if isinstance(task, Transduce):
        parts = [task.inputs.sizes(value, task.longest_trained) if value.strip() else [] for value in inputs]
        return [[Size(size, task.limit(size - 1, settings)) for size in own] for own in parts]
    if isinstance(task, Forecasting):
        return [[Size(task.shape.context + task.shape.horizon, task.shape.horizon)] for _ in inputs]
    extra = settings.max_extra if isinstance(task, LanguageModelling) else 0
    lengths = [len(task.positions(value)) if isinstance(task, TextTask | Tag) else len(value) for value in inputs]
    return [[Size(length, length + extra)] for length in lengths]


def weights_of(predictor: Predictor, sizes: Sequence[Sequence[Size]], settings: Search, n_best: int) -> Weights:
    """The weights that the answers to inputs of these sizes take at most."""
    attentions = _attentions(predictor)
    rows = max(settings.beam, n_best)
    searched = recorded = certain = 0
    for parts in sizes:
        whole = Size(sum(part.source for part in parts), sum(part.steps for part in parts))
        if isinstance(predictor.task, Transduce):
            held = rows * sum(part.source * part.steps for part in parts)
            searched += max(held, n_best * whole.source * whole.steps)  # parts are joined in one map
        recorded += sum(heads * _cells(site, whole) for site, heads in attentions)
        certain += sum(heads * _cells(site, whole._replace(steps=0)) for site, heads in attentions)
    return Weights(searched, recorded, certain)


def _attentions(predictor: Predictor) -> list[tuple[str, int]]:
    """The site and the number of heads of each attention of a model."""
    return [(site.name, heads_of(predictor, name)) for name, site in sites(predictor.model).items()]


def heads_of(predictor: Predictor, name: str) -> int:
    """The number of heads of the attention with that module name."""
    return int(getattr(predictor.model.get_submodule(name.rpartition(".")[0]), "heads", 1))  # of `MultiHead`


def _cells(site: str, size: Size) -> int:
    """The weights of one head's map at a site."""
    if site == POOLING:
        return size.source
    rows = size.source if site == ENCODER_SELF else size.steps
    return rows * (size.steps if site == DECODER_SELF else size.source)
