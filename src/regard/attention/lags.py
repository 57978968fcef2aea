"""Attention by location to earlier values of a series: the weights depend on the state alone, there are no keys."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.core import Attended
from regard.attention.normalizers import softmax
from regard.kernels.linear import Linear


class LagMixture(nn.Module):
    """Luong et al. 2015, eq. 8, attention by location:  a_t = softmax(W h_t), a weight for each lag.

    The values are those of the series itself, `lag` steps before t. A missing one gets no weight. One more entry of the
    softmax has no value: its weight copies nothing.
    """

    def __init__(self, dim: int, lags: int) -> None:
        super().__init__()
        self.out = Linear(dim, lags + 1)

    def forward(
        self,
        states: Float[Tensor, "batch steps dim"],
        values: Float[Tensor, "batch steps lags"],
        observed: Bool[Tensor, "batch steps lags"],
    ) -> Attended:
        """The sum of the lagged values with their weights, as the context (batch, steps), in float32 at least."""
        scores = self.out(states)
        mask = functional.pad(observed, (0, 1), value=True)  # the last entry copies nothing
        weights = softmax(scores.to(torch.promote_types(scores.dtype, torch.float32)), mask)[..., :-1]
        return Attended((weights * values.to(weights.dtype)).sum(-1), weights)
