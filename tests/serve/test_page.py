"""The page in a real browser: every kind of run, the map, changes of the model, two runs, a phone; under its policy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from media import png, wav
from servers import TABLE, Process, golden, process

from browsing import chromium
from regard.data.corpora.shapes import render as render_shapes
from regard.data.corpora.tones import render as render_tones
from regard.predict import Predictor

TEXT = "Glark Lem near 75 flumped keks ."
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><b>\u202e"


@pytest.fixture(scope="module")
def server(pictures: Predictor, recordings: Predictor, forecasts: Predictor) -> Iterator[Process]:
    runs = {"bahdanau": golden("bahdanau"), "coverage": golden("coverage"), "transformer": golden("transformer")}
    media = {"pictures": pictures.run.path, "recordings": recordings.run.path, "series": forecasts.run.path}
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
        page.locator("#map .picture").first.focus()
        for key in ("ArrowDown", *["ArrowRight"] * (number + 1), "Enter"):
            page.keyboard.press(key)
        page.click(f"#actions button:has-text('{word}')")
        page.wait_for_selector(f"#chosen li:nth-child({number + 1})")
        answered(page)
        assert before in page.text_content("#score")
        assert page.locator("#map .panel-of-model h2").all_text_contents()[:2] == ["before", "after"]
    for left in (2, 1, 0):
        page.locator("#chosen button").first.click()
        page.wait_for_selector(f"#chosen:not(:has(li:nth-child({left + 1})))", state="attached")
        answered(page)
    assert page.text_content("#output") == before


def test_two_runs_are_compared(page: Any) -> None:
    page.select_option("#run", "bahdanau")
    page.select_option("#other", "coverage")
    page.fill("#text", TEXT)
    page.press("#text", "Enter")
    answered(page)
    assert page.locator("#map .panel-of-model h2").all_text_contents()[:2] == ["bahdanau", "coverage"]
    assert page.text_content("#output").startswith("bahdanau: VERB DET NOUN PUNCT")


def test_a_picture_a_recording_and_a_series_are_uploaded(page: Any, tmp_path: Path) -> None:
    samples, rate = render_tones("tones:7:C4-E4-G4")
    files = {
        "pictures": ("a.png", png(render_shapes("shapes:red-circle-8-8-6,blue-square-40-8-7"))),
        "recordings": ("a.wav", wav(samples, rate)),
        "series": ("a.csv", TABLE.encode()),
    }
    for run, (name, content) in files.items():
        (tmp_path / name).write_bytes(content)
        page.select_option("#run", run)
        page.set_input_files("#file", tmp_path / name)
        answered(page)
        assert page.text_content("#drop-text") == name
        assert page.locator("#map .picture").count() >= 1
        assert page.text_content("#problem") == ""
    page.select_option("#run", "pictures")
    page.click("#examples button")
    answered(page)


def test_a_refusal_is_shown(page: Any, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    page.select_option("#run", "pictures")
    page.set_input_files("#file", tmp_path / "a.png")
    page.wait_for_selector("#problem:not([hidden])")
    assert "is not a picture" in page.text_content("#problem")


def test_hostile_texts_are_shown_literally(page: Any) -> None:
    ask(page, "coverage", HOSTILE)
    assert page.title() == "regard"
    assert page.locator("#map img, #output b").count() == 0


@pytest.mark.parametrize("page", [{"viewport": {"width": 360, "height": 740}, "has_touch": True}], indirect=True)
def test_a_phone_shows_it_without_scrolling_sideways(page: Any) -> None:
    ask(page, "bahdanau", TEXT)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for button in page.locator("form button, form select, form textarea").all():
        box = button.bounding_box()
        assert box is None or box["height"] >= 36


@pytest.mark.parametrize("page", [{"color_scheme": "dark"}], indirect=True)
def test_dark_and_keyboard_only(page: Any) -> None:
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, dark[4:-1].split(","))) < 150
    page.keyboard.press("Tab")  # the link to the interface
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type(TEXT)
    page.keyboard.press("Enter")
    answered(page)
    assert page.text_content("#output") == "VERB DET NOUN PUNCT"


def test_the_documentation_needs_no_script(browser: Any, server: Process) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 360, "height": 740})
    page = context.new_page()
    page.goto(f"{server.address}/docs")
    assert "POST /v1/predict" in page.text_content("main")
    context.close()
