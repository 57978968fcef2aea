"""Starts: how the first state of a recurrent decoder is computed from the encoder's final state."""

from abc import ABC, abstractmethod

import torch
from torch import nn

from regard.encoders import Layered
from regard.errors import RecipeError
from regard.types import Recurrent


class Start(ABC, nn.Module):
    """Base class of starts: computes a decoder's first state from the encoder's summary of the source.

    The summary is the final state of a recurrent encoder, and the mean of the states of a Transformer encoder.

    `decoder` gives the sizes of the decoder's recurrent layers, `encoder` those of the encoder.
    """

    def __init__(self, decoder: Layered, encoder: Layered) -> None:
        super().__init__()
        self.layers, self.dim, self.cell_dim = decoder.layers, decoder.dim, decoder.cell_dim

    @abstractmethod
    def forward(self, summary: Recurrent) -> Recurrent:
        """Returns the decoder's state before its first token; `summary` is the encoder's."""


class Bridge(Start):
    """Bahdanau et al. 2015, A.2.2:  s_0 = tanh(W summary + b), with its own W for each decoder layer."""

    def __init__(self, decoder: Layered, encoder: Layered) -> None:
        super().__init__(decoder, encoder)
        self.hidden = nn.Linear(encoder.dim, decoder.layers * decoder.dim)
        self.cell = nn.Linear(encoder.dim, decoder.layers * decoder.cell_dim) if decoder.cell_dim else None

    def forward(self, summary: Recurrent) -> Recurrent:
        """Projects the hidden state of the encoder's top layer."""
        top = summary.hidden[:, -1]
        hidden = torch.tanh(self.hidden(top)).unflatten(-1, (self.layers, -1))
        cell = torch.tanh(self.cell(top)).unflatten(-1, (self.layers, -1)) if self.cell else None
        return Recurrent(hidden, cell)


class Last(Start):
    """Sutskever et al. 2014: the encoder's final state, copied layer by layer; both must have the same shape."""

    def __init__(self, decoder: Layered, encoder: Layered) -> None:
        super().__init__(decoder, encoder)
        shapes = [(part.layers, part.dim, part.cell_dim) for part in (encoder, decoder)]
        if shapes[0] != shapes[1]:
            raise RecipeError(
                "the start 'last' hands the encoder's state over as it is, so layers, dim and cell must agree, "
                f"but (layers, dim, cell width) are {shapes[0]} and {shapes[1]}; choose 'bridge' for unequal ones"
            )

    def forward(self, summary: Recurrent) -> Recurrent:
        """Returns the encoder's final state unchanged."""
        return summary


class Zeros(Start):
    """A state of zeros, which carries no information about the source."""

    def forward(self, summary: Recurrent) -> Recurrent:
        """Returns zeros for every source."""
        zeros = summary.hidden.new_zeros
        shape = summary.hidden.shape[0], self.layers
        return Recurrent(zeros(*shape, self.dim), zeros(*shape, self.cell_dim) if self.cell_dim else None)


STARTS: dict[str, type[Start]] = {
    "bridge": Bridge,
    "last": Last,
    "zeros": Zeros,
}
