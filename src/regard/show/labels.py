"""Labels made safe to show: invisible and control characters are replaced by visible ones."""

import unicodedata

from rich.cells import cell_len, set_cell_size

LONGEST = 24  # longest label that is drawn, in terminal cells; the cell titles of an SVG have the whole label


def make_visible(text: str) -> str:
    """The text with every invisible character replaced by a visible one; it is safe in a terminal and in XML."""
    visible = "".join(map(_visible, text))
    starts_with_mark = unicodedata.category(visible[:1] or " ").startswith("M")
    return "◌" + visible if starts_with_mark or (visible and not cell_len(visible)) else visible


def _visible(character: str) -> str:
    """The character itself, or a symbol or an escape for it if it is invisible."""
    code, category = ord(character), unicodedata.category(character)
    if code < 32 or code == 127:
        return chr(0x2400 + min(code, 33))  # the symbols for control characters; DEL's comes after that for space
    if category in ("Cc", "Cf", "Cn", "Cs", "Zl", "Zp"):
        return character.encode("unicode_escape").decode()
    return " " if category == "Zs" else character


def shown(text: str) -> str:
    """A label for an axis: legible, and with a visible symbol for each space."""
    return make_visible(text).replace(" ", "␣")


def clipped(text: str, cells: int) -> str:
    """The text, cut to at most that many terminal cells; a cut text ends with an ellipsis."""
    return text if cell_len(text) <= cells else set_cell_size(text, cells - 1).rstrip() + "…"


def letters(text: str) -> list[str]:
    """The text as a list of letters; a combining mark stays with the letter before it."""
    parts: list[str] = []
    for character in text:
        if parts and cell_len(character) == 0:
            parts[-1] += character
        else:
            parts.append(character)
    return parts
