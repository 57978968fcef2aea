"""Edit distances (Levenshtein) and longest common subsequences of two sequences."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

CACHED_TOKENS = 256  # of a text, whose places are kept while its edits are counted


class EditRow(NamedTuple):
    """A row of the table of Levenshtein distances, as differences: bit j stands for token j of the reference.

    `D[i][j]` is the distance between the first i tokens of the output and the first j of the reference.
    """

    diagonal: int  # bit j: D[i][j + 1] equals D[i - 1][j]; else it is larger by one
    up: int  # bit j: D[i][j + 1] is D[i][j] + 1
    down: int  # bit j: D[i][j + 1] is D[i][j] - 1


def edit_rows(output: Sequence[str], reference: Sequence[str]) -> Iterator[EditRow]:
    """Yields the rows of the table of Levenshtein distances of two sequences, the row before the first token first.

    Myers 1999, in the form of Hyyrö 2003: each row is computed from the one before by operations on integers of one bit
    for each token of the reference, which compute all distances of the row at once.
    """
    every = (1 << len(reference)) - 1
    positions = _positions(reference)
    row = EditRow(0, every, 0)
    yield row
    for token in output:
        equal = positions(token) | row.down
        diagonal = ((((equal & row.up) + row.up) ^ row.up) | equal) & every
        grown = ((row.down | (every ^ (diagonal | row.up))) << 1) | 1  # bit j: D[i][j] is D[i - 1][j] + 1
        shrunk = (diagonal & row.up) << 1  # bit j: D[i][j] is D[i - 1][j] - 1
        row = EditRow(diagonal, (shrunk | (every ^ (diagonal | grown))) & every, diagonal & grown)
        yield row


def _positions(tokens: Sequence[str]) -> Callable[[str], int]:
    """A function that returns the places of a token as the bits of an integer."""
    places: dict[str, list[int]] = {}
    for place, token in enumerate(tokens):
        places.setdefault(token, []).append(place)

    @lru_cache(CACHED_TOKENS)
    def positions(token: str) -> int:
        bits = bytearray(len(tokens) // 8 + 1)
        for place in places.get(token, ()):
            bits[place // 8] |= 1 << place % 8
        return int.from_bytes(bits, "little")

    return positions


def edit_distance(output: Sequence[str], reference: Sequence[str]) -> int:
    """The Levenshtein distance between two sequences, of words or of characters."""
    shorter, longer = sorted((output, reference), key=len)  # few rows of many bits are faster than the reverse
    for row in edit_rows(shorter, longer):
        last = row
    return len(shorter) + last.up.bit_count() - last.down.bit_count()


def common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence.

    Hyyrö 2004: each row of the table of lengths is an integer with one bit for each token of the longer sequence, which
    is 0 if the length grows at this token.
    """
    shorter, longer = sorted((one, other), key=len)
    positions = _positions(longer)
    row = every = (1 << len(longer)) - 1
    for token in shorter:
        equal = row & positions(token)
        row = ((row + equal) | (row - equal)) & every
    return len(longer) - row.bit_count()
