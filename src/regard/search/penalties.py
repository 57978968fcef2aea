"""What search makes of a log-probability before it compares hypotheses, and what it forbids."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import RecipeError


def length(tokens: int, exponent: float) -> float:
    """Wu et al. 2016, eq. 14: what a log-probability over `tokens` tokens, END included, is divided by."""
    return float(((5 + tokens) / 6) ** exponent)


def coverage(seen: Float[Tensor, "tokens source"] | None, real: Bool[Tensor, " source"], weight: float) -> float:
    """Wu et al. 2016, eq. 14:  weight x sum over real sources of log min(1, attention received); never above 0.

    What received less than a millionth counts as a millionth, so that a source nobody saw costs much, not everything.
    """
    if seen is None:
        raise RecipeError("a coverage penalty needs a model that looks; this one's order never does")
    return weight * float(seen[:, real].sum(0).clamp(min=1e-6, max=1.0).log().sum())


def forbid_repeats(
    words: Float[Tensor, "rows vocabulary"], tokens: Int[Tensor, "rows length"], size: int
) -> Float[Tensor, "rows vocabulary"]:
    """Paulus et al. 2018: no n-gram of that size is written twice, its last word gets minus infinity; 0 for none."""
    if not size or tokens.shape[1] < size:
        return words
    words = words.clone()
    for row, written in enumerate(tokens.tolist()):
        start = written[len(written) - size + 1 :]
        ends = [
            written[place + size - 1]
            for place in range(len(written) - size + 1)
            if written[place : place + size - 1] == start
        ]
        words[row, ends] = float("-inf")
    return words
