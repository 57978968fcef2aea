"""A model that has learned, laid out for being asked."""

from torch import nn

from regard.decoders import TransformerDecoder
from regard.kernels.linear import Linear


def settle(model: nn.Module) -> None:
    """Lay the matrices of its linear layers out by columns: on the CPU, products with few rows are faster so.

    A word's vector is read by rows; a matrix that both embeds and predicts words gets a twin that predicts.
    """
    for part in list(model.modules()):
        if isinstance(part, TransformerDecoder) and part.out is None:
            count, dim = part.embedding.weight.shape
            part.out = Linear(dim, count, bias=False, device="meta")
            part.out.weight = nn.Parameter(part.embedding.weight.detach())
    for part in model.modules():
        if isinstance(part, Linear):
            part.weight = nn.Parameter(part.weight.detach().t().contiguous().t())
