"""A real browser for tests: Debian's chromium, driven by Playwright.

Without it, tests that need it are skipped; if the environment has CI=true, they fail.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
OWN = ("file:", "data:", "blob:", "about:")  # addresses that are no network


def do_without(missing: str) -> NoReturn:
    """Skip a test because of what is missing; with CI=true, let it fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


def path_of_chromium() -> str:
    """The program."""
    return shutil.which("chromium") or do_without("chromium is not on the PATH: no browser to draw the page")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; it and its driver are closed at the end, because its event loop would disturb tests with their own."""
    path = path_of_chromium()
    try:
        from playwright import sync_api
    except ImportError:
        do_without("playwright, which drives the browser, is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Pages:
    """Opens pages in a browser, and remembers the errors of their scripts and their requests to a network."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.problems: list[str] = []
        self._contexts: list[Any] = []

    def open(self, content: bytes, place: str = "", **settings: Any) -> Any:
        """Open the content of a file; `settings` are those of a context, such as viewport and color_scheme."""
        file = self.folder / f"page{len(self._contexts)}.html"
        file.write_bytes(content)
        context = self.browser.new_context(**{"viewport": {"width": 1000, "height": 900}} | settings)
        self._contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda message: self.problems.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: None if request.url.startswith(OWN) else self.problems.append(request.url))
        page.goto(file.as_uri() + place)
        return page

    def close(self) -> None:
        """Close all pages."""
        for context in self._contexts:
            context.close()
