"""Whether attention is where it should be: the share of object words whose heaviest cell shows the object."""

from collections.abc import Sequence
from typing import NamedTuple

from regard.analysis.forced import force
from regard.data.corpora.shapes import true_cells
from regard.errors import DataError
from regard.maps import Grid
from regard.predict import Predictor
from regard.types import Example


class Grounding(NamedTuple):
    """How often the heaviest cell of a word that names objects is one of their true cells."""

    share: float
    chance: float  # the share that cells drawn at random would have
    words: int  # that name objects


def grounding(predictor: Predictor, examples: Sequence[Example]) -> Grounding:
    """Measures the attention of a run on scenes of the corpus shapes, while it writes their right captions."""
    right, chance, words = 0, 0.0, 0
    for example, forced in zip(examples, force(predictor, examples), strict=True):
        if forced.map is None or not isinstance(forced.map.layout, Grid):
            raise DataError("this run has no attention to the cells of a picture; take a run of source = picture")
        grid, attention = forced.map.layout, forced.map.words()
        for word, cells in true_cells(example.source, grid.height, grid.width).items():
            right += int(attention.weights[word].argmax()) in cells
            chance += len(cells) / (grid.height * grid.width)
            words += 1
    return Grounding(right / max(1, words), chance / max(1, words), words)
