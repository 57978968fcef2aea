"""Laws of maps on pictures and recordings: weight lies where its cell lies, none outside, and nothing is transposed."""

import io
import re
from base64 import b64decode
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from test_html import HOSTILE, content

from regard.errors import DataError
from regard.maps import AttentionMap, AttentionMaps, Frames, Grid, LayerMaps, PictureView, SourceView, Spectrogram
from regard.recipe import Limits
from regard.recipe import Picture as Settings
from regard.show import blocks, filmstrip, spectrogram
from regard.show.dots import encode_pixels
from regard.show.html import framed, html, html_of_all
from regard.show.html import page as page_of
from regard.show.maps import draw, svg
from regard.show.terminal import drawing
from regard.show.viewer_data import Page as MapPage
from regard.show.views import inked, interpolation, loudness, overlay, row_times, source_view, upsample
from regard.sources import Picture

GRID = Grid(3, 5)
ESCAPES = re.compile(r"\x1b\[[\d;]*m")
CELLS = tuple(f"{row},{column}" for row in range(1, 4) for column in range(1, 6))
SENTENCE = ("a", "▁re", "d", "▁dog")
PICTURE = PictureView(torch.randint(0, 256, (42, 70, 3), dtype=torch.uint8))


def picture_map(rows: tuple[str, ...] = ("one", "two"), view: SourceView = PICTURE) -> AttentionMap:
    """A map whose row n has nearly all weight in cell n."""
    weights = torch.full((len(rows), 15), 0.01)
    weights[torch.arange(len(rows)), torch.arange(len(rows)) % 15] = 0.86
    return AttentionMap(weights, rows, CELLS, GRID, view=lambda: view)


