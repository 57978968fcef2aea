"""The encoder of GNMT: one bidirectional layer, and a stack of unidirectional layers on top of it."""

from jaxtyping import Bool, Float
from torch import Tensor

from regard.encoders.core import Encoder
from regard.kernels.dropout import dropout
from regard.layers.recurrence import Cell, Recurrence, Tower, joined
from regard.maps import TEXT, Layout
from regard.sources import Front
from regard.types import Memory


class GnmtEncoder(Encoder):
    """Wu et al. 2016, 3.2: a bidirectional bottom layer, unidirectional layers above it with residual connections."""

    def __init__(
        self, embedding: Front, cell: Cell, *, dim: int, layers: int, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.bottom = Recurrence(cell, input_dim=embedding.width, dim=dim, bidirectional=True, bias=bias)
        self.tower = Tower(cell, dim=dim, context_dim=0, layers=layers - 1, dropout=dropout, bias=bias)
        self.dim, self.layers, self.cell_dim, self.dropout = dim, layers, self.bottom.cell_dim, dropout

    def read(
        self, vectors: Float[Tensor, "batch source word"], mask: Bool[Tensor, "batch source"], layout: Layout = TEXT
    ) -> Memory:
        """Encode the vectors; padding does not change the other states, and its own are zero and masked."""
        states, first = self.bottom.read(dropout(vectors, self.dropout, self.training), mask)
        states, lasts = self.tower(states, None, lambda layer, inputs, _: layer.read(inputs, mask))
        return Memory(dropout(states, self.dropout, self.training), mask, joined([first, *lasts]), layout)
