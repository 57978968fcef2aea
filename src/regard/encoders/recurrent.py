"""The recurrent encoder: one state for every source token."""

from torch import nn
from torch.nn import functional

from regard.recurrence import Recurrence
from regard.types import Memory, Padded


class RecurrentEncoder(nn.Module):
    """Bahdanau et al. 2015, 3.2: reads the source, in both directions if asked, and keeps every state."""

    def __init__(self, embedding: nn.Embedding, recurrence: Recurrence, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.recurrence = recurrence
        self.dropout = dropout
        self.dim = recurrence.dim

    def forward(self, source: Padded) -> Memory:
        """Embed and read; padded positions leave zeros and are masked."""
        embedded = functional.dropout(self.embedding(source.ids), self.dropout, self.training)
        states, summary = self.recurrence.read(embedded, source.mask)
        states = functional.dropout(states, self.dropout, self.training)
        return Memory(states, source.mask, summary)
