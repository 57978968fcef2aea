"""The distance of a note's time in a map from its onset."""

from collections.abc import Sequence

import pytest
import torch

from regard.analysis import timing as measured
from regard.data.corpora.tones import note_times
from regard.errors import DataError
from regard.maps import AttentionMap, Frames, Grid, Layout
from regard.types import Example, Prediction

POSITION = 0.05  # seconds
MELODIES = [Example("tones:7:C4-E4-G4", "C4 E4 G4"), Example("tones:9:A4-A4-B5-D4", "A4 A4 B5 D4")]


def force_with(late: int, layout: Layout):
    """Forced decoding whose attention is `late` positions after the position that has the onset."""

    def force(predictor: object, examples: Sequence[Example]) -> list[Prediction]:
        return [Prediction(e.source, e.target, 0.0, tuple(e.target.split()), draw(e)) for e in examples]

    def draw(example: Example) -> AttentionMap:
        onsets = [round(times.onset / POSITION) + late for times in note_times(example.source)]
        weights = torch.nn.functional.one_hot(torch.tensor([*onsets, 0]), max(onsets) + 3).float()
        columns = tuple(map(str, range(weights.shape[1])))
        return AttentionMap(weights, (*example.target.split(), "</s>"), columns, layout)

    return force


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_later_map_has_a_larger_error(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "force", force_with(late, Frames(POSITION)))
    seconds, positions, notes = measured.timing(None, MELODIES)  # type: ignore[arg-type]
    assert notes == 7
    assert positions == pytest.approx(seconds / POSITION)
    assert abs(positions - late) <= 0.5


def test_a_map_over_a_picture_has_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "force", force_with(0, Grid(1, 1)))
    with pytest.raises(DataError, match=r"no attention to the times of a recording; take a run of source = speech"):
        measured.timing(None, MELODIES)  # type: ignore[arg-type]
