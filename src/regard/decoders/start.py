"""How a recurrent decoder starts from what the encoder leaves."""

import torch
from torch import nn

from regard.recurrence import Recurrence
from regard.types import Recurrent


class Bridge(nn.Module):
    """Bahdanau et al. 2015, A.2.2:  s_0 = tanh(W summary), for each layer of the decoder its own W."""

    def __init__(self, recurrence: Recurrence, *, summary_dim: int) -> None:
        super().__init__()
        self.layers = recurrence.layers
        self.hidden = nn.Linear(summary_dim, recurrence.layers * recurrence.dim)
        self.cell = nn.Linear(summary_dim, recurrence.layers * recurrence.dim) if recurrence.has_cell else None

    def forward(self, summary: Recurrent) -> Recurrent:
        """The decoder's state before its first token, from the hidden state of the encoder's top layer."""
        top = summary.hidden[:, -1]
        hidden = torch.tanh(self.hidden(top)).unflatten(-1, (self.layers, -1))
        cell = torch.tanh(self.cell(top)).unflatten(-1, (self.layers, -1)) if self.cell else None
        return Recurrent(hidden, cell)
