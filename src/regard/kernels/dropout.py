"""Dropout: a share of numbers is set to zero, the others grow, so that the mean stays."""

from torch import Tensor
from torch.nn import functional


def dropout(values: Tensor, share: float, training: bool) -> Tensor:
    """Srivastava et al. 2014; outside of training nothing is dropped."""
    return functional.dropout(values, share, training)
