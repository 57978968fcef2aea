"""Times of tokens in a recording, read from the attention map of its transcript."""

from typing import NamedTuple

from regard.errors import RecipeError
from regard.maps import AttentionMap, Frames


class TokenTime(NamedTuple):
    """When a token of a transcript is heard."""

    token: str
    seconds: float  # from the start of the recording


def token_times(attention: AttentionMap) -> list[TokenTime]:
    """The time of each token: that of the position with the largest weight of its row, as in `AttentionMap.links`.

    It is exact to the distance of two positions, `attention.layout.seconds`. Rows of `<s>` and `</s>`, and rows without
    weight have no time. Of a map with sub-words, give `attention.words()` to get the times of words.
    """
    if not isinstance(attention.layout, Frames):
        kind = type(attention.layout).__name__.lower()
        raise RecipeError(f"times are read from maps over recordings, and the columns of this map are {kind}")
    seconds = attention.layout.seconds
    return [TokenTime(attention.rows[row], column * seconds) for column, row in attention.links()]
