"""Hostile labels and titles in a real browser: scripts, handlers, closing tags and links in them run nothing."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from browsing import path_of_chromium
from regard.maps import AttentionMap
from regard.show.maps import draw

CODE = "document.documentElement.setAttribute('owned','')"
HOSTILE = (
    f"</title><script>{CODE}</script>",
    f"</text></svg><script>{CODE}</script>",
    f'<svg onload="{CODE}">',
    f'" onload="{CODE}" onmouseover="{CODE}" x="',
    f"' onload='{CODE}",
    f'<a href="javascript:{CODE}">x</a>',
    f"javascript:{CODE}",
    f"]]><script>{CODE}</script><![CDATA[",
    f"<foreignObject><iframe srcdoc='<script>parent.{CODE}</script>'/></foreignObject>",
    f"--><script>{CODE}</script><!--",
    f"&lt;script&gt;{CODE}&lt;/script&gt;&#60;script&#62;",
    f"<!ENTITY x '{CODE}'>&x;",
    f"\u2028</script><script>{CODE}</script>",
    f'<image href=x onerror="{CODE}"/>',
)
# Every handler and link of the page is used, as somebody could who looks at the map.
TOUCH = """
for (const element of document.querySelectorAll("*")) {
  for (const kind of ["mouseover", "pointermove", "focus", "click", "load", "error"]) {
    element.dispatchEvent(new Event(kind));
  }
}
"""


def browse(folder: Path, name: str, content: bytes) -> str:
    """The document after chromium has opened it, as text."""
    file = folder / name
    file.write_bytes(content)
    flags = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
    place = (f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=1000", "--dump-dom", file.as_uri())
    command = [path_of_chromium(), "--headless", *flags, "--disable-component-update", *place]
    return subprocess.run(command, capture_output=True, check=True, timeout=120, text=True).stdout


def touched(ending: str, content: bytes) -> bytes:
    """The picture with a script of the test at its end; a page goes without its policy, which forbids all scripts."""
    text = re.sub('<meta http-equiv="Content-Security-Policy" content=".*?">', "", content.decode())
    end = "</svg>" if ending == ".svg" else "</body>"
    script = f"<script>{TOUCH}document.documentElement.setAttribute('touched', '')</script>"
    before, _, after = text.rpartition(end)
    return f"{before}{script}{end}{after}".encode()


@pytest.mark.parametrize("ending", [".svg", ".html"])
@pytest.mark.parametrize("size", [len(HOSTILE), 450], ids=["small", "large"])
def test_labels_and_titles_run_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None], ending: str, size: int
) -> None:
    record_property("hostile labels in a browser", len(HOSTILE))
    labels = (HOSTILE * size)[:size]
    attention = AttentionMap(torch.eye(size), labels, labels)
    drawing = draw(attention, ending, "".join(HOSTILE))
    document = browse(tmp_path, f"map{ending}", touched(ending, drawing))
    root = re.search("<(?:svg|html)[^>]*>", document)
    assert root is not None, document[:500]
    assert "touched" in root[0]  # so the document is whole, and scripts could run
    assert "owned" not in re.sub('aria-label="[^"]*"', "", root[0])
