"""Changes the memory layout of a trained model's matrices, so that predictions on the CPU are faster."""

from torch import nn

from regard.decoders import RecurrentDecoder, TransformerDecoder
from regard.kernels.choose import takes
from regard.kernels.columns import ColumnMajorCopy, by_columns
from regard.kernels.linear import Linear
from regard.layers.recurrence import CELLS, Recurrence


def store_by_columns(model: nn.Module) -> None:
    """Store the matrices of linear layers and recurrent decoders by columns.

    On the CPU this makes products with few rows faster. The parameters stay the same objects, so that ties and the keys
    of `state_dict` stay. A tied embedding keeps its layout, because its rows are read too: the decoder gets a copy by
    columns.
    """
    for part in model.modules():
        if isinstance(part, TransformerDecoder | RecurrentDecoder) and part.out is None:
            part.columns = ColumnMajorCopy()
        if isinstance(part, Linear) and takes("columns", part, (Linear,)):
            part.weight.data = by_columns(part.weight)
        if isinstance(part, RecurrentDecoder) and takes("columns", part.lowest, (Recurrence, *CELLS.values())):
            for weight in part.lowest.rnn.parameters():
                if weight.ndim == 2:
                    weight.data = by_columns(weight)
