"""Loss terms of the attention weights, added to the loss of the words; each is summed over a batch."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Map = Float[Tensor, "batch tokens source"]
Real = Bool[Tensor, "batch tokens"]  # True for rows of a map that belong to a token, False for padding
FORGETS = 0.9  # decay of the moving mean of the reward


def coverage(weights: Map, real: Real) -> Float[Tensor, ""]:
    """See et al. 2017, eq. 12:  sum over t and j of min(a_tj, c_tj), where c_tj is the sum of a_sj over all s < t."""
    weights = weights * real.unsqueeze(-1)
    before = weights.cumsum(1) - weights
    return torch.minimum(weights, before).sum()


def doubly_stochastic(weights: Map, real: Real, source: Bool[Tensor, "batch source"]) -> Float[Tensor, ""]:
    """Xu et al. 2015, eq. 14:  sum_j (1 - sum_t a_tj)^2, so that each key's weights sum to one over all steps."""
    totals = (weights * real.unsqueeze(-1)).sum(1)
    return ((1 - totals).square() * source).sum()


def guided(weights: Map, links: Float[Tensor, "batch tokens source"]) -> Float[Tensor, ""]:
    """Chen et al. 2016; Mi et al. 2016: minus the log of the weight on linked keys,  -sum_t log sum_j l_tj a_tj.

    Tokens without a link add nothing.
    """
    linked_weight = (weights * links).sum(-1)
    linked = links.sum(-1) > 0
    return -linked_weight.clamp(min=torch.finfo(weights.dtype).tiny).log().masked_fill(~linked, 0.0).sum()


def reinforce(
    log_prob: Float[Tensor, "batch tokens"],
    costs: Float[Tensor, "batch tokens"],
    real: Real,
    baseline: Float[Tensor, ""],
    entropy: float,
) -> Float[Tensor, ""]:
    """Xu et al. 2015, eq. 12, REINFORCE for hard attention:  -sum_t (R_t - b - lambda log p(s_t)) log p(s_t).

    s_t is the key sampled at step t. The reward R_t is the mean log-probability of the words from t on, since only they
    depend on s_t. b, the `baseline`, is the moving mean of the reward; it is updated here, in place. `entropy` is
    lambda, the weight of the entropy bonus. Only the gradient of this term has a meaning (score-function estimator).
    """
    costs = costs.detach() * real
    reward = -(costs.flip(1).cumsum(1).flip(1) / real.flip(1).cumsum(1).flip(1).clamp(min=1))
    advantage = reward - baseline - entropy * log_prob.detach()
    with torch.no_grad():
        baseline.lerp_((reward * real).sum() / real.sum().clamp(min=1), 1 - FORGETS)
    return -(advantage * log_prob * real).sum()
