"""Search: from a decoder and a Memory to hypotheses with their attention maps."""

from regard.search.beam import beam
from regard.search.find import find
from regard.search.sample import sample

__all__ = ["beam", "find", "sample"]
