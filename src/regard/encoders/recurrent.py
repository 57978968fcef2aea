"""The recurrent encoder: one state for every source position."""

from jaxtyping import Bool, Float
from torch import Tensor

from regard.encoders.core import Encoder
from regard.kernels.dropout import dropout
from regard.layers.recurrence import Recurrence
from regard.maps import TEXT, Layout
from regard.sources import Front
from regard.types import Memory


class RecurrentEncoder(Encoder):
    """Bahdanau et al. 2015, 3.2: recurrent layers, bidirectional or not; all states of the top layer are the memory."""

    def __init__(self, embedding: Front, recurrence: Recurrence, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.recurrence = recurrence
        self.dropout = dropout
        self.dim, self.layers, self.cell_dim = recurrence.dim, recurrence.layers, recurrence.cell_dim

    def read(
        self, vectors: Float[Tensor, "batch source word"], mask: Bool[Tensor, "batch source"], layout: Layout = TEXT
    ) -> Memory:
        """Encode the vectors; padding does not change the other states, and its own are zero and masked."""
        states, summary = self.recurrence.read(dropout(vectors, self.dropout, self.training), mask)
        return Memory(dropout(states, self.dropout, self.training), mask, summary, layout)