def recording_map(tokens: int = 4, positions: int = 17, frames: int = 33) -> AttentionMap:
    """Frames of 0.02 s, positions of 0.04 s; the tone of frame n is in band n // 5, and token n is at position 4n."""
    features = torch.full((frames, 7), -20.0)
    features[torch.arange(frames), torch.arange(frames) // 5 % 7] = 0.0
    weights = torch.full((tokens, positions), 0.01)
    weights[torch.arange(tokens), torch.arange(tokens) * 4 % positions] = 0.8
    times = tuple(f"{0.04 * place:.2f}" for place in range(positions))
    view = Spectrogram(features, 0.02, 4000.0)
    return AttentionMap(weights, tuple(f"t{n}" for n in range(tokens)), times, Frames(0.04), view=lambda: view)


# weights over pixels


@pytest.mark.parametrize(("cells", "dots"), [(1, 7), (3, 12), (5, 35), (7, 224), (14, 14), (5, 13)])
def test_shares_of_a_dot_sum_to_one_and_a_cell_has_the_largest_share_of_its_own_dots(cells: int, dots: int) -> None:
    shares = interpolation(cells, dots)
    torch.testing.assert_close(shares.sum(1), torch.ones(dots).double())
    centres = (torch.arange(dots) + 0.5) * cells / dots
    assert shares.argmax(1).tolist() == centres.long().tolist()
    if dots % cells == 0:  # every cell has the same share of the picture, at the border, too
        torch.testing.assert_close(shares.sum(0), torch.full((cells,), dots / cells).double())


@pytest.mark.parametrize("cell", range(15))
def test_all_weight_in_one_cell_is_hottest_inside_it_and_none_is_lost(cell: int) -> None:
    heat = upsample(torch.eye(15)[cell], GRID, 42, 70)
    assert heat.shape == (42, 70)
    row, column = divmod(cell, 5)
    inside = heat[14 * row : 14 * (row + 1), 14 * column : 14 * (column + 1)]
    assert inside.max() == heat.max()
    outside = heat.clone()
    outside[14 * row : 14 * (row + 1), 14 * column : 14 * (column + 1)] = 0
    assert outside.max() < 0.51  # at the edge it is half
    far = heat.clone()
    top, left = max(0, 14 * row - 7), max(0, 14 * column - 7)
    far[top : 14 * (row + 1) + 7, left : 14 * (column + 1) + 7] = 0
    assert far.max() == 0  # further than half a cell around it there is no weight
    torch.testing.assert_close(heat.mean() * 15, torch.tensor(1.0).double())


def test_a_smooth_image_has_no_value_beyond_its_weights() -> None:
    weights = torch.rand(15)
    heat = upsample(weights, GRID, 31, 53)
    assert weights.min() <= heat.min()
    assert heat.max() <= weights.max()
    assert (heat.diff(dim=0).abs().max(), heat.diff(dim=1).abs().max()) < (0.3, 0.3)  # no edge between cells


def test_an_overlay_is_dark_without_weight_and_bright_with_it() -> None:
    heat = torch.zeros(42, 70)
    heat[:, 35:] = 1
    lightness = torch.tensor([0.299, 0.587, 0.114])
    drawn, own = (pixels.float() @ lightness for pixels in (overlay(PICTURE.pixels, heat), PICTURE.pixels))
    torch.testing.assert_close(drawn[:, :35], own[:, :35] / 2, atol=0.6, rtol=0)
    assert (drawn[:, 35:] >= own[:, 35:] * 0.75).all()
    black = overlay(torch.zeros(1, 2, 3, dtype=torch.uint8), torch.tensor([[0.0, 1.0]]))
    assert black.sum(-1).tolist()[0][0] == 0 < black.sum(-1).tolist()[0][1]


def test_panels_are_brightest_in_the_cell_of_their_word() -> None:
    grey = PictureView(torch.full((42, 70, 3), 128, dtype=torch.uint8))
    attention = picture_map(tuple("abcdefghijklmno"), grey)
    for cell, panel in enumerate(filmstrip.panels(attention, grey, 42, 70, "row")):
        brightest = panel.pixels.sum(-1, dtype=torch.long).argmax().item()
        assert (brightest // 70 // 14, brightest % 70 // 14) == divmod(cell, 5)
        assert (panel.weight, panel.cell) == (pytest.approx(0.86), CELLS[cell])


# what a source shows


@pytest.mark.parametrize("fit", ["crop", "pad"])
def test_a_picture_is_shown_as_the_model_reads_it(tmp_path: Path, fit: str) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((40, 100, 3), np.uint8)
    pixels[:, 30:70] = 200  # the square that `crop` leaves
    image.fromarray(pixels).save(tmp_path / "wide.png")
    source = Picture(Settings(size=20, fit=fit, blocks=2), Limits())
    view, read = source.view(str(tmp_path / "wide.png")), source.encode(str(tmp_path / "wide.png"))
    assert view.pixels.shape[0] == view.pixels.shape[1] == 100
    small = torch.nn.functional.avg_pool2d(view.pixels.movedim(-1, 0).double(), 5)
    assert (small - read).abs().mean() < 12  # the same picture, at another size
    if fit == "crop":
        assert view.pixels.min() > 190


def test_a_large_picture_is_shown_small(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (3000, 2000)).save(tmp_path / "large.png")
    view = Picture(Settings(), Limits()).view(str(tmp_path / "large.png"))
    assert view.pixels.shape == (512, 512, 3)


def test_a_map_whose_file_is_gone_is_drawn_as_a_matrix_with_a_warning() -> None:
    def gone() -> SourceView:
        raise DataError("x.png is not there")

    attention = AttentionMap(picture_map().weights, ("one", "two"), CELLS, GRID, view=gone)
    with pytest.warns(UserWarning, match=r"^the map is drawn as a matrix: x.png is not there$"):
        assert svg(attention) == svg(attention.without_view())
    with pytest.warns(UserWarning, match="drawn as a matrix"):
        assert "views" not in content(html(attention))


def test_a_view_that_does_not_fit_the_columns_is_not_drawn() -> None:
    attention = picture_map()
    fewer = AttentionMap(attention.weights[:, :14], attention.rows, CELLS[:14], GRID, view=lambda: PICTURE)
    assert source_view(attention) is PICTURE
    assert source_view(fewer) is None
    assert source_view(attention.without_view()) is None


def test_the_view_is_no_part_of_a_maps_value() -> None:
    assert picture_map() == picture_map().without_view()
    assert hash(picture_map()) == hash(picture_map().without_view())


# files


def test_pixels_survive_a_png() -> None:
    image = pytest.importorskip("matplotlib.image")
    decoded = image.imread(io.BytesIO(encode_pixels(PICTURE.pixels)))
    assert torch.equal(torch.from_numpy(decoded * 255).round().byte(), PICTURE.pixels)


def photos(drawing: str) -> list[np.ndarray]:
    """The pixels of all images of an SVG."""
    image = pytest.importorskip("matplotlib.image")
    found = [
        element.attrib["href"] for element in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}image")
    ]
    return [image.imread(io.BytesIO(b64decode(uri.removeprefix("data:image/png;base64,")))) for uri in found]


def test_an_svg_has_the_picture_and_a_panel_for_each_word_inside() -> None:
    words = tuple(f"w{n}" for n in range(14))
    drawn = svg(picture_map(words), "a title")
    own, *panels = photos(drawn)
    assert len(panels) == 14
    assert own.shape == panels[0].shape
    root = ElementTree.fromstring(drawn)
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    boxes = set()
    for element in root.iter("{http://www.w3.org/2000/svg}image"):
        x, y, wide, high = (float(element.attrib[name]) for name in ("x", "y", "width", "height"))
        assert left <= x <= x + wide <= left + width
        assert top <= y <= y + high <= top + height
        assert wide / high == pytest.approx(70 / 42, rel=0.02)
        boxes.add((x, y))
    assert len(boxes) == 15  # no two at one place
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in words] == list(words)
    assert texts.count("0.86") == 14


