"""The page in a real browser: every kind of run, the map, changes of the model, two runs, a phone; under its policy."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from media import png, wav
from servers import TABLE, Process, golden, process

from browsing import chromium
from regard.data.corpora.shapes import render as render_shapes
from regard.data.corpora.tones import render as render_tones
from regard.predict import Predictor

TEXT = "Glark Lem near 75 flumped keks ."
SITE = "decoder.cross_attention"
CANARY = "window.owned=1"
HOSTILE = (
    f"</script><script>{CANARY}</script> <img src=x onerror={CANARY}> <svg onload={CANARY}> <b>\u202e\u2066",
    f'" onmouseover="{CANARY}" x=" javascript:{CANARY} <!--<script> \u2028',
    "x" * 2_000,
)


@pytest.fixture(scope="module")
def server(pictures: Predictor, recordings: Predictor, forecasts: Predictor) -> Iterator[Process]:
    runs = {"bahdanau": golden("bahdanau"), "coverage": golden("coverage"), "transformer": golden("transformer")}
    media = {"pictures": pictures.run.path, "recordings": recordings.run.path, "series": forecasts.run.path}
    media["again"] = pictures.run.path
    with process(*(f"{name}={path}" for name, path in (runs | media).items())) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def is_problem(message: Any) -> bool:
    """Whether a message of the browser is an error; it reports a status of 4xx as one, which the page shows itself."""
    return message.type in ("error", "warning") and "the server responded with a status of 422" not in message.text


@pytest.fixture
def page(browser: Any, server: Process, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page; at its end, no script has failed and nothing but the server was asked."""
    settings = getattr(request, "param", {})
    context = browser.new_context(**{"viewport": {"width": 1000, "height": 900}} | settings)
    opened, problems = context.new_page(), []
    opened.set_default_timeout(20_000)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if is_problem(message) else None)
    own = (server.address, "data:", "blob:")
    opened.on("request", lambda sent: None if sent.url.startswith(own) else problems.append(sent.url))
    opened.goto(server.address)
    opened.wait_for_selector("#run option", state="attached")
    yield opened
    context.close()
    assert not problems


def answered(page: Any) -> None:
    page.wait_for_selector("#score:not(:empty)")
    page.wait_for_selector("#go:not([disabled])")


def pick(page: Any, *keys: str) -> None:
    """Choose a place of the map with keys."""
    page.locator("#map .picture").first.focus()
    for key in ("Escape", *keys, "Enter"):
        page.keyboard.press(key)


def take_back(page: Any) -> None:
    """Take back the first change."""
    left = page.locator("#chosen li").count()
    page.locator("#chosen button").first.click()
    page.wait_for_selector(f"#chosen:not(:has(li:nth-child({left})))", state="attached")
    answered(page)


def word_spans(pieces: list[str]) -> list[tuple[int, int]]:
    """The numbers of the first and the last piece of each word."""
    firsts = [
        number for number, piece in enumerate(pieces, start=1) if number == 1 or piece[0] in " ▁␣" or piece == "</s>"
    ]
    return [*zip(firsts, [number - 1 for number in firsts[1:]] + [len(pieces)], strict=True)]


def ask(page: Any, run: str, text: str) -> None:
    page.select_option("#run", run)
    page.fill("#text", text)
    page.press("#text", "Enter")
    answered(page)


def test_a_text_gets_its_output_and_its_map(page: Any) -> None:
    ask(page, "bahdanau", TEXT)
    assert page.text_content("#output") == "VERB DET NOUN PUNCT"
    assert page.locator("#map .picture").count() == 1
    assert "VERB" in page.text_content("#map")
    page.click("#map button:has-text('Lines')")
    page.click("#map button:has-text('Play')")
    assert page.text_content("#problem") == ""


@pytest.mark.parametrize(("characters", "is_noted"), [(1_600, False), (2_000, True)])
def test_a_long_text_keeps_its_output(page: Any, characters: int, is_noted: bool) -> None:
    """Up to as many characters as the field takes, of which all maps may be too many: then the page says so."""
    ask(page, "transformer", ("Glark Lem near 75 flumped keks . " * 61)[:characters])
    assert page.is_hidden("#problem")
    assert page.text_content("#output").startswith("DET ADJ NOUN VERB")
    assert page.locator("#map .picture canvas").count() >= 1
    assert page.is_visible("#note") is is_noted
    assert page.get_by_label("Site", exact=True).count() == (0 if is_noted else 1)
    ask(page, "transformer", TEXT)
    assert page.is_hidden("#note")


