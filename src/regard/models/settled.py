"""A model that has learned, laid out for being asked."""

from jaxtyping import Float
from torch import Tensor, nn

from regard.decoders import RecurrentDecoder, TransformerDecoder
from regard.kernels.choose import is_unchanged
from regard.kernels.linear import Linear


def settle(model: nn.Module) -> None:
    """Lay the matrices of linear layers and recurrent decoders out by columns: products with few rows are faster so.

    That is on the CPU. A word's vector is read by rows; a matrix that both embeds and predicts words gets a twin that
    predicts.
    """
    for part in list(model.modules()):
        if isinstance(part, TransformerDecoder | RecurrentDecoder) and part.out is None:
            count, dim = part.embedding.weight.shape
            part.out = Linear(dim, count, bias=False, device="meta")
            part.out.weight = nn.Parameter(part.embedding.weight.detach())
    for part in model.modules():
        if isinstance(part, Linear) and is_unchanged(part, Linear):
            part.weight = _by_columns(part.weight)
        if isinstance(part, RecurrentDecoder) and part.lowest.is_unchanged():
            rnn = part.lowest.rnn
            for name, weight in list(rnn.named_parameters()):
                setattr(rnn, name, _by_columns(weight) if weight.ndim == 2 else weight)


def _by_columns(weight: Float[Tensor, "out in"]) -> nn.Parameter:
    return nn.Parameter(weight.detach().t().contiguous().t())
