"""Takes the pictures of the server's page, with models of `dates` and `shapes`.

Run it with `make figures`; runs in ./runs are used if they are there."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

import regard
from regard import storage

sys.path.insert(0, str(Path(__file__).parent))
from sources import with_palette

HERE = Path(__file__).parent
TEXT = "14 juillet 1989"
SHOTS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {  # the run, the browser, and the keys in the map
    "serve": (
        "dates",
        {"viewport": {"width": 900, "height": 1370}},
        (*["ArrowDown"] * 7, *["ArrowRight"] * 3, "Enter"),
    ),
    "serve_caption": (
        "shapes",
        {"viewport": {"width": 900, "height": 1350}, "color_scheme": "dark"},
        ("ArrowRight",) * 3,
    ),
    "serve_phone": (
        "dates",
        {"viewport": {"width": 360, "height": 1340}, "device_scale_factor": 1.5, "is_mobile": True, "has_touch": True},
        (*["ArrowDown"] * 4, *["ArrowRight"] * 14),
    ),
}


def photograph(page: Any, run: str, keys: tuple[str, ...]) -> bytes:
    """A PNG of the page after an input of the run, with a cell or word of its map chosen."""
    page.wait_for_selector("#run option", state="attached")
    page.select_option("#run", run)
    if run == "dates":
        page.fill("#text", TEXT)
        page.press("#text", "Enter")
    else:
        page.click("#examples button")
    page.wait_for_selector("#score:not(:empty)")
    page.wait_for_selector("#go:not([disabled])")
    page.wait_for_timeout(500)  # a scroll bar that appears has the map drawn anew
    page.locator("#map .picture").first.focus()
    for key in keys:
        page.keyboard.press(key)
    page.evaluate("scrollTo(0, 0)")
    return page.screenshot()


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("There is no chromium on the PATH: the pictures of the server's page stay as they were.", file=sys.stderr)
        return
    paths = {name: Path("runs") / name for name in ("dates", "shapes")}
    runs = [f"{name}={path if path.exists() else regard.train(name).path}" for name, path in paths.items()]
    command = [sys.executable, "-m", "regard", "serve", *runs, "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(server.stderr.readline, "")
        port = next(line for line in lines if line.startswith("listening")).strip().rpartition(":")[2]
        assert any(line.startswith("ready") for line in lines)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for name, (run, settings, keys) in SHOTS.items():
                page = browser.new_context(**settings).new_page()
                page.goto(f"http://127.0.0.1:{port}")
                storage.write(HERE / f"{name}.png", with_palette(photograph(page, run, keys)))
            browser.close()
    finally:
        server.terminate()
        assert server.wait(30) == 0


if __name__ == "__main__":
    main()