def test_a_run_says_what_it_does(page: Any) -> None:
    names = page.locator("#run option").all_text_contents()
    shown = ["bahdanau (translate)", "pictures (caption)", "recordings (transcribe)", "series (forecast)"]
    assert set(shown) <= set(names)


def test_beam_and_outputs_are_options(page: Any) -> None:
    page.select_option("#run", "bahdanau")
    page.click("#options summary")
    page.fill("#beam", "3")
    page.fill("#outputs", "2")
    ask_again = page.locator("#text")
    ask_again.fill(TEXT)
    ask_again.press("Enter")
    answered(page)
    assert page.locator("#map .outputs > *").count() >= 2


def test_a_cell_can_be_erased_forced_and_taken_back(page: Any) -> None:
    ask(page, "transformer", TEXT)
    before = page.text_content("#output")
    for number, word in enumerate(("Erase", "Let", "Silence")):
        pick(page, "ArrowDown", *["ArrowRight"] * (number + 1))
        page.click(f"#actions button:has-text('{word}')")
        page.wait_for_selector(f"#chosen li:nth-child({number + 1})")
        answered(page)
        assert before in page.text_content("#score")
        assert page.locator("#map .panel-of-model h2").all_text_contents()[:2] == ["before", "after"]
    for _ in range(3):
        take_back(page)
    assert page.text_content("#output") == before


def test_words_are_erased_and_forced_by_the_numbers_of_their_pieces(page: Any) -> None:
    """The source has a word twice and words of several pieces, and the output too."""
    ask(page, "transformer", "the dog sees the cat .")
    sources, outputs = (page.locator(f"#map .tokens.{axis} .token") for axis in ("source", "output"))
    spans = {axis: word_spans(one.all_text_contents()) for axis, one in (("source", sources), ("output", outputs))}
    page.click("#map button:has-text('Words')")
    assert sources.all_text_contents()[:4] == ["the", "dog", "sees", "the"]
    assert len(spans["source"]) == sources.count()
    assert len(spans["output"]) == outputs.count()
    for column, row in ((3, 0), (2, 1)):
        (first, last), (top, bottom) = spans["source"][column], spans["output"][row]
        assert last > first
        forced = [f"force {SITE} row={number} column={first}" for number in range(top, bottom + 1)]
        for word, expected in (("Erase", [f"erase {first}-{last}"]), ("Let", forced)):
            page.click("#map button:has-text('Words')")
            pick(page, *["ArrowDown"] * (row + 1), *["ArrowRight"] * column)  # the first key chooses the first cell
            page.click(f"#actions button:has-text('{word}')")
            page.wait_for_selector("#chosen li")
            answered(page)
            assert page.is_hidden("#problem")
            chips = page.locator("#chosen li").all_text_contents()
            assert [re.sub(r" (layer|head)=\d+", "", chip.removesuffix(" ✕")) for chip in chips] == expected
            for _ in chips:
                take_back(page)


def test_the_answer_of_an_earlier_run_is_not_shown_under_another(page: Any) -> None:
    page.route("**/v1/stream", lambda request: None)  # is not answered
    page.select_option("#run", "bahdanau")
    page.fill("#text", TEXT)
    page.press("#text", "Enter")
    page.wait_for_selector("#go[disabled]")
    with page.expect_event("requestfailed") as given_up:
        page.select_option("#run", "transformer")
    assert given_up.value.failure == "net::ERR_ABORTED"
    assert page.is_hidden("#result")
    assert page.is_enabled("#go")
    page.unroute("**/v1/stream")
    ask(page, "transformer", TEXT)
    assert page.is_visible("#result")


def test_a_change_is_one_of_the_text_that_was_asked(page: Any) -> None:
    ask(page, "transformer", TEXT)
    before = page.text_content("#output")
    page.fill("#text", "an edited text, which nobody asked about")
    page.select_option("#other", "bahdanau")
    pick(page, "ArrowDown", "ArrowRight")
    with page.expect_request("**/v1/predict") as sent:
        page.click("#actions button:has-text('Erase')")
    assert sent.value.post_data_json["inputs"] == [TEXT]
    page.wait_for_selector("#chosen li")
    answered(page)
    assert before in page.text_content("#score")
    take_back(page)
    assert page.text_content("#output") == before


def test_an_example_begins_without_changes(page: Any) -> None:
    page.select_option("#run", "pictures")
    page.click("#examples button")
    answered(page)
    pick(page, "ArrowDown", "ArrowRight")
    page.click("#actions button:has-text('Silence')")
    page.wait_for_selector("#chosen li")
    answered(page)
    page.click("#examples button")
    page.wait_for_selector("#chosen:not(:has(li))", state="attached")
    answered(page)
    assert page.locator("#map .panel-of-model h2").count() == 0


