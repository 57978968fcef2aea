"""Attention: queries and keys give weights, and the weighted sum of the values is the context."""

from regard.attention.core import Attended, Attention, Past, Score, attend
from regard.attention.heads import MultiHead, SelfAttention
from regard.attention.normalizers import NORMALIZERS
from regard.attention.positions import POSITIONS
from regard.attention.scopes import SCOPES
from regard.attention.scores import SCORES

__all__ = [
    "NORMALIZERS",
    "POSITIONS",
    "SCOPES",
    "SCORES",
    "Attended",
    "Attention",
    "MultiHead",
    "Past",
    "Score",
    "SelfAttention",
    "attend",
]
