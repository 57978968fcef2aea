"""The viewer in a real browser: what it draws, plays, reads out and saves, with pointer, keys and fingers."""

import io
import json
import re
import statistics
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from test_forecasts import MAP, VIEW
from test_html import HOSTILE, PIECES, stack
from test_views import WHITE, picture_map, recording_map

from browsing import Pages, chromium
from regard.maps import DIFFERENCE, AttentionMap, AttentionMaps, LayerMaps, PictureView, Steps
from regard.show import filmstrip, forecasts, steps
from regard.show.html import (
    MODULES,
    html,
    html_of_all,
    html_of_prediction,
    html_side_by_side,
    page,
    viewer_file,
)
from regard.show.viewer_data import data_of_map, data_of_prediction
from regard.show.walk import MOST
from regard.trust import Sentences, with_sentences
from regard.types import Prediction

PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "has_touch": True, "is_mobile": True}
HINT = "Point at a cell or a word to see its numbers, or focus the picture and use the arrow keys."
CANARY = "window.owned = true; document.title = 'owned'"
ATTACKS = (
    f"</script><script>{CANARY}</script>",
    f'<img src=x onerror="{CANARY}">',
    f'<svg onload="{CANARY}">',
    f'" onmouseover="{CANARY}" x="',
    f"javascript:{CANARY}",
    "\u202eright to left\u202c\u2066",  # bidi marks
    "\u2028\u2029",
    "x" * 10_000,
    "<!--<script>",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as own:
        yield own


@pytest.fixture
def pages(browser: Any, tmp_path: Path) -> Iterator[Pages]:
    own = Pages(browser, tmp_path)
    yield own
    own.close()
    assert own.problems == []


def readout(view: Any, panel: int = 0) -> str:
    return view.locator(".readout").nth(panel).text_content()


def press(view: Any, *keys: str) -> None:
    view.locator(".picture").first.focus()
    for key in keys:
        view.keyboard.press(key)


def steps_to(view: Any, step: int) -> None:
    view.locator(".transport input").fill(str(step))


def texts(view: Any, selector: str) -> list[str]:
    return view.locator(selector).all_text_contents()


def shown_tokens(view: Any, selector: str = ".tokens.output .token") -> list[str]:
    return [token.text_content() for token in view.locator(selector).all() if token.is_visible()]


def predictions(name: str = "x", rows: tuple[str, ...] = ("▁un", "▁mo", "t")) -> Prediction:
    """A prediction with a map and two rivals, whose maps differ."""
    maps = [PIECES.weights.roll(shift, -1) for shift in range(3)]
    outputs = [
        Prediction(name, text, score, rows, AttentionMap(weights, rows, PIECES.columns))
        for text, score, weights in zip(("un mot", "une mot", "un mont"), (-0.5, -1.5, -9.0), maps, strict=True)
    ]
    return Prediction(name, "un mot", -0.5, rows, outputs[0].map, alternatives=tuple(outputs[1:]))


# What is drawn.


def test_the_modules_are_one_script_without_imports_or_equal_names() -> None:
    names = re.findall(
        r"^(?:export )?(?:async )?(?:function|const|class) (\w+)", "\n".join(map(viewer_file, MODULES)), re.M
    )
    assert len(names) == len(set(names)) > 80
    imported = {name: set(re.findall(r'from "\./(\w+\.js)"', viewer_file(name))) for name in MODULES}
    for place, name in enumerate(MODULES):
        assert imported[name] <= set(MODULES[:place]), name


def test_a_browser_draws_every_cell_word_and_line(pages: Pages) -> None:
    view = pages.open(html(PIECES, "a <title>"), "#lines")
    assert texts(view, "h1") == ["a <title>"]
    assert [text for text in texts(view, "td") if text] == [f"{weight:.3f}" for weight in PIECES.weights.flatten()]
    assert texts(view, "th") == [*PIECES.columns, *PIECES.rows]
    assert texts(view, ".word") == [*PIECES.columns, *PIECES.rows]
    lines = view.evaluate(
        "[...document.querySelectorAll('path')].map(({dataset, attributes}) =>"
        " [Number(dataset.row), Number(dataset.column), Number(attributes['stroke-width'].value)])"
    )
    visible = [(row, column) for row in range(3) for column in range(4) if PIECES.weights[row, column] >= 0.01]
    by_weight = sorted(visible, key=lambda place: PIECES.weights[place].item())
    assert [(row, column) for row, column, _ in lines] == by_weight  # the strongest last
    widths = [width for *_, width in lines]
    assert widths == sorted(widths)
    assert len(set(widths)) == len({PIECES.weights[place].item() for place in visible})
    view.get_by_role("button", name="Matrix").click()
    assert texts(view, ".labels text") == [*PIECES.rows, *PIECES.columns]
    [canvas] = view.locator(".picture canvas").all()
    assert "3 outputs over 4 sources" in canvas.get_attribute("aria-label")


@pytest.mark.parametrize(("scheme", "deepest"), [("light", (20, 62, 125)), ("dark", (220, 238, 255))])
@pytest.mark.parametrize(("scale", "largest"), [("one", 1.0), ("map", 0.2), ("row", 0.2)])
def test_the_canvas_shows_the_weights_in_light_and_dark(
    pages: Pages, scheme: str, deepest: tuple[int, ...], scale: str, largest: float
) -> None:
    attention = AttentionMap(torch.eye(5)[:3] * largest, tuple("abc"), tuple("defgh"))
    view = pages.open(html(attention, scale=scale), color_scheme=scheme)
    dots = view.evaluate(
        """() => {
          const canvas = document.querySelector(".picture canvas"), pen = canvas.getContext("2d");
          const at = (place) => (place + 0.5) * canvas.width / 5;
          const dot = (row, column) => [...pen.getImageData(at(column), at(row), 1, 1).data].slice(0, 3);
          return [0, 1, 2].map((row) => [0, 1, 2, 3, 4].map((column) => dot(row, column)));
        }"""
    )
    is_deep = [[tuple(dot) == deepest for dot in row] for row in dots]
    assert is_deep == [[row == column for column in range(5)] for row in range(3)]


def test_a_page_follows_a_change_between_light_and_dark(pages: Pages) -> None:
    view = pages.open(html(PIECES), color_scheme="light")
    before = view.evaluate("document.querySelector('.picture canvas').toDataURL()")
    view.emulate_media(color_scheme="dark")
    view.wait_for_function("(before) => document.querySelector('.picture canvas').toDataURL() !== before", arg=before)
    assert view.evaluate("getComputedStyle(document.querySelector('.regard')).backgroundColor") == "rgb(20, 27, 37)"


def test_a_difference_has_two_colours_and_a_scale_with_both_signs(pages: Pages) -> None:
    attention = AttentionMap(torch.tensor([[0.5, -0.5, 0.0]]), ("a",), ("b", "c", "d"))
    assert data_of_map(attention)["maps"][0]["signed"] is True
    view = pages.open(html(attention))
    plus, minus, zero = view.evaluate(
        """() => {
          const {width, height} = document.querySelector(".picture canvas");
          const pen = document.querySelector(".picture canvas").getContext("2d");
          return [1, 3, 5].map((sixth) => [...pen.getImageData(sixth * width / 6, height / 2, 1, 1).data]);
        }"""
    )
    assert plus[2] > plus[0]  # blue
    assert minus[0] > minus[2]  # amber
    assert zero[:3] == [255, 255, 255]
    assert texts(view, ".legend .scale") == ["−1+1"]
    press(view, "ArrowRight", "ArrowRight")
    assert readout(view) == "a ← c −0.500"


def test_the_honesty_line_stands_under_the_map(pages: Pages) -> None:
    view = pages.open(html(replace(PIECES, trust="Not <b>used</b>: uniform weights give the same output.")))
    assert texts(view, ".honesty") == ["Not <b>used</b>: uniform weights give the same output."]
    assert pages.open(html(PIECES)).locator(".honesty").is_hidden()


def test_every_map_of_a_prediction_says_how_far_it_may_be_trusted() -> None:
    prediction = Prediction("a", "b", -1.0, ("b",), PIECES)
    said = Sentences("Hardly.", "Of the other: hardly.")
    assert data_of_prediction(with_sentences(prediction, said))["honesty"] == said.shown
    own = (PIECES.weights.expand(2, -1, -1), PIECES.rows, PIECES.columns)
    all_maps = AttentionMaps(tuple(LayerMaps("encoder.self_attention", layer, *own) for layer in (1, 2)))
    rival = replace(prediction, text="c")
    data = data_of_prediction(with_sentences(replace(prediction, maps=all_maps, alternatives=(rival,)), said))
    found = {tuple(own["path"]): own.get("honesty", data["honesty"]) for own in data["maps"]}
    places = [(number, "encoder.self_attention", "layer 2", "mean of heads") for number in "12"]  # the rival's, too
    assert len(found) == 2 * 3 + 1
    assert found == {path: said.shown if path in places else said.other for path in found}


def test_a_white_picture_ends_visibly(pages: Pages) -> None:
    view = pages.open(html(picture_map(("one", "two"), WHITE)))
    edges = view.evaluate(
        "[...document.querySelectorAll('.film canvas')].map((own) => getComputedStyle(own))"
        ".map((style) => `${style.outlineStyle} ${style.outlineWidth} ${style.outlineColor}`)"
    )
    assert edges == ["solid 1px rgb(195, 204, 216)"] * 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_canvas_is_brightest_in_the_cell_of_the_chosen_word(pages: Pages, scheme: str) -> None:
    """And its pixels are those of the other formats."""
    grey = PictureView(torch.full((384 * 3 // 5, 384, 3), 128, dtype=torch.uint8))
    attention = picture_map(tuple("abcdefgh"), grey)
    view = pages.open(html(attention), color_scheme=scheme)
    view.locator(".panel[data-row='7']").hover()
    width, height, reds = view.evaluate(
        """() => {
          const large = document.querySelector(".large"), {width, height} = large;
          const {data} = large.getContext("2d").getImageData(0, 0, width, height);
          return [width, height, [...data.filter((_, place) => place % 4 === 0)]];
        }"""
    )
    drawn = torch.tensor(reds).reshape(height, width)
    brightest = drawn.argmax().item()
    assert (brightest // width * 3 // height, brightest % width * 5 // width) == divmod(7, 5)
    expected = list(filmstrip.panels(attention, grey, height, width, "row"))[7].pixels[..., 0]
    assert (drawn - expected.long()).abs().max() <= 1


# Pointer, keys and fingers.


def test_the_pointer_shows_the_numbers_of_cells_and_words(pages: Pages) -> None:
    view = pages.open(html(PIECES, "t"))
    box = view.locator(".picture canvas").bounding_box()
    view.mouse.move(box["x"] + 2.5 * box["width"] / 4, box["y"] + 1.5 * box["height"] / 3)
    assert readout(view) == "▁mo ← rd 0.125"
    assert texts(view, ".tip") == ["0.125"]
    view.locator(".labels text[data-row='1']").hover()
    assert readout(view) == "▁mo ←  ▁wo 0.625  ▁a 0.250  rd 0.125  </s> 0.000  · entropy 0.900"
    view.locator(".token[data-column='1']").hover()
    assert readout(view) == "▁wo →  ▁mo 0.625  t 0.300  ▁un 0.060  · coverage 0.985"
    view.mouse.move(1, 1)
    assert readout(view) == HINT
    view.get_by_role("button", name="Lines").click()
    view.locator(".word[data-column='1']").hover()
    assert [text for text in texts(view, ".lines .number") if text] == ["0.060", "0.625", "0.300"]
    assert {part.get_attribute("data-row") for part in view.locator("path.on").all()} == {"0", "1", "2"}
    view.get_by_role("button", name="Words").click()
    assert texts(view, ".word") == ["a", "word", "</s>", "un", "mot"]


def test_everything_is_reached_with_the_keyboard_alone(pages: Pages) -> None:
    view = pages.open(html_of_all(stack(), "t"))
    reached = []
    for _ in range(40):
        view.keyboard.press("Tab")
        name = view.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent")
        if reached and name == reached[0]:
            break
        reached.append(name)
        if view.evaluate("document.activeElement !== document.body"):
            assert view.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", name
    wanted = ["Matrix", "Lines", "Heads", "Tokens", "Words", "▶ Play", "Tokens written", "Site", "Layer", "Head"]
    assert [name for name in reached if name in wanted] == wanted  # from top to bottom
    saved = ["Save the picture as PNG", "Save the drawing as SVG", "Save the play as an animation as GIF"]
    assert set(saved) <= set(reached)
    press(view, "Escape")
    assert readout(view) == HINT
    for key, output, source in (
        *(("ArrowDown", 0, 0), ("ArrowDown", 1, 0), ("ArrowRight", 1, 1), ("End", 2, 1), ("Home", 0, 1)),
        *(("PageDown", 2, 1), ("ArrowLeft", 2, 0), ("ArrowUp", 1, 0)),
    ):
        view.keyboard.press(key)
        attention = stack_labels()
        assert readout(view).startswith(f"{attention[output]} ← {attention[source]} "), key
    view.keyboard.press("Space")
    assert texts(view, ".play") == ["❚❚ Pause"]
    view.keyboard.press("Space")
    assert texts(view, ".play") == ["▶ Play"]


def stack_labels() -> list[str]:
    return [f"▁x{row}" if row % 2 else f"y{row}" for row in range(4)]


def test_the_keys_of_lines_go_up_down_and_across(pages: Pages) -> None:
    view = pages.open(html(PIECES, "t"), "#lines")
    press(view, "ArrowRight")
    assert readout(view).startswith("▁a →")
    press(view, "ArrowDown", "ArrowRight")
    assert readout(view) == "▁mo ←  ▁wo 0.625  ▁a 0.250  rd 0.125  </s> 0.000  · entropy 0.900"
    press(view, "ArrowDown")
    assert readout(view) == "t ←  rd 0.445  ▁wo 0.300  </s> 0.250  ▁a 0.005  · entropy 1.095"


def test_a_tap_is_a_hover_and_stays(pages: Pages) -> None:
    view = pages.open(html(PIECES, "t"), **PHONE)
    box = view.locator(".picture canvas").bounding_box()
    view.touchscreen.tap(box["x"] + box["width"] / 8, box["y"] + box["height"] / 6)
    assert readout(view) == "▁un ← ▁a 0.900"
    view.wait_for_timeout(50)
    assert readout(view) == "▁un ← ▁a 0.900"


def test_arrow_keys_bring_the_chosen_cell_into_view(pages: Pages) -> None:
    attention = AttentionMap(torch.zeros(2, 70), ("a", "b"), tuple(f"w{column}" for column in range(70)))
    view = pages.open(html(attention, "t"), viewport={"width": 500, "height": 900})
    for key, times, column in (("ArrowRight", 61, 60), ("ArrowLeft", 60, 0)):
        press(view, *[key] * times)
        assert readout(view) == f"a ← w{column} 0.000"
        room, box = (view.locator(name).first.bounding_box() for name in (".scroll", ".band"))
        assert room["x"] - 5 <= box["x"]
        assert box["x"] + box["width"] <= room["x"] + room["width"] + 5


def test_screen_readers_get_a_live_readout_labels_and_a_table(pages: Pages) -> None:
    view = pages.open(html(PIECES, "t"))
    assert view.locator(".readout").get_attribute("role") == "status"  # a polite live region
    steps_to(view, 2)
    assert readout(view).startswith("▁mo ←  ▁wo 0.625")  # the present output, then the heaviest source
    picture = view.locator(".picture")
    assert picture.get_attribute("role") == "application"
    assert (
        picture.get_attribute("aria-label") == "Matrix, 3 outputs over 4 sources. The arrow keys move over its cells."
    )
    assert view.locator("input").get_attribute("aria-valuetext") == "2 of 3"
    assert len(texts(view, "td")) == 13
    labels = view.evaluate(
        "[...document.querySelectorAll('button, select, input')]"
        ".map((own) => own.getAttribute('aria-label') ?? own.textContent)"
    )
    assert all(labels)


def test_labels_from_right_to_left_stay_on_their_side_of_the_arrow(pages: Pages) -> None:
    view = pages.open(html(AttentionMap(torch.ones(1, 1), ("ספר",), ("كتاب",)), "t"))
    press(view, "ArrowRight")
    places = view.evaluate(
        "[...document.querySelectorAll('.readout bdi, .readout .number')]"
        ".map((own) => [own.offsetLeft, own.textContent])"
    )
    assert [text for _, text in sorted(places)] == ["ספר", "كتاب", "1.000"]


def test_a_pick_reaches_the_page_around_the_viewer(pages: Pages, tmp_path: Path) -> None:
    """As on a page of a server: the modules are imported as files, under a policy without inline scripts or styles."""
    folder = tmp_path / "viewer"
    folder.mkdir()
    for name in (*MODULES, "viewer.css"):
        (folder / name).write_text(viewer_file(name), "utf-8")
    data = json.dumps(data_of_map(PIECES, "t"))
    start = 'import { mount } from "./viewer.js"; window.picked = [];'
    start += "const options = {bare: true, pick: (own) => picked.push(own)};"
    start += f"window.handle = mount(document.querySelector('div'), {data}, options);"
    (folder / "start.js").write_text(start, "utf-8")
    view = pages.open(b"")
    policy = "default-src 'none'; script-src http://page; style-src http://page; img-src data: blob:"
    head = '<!doctype html><link rel="stylesheet" href="viewer.css">'
    body = f'{head}<div></div><script type="module" src="start.js"></script>'

    def answer(route: Any) -> None:
        name = route.request.url.rpartition("/")[2]
        kind = {"js": "text/javascript", "css": "text/css"}.get(name.rpartition(".")[2], "text/html")
        content = (folder / name).read_text("utf-8") if name else body
        route.fulfill(body=content, content_type=kind, headers={"Content-Security-Policy": policy})

    view.route("**/*", answer)
    view.goto("http://page/")
    press(view, "ArrowRight", "ArrowDown", "Enter")
    view.locator(".token[data-column='2']").click()
    view.click("button:has-text('Words')")
    view.locator(".token[data-column='1']").click()
    cell, word, whole = view.evaluate("picked")
    assert cell == {"panel": 0, "path": [], "rows": [2, 2], "columns": [1, 1], "output": "▁mo", "source": "▁a"}
    assert word == {"panel": 0, "path": [], "rows": None, "columns": [3, 3], "output": None, "source": "rd"}
    assert whole == {"panel": 0, "path": [], "rows": None, "columns": [2, 3], "output": None, "source": "word"}
    assert view.locator("h1").count() == 0
    view.evaluate("(data) => handle.update(data)", data_of_map(AttentionMap(torch.ones(1, 1), ("a",), ("b",))))
    assert texts(view, "th") == ["b", "a"]
    view.evaluate("handle.destroy()")
    assert view.locator("div").first.inner_html() == ""
    pages.problems = [problem for problem in pages.problems if not problem.startswith("http://page/")]


# Play.


def stop_clock(view: Any) -> None:
    """Let the time of a page stand still until the test lets it run; `install` alone leaves it running."""
    view.clock.install(time=0)
    view.clock.pause_at(1000)


def test_play_writes_the_output_token_by_token(pages: Pages) -> None:
    view = pages.open(html(PIECES, "t"))
    assert shown_tokens(view) == list(PIECES.rows)
    stop_clock(view)
    view.locator(".play").click()
    seen = []
    for _ in PIECES.rows:
        tinted = "[...document.querySelectorAll('.source .token')].findIndex((own) => own.classList.contains('deep'))"
        seen.append((shown_tokens(view), readout(view).split(" ")[0], view.evaluate(tinted)))
        view.clock.run_for(700)
    assert seen == [
        (["▁un"], "▁un", 0),
        (["▁un", "▁mo"], "▁mo", 1),
        (["▁un", "▁mo", "t"], "t", -1),  # no weight above a half
    ]
    assert texts(view, ".play") == ["▶ Play"]  # it stops at the end
    steps_to(view, 1)
    assert shown_tokens(view) == ["▁un"]
    assert view.locator(".veil").is_visible()
    assert texts(view, ".count") == ["1 / 3"]
    view.locator(".play").click()  # goes on from there
    assert shown_tokens(view) == ["▁un", "▁mo"]
    view.locator(".play").click()
    view.clock.run_for(3000)
    assert shown_tokens(view) == ["▁un", "▁mo"]


@pytest.mark.parametrize("kind", ["picture", "recording", "series", "lines", "heads"])
def test_play_moves_over_every_kind_of_source(pages: Pages, kind: str) -> None:
    content = {
        "picture": html(picture_map(tuple("abcde"))),
        "recording": html(recording_map(5)),
        "series": html(MAP),
        "lines": html(AttentionMap(torch.eye(5), tuple("abcde"), tuple("vwxyz"))),
        "heads": html_of_all(stack(5, 5)),
    }[kind]
    hidden = {
        "picture": ".panel.future",
        "recording": ".labels text.future[text-anchor=end]",
        "series": ".labels .time.future",
        "lines": ".word.future",
        "heads": ".tokens.output .token.future",
    }[kind]
    view = pages.open(content, f"#{kind}")
    pictures = set()
    for step in range(6):
        steps_to(view, step)
        assert view.locator(hidden).count() == 5 - step
        pictures.add(view.locator(".stage").screenshot())
    assert len(pictures) == 6
    view.locator(".transport input").focus()
    view.keyboard.press("Home")
    view.keyboard.press("ArrowRight")
    assert texts(view, ".count") == ["1 / 5"]


def test_sound_is_heard_while_its_words_appear(pages: Pages) -> None:
    view_of = recording_map().view
    assert view_of is not None
    spectrogram = view_of()
    heard = type(spectrogram)(spectrogram.features, 0.02, 4000.0, 0.2 * torch.sin(torch.arange(5280) / 5), 8000)
    own = recording_map()
    attention = AttentionMap(own.weights, own.rows, own.columns, own.layout, view=lambda: heard)
    [source] = data_of_map(attention)["views"]
    wave = b64decode(source["sound"].removeprefix("data:audio/wav;base64,"))
    assert (wave[:4], wave[8:12], len(wave)) == (b"RIFF", b"WAVE", 44 + 2 * 5280)
    view = pages.open(html(attention))
    assert view.get_by_role("button", name="Sound").get_attribute("aria-pressed") == "true"
    view.locator(".play").click()
    view.locator(".count", has_text="4 / 4").wait_for(timeout=20_000)
    view.get_by_role("button", name="▶ Play").wait_for(timeout=20_000)
    assert view.locator(".cursor").get_attribute("visibility") == "hidden"
    assert pages.open(html(own)).get_by_role("button", name="Sound").count() == 0


def test_pointer_and_keys_walk_the_words_of_a_picture(pages: Pages) -> None:
    view = pages.open(html(picture_map(tuple("abcd")), "t"))
    assert texts(view, ".choice button") == ["Picture", "Matrix", "Lines"]
    pixels = "document.querySelector('.large').toDataURL()"
    alone = view.evaluate(pixels)
    view.locator(".panel[data-row='1']").hover()
    assert texts(view, ".panel.on .word") == ["b"]
    assert view.evaluate(pixels) != alone
    press(view, "Escape")
    assert view.evaluate(pixels) == alone
    press(view, "ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft")
    assert texts(view, ".panel.on .word") == ["b"]
    box = view.locator(".large").bounding_box()
    view.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert readout(view) == "b ← 2,3 0.010"


def test_the_steps_of_a_forecast_are_walked(pages: Pages) -> None:
    view = pages.open(html(MAP, "shop"))
    assert texts(view, ".choice button") == ["Forecast", "Matrix", "Lines"]
    press(view, "ArrowDown")
    assert readout(view).startswith("2026-02-22 median 2, 90 % 0 to 4, observed 2.5  ←  2026-02-19 0.900")
    press(view, "ArrowRight")
    assert readout(view).startswith("2026-02-23 median 3, 90 % 1 to 5, observed 3.5  ←  2026-02-20 0.900")
    looked = view.evaluate(
        """() => {
          const size = (circle) => Number(circle.getAttribute("r"));
          const best = [...document.querySelectorAll(".looked")].sort((one, other) => size(other) - size(one))[0];
          const points = document.querySelector("polyline.history").getAttribute("points").split(" ").slice(1, -1);
          return points.findIndex((point) => Math.abs(point.split(",")[0] - best.getAttribute("cx")) < 1e-6);
        }"""
    )
    assert looked == 23 + 1 - 3
    box, chosen = (view.locator(name).bounding_box() for name in (".forecast", ".chosen"))
    view.mouse.move(chosen["x"] + 3.5 * chosen["width"], box["y"] + 20)
    assert readout(view).startswith("2026-02-26 median 6")
    alone = pages.open(forecasts.draw(VIEW, ".html", "shop"))
    press(alone, "ArrowDown")
    assert readout(alone) == "2026-02-22 median 2, 90 % 0 to 4, observed 2.5"
    assert texts(alone, ".choice button") == []
    assert alone.locator("polygon.interval").count() == 3


@pytest.mark.parametrize("lags", [(), (1, 2, 3), (1, 3, 4, 9)])
def test_what_a_step_of_a_forecast_cannot_look_at_is_grey(pages: Pages, lags: tuple[int, ...]) -> None:
    """Over the same steps as in other formats."""
    attention = replace(MAP, layout=Steps(lags))
    view = pages.open(html(attention, "shop"))
    sizes = """([times, rows]) => {
      const frame = document.querySelector("rect.frame"), size = (name) => Number(frame.getAttribute(name));
      const cell = (size("width") / times) * (size("height") / rows);
      return [...document.querySelectorAll("polygon.beyond")].map((own) => {
        const points = own.getAttribute("points").split(" ").map((point) => point.split(",").map(Number));
        const doubled = points.map(([x, y], index) => {
          const [across, down] = points[(index + 1) % points.length];
          return x * down - across * y;
        });
        return Math.abs(doubled.reduce((sum, part) => sum + part)) / 2 / cell;
      });
    }"""
    areas = view.evaluate(sizes, [len(VIEW.times), len(MAP.rows)])
    expected = [sum(map(len, ranges)) for ranges in steps.beyond(attention, VIEW, len(MAP.rows))]
    assert areas == pytest.approx(expected, abs=1e-6)
    assert "not in reach" in texts(view, ".legend .scale")


def test_reduced_motion_plays_without_transitions(pages: Pages) -> None:
    durations = "getComputedStyle(document.querySelector('.token')).transitionDuration"
    assert pages.open(html(PIECES)).evaluate(durations) == "0.16s, 0.16s"
    view = pages.open(html(PIECES), reduced_motion="reduce")
    assert view.evaluate(durations) == "0s"
    stop_clock(view)
    view.locator(".play").click()
    view.clock.run_for(750)
    assert shown_tokens(view) == ["▁un", "▁mo"]
    assert view.evaluate("document.getAnimations().length") == 0


# Choices: site, layer, head, output, model.


def test_site_layer_and_head_are_chosen(pages: Pages) -> None:
    pooling = LayerMaps("classify.pooling", 1, torch.rand(1, 1, 3), ("x",), ("a", "b", "c"))
    maps = AttentionMaps((*stack(3, 3).layers, pooling))
    view = pages.open(html_of_all(maps, "t"))
    cross, encoder = "decoder.cross_attention", "encoder.self_attention"

    def state() -> tuple[str, list[str]]:
        boxes = view.evaluate("[...document.querySelectorAll('select')].map((box) => box.value)")
        return view.locator("td").nth(2).text_content(), boxes

    def second(*place: object) -> str:
        return f"{maps.pick(*place).weights[0, 1]:.3f}"

    assert state() == (second(cross), [cross, "layer 2", "mean of heads"])
    view.get_by_label("Head", exact=True).select_option("head 2")
    assert state() == (second(cross, 2, 2), [cross, "layer 2", "head 2"])
    view.get_by_label("Site").select_option(encoder)
    view.get_by_label("Layer").select_option("layer 1")
    assert state() == (second(encoder, 1, 2), [encoder, "layer 1", "head 2"])
    view.get_by_role("button", name="Words").click()
    assert texts(view, "th") == ["y0", "x1y2", "y0", "x1y2"]
    view.get_by_label("Site").select_option("classify.pooling")
    assert state() == (second("classify.pooling"), ["classify.pooling", "layer 1", "head 1"])


def test_the_grid_of_heads_opens_a_map(pages: Pages) -> None:
    maps = stack(heads=3)
    view = pages.open(html_of_all(maps, "t"), "#heads")
    assert texts(view, ".heads .name") == ["mean of heads", "head 1", "head 2", "head 3", "layer 1", "layer 2"]
    assert view.locator(".thumb").count() == 8
    assert view.locator(".thumb[aria-current=true]").get_attribute("aria-label") == "Layer 2, mean of heads"
    view.get_by_role("button", name="Layer 1, head 3").focus()
    view.keyboard.press("Enter")
    assert view.locator("td").nth(2).text_content() == f"{maps.pick(None, 1, 3).weights[0, 1]:.3f}"
    assert view.evaluate("document.activeElement.className") == "picture"  # the arrow keys go on
    assert view.evaluate("[...document.querySelectorAll('select')].map((box) => box.value)")[1:] == [
        "layer 1",
        "head 3",
    ]


def test_each_output_of_a_search_has_its_score_and_its_own_map(pages: Pages) -> None:
    prediction = predictions()
    view = pages.open(html_of_prediction(prediction))
    assert texts(view, ".outputs button") == ["1.un mot−0.50", "2.une mot−1.50", "3.un mont−9.00"]
    for number, own in enumerate([prediction, *prediction.alternatives]):
        view.locator(".outputs button").nth(number).click()
        assert own.map is not None
        assert [text for text in texts(view, "td") if text] == [f"{weight:.3f}" for weight in own.map.weights.flatten()]
        pressed = [button.get_attribute("aria-pressed") for button in view.locator(".outputs button").all()]
        assert pressed == ["true" if place == number else "false" for place in range(3)]
        assert view.evaluate("document.activeElement.value") == str(number + 1)
    widths = [bar.bounding_box()["width"] for bar in view.locator(".likely").all()]
    assert widths[1] / widths[0] == pytest.approx(2.718281828**-1, rel=0.02)


def test_a_saved_prediction_has_its_rivals_and_all_maps(tmp_path: Path) -> None:
    prediction = predictions()
    maps = AttentionMaps((LayerMaps("decoder.cross_attention", 1, PIECES.weights[None], PIECES.rows, PIECES.columns),))
    whole = Prediction("x", "un mot", -0.5, PIECES.rows, prediction.map, prediction.alternatives, maps=maps)
    for own, places in ((prediction, []), (whole, ["decoder.cross_attention", "layer 1", "head 1"])):
        text = own.save(tmp_path / "x.html").read_text("utf-8")
        content = json.loads(re.search(r'class="regard-map">(.*?)</script>', text)[1])
        assert content["choices"] == ["Output", *(["Site", "Layer", "Head"] if places else [])]
        assert content["start"] == ["1", *places]
        paths = [own["path"] for own in content["maps"] if own["name"] == "tokens"]
        assert paths == [[number, *places] for number in "123"]
        assert [own["score"] for own in content["outputs"]] == [-0.5, -1.5, -9.0]


def test_two_models_play_together_and_show_their_difference(pages: Pages) -> None:
    one, other = predictions(), predictions()
    shifted = AttentionMap(PIECES.weights.roll(1, -1), PIECES.rows, PIECES.columns)
    other = Prediction("x", "un mot", -0.7, PIECES.rows, shifted)
    view = pages.open(
        html_side_by_side([("<i>first", one), ("second", other)]), viewport={"width": 1300, "height": 900}
    )
    assert texts(view, "h2")[:2] == ["<i>first", "second"]
    left, right = (view.locator(".panels .picture").nth(place).bounding_box() for place in range(2))
    assert left["x"] + left["width"] <= right["x"]  # side by side, and in line
    assert left["y"] == pytest.approx(right["y"], abs=1)
    steps_to(view, 2)
    assert readout(view, 0).startswith("▁mo ←  ▁wo 0.625")
    assert readout(view, 1).startswith("▁mo ←  rd 0.625")
    assert shown_tokens(view) == ["▁un", "▁mo"] * 2
    steps_to(view, 3)
    view.locator(".panels .labels text[data-row='2']").first.hover()
    assert all(readout(view, panel).startswith("t ←") for panel in range(2))
    view.get_by_role("button", name="Difference").click()
    assert texts(view, "h2:visible") == ["<i>first − second"]
    view.locator(".picture:visible").focus()
    view.keyboard.press("ArrowRight")
    assert view.locator(".readout:visible").text_content() == f"▁un ← ▁a {0.9 - 0.0:.3f}"
    assert texts(view, ".caption:visible") == [
        "3 outputs over 4 sources · difference of two maps · blue: more weight in the first map; amber: in the second"
    ]
    assert texts(view, ".honesty:visible") == [DIFFERENCE] == [PIECES.minus(shifted).trust]
    longer = AttentionMap(torch.eye(4), tuple("abcd"), PIECES.columns)
    unlike = pages.open(html_side_by_side([("a", one), ("b", Prediction("x", "abcd", -1.0, tuple("abcd"), longer))]))
    assert unlike.get_by_role("button", name="Difference").is_disabled()
    steps_to(unlike, 4)  # the first model has written all of its three tokens
    assert shown_tokens(unlike) == [*PIECES.rows, *"abcd"]


# Exports.


def saved(view: Any, kind: str) -> bytes:
    with view.expect_download(timeout=30_000) as waiting:
        view.locator(f".save button[value={kind}]").click()
    assert waiting.value.suggested_filename.endswith(f".{kind}")
    return Path(waiting.value.path()).read_bytes()


@pytest.mark.parametrize("kind", ["matrix", "lines", "heads", "picture", "recording", "series"])
def test_what_is_shown_is_saved_as_png_and_svg(pages: Pages, kind: str) -> None:
    image = pytest.importorskip("PIL.Image")
    content = {
        "matrix": html(PIECES, "a <title>"),
        "lines": html(PIECES, "a <title>"),
        "heads": html_of_all(stack(), "a <title>"),
        "picture": html(picture_map(), "a <title>"),
        "recording": html(recording_map(), "a <title>"),
        "series": html(MAP, "a <title>"),
    }[kind]
    view = pages.open(content, f"#{kind}")
    steps_to(view, 2)
    svg = ElementTree.fromstring(saved(view, "svg"))
    words = [own.text for own in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "a <title>" in words
    assert "▶ Play" not in words
    picture = image.open(io.BytesIO(saved(view, "png"))).convert("RGB")
    assert picture.size == (2 * float(svg.get("width")), 2 * float(svg.get("height")))
    assert len(picture.getcolors(1_000_000)) > 20
    assert texts(view, ".count")[0].startswith("2 / ")  # the page is as before


def test_the_play_is_saved_as_gif(pages: Pages) -> None:
    image = pytest.importorskip("PIL.Image")
    view = pages.open(html(PIECES, "t"))
    steps_to(view, 3)
    still = image.open(io.BytesIO(saved(view, "png"))).convert("L")
    animation = image.open(io.BytesIO(saved(view, "gif")))
    assert animation.n_frames == 4  # nothing, and after each token
    lasting = []
    frames = []
    for number in range(4):
        animation.seek(number)
        lasting.append(animation.info["duration"])
        frames.append(animation.convert("L"))
    assert lasting == [600, 600, 600, 2000]
    assert len({frame.tobytes() for frame in frames}) == 4
    last = still.resize(animation.size)
    dots = torch.tensor([list(own.tobytes()) for own in (frames[-1], last)]).float()
    assert (dots[0] - dots[1]).abs().mean() < 3  # the last frame is the picture
    assert texts(view, ".save [role=status]") == ["saved as attention-matrix.gif"]


def test_a_gif_of_many_colours_is_read_by_another_program(pages: Pages) -> None:
    """The encoder alone, with noise: its dictionary fills and is cleared several times."""
    image = pytest.importorskip("PIL.Image")
    script = viewer_file("export.js")
    script = script[script.index("// GIF89a") :].replace("export ", "")
    view = pages.open(b"<!doctype html>")
    content, dots = view.evaluate(
        f"""() => {{ {script}
          let seed = 1;
          const random = () => (seed = (seed * 48271) % 2147483647) % 256;
          const frames = [0, 1].map(() => {{
            const image = new ImageData(131, 77);
            image.data.forEach((_, place) => (image.data[place] = place % 4 === 3 ? 255 : 85 * (random() % 4)));
            return image;
          }});
          const counts = new Map();
          for (const frame of frames) countColours(counts, frame);
          const animation = gif(131, 77, quantise(counts));
          for (const frame of frames) animation.add(frame, 0.5);
          const bytes = animation.end().flatMap((part) => [...part]);
          return [bytes, frames.map(({{data}}) => [...data])];
        }}"""
    )
    animation = image.open(io.BytesIO(bytes(content)))
    for number, expected in enumerate(dots):
        animation.seek(number)
        assert list(animation.convert("RGBA").tobytes()) == expected


def test_colours_of_frames_that_were_not_counted_are_the_nearest(pages: Pages) -> None:
    script = viewer_file("export.js")
    script = script[script.index("// GIF89a") :].replace("export ", "")
    colours, indices = pages.open(b"<!doctype html>").evaluate(
        f"""() => {{ {script}
          const frame = (...colours) => {{
            const image = new ImageData(colours.length, 1);
            colours.forEach((colour, place) => image.data.set([...colour, 255], 4 * place));
            return image;
          }};
          const counts = new Map();
          countColours(counts, frame([255, 255, 255], [0, 0, 128], [255, 0, 0]));
          const {{ colours, indexOf }} = quantise(counts);
          return [colours, [...indexOf(frame([240, 30, 30], [200, 210, 220], [0, 0, 128]))]];
        }}"""
    )
    assert [colours[index] for index in indices] == [[255, 0, 0], [255, 255, 255], [0, 0, 128]]


def test_a_gif_has_at_most_the_first_steps_and_needs_one_frame_at_a_time(pages: Pages) -> None:
    image = pytest.importorskip("PIL.Image")
    rows = MOST + 7
    view = pages.open(html(AttentionMap(torch.rand(rows, 2), tuple(f"w{row}" for row in range(rows)), ("a", "b")), "t"))
    view.evaluate(  # all frames share one array: of frames that are kept, only the last would be left
        """() => {
          const original = CanvasRenderingContext2D.prototype.getImageData;
          let shared = null;
          CanvasRenderingContext2D.prototype.getImageData = function (...area) {
            const image = original.apply(this, area);
            shared ??= image;
            shared.data.set(image.data);
            return shared;
          };
        }"""
    )
    with view.expect_download(timeout=120_000) as waiting:
        view.locator(".save button[value=gif]").click()
    animation = image.open(io.BytesIO(Path(waiting.value.path()).read_bytes()))
    assert animation.n_frames == MOST + 1
    frames = set()
    for number in range(animation.n_frames):
        animation.seek(number)
        frames.add(animation.convert("L").tobytes())
    assert len(frames) == MOST + 1
    message = f"saved as attention-matrix.gif; it has the first {MOST} of {rows} steps"
    assert texts(view, ".save [role=status]") == [message]


def test_the_play_is_saved_as_webm(pages: Pages) -> None:
    view = pages.open(html(AttentionMap(torch.eye(1), ("a",), ("b",)), "t"))
    if view.locator(".save button[value=webm]").count() == 0:
        pytest.skip("this browser records no WebM")
    video = saved(view, "webm")
    assert video[:4] == b"\x1a\x45\xdf\xa3"  # EBML
    assert b"webm" in video[:64]


def test_a_video_has_at_most_the_first_steps(pages: Pages) -> None:
    rows = MOST + 7
    view = pages.open(html(AttentionMap(torch.rand(rows, 2), tuple(f"w{row}" for row in range(rows)), ("a", "b")), "t"))
    if view.locator(".save button[value=webm]").count() == 0:
        pytest.skip("this browser records no WebM")
    view.evaluate(
        """() => {
          let now = 0;
          performance.now = () => (now += 10000);  // so that no frame is waited for
          const decode = HTMLImageElement.prototype.decode;
          window.drawn = new Set();
          HTMLImageElement.prototype.decode = function () {
            window.drawn.add(this.src);
            return decode.call(this);
          };
        }"""
    )
    with view.expect_download(timeout=120_000):
        view.locator(".save button[value=webm]").click()
    assert view.evaluate("window.drawn.size") == MOST + 2  # nothing twice, and after each token
    message = f"saved as attention-matrix.webm; it has the first {MOST} of {rows} steps"
    assert texts(view, ".save [role=status]") == [message]


# Phones, hostile labels, speed.


@pytest.mark.parametrize(
    "content",
    [
        html(
            AttentionMap(torch.rand(11, 18).softmax(-1), (*"2026-03-04", "</s>"), (*"Wed, 4 March 2026", "</s>")),
            "t" * 200,
        ),
        html_of_all(stack(), "t"),
        html(picture_map(tuple("abcdefgh")), "t"),
        html(recording_map(), "t"),
        html(MAP, "shop"),
        html_of_prediction(predictions("a long source text " * 9)),
        html_side_by_side([("one", predictions()), ("other", predictions())]),
        html(AttentionMap(torch.rand(150, 150), *[tuple(f"word{n}" for n in range(150))] * 2), "t"),
    ],
    ids=["letters", "heads", "picture", "recording", "series", "outputs", "models", "large"],
)
def test_a_phone_shows_everything_without_scrolling_sideways(pages: Pages, content: bytes) -> None:
    view = pages.open(content, **PHONE)
    for button in view.locator(".choice button:enabled").all():
        if button.text_content() in ("Words", "Tokens", "Difference"):
            continue
        button.click()
        assert view.evaluate("document.documentElement.scrollWidth") == 360
        measure = "({clientWidth, firstChild}) => [clientWidth, firstChild.offsetWidth]"
        room, own = view.locator(".scroll").first.evaluate(measure)
        is_wide = button.text_content() == "Heads" or b'"kind":"series"' in content  # scrolls in its frame
        assert own <= room or is_wide, button.text_content()


@pytest.mark.parametrize("kind", ["matrix", "lines", "picture", "outputs", "large"])
def test_hostile_labels_are_shown_literally_and_run_nothing(pages: Pages, kind: str) -> None:
    size = len(ATTACKS)
    attention = AttentionMap(torch.eye(size), ATTACKS, ATTACKS)
    rivals = tuple(Prediction("x", attack, -2.0, ATTACKS, attention) for attack in ATTACKS)
    content = {
        "matrix": html(replace(attention, trust=ATTACKS[1]), ATTACKS[0]),
        "lines": html(attention, ATTACKS[1]),
        "picture": html(picture_map(ATTACKS), ATTACKS[2]),
        "outputs": html_of_prediction(Prediction(ATTACKS[0], ATTACKS[0], -1.0, ATTACKS, attention, rivals)),
        "large": html(AttentionMap(torch.eye(120), *[(ATTACKS * 20)[:120]] * 2), ATTACKS[3]),
    }[kind]
    view = pages.open(content, f"#{kind}")
    for _ in range(size):
        press(view, "ArrowDown")
    view.mouse.move(500, 500)
    for button in view.locator(".choice button:enabled, .outputs button").all():
        button.click()
    saved(view, "svg")
    assert view.evaluate("window.owned") is None
    assert "owned" not in view.title().split("'")[0::2]
    assert view.locator("img, iframe, body svg script").count() == 0
    assert view.locator("script").count() == 2
    shown = view.evaluate("document.body.textContent")
    assert "onerror=" in shown
    assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if kind != "large":
        assert ATTACKS[0].replace(" ", "␣") in "".join(texts(view, "th, .word, .token, bdi"))
    assert "\u202e" not in shown  # bidi marks are shown by their code points


def test_a_page_runs_under_its_own_policy(pages: Pages) -> None:
    view = pages.open(html(picture_map(HOSTILE), HOSTILE[0]))
    view.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.owned = 1'}))"
    )
    assert view.evaluate("window.owned") is None
    assert len(pages.problems) == 1
    assert "Content Security Policy" in pages.problems.pop()


FRAMES = """async () => {
  const picture = document.querySelector(".window"), times = [], box = picture.getBoundingClientRect();
  const event = (kind, own) => {
    const Kind = kind === "wheel" ? WheelEvent : PointerEvent;
    picture.dispatchEvent(new Kind(kind, {bubbles: true, cancelable: true, ...own}));
  };
  const middle = {clientX: box.left + 400, clientY: box.top + 300};
  const act = [
    (n) => event("pointermove", {clientX: box.left + 120 + 5 * n, clientY: box.top + 120 + 4 * n}),
    (n) => event("wheel", {ctrlKey: true, deltaY: n % 40 < 20 ? -60 : 60, ...middle}),
    (n) => event("wheel", {deltaX: 40 * Math.sin(n / 5), deltaY: 40 * Math.cos(n / 5)}),
  ];
  const frame = () => new Promise(requestAnimationFrame);
  event("wheel", {ctrlKey: true, deltaY: -300, ...middle});
  let before = await frame();
  for (let n = 0; n < 120; n++) {
    act[Math.floor(n / 40)](n);
    const now = await frame();
    times.push(now - before);
    before = now;
  }
  return times;
}"""


def test_four_million_cells_pan_zoom_and_hover_in_time(pages: Pages, capsys: pytest.CaptureFixture[str]) -> None:
    labels = tuple(f"word{number}" for number in range(2000))
    weights = torch.rand(2000, 2000) ** 8
    weights[torch.arange(2000), torch.arange(2000)] = 1.0
    content = page(data_of_map(AttentionMap(weights, labels, labels), "large"))
    assert len(content) < 10_000_000
    view = pages.open(content)
    press(view, "ArrowDown")
    assert readout(view) == "1 word0 ← 1 word0 1.000"  # each of them is there, none is pooled
    assert texts(view, ".caption")[0].startswith("2,000 outputs over 2,000 sources")
    assert view.get_by_role("button", name="Lines").is_disabled()
    times = view.evaluate(FRAMES)
    with capsys.disabled():
        print(f"\n2,000 x 2,000 cells: median {statistics.median(times):.1f} ms a frame, longest {max(times):.1f} ms")
    assert statistics.median(times) <= 33
