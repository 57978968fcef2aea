"""Scales of maps: which weight has the darkest shade; notes and numbers stay the weights themselves."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from regard.errors import RecipeError
from regard.maps import AttentionMap
from regard.show.html import html, html_of_several
from regard.show.large import lay_out
from regard.show.maps import DRAWINGS, draw, png, svg
from regard.show.ramp import tint
from regard.show.scale import SCALES, legible_scale, shades, tops
from regard.show.terminal import terminal

NAMESPACE = "{http://www.w3.org/2000/svg}"
SPREAD = AttentionMap(torch.tensor([[0.05, 0.21, 0.0], [0.1, 0.02, 0.04]]), ("x", "y"), ("a", "b", "c"))
ENDS = {"one": "1", "map": "0.21", "row": "largest weight of the row"}
every_scale = pytest.mark.parametrize("scale", SCALES)


def colour(weight: float) -> str:
    return "#{:02x}{:02x}{:02x}".format(*tint(weight))


def test_the_darkest_weight_is_one_or_the_largest_of_the_map_or_of_its_row() -> None:
    assert tops(SPREAD.weights, "one").tolist() == [[1], [1]]
    assert tops(SPREAD.weights, "map").flatten().tolist() == pytest.approx([0.21, 0.21])
    assert tops(SPREAD.weights, "row").flatten().tolist() == pytest.approx([0.21, 0.1])
    assert shades(SPREAD.weights, "row").amax(-1).tolist() == [1, 1]
    assert torch.equal(shades(SPREAD.weights, "one"), SPREAD.weights)


@every_scale
def test_maps_without_weights_or_with_nan_have_a_scale(scale: str) -> None:
    for weights in (torch.zeros(2, 3), torch.full((2, 3), torch.nan), torch.zeros(0, 3), torch.zeros(2, 0)):
        assert (tops(weights, scale) == 1).all()
        attention = AttentionMap(weights, ("x", "y")[: len(weights)], ("a", "b", "c")[: weights.shape[1]])
        assert terminal(attention, width=40, colours=None, scale=scale)
        for ending in DRAWINGS:
            assert draw(attention, ending, scale=scale)


@every_scale
def test_a_terminal_has_the_scale_in_its_shades_and_its_legend(scale: str) -> None:
    drawing = terminal(SPREAD, width=40, colours=None, scale=scale)
    darkest = {"one": "≥0.875", "map": "≥0.184", "row": "≥87.5% of the row's largest"}[scale]
    assert f"██ {darkest}" in drawing
    assert drawing.split("\n\n")[0].count("██") == {"one": 0, "map": 1, "row": 2}[scale]


@every_scale
def test_an_svg_has_the_scale_in_its_colours_and_the_weights_in_its_notes(scale: str) -> None:
    root = ElementTree.fromstring(svg(SPREAD, scale=scale))
    cells = [cell for cell in root.iter(f"{NAMESPACE}rect") if cell.find(f"{NAMESPACE}title") is not None]
    assert [cell.attrib["fill"] for cell in cells] == list(
        map(colour, shades(SPREAD.weights, scale).flatten().tolist())
    )
    notes = [cell.findtext(f"{NAMESPACE}title") for cell in cells]
    assert [note.split()[-1] for note in notes if note] == ["0.05", "0.21", "0.00", "0.10", "0.02", "0.04"]
    assert ENDS[scale] in [word.text for word in root.iter(f"{NAMESPACE}text")]


def test_a_png_has_a_scale() -> None:
    assert len({png(SPREAD, scale=scale) for scale in SCALES}) == 3
    assert png(SPREAD) == png(SPREAD, scale="one")


@every_scale
def test_a_large_map_has_a_scale(scale: str) -> None:
    weights = torch.zeros(401, 1001)
    weights[0, 0], weights[1, 7] = 0.2, 0.1
    attention = AttentionMap(weights, ("x",) * 401, ("a",) * 1001)
    picture = lay_out(attention, "", scale=scale)
    assert picture.image is not None
    wanted = {"one": (51, 26), "map": (255, 128), "row": (255, 255)}[scale]
    assert tuple(picture.image.levels[:2].amax(-1).tolist()) == pytest.approx(wanted, abs=1)
    assert ENDS[scale].replace("0.21", "0.2") in [word.text for word in picture.words]
    assert any(area.note.endswith(" 0.20") for area in picture.areas)
    drawing = terminal(attention, width=80, colours=None, scale=scale).splitlines()
    assert [line.count("█") > 0 for line in drawing[:-4]].count(True) == {"one": 0, "map": 1, "row": 1}[scale]


def content(page: bytes) -> dict[str, list[dict[str, object]]]:
    block = re.search(r'class="regard-map">(.*?)</script>', page.decode(), re.DOTALL)
    assert block
    return json.loads(block[1])


def test_a_page_has_the_scale_and_the_weights() -> None:
    for page in (html(SPREAD, scale="row"), html_of_several({("p",): SPREAD}, ["Pair"], scale="row")):
        [own] = content(page)["maps"]
        assert own["tops"] == pytest.approx([0.21, 0.1])
        assert own["darkest"] == ENDS["row"]
    assert content(html(SPREAD, scale="map"))["maps"][0]["darkest"] == "0.21"
    assert content(html(SPREAD, scale="row"))["maps"][0]["weights"] == content(html(SPREAD))["maps"][0]["weights"]
    assert "tops" not in content(html(SPREAD))["maps"][0]


def test_files_have_a_fixed_scale_unless_another_is_given(tmp_path: Path) -> None:
    SPREAD.save(tmp_path / "one.svg")
    SPREAD.save(tmp_path / "map.svg", scale="map")
    assert (tmp_path / "one.svg").read_text(encoding="utf-8") == svg(SPREAD)
    assert (tmp_path / "map.svg").read_text(encoding="utf-8") == svg(SPREAD, scale="map")
    for ending in (".csv", ".pharaoh"):
        assert draw(SPREAD, ending, scale="row") == draw(SPREAD, ending)


def test_the_legible_scale_of_a_spread_map_is_its_own() -> None:
    assert legible_scale(SPREAD.weights) == "map"
    assert legible_scale(torch.eye(2)) == legible_scale(torch.zeros(2, 0)) == "one"


def test_an_unknown_scale_is_refused() -> None:
    for ending in DRAWINGS:
        with pytest.raises(
            RecipeError, match=r"^unknown scale 'rows'; choose from one, map, row; did you mean 'row'\?$"
        ):
            draw(SPREAD, ending, scale="rows")
