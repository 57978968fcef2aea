"""Decoder + Memory -> Hypotheses with their maps."""

from regard.search.beam import beam

__all__ = ["beam"]
