"""Whether attention is when it should be: how far the times of notes, read from a map, are from their onsets."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from regard.analysis.forced import force
from regard.data.corpora.tones import note_times
from regard.errors import DataError
from regard.maps import Frames
from regard.predict import Predictor
from regard.types import Example


class Timing(NamedTuple):
    """The median distance of a note's time in the map from its onset in the recording."""

    seconds: float
    positions: float  # the same, in positions of the encoder
    notes: int


def timing(predictor: Predictor, examples: Sequence[Example]) -> Timing:
    """Measures the attention of a run on melodies of the corpus tones, while it writes their right notes.

    The time of a note is that of its heaviest position, as in `token_times`.
    """
    errors, position = [], 1.0
    for example, forced in zip(examples, force(predictor, examples), strict=True):
        if forced.map is None or not isinstance(forced.map.layout, Frames):
            raise DataError("this run has no attention to the times of a recording; take a run of source = speech")
        position, attention = forced.map.layout.seconds, forced.map.words()
        for row, (onset, _) in enumerate(note_times(example.source)):
            errors.append(abs(int(attention.weights[row].argmax()) * position - onset))
    seconds = median(errors) if errors else 0.0
    return Timing(seconds, seconds / position, len(errors))