def test_two_runs_are_compared(page: Any) -> None:
    page.select_option("#run", "bahdanau")
    page.select_option("#other", "coverage")
    page.fill("#text", TEXT)
    page.press("#text", "Enter")
    answered(page)
    assert page.locator("#map .panel-of-model h2").all_text_contents()[:2] == ["bahdanau", "coverage"]
    assert page.text_content("#output").startswith("bahdanau: VERB DET NOUN PUNCT")


def test_two_runs_caption_the_same_picture(page: Any, tmp_path: Path) -> None:
    name, _, make = MEDIA["pictures"]
    (tmp_path / name).write_bytes(make())
    page.select_option("#run", "pictures")
    page.select_option("#other", "again")
    page.set_input_files("#file", tmp_path / name)
    answered(page)
    assert page.locator("#map .panel-of-model h2").all_text_contents()[:2] == ["pictures", "again"]
    one, other = re.fullmatch("pictures: (.*)again: (.*)", page.text_content("#output")).groups()
    assert one == other  # the same model
    assert page.locator("#map .picture.film").count() == 2
    assert page.is_hidden("#hint")


def readout(page: Any) -> str:
    return page.locator("#map .readout").first.text_content()


def test_play_hover_heads_and_exports_work_under_the_policy_of_the_page(page: Any) -> None:
    ask(page, "transformer", TEXT)
    page.locator("#map .transport input").fill("0")
    assert page.locator("#map .tokens.output .token:visible").count() == 0
    page.click("#map .play")
    page.locator("#map .count", has_text=re.compile(r"^(\d+) / \1$")).wait_for()
    canvas = page.locator("#map .picture canvas")
    canvas.hover(position={"x": 0.1 * canvas.bounding_box()["width"], "y": 0.1 * canvas.bounding_box()["height"]})
    assert re.search(r" ← .* [01]\.\d{3}$", readout(page)), readout(page)
    page.click("#map button:has-text('Heads')")
    page.click("#map .thumb[aria-label='Layer 1, head 2']")
    assert page.get_by_label("Head", exact=True).input_value() == "head 2"
    starts = {"png": b"\x89PNG", "svg": b"<svg", "gif": b"GIF89a", "webm": b"\x1a\x45\xdf\xa3"}
    for button in page.locator("#map .save button").all():
        with page.expect_download(timeout=60_000) as waiting:
            button.click()
        assert Path(waiting.value.path()).read_bytes().startswith(starts.pop(button.get_attribute("value")))
    assert set(starts) <= {"webm"}  # which some browsers do not record


MEDIA = {
    "pictures": ("a.png", "image/png", lambda: png(render_shapes("shapes:red-circle-8-8-6,blue-square-40-8-7"))),
    "recordings": ("a.wav", "audio/wav", lambda: wav(*render_tones("tones:7:C4-E4-G4"))),
    "series": ("a.csv", "text/csv", TABLE.encode),
}
VIEWS = {"pictures": "Picture", "recordings": "Recording", "series": "Forecast"}


@pytest.mark.parametrize("run", MEDIA)
def test_a_caption_a_transcript_and_a_forecast_are_made_played_and_changed(
    page: Any, server: Process, tmp_path: Path, run: str
) -> None:
    name, kind, make = MEDIA[run]
    content = make()
    (tmp_path / name).write_bytes(content)
    page.select_option("#run", run)
    page.set_input_files("#file", tmp_path / name)
    answered(page)
    asked = httpx.post(f"{server.address}/v1/predict?run={run}&maps=1", content=content, headers={"content-type": kind})
    [expected] = asked.json()["predictions"]
    rows = len(expected["attention"])
    assert rows > 1
    assert page.text_content("#drop-text") == name
    assert page.text_content("#output") == expected["text"]
    assert page.text_content("#score").startswith("s, " if run == "series" else "log-probability")
    assert page.locator("#map .choice button").first.text_content() == VIEWS[run]

    page.locator("#map .transport input").fill(str(rows - 1))
    page.click("#map .play")  # writes the last token
    page.locator("#map .count", has_text=f"{rows} / {rows}").wait_for()
    page.locator("#map .picture").first.focus()
    page.keyboard.press("Escape")
    hint = readout(page)
    page.keyboard.press("ArrowRight")
    assert readout(page) != hint
    page.click("#map button:has-text('Matrix')")
    pick(page, "ArrowDown", "ArrowRight")
    offered = page.locator("#actions button").all_text_contents()
    assert [text.split()[0] for text in offered] == [*([] if run == "series" else ["Erase"]), "Let", "Silence"]
    for action in offered:
        pick(page, "ArrowDown", "ArrowRight")
        page.locator("#actions button", has_text=action).click()
        page.wait_for_selector("#chosen li")
        answered(page)
        assert page.locator("#map .panel-of-model h2").all_text_contents()[:2] == ["before", "after"]
        assert page.is_hidden("#problem")
        for _ in page.locator("#chosen li").all():
            take_back(page)
        assert page.locator("#map .panel-of-model h2").count() == 0
        assert page.text_content("#output") == expected["text"]
        page.click("#map button:has-text('Matrix')")


