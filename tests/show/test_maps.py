"""Laws of drawn maps: every cell has its place and shade, and hostile labels do no harm."""

import re
import struct
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from rich.cells import cell_len

from regard.errors import MissingExtraError, RecipeError
from regard.maps import AttentionMap
from regard.show.labels import letters, make_visible
from regard.show.maps import DRAWINGS, draw, png, svg
from regard.show.terminal import terminal

PAINT = re.compile(r"\x1b\[38;2;\d+;\d+;\d+m|\x1b\[0m")
NAMESPACE = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    '<b>&"',
    "\x1b[31m",
    "\u2028",
    "\0",
    "\x9b2J",
    "\u202e",
    "\ud800",
    "\uffff",
    "\n",
    "\x7f",
    "\u0301",
)


def random_map(rows: tuple[str, ...], columns: tuple[str, ...]) -> AttentionMap:
    return AttentionMap(torch.rand(len(rows), len(columns)).softmax(-1), rows, columns)


LABELS = {
    "latin": random_map(tuple("abc"), (*"Wed, 4", "</s>")),
    "japanese": random_map(tuple("2026年"), (*"令和8年", "三月", "</s>")),
    "korean": random_map(("수요일", "</s>"), ("3월", "４", "일")),
    "cyrillic": random_map(("среда", "4"), ("и\u0306юнь", "▁4", "г.")),
    "hostile": random_map(HOSTILE[:5], HOSTILE),
    "long": random_map(("a" * 50, "b"), ("word" * 20, "日本語" * 20, "")),
    "no rows": random_map((), tuple("abc")),
    "no columns": random_map(tuple("abc"), ()),
    "nothing": random_map((), ()),
}
every_map = pytest.mark.parametrize("attention", LABELS.values(), ids=LABELS)


def drawn_cells(drawing: str) -> list[tuple[str, str]]:
    """The title and fill of every cell of an SVG; the squares of the legend have no title."""
    cells = []
    for rectangle in ElementTree.fromstring(drawing).iter(f"{NAMESPACE}rect"):
        title = rectangle.find(f"{NAMESPACE}title")
        if title is not None:
            cells.append((title.text or "", rectangle.attrib["fill"]))
    return cells


def drawn_words(drawing: str) -> list[str]:
    return [word.text or "" for word in ElementTree.fromstring(drawing).iter(f"{NAMESPACE}text")]


