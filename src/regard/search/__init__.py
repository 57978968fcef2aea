"""Decoder + Memory -> Hypotheses with their maps."""

from regard.search.beam import beam
from regard.search.find import find
from regard.search.sample import sample

__all__ = ["beam", "find", "sample"]
