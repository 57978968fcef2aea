"""What the letters of a word say of it: readers of spellings, for words that no vocabulary holds."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.layers.recurrence import Recurrence
from regard.types import PAD, Padded


@dataclass(frozen=True)
class Spelled(Padded):
    """Rows of words, each with its letters, which are padded too."""

    letters: Int[Tensor, "batch length letters"]


class Letters(ABC, nn.Module):
    """Reads words letter by letter; `dim` is the width of what it makes of a word."""

    def __init__(self, size: int, *, embedding: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, embedding, padding_idx=PAD)
        self.dim = dim

    def forward(self, source: Spelled) -> Float[Tensor, "batch length dim"]:
        """A vector for every word, zeros where there is none."""
        letters = source.letters.flatten(0, 1) if source.mask.is_meta else source.letters[source.mask]
        read = self.read(self.embedding(letters), letters != PAD)
        places = source.mask.unsqueeze(-1).expand(*source.mask.shape, self.dim)
        return torch.zeros_like(places, dtype=read.dtype).masked_scatter(places, read)

    @abstractmethod
    def read(
        self, letters: Float[Tensor, "words letters letter"], mask: Bool[Tensor, "words letters"]
    ) -> Float[Tensor, "words dim"]:
        """What each word's letters make of it; none is without a letter."""


class ConvolutionalLetters(Letters):
    """Kim et al. 2016; Ma and Hovy 2016: the strongest answer of each filter anywhere in the word."""

    WIDTHS = (3, 5)  # letters that a filter sees, half of the filters each

    def __init__(self, size: int, *, embedding: int, dim: int) -> None:
        super().__init__(size, embedding=embedding, dim=dim)
        narrow = dim // 2
        self.filters = nn.ModuleList(
            nn.Conv1d(embedding, count, width, padding=width // 2)
            for count, width in zip((narrow, dim - narrow), self.WIDTHS, strict=True)
            if count
        )

    def read(
        self, letters: Float[Tensor, "words letters letter"], mask: Bool[Tensor, "words letters"]
    ) -> Float[Tensor, "words dim"]:
        """Answers are at least zero, so those of padding count for nothing."""
        answers = torch.cat([each(letters.transpose(1, 2)) for each in self.filters], dim=1)
        return (functional.relu(answers) * mask.unsqueeze(1)).amax(-1)


class RecurrentLetters(Letters):
    """Ling et al. 2015; Lample et al. 2016: the last states of an LSTM in both directions."""

    def __init__(self, size: int, *, embedding: int, dim: int) -> None:
        super().__init__(size, embedding=embedding, dim=dim)
        self.recurrence = Recurrence(nn.LSTM, input_dim=embedding, dim=dim, bidirectional=True)

    def read(
        self, letters: Float[Tensor, "words letters letter"], mask: Bool[Tensor, "words letters"]
    ) -> Float[Tensor, "words dim"]:
        """The state after the last letter, and that after the first, read backwards."""
        _, summary = self.recurrence.read(letters, mask)
        return summary.hidden.squeeze(1)


LETTERS: dict[str, type[Letters]] = {
    "convolutional": ConvolutionalLetters,
    "recurrent": RecurrentLetters,
}
