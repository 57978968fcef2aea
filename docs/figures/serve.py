"""Takes the picture of the server's page: `python docs/figures/serve.py RUN`, with a run that reads dates.

It needs the extra `serve`, playwright and chromium.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
TEXT = "14 juillet 1989"
SIZE = {"width": 900, "height": 1370}


def main() -> None:
    command = [sys.executable, "-m", "regard", "serve", f"dates={sys.argv[1]}", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        port = server.stderr.readline().strip().rpartition(":")[2]
        assert server.stderr.readline().startswith("ready")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE)
            page.goto(f"http://127.0.0.1:{port}")
            page.fill("#text", TEXT)
            page.press("#text", "Enter")
            page.wait_for_selector("#score:not(:empty)")
            page.locator("#map .picture").first.focus()
            for key in (*["ArrowDown"] * 7, *["ArrowRight"] * 3, "Enter"):
                page.keyboard.press(key)
            page.wait_for_selector("#change:not([hidden])")
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=HERE / "serve.png")
            browser.close()
    finally:
        server.terminate()
        assert server.wait(30) == 0


if __name__ == "__main__":
    main()
