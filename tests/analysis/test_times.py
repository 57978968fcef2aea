"""Times of tokens: the position of the heaviest weight of each row, in seconds."""

import pytest
import torch

from regard.analysis.times import TokenTime, token_times
from regard.errors import RecipeError
from regard.maps import AttentionMap, Frames, Grid

WEIGHTS = torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.0, 0.0, 0.4, 0.6], [0.0, 0.0, 0.0, 0.0], [0.9, 0.0, 0.1, 0.0]])
COLUMNS = ("0.00", "0.25", "0.50", "0.75")


def test_a_token_has_the_time_of_its_heaviest_position() -> None:
    attention = AttentionMap(WEIGHTS, ("one", "two", "none", "</s>"), COLUMNS, Frames(0.25))
    assert token_times(attention) == [TokenTime("one", 0.25), TokenTime("two", 0.75)]


def test_pieces_of_a_word_get_one_time_if_the_map_is_one_of_words() -> None:
    rows = ("▁thir", "teen", "▁x", "</s>")
    weights = torch.tensor([[0.0, 0.9, 0.1, 0.0], [0.0, 0.2, 0.7, 0.1], [0.0, 0.0, 0.2, 0.8], [1.0, 0.0, 0.0, 0.0]])
    attention = AttentionMap(weights, rows, COLUMNS, Frames(0.25))
    assert token_times(attention.words()) == [TokenTime("thirteen", 0.25), TokenTime("x", 0.75)]
    assert len(token_times(attention)) == 3


def test_a_map_over_something_else_has_no_times() -> None:
    attention = AttentionMap(WEIGHTS, ("a", "b", "c", "d"), COLUMNS, Grid(2, 2))
    with pytest.raises(RecipeError, match=r"times are read from maps over recordings, and .* of this map are grid"):
        token_times(attention)
