"""Maps joined from several: mean, max, rollout, by norm, differences; and the mass on ends and punctuation."""

import re
from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.analysis.forced import force
from regard.attention.heads import MultiHead, SelfAttention
from regard.attention.norms import record_norms, transformed_norms
from regard.attention.record import record
from regard.errors import RecipeError
from regard.maps import AttentionMap, AttentionMaps, LayerMaps
from regard.models import sites
from regard.show.maps import draw
from regard.show.terminal import terminal
from regard.show.viewer_data import data_of_map

GOLDEN = Path(__file__).parent / "golden" / "runs"
TRANSLATIONS = sorted(path.name for path in GOLDEN.glob("translate_*"))
CROSS, ENCODER = "decoder.cross_attention", "encoder.self_attention"
WRITTEN, READ = tuple("wxy</s>"[:3]), tuple("abcde")


def stack(heads: int, rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.rand(heads, rows, columns, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def maps() -> AttentionMaps:
    cross = [LayerMaps(CROSS, number, stack(2, 3, 5, number), WRITTEN, READ) for number in (1, 2)]
    own = [LayerMaps(ENCODER, number, stack(2, 5, 5, 10 + number), READ, READ) for number in (1, 2)]
    return AttentionMaps((*cross, *own))


def test_mean_and_max_are_over_all_heads_of_a_site_or_layer() -> None:
    found = maps()
    all_heads = torch.cat([layer.weights for layer in found.layers[:2]])
    torch.testing.assert_close(found.mean().weights, sum(all_heads) / 4)
    torch.testing.assert_close(found.max(layer=2).weights, torch.maximum(all_heads[2], all_heads[3]))
    torch.testing.assert_close(found.mean(ENCODER, 1).weights, found.pick(ENCODER, 1).weights)
    assert (found.max().rows, found.max().columns) == (WRITTEN, READ)


def test_rollout_multiplies_layers_with_their_residual_connection() -> None:
    found = maps()
    rolled = [[float(row == column) for column in range(5)] for row in range(5)]
    for layer in found.select(ENCODER).layers:
        mixed = (layer.weights.mean(0) + torch.eye(5)) / 2
        rolled = [[sum(mixed[i, k] * rolled[k][j] for k in range(5)) for j in range(5)] for i in range(5)]
    expected = torch.tensor(rolled)
    torch.testing.assert_close(found.rollout(ENCODER).weights, expected)
    torch.testing.assert_close(found.rollout().weights, found.pick().weights @ expected)
    torch.testing.assert_close(found.rollout().weights.sum(-1), torch.ones(3))
    with pytest.raises(RecipeError, match=r"needs the maps of encoder.self_attention, and this model has none"):
        AttentionMaps(found.layers[:2]).rollout()


def test_a_difference_is_signed_and_links_nothing() -> None:
    one, other = maps().pick(layer=1), maps().pick(layer=2)
    difference = one.minus(other)
    torch.testing.assert_close(difference.weights, one.weights - other.weights)
    assert difference.is_signed
    assert not one.is_signed
    assert b"-0." in draw(difference, ".csv")
    with pytest.raises(RecipeError, match="difference of two maps, which links no words"):
        draw(difference, ".pharaoh")
    with pytest.raises(RecipeError, match="needs two maps with the same rows and columns"):
        one.minus(maps().pick(ENCODER))


BLUE, AMBER = (20, 62, 125), (138, 71, 8)  # of the weights 1 and -1
SIGNED = AttentionMap(torch.tensor([[1.0, -1.0, 0.0], [0.05, -0.1, 0.1]]), ("▁x", "▁y"), ("▁a", "▁b", "▁c"))
LEGEND = "blue: more weight in the first map; amber: in the second"


def pixels_of(png: bytes) -> set[tuple[int, ...]]:
    pixels = np.asarray(Image.open(BytesIO(png)).convert("RGB"))
    return set(map(tuple, np.unique(pixels.reshape(-1, 3), axis=0).tolist()))


def test_pictures_of_a_difference_have_a_colour_for_each_sign_and_say_which() -> None:
    drawing = draw(SIGNED, ".svg").decode()
    ends = re.findall(r"<text [^>]*>([−+][^<]*)</text>", drawing)
    assert ends == ["−1", "+1"]
    fills = re.findall(r'fill="(#[0-9a-f]{6})" stroke="[^"]*"><title>x ← (.)', drawing)
    assert fills == [("#143e7d", "a"), ("#8a4708", "b"), ("#ffffff", "c")]
    assert LEGEND in drawing
    assert {BLUE, AMBER} <= pixels_of(draw(SIGNED, ".png"))
    assert AMBER not in pixels_of(draw(replace(SIGNED, weights=SIGNED.weights.abs()), ".png"))
    assert LEGEND not in draw(replace(SIGNED, weights=SIGNED.weights.abs()), ".svg").decode()
    assert draw(SIGNED, ".gif").startswith(b"GIF89a")
    halved = replace(SIGNED, weights=SIGNED.weights / 2)
    for scale in ("map", "row"):  # the weight of the greatest size is darkest, also if it is negative
        assert AMBER in pixels_of(draw(halved, ".png", scale=scale))
    assert "−0.5" in draw(halved, ".svg", scale="map").decode()


def test_a_large_difference_is_an_image_in_both_colours() -> None:
    weights = torch.zeros(3, 500)
    weights[0, 0], weights[1, 1] = 1.0, -1.0
    large = AttentionMap(weights, WRITTEN, tuple(map(str, range(500))))
    drawing = draw(large, ".svg").decode()
    [image] = re.findall(r"data:image/png;base64,([^\"]+)", drawing)
    dots = Image.open(BytesIO(b64decode(image))).convert("RGB")
    assert [dots.getpixel(place) for place in ((0, 0), (1, 1), (2, 2))] == [BLUE, AMBER, (255, 255, 255)]
    assert LEGEND in drawing
    assert "-1.00" in drawing  # the note of the second row
    assert {BLUE, AMBER} <= pixels_of(draw(large, ".png"))


def test_a_terminal_marks_negative_weights_also_without_colours() -> None:
    plain = terminal(SIGNED.words(), width=60, colours=None)
    first, second = plain.splitlines()[1:3]
    assert first == "x ███−· "[: len(first)]
    assert second == "y · •−· "[: len(second)]
    assert "██ more weight in the first map  █− in the second" in plain
    for colours, blue, amber in (
        ("truecolor", "38;2;38;128;235", "38;2;214;120;20"),
        ("256", "38;5;33", "38;5;172"),
        ("standard", "94", "33"),
    ):
        drawn = terminal(SIGNED.words(), width=60, colours=colours)
        assert f"\x1b[{blue}m██\x1b[0m\x1b[{amber}m█−\x1b[0m" in drawn
    assert "more weight" not in terminal(maps().pick(), width=60, colours=None)


def test_a_notebook_and_a_page_show_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert data_of_map(SIGNED)["maps"][0]["signed"]
    assert data_of_map(SIGNED, scale="map")["maps"][0]["tops"] == [1.0, 1.0]
    assert SIGNED._repr_html_().startswith("<iframe")
    assert LEGEND in SIGNED._repr_svg_()
    SIGNED.show()
    assert "in the second" in capsys.readouterr().out


def test_mass_on_ends_and_punctuation() -> None:
    columns = ("▁a", ",", "▁b", "▁.", "...", "</s>", "<s>")
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.05, 0.05, 0.25, 0.05], [0.0] * 7])
    attention = AttentionMap(weights, ("x", "y"), columns)
    torch.testing.assert_close(attention.mass_on_end(), torch.tensor([0.3, 0.0]))
    torch.testing.assert_close(attention.mass_on_punctuation(), torch.tensor([0.3, 0.0]))


