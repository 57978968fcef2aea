"""Letter encoders: compute a vector of a word from its letters, which helps with words outside of the vocabulary."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.kernels.choose import takes
from regard.layers.recurrence import Recurrence
from regard.types import PAD, Padded


@dataclass(frozen=True)
class Spelled(Padded):
    """Padded rows of words, with the padded letters of each word."""

    letters: Int[Tensor, "batch length letters"]


class Letters(ABC, nn.Module):
    """Base class of letter encoders; `size` counts the known letters, `dim` is the width of a word's vector."""

    def __init__(self, size: int, *, embedding: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, embedding, padding_idx=PAD)
        self.dim = dim

    def forward(self, source: Spelled) -> Float[Tensor, "batch length dim"]:
        """A vector for every word, and zeros at padding."""
        if source.mask.is_meta or takes("padded_letters", self):
            return self.read_padded(source)
        letters = source.letters[source.mask]
        vectors = self.read(self.embedding(letters), letters != PAD)
        real = source.mask.unsqueeze(-1).expand(*source.mask.shape, self.dim)
        return torch.zeros_like(real, dtype=vectors.dtype).masked_scatter(real, vectors)

    def read_padded(self, source: Spelled) -> Float[Tensor, "batch length dim"]:
        """`forward` without indexing by the mask, which reads it on the host: so a CUDA graph can capture it.

        The vectors of padding are computed too, from no letters, and then set to zero.
        """
        letters = source.letters.flatten(0, 1)
        vectors = self.read(self.embedding(letters), letters != PAD).unflatten(0, source.mask.shape)
        return vectors.masked_fill(~source.mask.unsqueeze(-1), 0.0)

    @abstractmethod
    def read(
        self, letters: Float[Tensor, "words letters letter"], mask: Bool[Tensor, "words letters"]
    ) -> Float[Tensor, "words dim"]:
        """Compute the vector of each word from the embeddings of its letters.

        Every word has at least one letter. Padding may be given too: it has none, and its vectors and their gradients
        must be finite.
        """


class ConvolutionalLetters(Letters):
    """Kim et al. 2016; Ma and Hovy 2016: convolutions over the letters; the maximum of each filter over the word."""

    WIDTHS = (3, 5)  # letters that a filter covers; each width has half of the filters

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
        """The maximum of each filter over the positions of the word.

        Padding is set to 0, which never exceeds a real output, because outputs after the relu are at least 0.
        """
        outputs = torch.cat([convolution(letters.transpose(1, 2)) for convolution in self.filters], dim=1)
        return (functional.relu(outputs) * mask.unsqueeze(1)).amax(-1)


class RecurrentLetters(Letters):
    """Ling et al. 2015; Lample et al. 2016: the final states of a bidirectional LSTM over the letters."""

    def __init__(self, size: int, *, embedding: int, dim: int) -> None:
        super().__init__(size, embedding=embedding, dim=dim)
        self.recurrence = Recurrence(nn.LSTM, input_dim=embedding, dim=dim, bidirectional=True)

    def read(
        self, letters: Float[Tensor, "words letters letter"], mask: Bool[Tensor, "words letters"]
    ) -> Float[Tensor, "words dim"]:
        """The final states of both directions, concatenated."""
        _, summary = self.recurrence.read(letters, mask)
        return summary.hidden.squeeze(1)


LETTERS: dict[str, type[Letters]] = {
    "convolutional": ConvolutionalLetters,
    "recurrent": RecurrentLetters,
}
