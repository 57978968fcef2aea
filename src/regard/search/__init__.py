"""Search: from a decoder and a Memory to hypotheses with their attention maps."""

from regard.search.beam import beam
from regard.search.ctc import PrefixScorer
from regard.search.find import find
from regard.search.sample import sample
from regard.search.scorers import Scorer

__all__ = ["PrefixScorer", "Scorer", "beam", "find", "sample"]
