"""No encoder: the decoder attends to the vectors of the source themselves."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.encoders.core import Encoder
from regard.kernels.dropout import dropout
from regard.maps import TEXT, Layout
from regard.sources import Front
from regard.types import Memory, Recurrent


class DirectEncoder(Encoder):
    """Xu et al. 2015, 3.1.1: the vectors of the source are the memory, projected if its width is another.

    No vector depends on the others. The summary, from which a recurrent decoder starts, is their mean.
    """

    skips_holes = True
    layers = 1  # of the summary
    cell_dim = None

    def __init__(self, embedding: Front, *, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.project = nn.Identity() if embedding.width == dim else nn.Linear(embedding.width, dim)
        self.embedding = embedding
        self.dim, self.dropout = dim, dropout

    def read(
        self, vectors: Float[Tensor, "batch source word"], mask: Bool[Tensor, "batch source"], layout: Layout = TEXT
    ) -> Memory:
        """Project the vectors; states of padding are zero, and the summary is the mean of the other states."""
        states = dropout(self.project(vectors), self.dropout, self.training).masked_fill(~mask.unsqueeze(-1), 0.0)
        mean = states.sum(1, keepdim=True) / mask.sum(-1).clamp(min=1)[:, None, None]
        return Memory(states, mask, Recurrent(mean, None), layout)
