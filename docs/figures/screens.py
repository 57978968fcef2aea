"""Draws the pictures of the terminal and of the HTML page: trains `dates` in a terminal, looks at one date, and opens
the page in chromium. Run it with `make figures`."""

import fcntl
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from regard import storage

HERE = Path(__file__).parent
COMMANDS = ("regard train dates", "regard look runs/dates '14 juillet 1989' -o map.html")
COLUMNS = 114
WIDTH, HEIGHT, SHARPNESS = 860, 860, 1.5  # of the page in pixels, and pixels of the picture for each of them

# The format of a picture by rich, with fonts that machines have: the one that rich brings loads its font from a server.
PICTURE = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px;
}}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def output(command: str, folder: Path) -> str:
    """All that a command of regard writes to a terminal, with its control sequences."""
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    words = [sys.executable, "-m", *shlex.split(command)]
    process = subprocess.Popen(words, cwd=folder, env=environment, stdin=end, stdout=end, stderr=end)
    os.close(end)
    parts = []
    while part := _read(terminal):
        parts.append(part)
    os.close(terminal)
    if process.wait() != 0:
        raise RuntimeError(f"{command} ended with exit code {process.returncode}")
    return b"".join(parts).decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # on Linux, the end of the output
        return b""


def screen(written: str) -> str:
    """The lines that stay on a terminal: bars that were erased or drawn over are gone; colours are kept."""
    lines: list[list[tuple[str, str]]] = [[]]  # of each cell its style and its character
    row, column, style = 0, 0, ""
    for sequence, number, letter, character in re.findall(r"(\x1b\[([\d;?]*)([A-Za-z]))|(.)", written, re.S):
        if letter == "m":
            style = "" if number in ("", "0") else style + sequence
        elif letter == "A":
            row -= int(number or 1)
        elif letter == "K":
            lines[row] = []
        elif character == "\r":
            column = 0
        elif character == "\n":
            row += 1
            lines += [[]] * (row == len(lines))
        elif character:
            lines[row] += [("", " ")] * (column - len(lines[row]))
            lines[row][column : column + 1] = [(style, character)]
            column += 1
    return "\n".join("".join(_sequence(*cell) for cell in line) for line in lines).rstrip("\n")


def _sequence(style: str, character: str) -> str:
    return f"{style}{character}\x1b[0m" if style else character


def shortened(text: str) -> str:
    """The output of a training without its validations between the first and the last; a line says so."""
    _, second, *_, last = (found.start() for found in re.finditer(r"^update \d+ of ", text, re.M))
    left_out = text.count("\nupdate ", second - 1, last - 1)
    note = f"  \x1b[2m(... {left_out} more validations, left out of this picture ...)\x1b[0m"
    return f"{text[:second]}{note}\n{text[last:]}"


def picture(texts: list[str]) -> str:
    """An SVG of a terminal with these lines."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for text in texts:
        console.print(Text.from_ansi(text))
    return console.export_svg(title="regard", theme=SVG_EXPORT_THEME, code_format=PICTURE, unique_id="terminal")


def photograph(
    chromium: str, page: Path, folder: Path, width: int = WIDTH, height: int = HEIGHT, place: str = ""
) -> bytes:
    """A PNG of a page as chromium draws it; `place` is the end of its address, such as #heads."""
    alone = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    drawing = (
        "--force-prefers-reduced-motion",
        f"--window-size={width},{height}",
        f"--force-device-scale-factor={SHARPNESS}",
        "--hide-scrollbars",
    )
    files = (f"--screenshot={folder / 'page.png'}", f"--user-data-dir={folder / 'profile'}", page.as_uri() + place)
    subprocess.run([chromium, *alone, *drawing, *files], check=True, capture_output=True, timeout=120)
    return (folder / "page.png").read_bytes()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trained, shown = (screen(output(command, folder)) for command in COMMANDS)
        prompts = [f"\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m" for command in COMMANDS]
        texts = [prompts[0], shortened(trained), "", prompts[1], shown]
        storage.write(HERE / "terminal.svg", picture(texts).encode())
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        if chromium is None:
            sys.exit("There is no chromium on the PATH: the picture of the HTML page stays as it was.")
        storage.write(HERE / "page.png", photograph(chromium, folder / "map.html", folder))


if __name__ == "__main__":
    main()
