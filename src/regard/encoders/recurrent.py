"""The recurrent encoder: one state for every source token."""

from torch import nn

from regard.encoders.core import Encoder
from regard.kernels.dropout import dropout
from regard.recurrence import Recurrence
from regard.types import Memory, Padded


class RecurrentEncoder(Encoder):
    """Bahdanau et al. 2015, 3.2: reads the source, in both directions if asked, and keeps every state."""

    def __init__(self, embedding: nn.Embedding, recurrence: Recurrence, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.recurrence = recurrence
        self.dropout = dropout
        self.dim, self.layers, self.cell_dim = recurrence.dim, recurrence.layers, recurrence.cell_dim

    def forward(self, source: Padded) -> Memory:
        """Embed and read; padded positions leave zeros and are masked."""
        embedded = dropout(self.embedding(source.ids), self.dropout, self.training)
        states, summary = self.recurrence.read(embedded, source.mask)
        states = dropout(states, self.dropout, self.training)
        return Memory(states, source.mask, summary)
