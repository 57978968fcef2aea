"""What maps may cost beside what words cost: terms of a loss, each summed over a batch."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Map = Float[Tensor, "batch tokens source"]
Real = Bool[Tensor, "batch tokens"]  # which rows of a map belong to a token
FORGETS = 0.9  # of a moving mean


def coverage(weights: Map, real: Real) -> Float[Tensor, ""]:
    """See et al. 2017, eq. 12:  sum over t and j of min(a_tj, c_tj), where c_tj is what key j was given before t."""
    weights = weights * real.unsqueeze(-1)
    before = weights.cumsum(1) - weights
    return torch.minimum(weights, before).sum()


def doubly_stochastic(weights: Map, real: Real, source: Bool[Tensor, "batch source"]) -> Float[Tensor, ""]:
    """Xu et al. 2015, eq. 14:  sum over keys j of (1 - sum_t a_tj)^2: in all, every key is to be looked at once."""
    given = (weights * real.unsqueeze(-1)).sum(1)
    return ((1 - given).square() * source).sum()


def guided(weights: Map, links: Float[Tensor, "batch tokens source"]) -> Float[Tensor, ""]:
    """Chen et al. 2016; Mi et al. 2016: minus the log of the weight on the keys that a token is linked with.

    Tokens without a link cost nothing.
    """
    right = (weights * links).sum(-1)
    linked = links.sum(-1) > 0
    return -right.clamp(min=torch.finfo(weights.dtype).tiny).log().masked_fill(~linked, 0.0).sum()


def drawn(
    log_prob: Float[Tensor, "batch tokens"],
    costs: Float[Tensor, "batch tokens"],
    real: Real,
    baseline: Float[Tensor, ""],
    entropy: float,
) -> Float[Tensor, ""]:
    """Xu et al. 2015, eq. 12, the score-function estimator:  -sum_t (R_t - b - lambda log p(s_t)) log p(s_t).

    R_t is the mean log-probability of the words from t on, which alone depend on the look s_t; b, the `baseline`, is
    its moving mean, and is moved here; `entropy` is lambda. Its value means nothing; its gradient is what is wanted.
    """
    costs = costs.detach() * real
    to_come = costs.flip(1).cumsum(1).flip(1) / real.flip(1).cumsum(1).flip(1).clamp(min=1)
    reward = -to_come
    advantage = reward - baseline - entropy * log_prob.detach()
    with torch.no_grad():
        baseline.lerp_((reward * real).sum() / real.sum().clamp(min=1), 1 - FORGETS)
    return -(advantage * log_prob * real).sum()
