"""The sentence under every map of a run: how far the map may be trusted, or that this was not measured."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from regard.attention.intervene import Intervention
from regard.errors import MOST_LISTED
from regard.maps import AttentionMaps
from regard.types import Prediction

MEASURED = ("translate",)  # the tasks whose maps `regard measure` can measure


class Sentences(NamedTuple):
    """The sentences under the maps of one output."""

    shown: str  # under the map that predictions show, which is the one that is measured
    other: str  # under any other: of a layer, a head, another site, or computed from several


def sentences(task: str, line: str, *, attends: bool) -> Sentences:
    """The sentences for a run of this task; `line` is that of its measurement, empty if there is none.

    `attends` says whether its model attends to a source, without which there is nothing to measure.
    """
    if line:
        return Sentences(line, f"this map was not measured; for the map that predictions show: {line}")
    if task not in MEASURED:
        return Sentences(*[f"not measured; regard measure cannot measure maps of task = {task} yet"] * 2)
    if not attends:
        return Sentences(*["not measured; regard measure needs attention to a source, and this model has none"] * 2)
    how = "not measured; regard measure RUN shows how far"
    return Sentences(f"{how} this map may be trusted", f"{how} the map that predictions show may be trusted")


def changed_by(interventions: Sequence[Intervention]) -> Sentences:
    """The sentences while interventions are active: what was measured belongs to the model without them."""
    named = ", ".join(map(str, interventions[:MOST_LISTED])) + (", ..." if len(interventions) > MOST_LISTED else "")
    return Sentences(*[f"not measured: the model was changed by {named}"] * 2)


def with_sentences(prediction: Prediction, said: Sentences) -> Prediction:
    """The prediction with a sentence in each of its maps, and in those of its alternatives."""
    attention, maps = prediction.map, prediction.maps
    return replace(
        prediction,
        map=None if attention is None else replace(attention, trust=said.shown),
        maps=None if maps is None else _in_all(maps, said, has_shown=attention is not None),
        alternatives=tuple(with_sentences(own, said) for own in prediction.alternatives),
    )


def _in_all(maps: AttentionMaps, said: Sentences, *, has_shown: bool) -> AttentionMaps:
    """All maps with their sentences; predictions show the mean of the last layer of the first site, if any."""
    top = maps.select(maps.sites[0]).layers[-1] if has_shown else None
    return AttentionMaps(
        tuple(
            replace(layer, trust=said.shown if layer is top else said.other, other_trust=said.other)
            for layer in maps.layers
        )
    )