WHITE = PictureView(torch.full((40, 40, 3), 255, dtype=torch.uint8))


def test_each_panel_of_an_svg_has_an_edge() -> None:
    root = ElementTree.fromstring(svg(picture_map(("one", "two"), WHITE)))
    edges = [element.attrib for element in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert {edge["stroke"] for edge in edges} == {filmstrip.EDGE}
    for image, edge in zip(root.iter("{http://www.w3.org/2000/svg}image"), edges, strict=True):
        left, top, wide, high = (float(image.attrib[name]) for name in ("x", "y", "width", "height"))
        corners = {tuple(map(float, point.split(","))) for point in edge["points"].split()}
        assert corners == {(x, y) for x in (left, left + wide) for y in (top, top + high)}


def test_a_white_picture_ends_visibly_in_a_png() -> None:
    image = pytest.importorskip("matplotlib.image")
    pixels = image.imread(io.BytesIO(draw(picture_map((), WHITE), ".png")))[..., :3]
    edge = torch.tensor([int(filmstrip.EDGE[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    is_edge = (torch.from_numpy(pixels) - edge).abs().amax(-1) < 0.1
    rows, columns = ((is_edge.sum(axis) >= 280).nonzero().flatten() for axis in (1, 0))  # a side has 288 dots
    for places in (rows, columns):  # of both horizontal and both vertical sides
        assert places.min() + 287 <= places.max() <= places.min() + 290


def test_words_of_a_filmstrip_are_merged_unless_pieces_are_wanted() -> None:
    attention = picture_map(SENTENCE)
    assert len(photos(draw(attention, ".svg").decode())) == 4
    assert len(photos(draw(attention, ".svg", pieces=True).decode())) == 5


@pytest.mark.parametrize("attention", [picture_map(HOSTILE), recording_map()], ids=["picture", "recording"])
def test_every_format_draws_hostile_labels(attention: AttentionMap) -> None:
    image = pytest.importorskip("matplotlib.image")
    hostile = AttentionMap(
        attention.weights,
        (HOSTILE * 2)[: len(attention.rows)],
        attention.columns,
        attention.layout,
        view=attention.view,
    )
    ElementTree.fromstring(draw(hostile, ".svg", HOSTILE[0]))
    assert image.imread(io.BytesIO(draw(hostile, ".png", HOSTILE[0]))).ndim == 3
    assert "<img" not in draw(hostile, ".html", HOSTILE[0]).decode().split("</style>")[1].split("</script>")[0]


def test_files_stay_small() -> None:
    noise = PictureView(torch.randint(0, 256, (512, 512, 3), dtype=torch.uint8))
    words = tuple(f"w{n}" for n in range(200))
    attention = picture_map(words, noise)
    drawn = svg(attention)
    assert len(drawn) < 4_000_000
    assert "the last 80 of 200 words are left out" in drawn
    assert len(html(attention)) < 4_000_000
    page = MapPage(("Pair",))
    for number in range(30):
        page.add((str(number),), picture_map(("a",), noise))
    assert len(page_of(page.data())) < 5_000_000


def test_ten_minutes_are_drawn_pooled() -> None:
    attention = recording_map(tokens=300, positions=15_000, frames=60_000)
    assert len(html(attention)) < 4_000_000
    assert len(svg(attention)) < 1_000_000
    view = source_view(attention)
    assert isinstance(view, Spectrogram)
    text = blocks.recording(attention, view, width=80, colours="256")
    assert max(map(cell_len, ESCAPES.sub("", text).splitlines())) <= 80


# spectrograms


def test_a_spectrogram_has_time_across_and_low_bands_at_the_bottom() -> None:
    view = source_view(recording_map())
    assert isinstance(view, Spectrogram)
    levels = loudness(view, 1000, 1000)
    assert levels.shape == (33, 7)
    assert (levels.min(), levels.max()) == (0, 1)
    drawn = inked(levels)
    assert drawn.shape == (7, 33, 3)
    darkest = drawn.sum(-1, dtype=torch.long).argmin(0)
    assert darkest.tolist() == [6 - frame // 5 for frame in range(33)]
    assert loudness(view, 10, 3).shape == (10, 3)
    silence = Spectrogram(torch.zeros(3, 2), 0.01, 4000.0)
    assert loudness(silence, 5, 5).isfinite().all()


def test_alignment_and_spectrogram_share_the_time_axis() -> None:
    attention = recording_map(positions=17, frames=33)  # 0.68 s of positions, 0.66 s of frames
    picture = spectrogram.lay_out(attention, source_view(attention), "t")
    [photo], image = picture.photos, picture.image
    assert image is not None
    assert image.width == pytest.approx(spectrogram.WIDE)
    assert photo.width / image.width == pytest.approx(0.66 / 0.68)
    assert image.levels.shape == (4, 17)
    assert image.levels.argmax(1).tolist() == [0, 4, 8, 12]
    assert row_times(attention) == pytest.approx([0.0, 0.16, 0.32, 0.48])
    marks = [line.points[0][0] for line in picture.lines if line.ink == spectrogram.MARK]
    assert marks == pytest.approx([time / 0.68 * spectrogram.WIDE for time in (0, 0.16, 0.32, 0.48)])
    texts = [word.text for word in picture.words]
    assert [text for text in texts if text.endswith("8 s")] == ["0.48 s"]
    assert texts.count("t3") == 2  # beside its row, and at its time


@pytest.mark.parametrize(
    ("seconds", "last"), [(0.05, "0.050 s"), (0.68, "0.6 s"), (1.28, "1.2 s"), (59.0, "50 s"), (600.0, "600 s")]
)
def test_ticks_are_round_and_few(seconds: float, last: str) -> None:
    ticks = spectrogram.ticks(seconds, 11)
    assert 2 <= len(ticks) <= 11
    assert ticks[0][0] == 0
    assert ticks[-1][1] == last


# the terminal


@pytest.mark.parametrize("width", [12, 60, 120])
@pytest.mark.parametrize("colours", ["truecolor", "256"])
def test_a_terminal_shows_panels_within_its_width(width: int, colours: str) -> None:
    words = ("a", "dog", "runs", "on", "green", "grass", "日本語")
    text = blocks.filmstrip(picture_map(words), PICTURE, width=width, colours=colours)
    plain = ESCAPES.sub("", text)
    assert max(map(cell_len, plain.splitlines())) <= width
    if width >= 60:
        assert all(word in plain for word in words)
        assert plain.count("0.86") == len(words)
    assert "▀" in plain
    assert ("38;2;" in text) == (colours == "truecolor")


def test_half_blocks_have_the_upper_pixel_in_front_of_the_lower_one() -> None:
    assert blocks._lines([["2;1;2;3"], ["5;16"], ["5;17"]]) == [
        "\x1b[38;2;1;2;3;48;5;16m▀\x1b[0m",
        "\x1b[38;5;17;48;5;17m▀\x1b[0m",  # of an odd number, the last is repeated
    ]


@pytest.mark.parametrize("colours", blocks.PICTURES)
@pytest.mark.parametrize(("level", "towards"), [(255, -1), (0, 1)], ids=["white", "black"])
def test_a_panel_ends_visibly_on_a_terminal_of_its_own_colour(colours: str, level: int, towards: int) -> None:
    view = PictureView(torch.full((20, 20, 3), level, dtype=torch.uint8))
    text = blocks.filmstrip(picture_map((), view), view, width=20, colours=colours)
    panel = [re.findall(r"38;([\d;]+);48;([\d;]+)m", line) for line in text.splitlines() if "▀" in line]
    rows = [[cell[half] for cell in line] for line in panel for half in (0, 1)]
    assert {code for row in rows[1:-1] for code in row[1:-1]} == {blocks.PICTURES[colours](view.pixels[:1, :1])[0][0]}
    outermost = {*rows[0], *rows[-1], *(row[0] for row in rows), *(row[-1] for row in rows)}
    assert outermost == {blocks.PICTURES[colours](torch.full((1, 1, 3), level + 32 * towards).byte())[0][0]}


@pytest.mark.parametrize("width", [60, 120])
def test_a_terminal_shows_tokens_and_times_above_the_spectrogram(width: int) -> None:
    attention = recording_map()
    view = source_view(attention)
    assert isinstance(view, Spectrogram)
    text = blocks.recording(attention, view, width=width, colours="truecolor")
    lines = ESCAPES.sub("", text).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert [line.split()[0] for line in lines[:4]] == ["t0", "t1", "t2", "t3"]
    assert [line.split()[-2] for line in lines[:4]] == ["0.00", "0.16", "0.32", "0.48"]
    places = [lines[4].index(f"t{n}") for n in range(4)]
    cells = width - 3 - 8
    assert places == [3 + round(time / 0.68 * cells) for time in (0, 0.16, 0.32, 0.48)]


@pytest.mark.parametrize("attention", [picture_map(), recording_map()], ids=["picture", "recording"])
def test_without_colours_the_terminal_shows_the_matrix(
    attention: AttentionMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert drawing(attention) == drawing(attention.without_view())
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    assert "▀" in drawing(attention)
    assert "▀" not in drawing(attention.without_view())
    monkeypatch.setenv("NO_COLOR", "1")
    assert drawing(attention) == drawing(attention.without_view())


# pages


def test_a_page_has_the_pixels_once_and_the_grid_of_each_map() -> None:
    page = content(html(picture_map(SENTENCE), "t"))
    [view] = page["views"]
    assert (view["kind"], view["height"], view["width"]) == ("picture", 42, 70)
    assert b64decode(view["data"]) == PICTURE.pixels.numpy().tobytes()
    assert [(own["view"], own["grid"]) for own in page["maps"]] == [(0, [3, 5])] * 2
    layers = tuple(
        LayerMaps(site, layer, torch.rand(2, 4, 15), SENTENCE, CELLS, GRID, view)
        for view in [lambda: PICTURE]
        for site in ("decoder.cross_attention", "encoder.self_attention")
        for layer in (1, 2)
    )
    text = LayerMaps("decoder.self_attention", 1, torch.rand(2, 4, 4), SENTENCE, SENTENCE)
    page = content(html_of_all(AttentionMaps((*layers, text))))
    assert len(page["views"]) == 1
    drawn = {own["path"][0]: own.get("view") for own in page["maps"]}
    assert drawn == {"decoder.cross_attention": 0, "encoder.self_attention": 0, "decoder.self_attention": None}


def test_a_page_of_a_recording_has_its_levels_and_times() -> None:
    page = content(html(recording_map(), "t"))
    [view], [own] = page["views"], page["maps"]
    assert (view["kind"], view["frames"], view["bands"], view["seconds"]) == ("recording", 33, 7, pytest.approx(0.66))
    levels = np.frombuffer(b64decode(view["data"]), np.uint8).reshape(33, 7)
    assert levels.argmax(1).tolist() == [frame // 5 for frame in range(33)]
    assert (own["seconds"], own["times"]) == (0.04, [0.0, 0.16, 0.32, 0.48])


def test_a_page_without_a_picture_is_as_before() -> None:
    page = content(html(picture_map().without_view()))
    assert "views" not in page
    assert "view" not in page["maps"][0]


def test_a_notebook_shows_the_picture() -> None:
    attention = picture_map()
    assert '"kind":"picture"' in framed(attention).replace("&quot;", '"')
    assert len(photos(attention._repr_svg_())) == 3


@pytest.mark.parametrize("attention", [picture_map(()), recording_map(tokens=0)], ids=["picture", "recording"])
@pytest.mark.parametrize("ending", [".svg", ".png", ".html"])
def test_an_empty_output_is_drawn(attention: AttentionMap, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if ending == ".png":
        pytest.importorskip("matplotlib")
    assert draw(attention, ending, "t")
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm-256color"), ("COLORTERM", "truecolor")):
        monkeypatch.setenv(name, value)
    assert "▀" in drawing(attention)
