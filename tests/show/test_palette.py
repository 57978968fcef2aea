"""Laws of the 256 colours of a terminal: what looks alike is chosen, and more weight never looks darker."""

import pytest
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.show import blocks, palette

FIXED = range(16, 256)  # the first 16 differ from terminal to terminal


def pixel(code: str) -> list[int]:
    """Red, green and blue of a colour, as xterm documents them."""
    number = int(code.removeprefix("5;")) - 16
    if number >= 216:
        return [8 + 10 * (number - 216)] * 3
    return [0 if side == 0 else 55 + 40 * side for side in (number // 36, number // 6 % 6, number % 6)]


def decoded(codes: list[list[str]]) -> UInt8[Tensor, "height width 3"]:
    return torch.tensor([[pixel(code) for code in row] for row in codes], dtype=torch.uint8)


def seen(pixels: UInt8[Tensor, "*shape 3"]) -> Float[Tensor, "*shape 3"]:
    return palette.perceived(palette.linear(pixels))


def flat(colour: Tensor, height: int = 6, width: int = 4) -> UInt8[Tensor, "height width 3"]:
    return colour.to(torch.uint8).expand(height, width, 3)


@pytest.mark.parametrize(
    ("colour", "oklab"),  # as Ottosson publishes them
    [
        ([255, 255, 255], [1.0, 0.0, 0.0]),
        ([0, 0, 0], [0.0, 0.0, 0.0]),
        ([255, 0, 0], [0.62796, 0.22486, 0.12585]),
        ([0, 255, 0], [0.86644, -0.23389, 0.17950]),
        ([0, 0, 255], [0.45201, -0.03246, -0.31153]),
    ],
)
def test_colours_are_compared_in_oklab(colour: list[int], oklab: list[float]) -> None:
    lightness, *hue = oklab
    expected = torch.tensor([lightness, *(palette.HUE * part for part in hue)])
    torch.testing.assert_close(seen(torch.tensor(colour, dtype=torch.uint8)), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("paint", [palette.nearest, palette.dithered])
def test_each_of_the_colours_stands_for_itself(paint) -> None:
    for number in FIXED:
        code = f"5;{number}"
        assert {part for row in paint(flat(torch.tensor(pixel(code)))) for part in row} == {code}


def test_the_nearest_colour_is_the_nearest_of_all() -> None:
    pixels = torch.randint(0, 256, (7, 11, 3), dtype=torch.uint8)
    everything = seen(torch.tensor([pixel(f"5;{number}") for number in FIXED], dtype=torch.uint8))
    least = (seen(pixels).unsqueeze(-2) - everything).norm(dim=-1).amin(-1)
    chosen = (seen(pixels) - seen(decoded(palette.nearest(pixels)))).norm(dim=-1)
    torch.testing.assert_close(chosen, least)


def test_a_pattern_is_never_further_from_an_area_than_one_colour_and_nearer_on_average() -> None:
    errors = []
    for colour in torch.cartesian_prod(*[torch.arange(15, 256, 48)] * 3):
        area = flat(colour)
        mixture = palette.perceived(palette.linear(decoded(palette.dithered(area))).mean((0, 1)))
        one = seen(decoded(palette.nearest(area))[0, 0])
        errors.append([(own - seen(area[0, 0])).norm().item() for own in (mixture, one)])
    mixed, single = torch.tensor(errors).unbind(1)
    assert (mixed <= single + 1e-5).all()
    assert mixed.mean() < 0.85 * single.mean()


def test_an_area_has_at_most_two_colours_at_fixed_places() -> None:
    for colour in torch.randint(0, 256, (20, 3)):
        codes = palette.dithered(flat(colour, 5, 7))
        assert len({code for row in codes for code in row}) <= 2
        tile = palette.dithered(flat(colour, 2, 2))
        assert codes == [[tile[y % 2][x % 2] for x in range(7)] for y in range(5)]


def test_greys_are_smooth() -> None:
    """A checkerboard of two neighbouring greys would be worse than a grey that is 5 too light."""
    for level in range(8, 239):
        drawn = decoded(palette.dithered(flat(torch.tensor([level] * 3))))
        assert (drawn == drawn[0, 0, 0]).all()


@pytest.mark.parametrize(
    ("paint", "colour", "levels"),
    [(blocks.WEIGHTS["256"], blocks.STRONG, 10), (blocks.SPECTRA["256"], blocks.LOUD, 18)],
    ids=["weights", "spectrogram"],
)
def test_more_is_never_darker(paint, colour: tuple[int, int, int], levels: int) -> None:
    codes = paint(blocks._mixed(torch.linspace(0, 1, 301).unsqueeze(0), colour))
    lightness = seen(decoded(codes))[0, :, 0]
    assert (lightness.diff() >= 0).all()
    assert len(lightness.unique()) >= levels


def test_a_spectrogram_has_no_colour_but_grey() -> None:
    pixels = decoded(palette.grey(torch.randint(0, 256, (3, 50, 3), dtype=torch.uint8)))
    assert (pixels == pixels[..., :1]).all()


def test_a_terminal_of_all_colours_gets_them_exactly() -> None:
    pixels = torch.tensor([[[1, 2, 3], [40, 50, 60]]], dtype=torch.uint8)
    assert palette.exact(pixels) == [["2;1;2;3", "2;40;50;60"]]
