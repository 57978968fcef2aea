"""Search: from a decoder and a Memory to hypotheses with their attention maps."""

from regard.search.beam import beam
from regard.search.ctc import PrefixScorer
from regard.search.find import find
from regard.search.follow import check_step, checking, following
from regard.search.sample import forbid, sample, sample_batch
from regard.search.scorers import Scorer

__all__ = [
    "PrefixScorer",
    "Scorer",
    "beam",
    "check_step",
    "checking",
    "find",
    "following",
    "forbid",
    "sample",
    "sample_batch",
]