# ---- by norm


@pytest.mark.parametrize("outer", [None, "cross", "self", "groups"])
def test_norms_are_those_of_the_transformed_values(outer: str | None) -> None:
    predictor = regard.load(GOLDEN / "translate_transformer" / "finished", device="cpu")
    layer = predictor.model.decoder.layers[0]
    module: MultiHead | SelfAttention = layer.attention if outer == "self" else layer.cross
    module.double()
    heads, width = module.heads, module.out.in_features // module.heads
    values = torch.randn(3, heads, 7, width, dtype=torch.float64)
    if outer is None:
        torch.testing.assert_close(transformed_norms(values, torch.nn.Identity()), values.square().sum(-1).sqrt())
        return
    found = transformed_norms(values, module)
    for head in range(heads):
        columns = module.out.weight[:, head * width : (head + 1) * width]
        torch.testing.assert_close(found[:, head], (values[:, head] @ columns.T).norm(dim=-1))


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_maps_by_norm_scale_weights_and_recording_norms_changes_nothing(name: str) -> None:
    predictor = regard.load(GOLDEN / name / "finished", device="cpu")
    [plain], [forced] = (force(predictor, [("dabca", "acd")], all_maps=on) for on in (False, True))
    assert plain.score == forced.score
    assert plain.map == forced.map
    assert forced.maps is not None
    for layer in forced.maps.layers:
        assert layer.norms is not None
        assert layer.norms.shape == (layer.heads, len(layer.columns))
        assert bool((layer.norms > 0).all())
        scaled = layer.by_norm()
        torch.testing.assert_close(scaled.map().weights.sum(-1), torch.ones(len(layer.rows)))
        raw = layer.weights * layer.norms.unsqueeze(1)
        torch.testing.assert_close(scaled.weights, raw / raw.mean(0).sum(-1, keepdim=True))
        with pytest.raises(RecipeError, match="were not recorded"):
            scaled.by_norm()
    assert forced.maps.by_norm().pick().place == forced.maps.pick().place


def test_norms_are_recorded_beside_the_weights_bit_for_bit() -> None:
    predictor = regard.load(GOLDEN / "translate_transformer" / "finished", device="cpu")
    names = list(sites(predictor.model))
    with record(predictor.model, layers=names) as recording, record_norms(predictor.model, layers=names[:2]) as norms:
        with_hooks = predictor.predict(["dabca"])[0]
    without = predictor.predict(["dabca"])[0]
    assert (with_hooks.text, with_hooks.score, with_hooks.map) == (without.text, without.score, without.map)
    assert set(norms) == set(names[:2])
    assert all(norms[name].shape[-1] == recording.joined(name).shape[-1] for name in norms)