def luminance(fill: str) -> float:
    red, green, blue = (int(fill[place : place + 2], 16) for place in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def grid(attention: AttentionMap, width: int, colours: str | None) -> list[list[str]]:
    """The blocks of a terminal drawing, each without the line that names its columns."""
    *blocks, _ = terminal(attention, width=width, colours=colours).split("\n\n")
    lines = [block.split("\n") for block in blocks]
    return [block[1:] if block[0].startswith("columns ") else block for block in lines]


@every_map
@pytest.mark.parametrize("width", [14, 30, 80])
@pytest.mark.parametrize("colours", ["truecolor", None])
def test_lines_of_a_block_have_one_width_and_fit(attention: AttentionMap, width: int, colours: str | None) -> None:
    for block in grid(attention, width, colours):
        widths = {cell_len(PAINT.sub("", line)) for line in block}
        assert len(widths) == 1
        assert max(widths) <= width
    drawing = PAINT.sub("", terminal(attention, width=width, colours=colours))
    assert all(cell_len(line) <= width for line in drawing.splitlines())


@every_map
def test_no_control_characters_but_our_own_colours_reach_the_terminal(attention: AttentionMap) -> None:
    painted = PAINT.sub("", terminal(attention, width=40, colours="truecolor"))
    plain = terminal(attention, width=40, colours=None)
    for drawing in (painted, plain):
        assert all(character == "\n" or character.isprintable() for character in drawing)
        drawing.encode()


def test_every_cell_is_drawn_at_any_terminal_width() -> None:
    attention = AttentionMap(torch.ones(3, 5), ("x", "日本", "</s>"), tuple("ab日de"))
    for width in range(-1, 20):
        shades = terminal(attention, width=width, colours=None).count("█")
        assert shades == 2 * (3 * 5 + 1)  # two for each cell, and two in the legend


def test_single_letters_stand_above_their_columns() -> None:
    attention = AttentionMap(torch.eye(3), ("x", "y", "z"), ("a", "日", " "))
    assert terminal(attention, width=60, colours=None).splitlines() == [
        "  a 日␣ ",
        "x ██· · ",
        "y · ██· ",
        "z · · ██",
        "",
        "·  <0.125  ░░ ≥0.125  ▒▒ ≥0.375  ▓▓ ≥0.625  ██ ≥0.875",
    ]


def test_the_legend_names_the_limits_of_the_shades() -> None:
    weights = [0.0, 0.1249, 0.125, 0.3749, 0.375, 0.6249, 0.625, 0.8749, 0.875, 1.0]
    attention = AttentionMap(torch.tensor([weights], dtype=torch.float64), ("x",), tuple("abcdefghij"))
    assert terminal(attention, width=80, colours=None).splitlines()[1] == "x · · ░░░░▒▒▒▒▓▓▓▓████"


@pytest.mark.parametrize("width", [14, 60])
def test_a_row_without_a_shade_has_a_mark_at_its_largest_weight(width: int) -> None:
    weights = torch.full((3, 10), 0.1)
    weights[0, 7] = 0.12
    weights[1, 2] = 0.5
    weights[2] = 0.0  # nothing was attended to
    drawing = terminal(AttentionMap(weights, tuple("xyz"), tuple("abcdefghij")), width=width, colours=None)
    rows = {name: "".join(re.findall(rf"^{name} ([·•▒].*)$", drawing, re.MULTILINE)) for name in "xyz"}
    assert rows == {"x": "· " * 7 + "• " + "· " * 2, "y": "· " * 2 + "▒▒" + "· " * 7, "z": "· " * 10}
    assert "•  largest" in drawing
    assert "largest" not in terminal(AttentionMap(torch.eye(2), ("x", "y"), ("a", "b")), width=width, colours=None)


def test_a_map_prints_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    attention = AttentionMap(torch.eye(3)[:2], ("x", "y"), ("▁a", "b", "▁c"))
    attention.show()
    assert capsys.readouterr().out == terminal(attention.words(), width=60, colours=None)
    attention.show(pieces=True)
    assert capsys.readouterr().out == terminal(attention, width=60, colours=None)


def test_long_labels_are_written_downward_if_they_are_too_wide() -> None:
    attention = AttentionMap(torch.eye(2), ("x", "y"), ("one", "seven"))
    assert "8 年三月 </s> " in terminal(LABELS["japanese"], width=80, colours=None)
    assert "one seven" in terminal(attention, width=12, colours=None)
    assert [line[2::2] for line in grid(attention, 11, None)[0]] == [
        " s",
        " e",
        "ov",
        "ne",
        "en",
        "█·",
        "·█",
    ]


def test_a_narrow_terminal_gets_blocks_with_every_column_once() -> None:
    columns = tuple("abcdefghijk")
    attention = AttentionMap(torch.eye(11)[:3], tuple("xyz"), columns)
    drawing = terminal(attention, width=12, colours=None)
    assert re.findall("columns .*", drawing) == ["columns 1–4…", "columns 5–8…", "columns 9–1…"]
    assert "".join(block[0] for block in grid(attention, 12, None)).split() == list(columns)
    assert "columns" not in terminal(attention, width=24, colours=None)
    halves = terminal(attention, width=23, colours=None)  # there is room for ten columns
    assert re.findall("columns? .*", halves) == ["columns 1–6 of 11", "columns 7–11 of 11"]


def test_a_block_of_one_column_names_one() -> None:
    attention = AttentionMap(torch.eye(3), ("wide label",) * 3, tuple("abc"))
    drawing = terminal(attention, width=9, colours=None)
    assert re.findall("column.*", drawing) == ["columns…", "column 3…"]


def test_larger_weights_have_darker_shades() -> None:
    weights = torch.linspace(0, 1, 11).unsqueeze(0)
    attention = AttentionMap(weights, ("x",), tuple("abcdefghijk"))
    lights = [luminance(fill) for _, fill in drawn_cells(svg(attention))]
    assert lights == sorted(set(lights), reverse=True)
    assert lights[0] == pytest.approx(255)
    shades = terminal(attention, width=80, colours=None).splitlines()[1][2::2]
    assert shades == "".join(sorted(shades, key="·░▒▓█".index))
    assert set(shades) == set("·░▒▓█")


COLOUR_CODES = {"truecolor": r"38;2;\d+;\d+;\d+", "256": r"38;5;\d+", "standard": r"3\d|9\d", "windows": r"3\d|9\d"}


@pytest.mark.parametrize("colours", COLOUR_CODES)
def test_colours_only_tint_the_shades_so_that_every_background_shows_through(colours: str) -> None:
    """No cell paints a background: a light or dark one would be a slab on the other kind of terminal."""
    weights = torch.tensor([[1.0, 0.5, 0.0, 0.0], [0.0, 0.25, 0.75, 0.0]])
    attention = AttentionMap(weights, tuple("xy"), tuple("abcd"))
    drawing = terminal(attention, width=40, colours=colours)
    codes = re.findall(r"\x1b\[([\d;]+)m", drawing)
    assert {code for code in codes if code != "0" and not re.fullmatch(COLOUR_CODES[colours], code)} == set()
    assert re.sub(r"\x1b\[[\d;]+m", "", drawing) == terminal(attention, width=40, colours=None)
    assert "y · ░░▓▓· \n" in terminal(attention, width=40, colours=None)  # a zero at the end of a row is drawn


COLOURS_OF_16 = {"90": (127, 127, 127), "94": (92, 92, 255)}  # as xterm has them


def rgb(code: str) -> tuple[int, ...]:
    """Red, green and blue of an ink."""
    kind, *numbers = code.removeprefix("38;").split(";")
    if kind == "2":
        return tuple(map(int, numbers))
    if kind != "5":
        return COLOURS_OF_16[code]
    number = int(numbers[0]) - 16  # in the cube of 6 x 6 x 6
    return tuple(55 + 40 * side if side else 0 for side in (number // 36, number // 6 % 6, number % 6))


@pytest.mark.parametrize("colours", COLOUR_CODES)
@pytest.mark.parametrize("background", [0.0, 1.0], ids=["black", "white"])
def test_stronger_weights_stand_out_more_on_black_and_on_white(background: float, colours: str) -> None:
    """The contrast of a cell: the difference between its ink and the background, times the ink's share of the cell."""
    attention = AttentionMap(torch.tensor([[0.0, 0.25, 0.5, 0.75, 1.0]]), ("x",), tuple("abcde"))
    line = terminal(attention, width=40, colours=colours).splitlines()[1]
    cells = re.findall(r"\x1b\[([\d;]+)m([·░▒▓█]).", line)
    assert len(cells) == 5
    differences = [abs(luminance("#" + bytes(rgb(ink)).hex()) / 255 - background) for ink, _ in cells]
    contrasts = [own * "·░▒▓█".index(shade) / 4 for own, (_, shade) in zip(differences, cells, strict=True)]
    assert contrasts == sorted(set(contrasts))
    assert contrasts[-1] > 0.4
    assert min(differences) > 0.3  # the dots can be seen, too


def test_pictures_merge_the_pieces_of_words_unless_told_otherwise(tmp_path: Path) -> None:
    attention = random_map(("▁vier", "hundert", "</s>"), ("▁four", "▁hund", "red", "</s>"))
    for ending in (".svg", ".png"):
        assert draw(attention, ending, "t") == DRAWINGS[ending](attention.words(), "t") != b""
        assert draw(attention, ending, "t", pieces=True) == DRAWINGS[ending](attention, "t")
    for ending in (".html", ".csv", ".pharaoh"):
        assert draw(attention, ending, "t") == DRAWINGS[ending](attention, "t")
    attention.save(tmp_path / "x.svg", "t")
    attention.save(str(tmp_path / "y.svg"), "t", pieces=True)
    assert (tmp_path / "x.svg").read_bytes() == draw(attention, ".svg", "t")
    assert (tmp_path / "y.svg").read_bytes() == draw(attention, ".svg", "t", pieces=True)
    assert attention._repr_svg_() == svg(attention.words())


def test_weights_outside_the_scale_get_the_end_colours() -> None:
    weights = torch.tensor([[-7.0, -1, 0, 1, 7]])
    fills = [fill for _, fill in drawn_cells(svg(AttentionMap(weights, ("x",), tuple("abcde"))))]
    assert fills[0] == fills[1]
    assert fills[3] == fills[4]
    assert len(set(fills)) == 3


@every_map
def test_svg_holds_every_cell_and_label(attention: AttentionMap) -> None:
    drawing = svg(attention, title='a <title> & "more"')
    rows, columns = list(map(make_visible, attention.rows)), list(map(make_visible, attention.columns))
    wanted = [
        f"{row} ← {column} {attention.weights[y, x]:.2f}"
        for y, row in enumerate(rows)
        for x, column in enumerate(columns)
    ]
    assert [title.replace("␣", " ") for title, _ in drawn_cells(drawing)] == wanted
    words = [word.replace("␣", " ") for word in drawn_words(drawing)]
    assert [word for word in [*rows, *columns] if cell_len(word) <= 24 and word not in words] == []
    assert words[0] == 'a <title> & "more"'
    root = ElementTree.fromstring(drawing)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == 'a <title> & "more"'


def test_svg_rotates_only_long_column_labels() -> None:
    words = ElementTree.fromstring(svg(random_map(("row",), ("a", "日", "и\u0306", "word")))).iter(f"{NAMESPACE}text")
    assert [word.text for word in words if "transform" in word.attrib] == ["word"]


@pytest.mark.parametrize("label", HOSTILE)
def test_invisible_characters_are_replaced_by_visible_ones(label: str) -> None:
    shown = make_visible(label)
    assert shown.isprintable()
    assert cell_len(shown) > 0


def test_visible_characters_stay_and_control_characters_become_symbols() -> None:
    assert make_visible("plain 日本語 ▁й") == "plain 日本語 ▁й"
    assert make_visible("\0\x1b\x7f\x9b\u2028\u3000") == "␀␛␡\\x9b\\u2028 "


def test_an_emoji_of_several_characters_is_one_letter() -> None:
    labels = ("👩\u200d💻", "❤\ufe0fb", "1\ufe0f\u20e3")
    assert letters("".join(labels)) == ["👩\u200d💻", "❤\ufe0f", "b", "1\ufe0f\u20e3"]
    narrow = terminal(random_map(("row",), labels), width=11, colours=None)
    assert "👩\u200d💻" in narrow


@every_map
def test_png_has_a_size_and_is_the_same_every_time(attention: AttentionMap) -> None:
    picture = png(attention, title="日付 $\\frac$")
    signature, width, height = struct.unpack(">8s8x2I", picture[:24])
    assert signature == b"\x89PNG\r\n\x1a\n"
    assert width > 0 < height
    assert b"matplotlib" not in picture.lower()
    assert picture == png(attention, title="日付 $\\frac$")


def test_png_shows_the_weights() -> None:
    rows, columns = tuple("ab"), tuple("cde")
    light, deep = torch.zeros(2, 3), torch.ones(2, 3)
    assert png(AttentionMap(light, rows, columns)) != png(AttentionMap(deep, rows, columns))


def test_png_without_matplotlib_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        MissingExtraError, match=r"^drawing a PNG needs .*pip install 'regard\[plot\]', or in a clone: "
    ):
        png(LABELS["latin"])


def test_draw_chooses_by_the_ending() -> None:
    attention = LABELS["latin"]
    assert draw(attention, ".svg", "t") == svg(attention, "t").encode()
    assert draw(attention, ".PNG", "t") == png(attention, "t")


@pytest.mark.parametrize("ending", DRAWINGS)
def test_every_format_draws_every_map_and_is_deterministic(ending: str) -> None:
    for attention in LABELS.values():
        assert draw(attention, ending, "t") == draw(attention, ending, "t") != b""


def test_an_unknown_ending_is_refused_with_a_list_of_endings() -> None:
    with pytest.raises(RecipeError, match=f"unknown picture ending '.bmp'; choose from {', '.join(DRAWINGS)}"):
        draw(LABELS["latin"], ".bmp")
