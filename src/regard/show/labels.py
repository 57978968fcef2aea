"""Labels and titles of pictures: safe to show, of bounded length, and cut to the room that there is."""

import re
import unicodedata

from rich.cells import cell_len, set_cell_size

from regard import visible

LONGEST = 24  # longest label that is drawn, in terminal cells; the cell titles of an SVG have the whole label
JOINER = "\u200d"  # joins two emoji to one
# All spaces but those between two digits, as in 2026-11-18 07:00, which are plain to see.
SPACE = re.compile("(?<![0-9]) |(?<=[0-9]) (?![0-9])")
MOST_CHARACTERS = 1000  # longest text that a picture holds at all, in characters


def make_visible(text: str, most: int = MOST_CHARACTERS) -> str:
    """The text with every invisible character replaced by a visible one; it is safe in a terminal and in XML.

    Of a text with more than `most` characters the end is left out.
    """
    legible = visible.make_visible(text if len(text) <= most else text[: most - 1] + "…")
    starts_with_mark = unicodedata.category(legible[:1] or " ").startswith("M")
    return "◌" + legible if starts_with_mark or (legible and not any(map(cell_len, legible))) else legible


def shown(text: str, most: int = MOST_CHARACTERS) -> str:
    """A label for an axis: legible, and with a visible symbol for each space, except within numbers and times."""
    return SPACE.sub("␣", make_visible(text, most))


def clipped(text: str, cells: int) -> str:
    """The text, cut to at most that many terminal cells; a cut text ends with an ellipsis."""
    return text if cell_len(text) <= cells else set_cell_size(text, cells - 1).rstrip() + "…"


def letters(text: str) -> list[str]:
    """The text as a list of letters; a combining mark stays with the letter before it, a joined emoji is one letter."""
    parts: list[str] = []
    for character in text:
        if parts and (cell_len(character) == 0 or parts[-1].endswith(JOINER)):
            parts[-1] += character
        else:
            parts.append(character)
    return parts
