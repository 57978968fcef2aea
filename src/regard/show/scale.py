"""The scale of a map's shades: which weight is drawn darkest."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import UnknownNameError

SCALES = ("one", "map", "row")  # the weight 1, the largest weight of the map, that of each row
SPREAD = 0.3  # a map without a larger weight is hardly legible on the scale from 0 to 1


def check_scale(scale: str) -> None:
    """Raise RecipeError if there is no such scale."""
    if scale not in SCALES:
        raise UnknownNameError("scale", scale, SCALES)


def legible_scale(weights: Float[Tensor, "rows columns"]) -> str:
    """The scale of a map in a terminal: that of the map if all weights are small, else from 0 to 1."""
    return "map" if tops(weights, "map").lt(SPREAD).any() else "one"


def tops(weights: Float[Tensor, "rows columns"], scale: str) -> Float[Tensor, "rows 1"]:
    """For each row, the weight that is drawn darkest, without its sign; 1 if the row or the map has no weight."""
    check_scale(scale)
    ones = torch.ones(len(weights), 1)
    if scale == "one" or not weights.numel():
        return ones
    largest = weights.detach().cpu().float().nan_to_num(0, 0, 0).abs().amax(-1, keepdim=True)
    largest = largest.amax().expand_as(largest) if scale == "map" else largest
    return torch.where(largest > 0, largest, ones)


def shades(weights: Float[Tensor, "rows columns"], scale: str) -> Float[Tensor, "rows columns"]:
    """The weights, divided by the one that is drawn darkest: 0 is the lightest shade, 1 and -1 are the darkest."""
    return weights if scale == "one" else weights.detach().cpu().float() / tops(weights, scale)


def ends(weights: Float[Tensor, "rows columns"], scale: str) -> tuple[str, str]:
    """Both ends of a legend: of a difference, which has negative weights, the same weight with both signs."""
    top = darkest(weights, scale)
    return (f"−{top}", f"+{top}") if bool((weights < 0).any()) else ("0", top)


def darkest(weights: Float[Tensor, "rows columns"], scale: str) -> str:
    """The end of a legend: the weight that is drawn darkest."""
    if scale == "row":
        return "largest weight of the row"
    return f"{tops(weights, scale)[0].item():.2g}" if len(weights) else "1"
