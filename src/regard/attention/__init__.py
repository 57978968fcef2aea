"""Query x keys -> context, with the weights that made it."""

from regard.attention.core import Attended, Attention, Past, Score, attend
from regard.attention.heads import MultiHead
from regard.attention.normalizers import NORMALIZERS
from regard.attention.scopes import SCOPES
from regard.attention.scores import SCORES

__all__ = ["NORMALIZERS", "SCOPES", "SCORES", "Attended", "Attention", "MultiHead", "Past", "Score", "attend"]