def test_a_described_picture_is_an_example(page: Any) -> None:
    page.select_option("#run", "pictures")
    page.click("#examples button")
    answered(page)
    assert page.locator("#map .picture.film").count() == 1


def several(*names: str) -> dict[str, Any]:
    """A file of several series, whose values differ."""
    head, *rows = TABLE.splitlines()
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    lines = [f"{own}{row[1:]}{number}" for number, own in enumerate(quoted) for row in rows]
    return {
        "name": f"<img src=x onerror={CANARY}>.csv",
        "mimeType": "text/csv",
        "buffer": "\n".join([head, *lines]).encode(),
    }


def test_every_series_of_a_file_is_shown_by_its_name(page: Any, server: Process) -> None:
    names = ("north", f"</option><img src=x onerror={CANARY}>")
    file = several(*names)
    page.select_option("#run", "series")
    page.set_input_files("#file", files=[file])
    answered(page)
    address = f"{server.address}/v1/predict?run=series"
    asked = httpx.post(address, content=file["buffer"], headers={"content-type": "text/csv"}).json()["predictions"]
    assert page.locator("#names option").all_text_contents() == [*names] == [one["source"] for one in asked]
    for index, one in reversed([*enumerate(asked)]):
        page.select_option("#names", index=index)
        assert page.text_content("#output") == one["text"]
        assert page.locator("#map .picture.forecast").count() == 1
    assert asked[0]["text"] != asked[1]["text"]
    assert page.is_hidden("#hint")  # a change is for one input
    assert page.text_content("#drop-text") == file["name"]
    assert page.evaluate("window.owned") is None
    assert page.locator("#result img, #ask img").count() == 0
    page.select_option("#run", "bahdanau")
    assert page.is_hidden("#names")


