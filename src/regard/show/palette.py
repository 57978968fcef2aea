"""The colours of pixels in a terminal, as the end of an escape code; of 256 colours, those that look most alike.

The first 16 of the 256 colours are not used, because every terminal has its own. The others are a cube of 6 x 6 x 6
colours and 24 greys, which are the same everywhere.
"""

from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

SIDES = (0, 95, 135, 175, 215, 255)  # red, green and blue of the cube
GREYS = range(8, 248, 10)
FIRST = 16  # number of the first colour of the cube
# Oklab (Ottosson 2020): from linear red, green and blue to the response of three kinds of cones, and from its cube
# roots to lightness, green to red, and blue to yellow. Equal distances look equally different.
CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
OPPONENTS = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
HUE = 2.0  # a wrong hue counts so many times as much as a wrong lightness: skin must not become grey, nor grass brown
CANDIDATES = 12  # nearest colours that are tried in pairs
# A pair costs something, so that areas are smooth: one colour is good enough if it differs by so much, and colours
# that differ much from each other are a worse pair.
ENOUGH, ROUGHNESS = 0.03, 0.15
SHARES = (0.25, 0.5, 0.75)  # of the lighter colour of a pair
THRESHOLDS = ((0.125, 0.625), (0.875, 0.375))  # a pixel gets the lighter colour if its share is larger (Bayer 1973)


def exact(pixels: UInt8[Tensor, "height width 3"]) -> list[list[str]]:
    """The colours of a terminal that shows all of them."""
    return [[f"2;{red};{green};{blue}" for red, green, blue in row] for row in pixels.tolist()]


def nearest(pixels: UInt8[Tensor, "height width 3"]) -> list[list[str]]:
    """The nearest of 256 colours, for pixels that each stand for a number."""
    distances = (perceived(linear(pixels)).unsqueeze(-2) - _palette().perceived).square().sum(-1)
    return _codes(distances.argmin(-1))


def grey(pixels: UInt8[Tensor, "height width 3"]) -> list[list[str]]:
    """The nearest of the greys, for levels of one colour: it has more of them than of any other colour."""
    greys = _palette().perceived[len(SIDES) ** 3 :, 0]
    distances = (perceived(linear(pixels))[..., :1] - greys).abs()
    return _codes(len(SIDES) ** 3 + distances.argmin(-1))


def dithered(pixels: UInt8[Tensor, "height width 3"]) -> list[list[str]]:
    """256 colours for a picture: two of them in a pattern of 2 x 2 pixels, if their mixture is nearer than each alone.

    The pattern has fixed places (ordered dithering), so equal areas of two panels look equal.
    """
    height, width, _ = pixels.shape
    thresholds = torch.tensor(THRESHOLDS).repeat(height // 2 + 1, width // 2 + 1)[:height, :width].flatten()
    darker, lighter, shares = _pairs(pixels.flatten(0, 1))
    return _codes(torch.where(shares > thresholds, lighter, darker).reshape(height, width))


def linear(pixels: UInt8[Tensor, "*shape 3"]) -> Float[Tensor, "*shape 3"]:
    """The light of a screen, from 0 to 1 (IEC 61966-2-1): only in it, the mixture of two pixels is their mean."""
    values = pixels.float() / 255
    return torch.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def perceived(light: Float[Tensor, "*shape 3"]) -> Float[Tensor, "*shape 3"]:
    """Colours in a space in which distances are differences that people see: lightness, then twice the hue."""
    cones, opponents = light.new_tensor(CONES), light.new_tensor(OPPONENTS)
    return (light @ cones.T) ** (1 / 3) @ opponents.T * light.new_tensor([1.0, HUE, HUE])


class Palette(NamedTuple):
    """The cube and the greys."""

    pixels: UInt8[Tensor, "colours 3"]
    linear: Float[Tensor, "colours 3"]
    perceived: Float[Tensor, "colours 3"]


@cache
def _palette() -> Palette:
    cube = [[red, green, blue] for red in SIDES for green in SIDES for blue in SIDES]
    pixels = torch.tensor(cube + [[grey] * 3 for grey in GREYS], dtype=torch.uint8)
    return Palette(pixels, linear(pixels), perceived(linear(pixels)))


def _codes(colours: Int[Tensor, "height width"]) -> list[list[str]]:
    return [[f"5;{FIRST + colour}" for colour in row] for row in colours.tolist()]


def _pairs(
    pixels: UInt8[Tensor, "pixels 3"],
) -> tuple[Int[Tensor, " pixels"], Int[Tensor, " pixels"], Float[Tensor, " pixels"]]:
    """For each pixel a darker colour, a lighter one, and the share of the lighter one: 0 if one colour is best."""
    _, light, seen = _palette()
    wanted = perceived(linear(pixels)).unsqueeze(1)
    distances = (wanted - seen).square().sum(-1)
    closest = distances.topk(CANDIDATES, largest=False).indices
    first, second = torch.combinations(torch.arange(CANDIDATES)).unbind(1)
    one, other = closest[:, first], closest[:, second]
    darker = torch.where(seen[one, 0] <= seen[other, 0], one, other)
    lighter = one + other - darker
    roughness = ENOUGH**2 + ROUGHNESS * (seen[one] - seen[other]).square().sum(-1)
    costs = [distances.gather(1, closest)]
    for share in SHARES:
        mixture = perceived(light[darker] * (1 - share) + light[lighter] * share)
        costs.append((mixture - wanted).square().sum(-1) + roughness)
    best = torch.cat(costs, 1).argmin(1, keepdim=True)
    no_share = torch.zeros(CANDIDATES)
    shares = torch.cat([no_share, *(torch.full(first.shape, share) for share in SHARES)])[best.squeeze(1)]
    darkers, lighters = (torch.cat([closest, *[own] * len(SHARES)], 1) for own in (darker, lighter))
    return darkers.gather(1, best).squeeze(1), lighters.gather(1, best).squeeze(1), shares
