"""Length and coverage penalties for the scores of hypotheses, and the ban on repeated n-grams."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import RecipeError


def length(tokens: int, exponent: float) -> float:
    """Length penalty, Wu et al. 2016, eq. 14: the divisor of the log-probability of `tokens` tokens, END included."""
    return float(((5 + tokens) / 6) ** exponent)


def coverage(attention: Float[Tensor, "tokens source"] | None, real: Bool[Tensor, " source"], weight: float) -> float:
    """Coverage penalty, Wu et al. 2016, eq. 14:  weight x sum over real sources of log min(1, attention received).

    It is at most 0. Attention below 1e-6 counts as 1e-6, so that a source position that received none gives a large
    penalty, not an infinite one.
    """
    if attention is None:
        raise RecipeError("a coverage penalty needs a decoder with attention; this model's decoder has none")
    return weight * float(attention[:, real].sum(0).clamp(min=1e-6, max=1.0).log().sum())


def forbid_repeats(
    log_probs: Float[Tensor, "rows vocabulary"], tokens: Int[Tensor, "rows length"], size: int
) -> Float[Tensor, "rows vocabulary"]:
    """Paulus et al. 2018: set words that would repeat an n-gram of that size to -inf; size 0 forbids nothing."""
    if not size or tokens.shape[1] < size:
        return log_probs
    log_probs = log_probs.clone()
    for row, written in enumerate(tokens.tolist()):
        last_words = written[len(written) - size + 1 :]
        ends = [
            written[place + size - 1]
            for place in range(len(written) - size + 1)
            if written[place : place + size - 1] == last_words
        ]
        log_probs[row, ends] = float("-inf")
    return log_probs
