"""Shared by `regard look` and `regard force`: which maps are chosen, and the files that they are written to."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import RecipeError, shown

if TYPE_CHECKING:
    from regard.analysis.readings import Reading
    from regard.maps import AttentionMap, AttentionMaps
    from regard.storage import Run
    from regard.types import Prediction

OUT = "Also write a file: .html, .svg, .png, .gif (moves), .csv or .pharaoh; may be repeated."
SITE = "decoder.cross_attention, decoder.self_attention, encoder.self_attention or classify.pooling.  "
SITE += "[default: the first of them that the model has, of a classifier its pooling]"
SCALE = "The darkest shade: weight 1 (one), the largest weight of the map, or of each row.  "
SCALE += (
    "[default: one; in the terminal map, if all weights are below 0.3; on a picture row, on a recording or series map]"
)
MATRIX = (
    "Show the weights of a picture, recording or series as a matrix, not with the picture, spectrogram or forecast."
)
MOST_DIGITS = 10  # of the number of a head
Out = Annotated[list[Path] | None, typer.Option("--out", "-o", help=OUT)]
SiteName = Annotated[str | None, typer.Option("--site", help=SITE)]
Layer = Annotated[int | None, typer.Option(min=1, help="The layer, counted from 1.  [default: the last]")]
Head = Annotated[int | None, typer.Option(min=1, help="The head, counted from 1.  [default: the mean of all]")]
BEST = "best"  # in place of the number of a head
HEAD_OR_BEST = "The head, counted from 1; or best: layer, head and step that regard align --store chose.  "
HEAD_OR_BEST += "[default: the mean of all]"
HeadOrBest = Annotated[str | None, typer.Option("--head", metavar="HEAD", help=HEAD_OR_BEST)]
All = Annotated[bool, typer.Option("--all", help="All sites, layers and heads that are not chosen; .html holds them.")]
Scale = Annotated[str | None, typer.Option("--scale", metavar="one|map|row", help=SCALE)]
Matrix = Annotated[bool, typer.Option("--matrix", help=MATRIX)]
Pieces = Annotated[bool, typer.Option("--pieces", help="Show sub-words; else they are merged to words.")]


def check_files(paths: Sequence[Path], *, all_maps: bool, scale: str | None) -> None:
    """Raise an error if a file's ending is unknown, needs a missing package, or cannot hold all maps; or the scale."""
    from regard.show import maps
    from regard.show.scale import check_scale

    if scale is not None:
        check_scale(scale)
    for path in paths:
        maps.check_ending(path.suffix)
        if all_maps and path.suffix.lower() != ".html":
            message = f"{shown(str(path))} holds one map, but --all shows several; write them to a .html file"
            raise RecipeError(f"{message}, or choose --site, --layer and --head without --all")


def head_number(head: str | None, *, alone: bool) -> int | None:
    """The number of a head; None if it is not given, or `best`, which is allowed only if it is `alone`."""
    if head == BEST and not alone:
        raise RecipeError("--head best is one map, with its own layer; leave out --site, --layer, --all and --beside")
    if head is None or head == BEST:
        return None
    if not (head.isdecimal() and head.isascii() and len(head) < MOST_DIGITS and int(head)):
        raise RecipeError(f"--head {shown(head)}: give the number of a head, counted from 1, or best")
    return int(head)


def reading_of(head: str | None, run: "Run") -> "Reading | None":
    """The reading that is kept in the run, if it was asked for."""
    from regard.analysis.readings import stored

    return stored(run) if head == BEST else None


def choose(
    prediction: "Prediction",
    site: str | None,
    layer: int | None,
    head: int | None,
    reading: "Reading | None" = None,
) -> "AttentionMap":
    """The chosen map of a prediction: its own map if nothing is chosen."""
    if reading is not None:
        return reading.map(_stack(prediction))
    if prediction.map is not None and (site, layer, head) == (None, None, None):
        return prediction.map
    return _stack(prediction).pick(site, layer, head)


def choose_all(
    prediction: "Prediction", site: str | None, layer: int | None, head: int | None
) -> "dict[tuple[str, ...], AttentionMap]":
    """All maps of a prediction at this site, in this layer and of this head, by their place; None stands for all."""
    from regard.show.viewer_data import by_place

    maps = _stack(prediction).select(site, layer)
    if head is None:
        return by_place(maps)
    having = [own for own in maps.layers if head <= own.heads] or maps.layers  # if none has it: an error below
    return by_place(own.map(head) for own in having)


def _stack(prediction: "Prediction") -> "AttentionMaps":
    """All maps of a prediction; RecipeError if it has none."""
    if prediction.maps is None and not prediction.source.strip():
        raise RecipeError("there is no map: the text is blank; give one with letters in it")
    if prediction.maps is None:
        raise RecipeError(
            "there is no map: the model has no attention (model.decoder.order = none, or a recurrent encoder without "
            "attention pooling), or a language model wrote more than its window"
        )
    return prediction.maps


def maps_to_dict(shown_maps: "Sequence[AttentionMap]", *, all_maps: bool) -> dict[str, Any]:
    """What --json adds to a prediction: the chosen map with its place in the model; with --all, a list of all."""
    contents = [
        attention.place._asdict()
        | {"rows": attention.rows, "source_tokens": attention.columns, "attention": attention.weights.tolist()}
        | {"trust": attention.trust}
        for attention in shown_maps
        if attention.place is not None
    ]
    return {"maps": contents} if all_maps else dict(*contents)
