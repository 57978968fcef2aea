"""The Transformer's encoder: every token looks at every other."""

import math

from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.positions import Positions
from regard.encoders.core import Encoder
from regard.kernels.dropout import dropout
from regard.transformer import Around, FeedForward, Shape, start_weights
from regard.types import Memory, Padded, Recurrent


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention, self.around_attention = shape.self_attention(), Around(shape)
        self.feed, self.around_feed = FeedForward(shape), Around(shape)

    def forward(
        self,
        states: Float[Tensor, "batch source dim"],
        mask: Bool[Tensor, "batch 1 1 source"],
        bias: Float[Tensor, "heads source source"] | None,
        positions: Positions,
    ) -> Float[Tensor, "batch source dim"]:
        """Every state with what it saw in the others."""
        looked, _ = self.attention(self.around_attention.enter(states), mask=mask, bias=bias, positions=positions)
        states = self.around_attention.leave(states, looked)
        return self.around_feed.leave(states, self.feed(self.around_feed.enter(states)))


class TransformerEncoder(Encoder):
    """Vaswani et al. 2017, 3.1: layers of self-attention over the words and their positions."""

    layers = 1  # of the summary it leaves to recurrent decoders
    cell_dim = None

    def __init__(self, embedding: nn.Embedding, shape: Shape) -> None:
        super().__init__()
        self.stack = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.layers))
        self.norm = shape.last_norm()
        start_weights(self)
        self.positions = shape.placed(onward=False)
        self.embedding = embedding
        self.dim, self.dropout = shape.dim, shape.dropout

    def forward(self, source: Padded) -> Memory:
        """Embed, then layer by layer; the summary is the mean of all states."""
        words = self.embedding(source.ids) * math.sqrt(self.dim)
        states = dropout(self.positions.embed(words, 0), self.dropout, self.training)
        length = source.ids.shape[1]
        bias = self.positions.bias(length, length, 0)
        for layer in self.stack:
            states = layer(states, source.mask[:, None, None], bias, self.positions)
        states = self.norm(states).masked_fill(~source.mask.unsqueeze(-1), 0.0)
        mean = states.sum(1, keepdim=True) / source.mask.sum(-1).clamp(min=1)[:, None, None]
        return Memory(states, source.mask, Recurrent(mean, None))