def test_a_refusal_is_shown(page: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    page.select_option("#run", "pictures")
    page.set_input_files("#file", tmp_path / "a.png")
    page.wait_for_selector("#problem:not([hidden])")
    assert "is not a picture" in page.text_content("#problem")


def test_hostile_texts_are_shown_literally_and_run_nothing(page: Any) -> None:
    scripts = page.locator("script").count()
    for text in HOSTILE:
        ask(page, "coverage", text)
        assert page.evaluate("window.owned") is None
        assert page.title() == "regard"
        assert page.locator("#result img, #result b:not(.number), #result iframe").count() == 0
        assert page.locator("script").count() == scripts
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert "\u202e" not in page.text_content("#map")  # a bidi mark is shown by its code point
        labels = "".join(page.locator("#map th").all_text_contents())  # of characters; a very large map has no table
        assert len(text) == 2_000 or re.search("on(error|mouseover)", labels)


PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.mark.parametrize("page", [PHONE], indirect=True)
def test_a_phone_shows_it_without_scrolling_sideways(page: Any) -> None:
    ask(page, "bahdanau", TEXT)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for button in page.locator("form button, form select, form textarea").all():
        box = button.bounding_box()
        assert box is None or box["height"] >= 36


@pytest.mark.parametrize("page", [PHONE], indirect=True)
@pytest.mark.parametrize("run", ["pictures", "recordings"])
def test_a_caption_and_a_transcript_are_made_and_changed_by_touch(page: Any, tmp_path: Path, run: str) -> None:
    name, _, make = MEDIA[run]
    (tmp_path / name).write_bytes(make())
    page.select_option("#run", run)  # a phone draws the list itself
    with page.expect_file_chooser() as choosing:
        page.tap("#drop")
    choosing.value.set_files(tmp_path / name)
    answered(page)
    before = page.text_content("#output")
    assert page.locator("#map .choice button").first.text_content() == VIEWS[run]
    hint = readout(page)
    page.locator("#map .picture [data-row='1']").first.tap()
    word = readout(page)
    assert word != hint
    canvas = page.locator("#map .picture canvas").first
    canvas.tap(position={"x": 20, "y": 20})
    assert readout(page) not in (hint, word)
    for action in ("Erase", "Let", "Silence"):
        assert page.locator("#actions button", has_text=action).bounding_box()["height"] >= 36
    page.locator("#actions button", has_text="Erase").tap()
    page.wait_for_selector("#chosen li")
    answered(page)
    assert page.locator("#map .panel-of-model h2").all_text_contents()[:2] == ["before", "after"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.tap("#chosen button")
    page.wait_for_selector("#chosen:not(:has(li))", state="attached")
    answered(page)
    assert page.text_content("#output") == before
    slider = page.locator("#map .transport input")
    tokens = int(slider.get_attribute("max"))
    slider.fill(str(tokens - 1))
    page.tap("#map .play")  # writes the last token
    page.locator("#map .count", has_text=f"{tokens} / {tokens}").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def tab_to(page: Any, selector: str) -> None:
    """Press Tab until an element has the focus; after the last element comes the first."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(selector)


@pytest.mark.parametrize("page", [{"color_scheme": "dark"}], indirect=True)
def test_dark_and_keyboard_only(page: Any) -> None:
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, dark[4:-1].split(","))) < 150
    tab_to(page, "#text")
    page.keyboard.type(TEXT)
    page.keyboard.press("Enter")
    answered(page)
    before = page.text_content("#output")
    assert before == "VERB DET NOUN PUNCT"
    tab_to(page, "#map .play")
    page.keyboard.press("Enter")
    assert page.text_content("#map .play") == "❚❚ Pause"
    page.keyboard.press("Enter")
    tab_to(page, "#map .picture")
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    tab_to(page, "#actions button")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.keyboard.press("Enter")
    page.wait_for_selector("#chosen li")
    answered(page)
    assert before in page.text_content("#score")
    tab_to(page, "#chosen button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chosen:not(:has(li))", state="attached")
    answered(page)
    assert page.text_content("#output") == before


def test_keys_alone_choose_a_run_ask_read_the_map_switch_the_head_and_save(page: Any) -> None:
    tab_to(page, "#run")
    for _ in range(page.locator("#run option").count()):
        if page.input_value("#run") != "transformer":
            page.keyboard.press("ArrowDown")
    tab_to(page, "#text")
    page.keyboard.type(TEXT)
    page.keyboard.press("Enter")
    answered(page)
    assert page.text_content("#output")
    tab_to(page, "#map .picture")
    hint = readout(page)
    page.keyboard.press("ArrowDown")
    first = readout(page)
    page.keyboard.press("ArrowRight")
    assert len({hint, first, readout(page)}) == 3
    weights = page.text_content("#map .stage table")
    tab_to(page, "#map select[aria-label=Head]")
    for _ in range(page.locator("#map select[aria-label=Head] option").count()):
        if page.input_value("#map select[aria-label=Head]") != "head 2":
            page.keyboard.press("ArrowDown")
    assert page.input_value("#map select[aria-label=Head]") == "head 2"
    assert page.text_content("#map .stage table") != weights
    tab_to(page, "#map .save button[value=svg]")
    with page.expect_download() as waiting:
        page.keyboard.press("Enter")
    assert Path(waiting.value.path()).read_bytes().startswith(b"<svg")


@pytest.mark.parametrize("page", [{"reduced_motion": "reduce"}], indirect=True)
def test_everything_has_a_name_and_nothing_moves_that_should_not(page: Any) -> None:
    ask(page, "transformer", TEXT)
    unnamed = """[...document.querySelectorAll("button, select, input, textarea, [role=application]")].filter((own) =>
      !(own.getAttribute("aria-label") || own.textContent.trim() || own.labels?.[0]?.textContent.trim()))"""
    assert page.evaluate(f"{unnamed}.map((own) => own.outerHTML)") == [
        '<input type="text" autocomplete="username" value="regard" hidden="">'
    ]
    assert page.get_attribute("#output", "aria-live") == "polite"
    assert page.get_attribute("#problem", "role") == "alert"
    moving = "[...document.querySelectorAll('*')].filter((own) => getComputedStyle(own).transitionDuration !== '0s')"
    assert page.evaluate(f"{moving}.length") == 0
    assert page.evaluate("document.getAnimations().length") == 0


def test_the_documentation_needs_no_script(browser: Any, server: Process) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{server.address}/docs")
    assert "POST /v1/predict" in page.text_content("main")
    context.close()
