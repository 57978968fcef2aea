"""Embedded corpora: generated, not downloaded; the same seed and size give the same corpus on every machine."""

from regard.data.corpora.clues import clues
from regard.data.corpora.core import Corpus
from regard.data.corpora.dates import dates
from regard.data.corpora.facts import facts
from regard.data.corpora.letters import copy, reverse
from regard.data.corpora.moods import moods
from regard.data.corpora.numbers import numbers
from regard.data.corpora.parts import parts
from regard.data.corpora.sentences import sentences
from regard.data.corpora.shapes import shapes
from regard.data.corpora.titles import titles
from regard.data.corpora.tones import tones
from regard.data.corpora.waves import waves

CORPORA: dict[str, Corpus] = {
    "dates": dates,
    "numbers": numbers,
    "reverse": reverse,
    "copy": copy,
    "moods": moods,
    "sentences": sentences,
    "parts": parts,
    "clues": clues,
    "facts": facts,
    "titles": titles,
    "shapes": shapes,
    "tones": tones,
    "waves": waves,
}
