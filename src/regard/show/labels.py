"""Labels as they are shown: nothing in them is invisible, nothing in them does harm."""

import unicodedata

from rich.cells import cell_len, set_cell_size

LONGEST = 24  # the letters of a label that are drawn; an SVG's cell titles tell it whole


def legible(text: str) -> str:
    """The text with all that is invisible spelled out: it can neither steer a terminal nor break XML."""
    spelled = "".join(map(_spelled, text))
    starts_with_mark = unicodedata.category(spelled[:1] or " ").startswith("M")
    return "◌" + spelled if starts_with_mark or (spelled and not cell_len(spelled)) else spelled


def _spelled(character: str) -> str:
    code, category = ord(character), unicodedata.category(character)
    if code < 32 or code == 127:
        return chr(0x2400 + min(code, 33))  # Unicode's pictures of controls; the one of DEL follows space's
    if category in ("Cc", "Cf", "Cn", "Cs", "Zl", "Zp"):
        return character.encode("unicode_escape").decode()
    return " " if category == "Zs" else character


def shown(text: str) -> str:
    """A label on an axis: legible, and its spaces can be counted."""
    return legible(text).replace(" ", "␣")


def clipped(text: str, cells: int) -> str:
    """The text, cut to so many cells of a terminal where it is longer."""
    return text if cell_len(text) <= cells else set_cell_size(text, cells - 1).rstrip() + "…"


def letters(text: str) -> list[str]:
    """The text letter by letter; a mark of no width stays with its letter."""
    parts: list[str] = []
    for character in text:
        if parts and cell_len(character) == 0:
            parts[-1] += character
        else:
            parts.append(character)
    return parts
