"""Laws of moving pictures (.gif): a frame for each token, with the rows so far and nothing of those after them."""

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from test_forecasts import MAP, VIEW
from test_views import picture_map, recording_map

from regard.errors import MissingExtraError, RecipeError
from regard.maps import AttentionMap
from regard.show import walk
from regard.show.maps import draw

image = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")
DATES = AttentionMap(torch.eye(3, 5), ("1", "9", "</s>"), (*"1 9!", "</s>"))


def frames(content: bytes) -> tuple[list[torch.Tensor], list[int]]:
    """The pixels of all frames, and how many milliseconds they last."""
    animation = image.open(io.BytesIO(content))
    pixels, lasting = [], []
    for number in range(animation.n_frames):
        animation.seek(number)
        lasting.append(animation.info["duration"])
        frame = animation.convert("RGB")
        pixels.append(
            torch.frombuffer(bytearray(frame.tobytes()), dtype=torch.uint8).view(frame.height, frame.width, 3)
        )
    return pixels, lasting


@pytest.mark.parametrize(
    "attention",
    [DATES, picture_map(tuple("abc")), recording_map(3), MAP],
    ids=["text", "picture", "recording", "series"],
)
def test_a_frame_for_each_token_shows_what_is_written_so_far(attention: AttentionMap) -> None:
    content = draw(attention, ".gif", "source → output")
    assert content[:6] == b"GIF89a"
    pixels, lasting = frames(content)
    assert len(pixels) == len(attention.rows) + 1
    assert lasting == [walk.STEP] * len(attention.rows) + [walk.END]
    assert all((frame[:8] == 255).all() for frame in pixels)  # white stays white
    changes = [(one != other).any().item() for one, other in pairwise(pixels)]
    assert all(changes)


def test_rows_that_are_not_written_are_white() -> None:
    cell = round(walk.layout.CELL * walk.SHARPNESS / 100)
    pixels, _ = frames(draw(AttentionMap(torch.eye(4), tuple("abcd"), tuple("wxyz")), ".gif"))
    deep = torch.tensor([20, 62, 125])
    cells = [((frame.int() - deep).abs().amax(-1) < 12).sum().item() / cell**2 for frame in pixels]
    least = cells[0]  # the end of the scale
    written = [count - least for count in cells]
    assert written == sorted(written)
    assert [round(count) for count in written[1:]] == [1, 2, 3, 4]  # its label is shaded, too, but smaller


def test_the_title_has_what_is_written_so_far() -> None:
    letters = AttentionMap(torch.eye(3), ("a", "b", "</s>"), tuple("xyz"))
    assert [walk._told("x → ab", letters, step) for step in range(4)] == ["x → ", "x → a", "x → ab", "x → ab"]
    words = AttentionMap(torch.eye(2), ("ab", "cd"), tuple("xy"))
    assert walk._told("x → y → ab cd", words, 2) == "x → y → ab cd"
    pieces = AttentionMap(torch.eye(2), ("▁ab", "cd"), tuple("xy"))
    assert walk._told("x → abcd", pieces, 2) == "x → abcd"
    assert walk._told("no arrow", pieces, 1) == "no arrow"


def test_long_outputs_are_cut_and_wide_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MOST", 2)
    assert len(frames(draw(AttentionMap(torch.eye(5), tuple("abcde"), tuple("vwxyz")), ".gif"))[0]) == 3
    wide = AttentionMap(torch.zeros(2, 500), ("a", "b"), ("x",) * 500)
    with pytest.raises(RecipeError, match=r"^a \.gif cannot show 2 × 500 weights; write this map to a \.html file"):
        draw(wide, ".gif")


def test_without_pillow_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"^drawing a GIF needs the package Pillow; install it with: .*vision"):
        walk.gif(DATES)


def test_a_forecast_is_saved_with_its_map(tmp_path: Path) -> None:
    saved: Any = MAP.save(tmp_path / "x.gif", "shop")
    assert len(frames(saved.read_bytes())[0]) == len(VIEW.times) - len(VIEW.history) + 1


def test_a_forecast_that_is_not_written_leaves_no_marks() -> None:
    pixels, _ = frames(draw(MAP, ".gif", "shop"))
    mark = torch.tensor([0xE8, 0x79, 0x0C])
    orange = [((frame.int() - mark).abs().amax(-1) < 40) for frame in pixels]
    counts = [place.sum().item() for place in orange]
    assert counts[0] < counts[1] < counts[-1]
    legend = pixels[0].shape[0] * 6 // 7  # below the map
    assert not orange[0][:legend].any()
    blue = [((frame[..., 2].int() - frame[..., 0].int()) > 60)[:legend].sum().item() for frame in pixels]
    assert blue == sorted(blue)  # the fan and the cells grow
